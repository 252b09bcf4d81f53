//! How ranks come to one decision about a window.
//!
//! Before gradients are exchanged, each rank tells how its own part went, on a channel that does not go
//! through the device. All are given the same statuses in the same order, so all decide alike: the step is
//! done by all, tried again by all, or given up by all.

use crate::TrainError;

/// How a rank's part of a window went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All its micro-batches ran.
    Done,
    /// Memory did not suffice, and there is a smaller size to try.
    Again,
    /// It cannot go on.
    Over,
}

/// What a rank tells the others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Status {
    /// Optimizer steps before this one.
    pub window: u64,
    /// Attempts at this window before this one.
    pub attempt: u32,
    /// How it went.
    pub outcome: Outcome,
    /// What its micro-batches counted.
    pub count: f64,
}

/// What all ranks do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    /// Exchange the gradients, and step: together the ranks counted so much.
    Step {
        /// What all micro-batches of all ranks counted.
        total: f64,
    },
    /// Drop the gradients, and run the window again.
    Again,
    /// Give up: this rank cannot go on.
    Over {
        /// The first rank that said so.
        rank: usize,
    },
}

impl Status {
    /// How many numbers stand for a status.
    pub const NUMBERS: usize = 4;

    /// The numbers that travel. All are small whole numbers or a count, so nothing is lost in a double.
    pub fn encode(self) -> [f64; Self::NUMBERS] {
        let outcome = match self.outcome {
            Outcome::Done => 0.0,
            Outcome::Again => 1.0,
            Outcome::Over => 2.0,
        };
        [self.window as f64, f64::from(self.attempt), outcome, self.count]
    }

    /// Reads numbers that travelled. What is no outcome is read as the worst.
    pub fn decode([window, attempt, outcome, count]: [f64; Self::NUMBERS]) -> Self {
        let outcome = match outcome as i64 {
            0 => Outcome::Done,
            1 => Outcome::Again,
            _ => Outcome::Over,
        };
        Self { window: window as u64, attempt: attempt as u32, outcome, count }
    }
}

/// Decides for all ranks. `own` is the index of the rank that asks.
pub fn agree(statuses: &[Status], own: usize) -> Result<Verdict, TrainError> {
    if let Some(mine) = statuses.get(own)
        && let Some((rank, other)) = statuses
            .iter()
            .enumerate()
            .find(|(_, other)| (other.window, other.attempt) != (mine.window, mine.attempt))
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
    Ok(Verdict::Step { total: statuses.iter().map(|status| status.count).sum() })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn status(outcome: Outcome, count: f64) -> Status {
        Status { window: 7, attempt: 1, outcome, count }
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

    proptest! {
        #[test]
        fn all_ranks_decide_alike(
            outcomes in prop::collection::vec((0u8..3, 0u32..1000), 1..16), window in 0u64..1 << 50, attempt in 0u32..99,
        ) {
            let statuses: Vec<Status> = outcomes
                .iter()
                .map(|&(outcome, count)| Status {
                    window,
                    attempt,
                    outcome: [Outcome::Done, Outcome::Again, Outcome::Over][usize::from(outcome)],
                    count: f64::from(count),
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
