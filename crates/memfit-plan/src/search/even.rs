//! Equal micro-batches, if they cost almost nothing: 4 of 32 instead of 41 + 41 + 41 + 5.

use super::divide::MIN_REL_GAIN;
use super::{Search, milliseconds};
use crate::answer::Tried;
use crate::trial::{Candidate, Room, Trial};

impl<T: Trial> Search<'_, T> {
    /// Divides a plan's batch evenly: into micro-batches of one size, or otherwise into as many as before of
    /// nearly equal sizes; unchanged if that is noticeably slower.
    pub(super) fn divide_evenly(&mut self, best: Tried, batch: u64) -> Result<Tried, T::Error> {
        let slowest = milliseconds(&best.outcome) * (1.0 + MIN_REL_GAIN);
        for micro_batch in even_sizes(batch, best.candidate.micro_batch) {
            let candidate = Candidate {
                micro_batch: Some(micro_batch),
                pieces: batch.div_ceil(micro_batch),
                ..best.candidate.clone()
            };
            let Some(outcome) = self.run(&candidate, Room::Budget)? else { break };
            if outcome.fits && outcome.refused.is_empty() && milliseconds(&outcome) <= slowest {
                return Ok(Tried { candidate, outcome, on_card: true });
            }
        }
        Ok(best)
    }
}

/// Smaller sizes that divide the batch evenly, or more evenly than `micro_batch`. Empty if it divides the
/// batch already.
fn even_sizes(batch: u64, micro_batch: Option<u64>) -> Vec<u64> {
    let Some(micro_batch) = micro_batch.filter(|size| !batch.is_multiple_of(*size)) else {
        return Vec::new();
    };
    // Half the size takes twice the passes, which is not negligible.
    let exact = (micro_batch.div_ceil(2)..micro_batch).rev().find(|size| batch.is_multiple_of(*size));
    let as_many = Some(batch.div_ceil(batch.div_ceil(micro_batch))).filter(|size| *size < micro_batch);
    let mut sizes: Vec<u64> = exact.into_iter().chain(as_many).collect();
    sizes.dedup();
    sizes
}

#[cfg(test)]
mod tests {
    use super::even_sizes;

    #[test]
    fn even_sizes_are_the_exact_one_and_the_one_with_as_many_pieces() {
        assert_eq!(even_sizes(128, Some(41)), [32]);
        assert_eq!(even_sizes(128, Some(50)), [32, 43]);
        assert_eq!(even_sizes(128, Some(43)), [32]);
        assert_eq!(even_sizes(128, Some(32)), [0; 0]);
        assert_eq!(even_sizes(128, None), [0; 0]);
        assert_eq!(even_sizes(127, Some(50)), [43]);
    }
}
