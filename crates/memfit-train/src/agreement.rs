//! Makes all ranks take the same decision about an optimizer step (a window of micro-batches).
//!
//! Before gradients are exchanged, each rank reports its outcome on a channel that does not use the device.
//! All ranks receive the same statuses in the same order, so that they decide alike: all step, all retry, or
//! all give up.

use crate::TrainError;

/// Outcome of a rank's part of an optimizer step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All its micro-batches ran.
    Done,
    /// Memory ran out, and there is a smaller size to try.
    Again,
    /// The rank cannot continue.
    Over,
}

/// Status that a rank reports.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Status {
    /// Number of earlier optimizer steps.
    pub window: u64,
    /// Number of earlier attempts at this window.
    pub attempt: u32,
    /// Outcome.
    pub outcome: Outcome,
    /// Total weight of the rank's micro-batches.
    pub weight: f64,
}

/// Decision of all ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    /// Exchange the gradients and step.
    Step {
        /// Total weight of all ranks' micro-batches.
        total: f64,
    },
    /// Drop the gradients and run the window again.
    Again,
    /// Give up, since a rank cannot continue.
    Over {
        /// First rank that cannot continue.
        rank: usize,
    },
}

impl Status {
    /// Number of values that encode a status.
    pub const NUMBERS: usize = 4;

    /// Encodes the status. All values are small integers or a weight, so that doubles are exact.
    pub fn encode(self) -> [f64; Self::NUMBERS] {
        let outcome = match self.outcome {
            Outcome::Done => 0.0,
            Outcome::Again => 1.0,
            Outcome::Over => 2.0,
        };
        [self.window as f64, f64::from(self.attempt), outcome, self.weight]
    }

    /// Decodes a status. An invalid outcome is read as the worst.
    pub fn decode([window, attempt, outcome, weight]: [f64; Self::NUMBERS]) -> Self {
        let outcome = match outcome as i64 {
            0 => Outcome::Done,
            1 => Outcome::Again,
            _ => Outcome::Over,
        };
        Self { window: window as u64, attempt: attempt as u32, outcome, weight }
    }
}

/// Decides for all ranks. `own` is the index of the calling rank.
///
/// Ranks may be at different attempts at the same window. A rank that runs out of memory before the last
/// batch repeats its batches by itself, since no gradients are exchanged yet.
pub fn agree(statuses: &[Status], own: usize) -> Result<Verdict, TrainError> {
    if let Some(mine) = statuses.get(own)
        && let Some((rank, other)) =
            statuses.iter().enumerate().find(|(_, other)| other.window != mine.window)
    {
        return Err(TrainError::Diverged {
            rank,
            window: other.window,
            attempt: other.attempt,
            own_window: mine.window,
            own_attempt: mine.attempt,
        });
    }
    if let Some(rank) = statuses.iter().position(|status| status.outcome == Outcome::Over) {
        return Ok(Verdict::Over { rank });
    }
    if statuses.iter().any(|status| status.outcome == Outcome::Again) {
        return Ok(Verdict::Again);
    }
    Ok(Verdict::Step { total: statuses.iter().map(|status| status.weight).sum() })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn status(outcome: Outcome, weight: f64) -> Status {
        Status { window: 7, attempt: 1, outcome, weight }
    }

    #[test]
    fn one_rank_decides_for_all() {
        use Outcome::{Again, Done, Over};
        let verdict = |outcomes: &[Outcome]| {
            agree(&outcomes.iter().map(|&outcome| status(outcome, 2.0)).collect::<Vec<_>>(), 0)
        };
        assert_eq!(verdict(&[Done, Done, Done]), Ok(Verdict::Step { total: 6.0 }));
        assert_eq!(verdict(&[Done, Again, Done]), Ok(Verdict::Again));
        assert_eq!(verdict(&[Again, Done, Over]), Ok(Verdict::Over { rank: 2 }));
    }

    #[test]
    fn ranks_in_different_windows_are_told() {
        let behind = Status { window: 6, ..status(Outcome::Done, 1.0) };
        let error = agree(&[status(Outcome::Done, 1.0), behind], 0).expect_err("they diverged");
        assert!(matches!(error, TrainError::Diverged { rank: 1, window: 6, own_window: 7, .. }));
    }

    #[test]
    fn a_status_arrives_as_it_was_sent() {
        for outcome in [Outcome::Done, Outcome::Again, Outcome::Over] {
            let sent = status(outcome, 2.5);
            assert_eq!(Status::decode(sent.encode()), sent);
        }
        assert_eq!(Status::decode([7.0, 1.0, 3.0, 2.5]), status(Outcome::Over, 2.5));
    }

    #[test]
    fn a_rank_may_have_retried_by_itself() {
        let retried = Status { attempt: 2, ..status(Outcome::Done, 1.0) };
        assert_eq!(agree(&[status(Outcome::Done, 2.0), retried], 0), Ok(Verdict::Step { total: 3.0 }));
    }

    proptest! {
        #[test]
        fn all_ranks_decide_alike(
            outcomes in prop::collection::vec((0u8..3, 0u32..1000), 1..16), window in 0u64..1 << 50, attempt in 0u32..99,
        ) {
            let statuses: Vec<Status> = outcomes
                .iter()
                .map(|&(outcome, weight)| Status {
                    window,
                    attempt,
                    outcome: [Outcome::Done, Outcome::Again, Outcome::Over][usize::from(outcome)],
                    weight: f64::from(weight),
                })
                .map(|status| Status::decode(status.encode()))
                .collect();
            let first = agree(&statuses, 0).expect("all are in one window");
            for rank in 1..statuses.len() {
                prop_assert_eq!(agree(&statuses, rank).expect("all are in one window"), first);
            }
        }
    }
}
