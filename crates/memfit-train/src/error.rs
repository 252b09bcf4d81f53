//! Errors of callers.

use thiserror::Error;

/// Contradiction to earlier calls.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum TrainError {
    /// A number that must be at least one.
    #[error("`{name}` is 0, but must be at least 1")]
    Zero {
        /// Name of the argument.
        name: &'static str,
    },
    /// A batch without samples.
    #[error("the batch is empty: it has no sample along its first dimension")]
    EmptyBatch,
    /// An invalid weight for a mean.
    #[error("a micro-batch's count is {count}: counts must be finite and not negative")]
    Count {
        /// Weight.
        count: f64,
    },
    /// An optimizer step without any weight.
    #[error(
        "the whole window counts nothing: every sample or token of it is ignored, so its mean is not defined"
    )]
    NothingCounted,
    /// The ranks are in different steps.
    #[error(
        "the ranks are not in the same step any more: rank {rank} is in window {window}, attempt {attempt}, this one in \
         window {own_window}, attempt {own_attempt}"
    )]
    Diverged {
        /// Rank that differs.
        rank: usize,
        /// Window.
        window: u64,
        /// Attempt.
        attempt: u32,
        /// Window of the calling rank.
        own_window: u64,
        /// Attempt of the calling rank.
        own_attempt: u32,
    },
}

impl TrainError {
    /// Advice for the user.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Zero { .. } => "leave it out to let memfit choose",
            Self::EmptyBatch => {
                "drop empty batches in the loader, or pass `batch_size=` where the first dimension is not the batch's"
            }
            Self::Count { .. } => {
                "the loss function's second value is the number of samples or tokens in the sum that it returns first"
            }
            Self::NothingCounted => {
                "leave such batches out of the loader, or skip the call of `step` for them"
            }
            Self::Diverged { .. } => {
                "call `step` equally often on every rank; give each rank's loader the same number of batches"
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_says_what_to_do() {
        let diverged = TrainError::Diverged { rank: 1, window: 6, attempt: 0, own_window: 7, own_attempt: 2 };
        for (error, said, advice) in [
            (TrainError::Zero { name: "accumulate" }, "`accumulate` is 0", "leave it out"),
            (TrainError::EmptyBatch, "no sample", "drop empty batches"),
            (TrainError::Count { count: -1.0 }, "count is -1", "number of samples or tokens"),
            (TrainError::NothingCounted, "counts nothing", "skip the call of `step`"),
            (diverged, "rank 1 is in window 6, attempt 0, this one in window 7, attempt 2", "on every rank"),
        ] {
            assert!(error.to_string().contains(said), "{error}");
            assert!(error.hint().contains(advice), "{error}: {}", error.hint());
        }
    }
}
