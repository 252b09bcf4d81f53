//! `activation-budget`: compiled graphs keep a share of what they would keep for the backward, and compute
//! the rest again.

use memfit_vocabulary::Lever;

use super::{Asked, Entry, Sense, Turn};
use crate::setting::Value;

/// Half of it: mostly what costs a compiler little to compute again within the kernels that need it.
const HALF: u64 = 50;

pub(super) const ENTRY: Entry =
    Entry { lever: Lever::ActivationBudget, turn: Turn::WhereShort, sense, instead_of: &[], with: &[] };

fn sense(asked: Asked<'_>) -> Sense {
    let training = asked.training;
    if !training.optimizes || !(training.compiled || asked.limits.compiles) {
        return Sense::Nothing;
    }
    if training.draws {
        return Sense::Against(
            "the model draws random numbers, as dropout does, and PyTorch would draw others where a compiled graph computes them again: \
             gradients would be wrong"
                .to_owned(),
        );
    }
    Sense::Try(Value::Count(HALF))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Expected;
    use crate::search::Limits;
    use crate::trial::Training;

    #[test]
    fn a_budget_is_for_what_is_compiled_and_draws_no_random_numbers() {
        let of = |compiled: bool, compiles: bool, draws: bool| {
            let training = Training { optimizes: true, compiled, draws, ..Training::default() };
            let limits = Limits { compiles, ..Limits::default() };
            sense(Asked { training: &training, peak: &Expected::default(), limits: &limits })
        };
        assert_eq!(of(false, false, false), Sense::Nothing);
        assert_eq!(of(true, false, false), Sense::Try(Value::Count(HALF)));
        assert_eq!(of(false, true, false), Sense::Try(Value::Count(HALF)));
        assert!(matches!(of(false, true, true), Sense::Against(why) if why.contains("dropout")));
    }
}
