//! `compile`: kernels that a compiler fuses. Alike blocks are compiled once, where the model has blocks; the
//! search tries the model as a whole where that stands (`search/whole.rs`).

use memfit_vocabulary::Lever;

use super::{Asked, Entry, Sense, Turn};
use crate::setting::Value;

pub(super) const ENTRY: Entry =
    Entry { lever: Lever::Compile, turn: Turn::First, sense, instead_of: &[], with: &[] };

fn sense(asked: Asked<'_>) -> Sense {
    // What the script compiles stays compiled as it is.
    if !asked.training.optimizes || asked.training.compiled {
        return Sense::Nothing;
    }
    if !asked.limits.compiles {
        return Sense::Against(
            "not tried: each try takes as long as compiling does; `--compile` tries it".to_owned(),
        );
    }
    let blocks: Vec<String> = asked.training.blocks.iter().map(|block| block.name.clone()).collect();
    Sense::Try(if blocks.len() > 1 { Value::Names(blocks) } else { Value::default() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Expected;
    use crate::search::Limits;
    use crate::trial::Training;

    #[test]
    fn what_a_script_compiles_itself_is_not_compiled_once_more() {
        let of = |compiled: bool, compiles: bool| {
            let training = Training { optimizes: true, compiled, ..Training::default() };
            let limits = Limits { compiles, ..Limits::default() };
            sense(Asked { training: &training, peak: &Expected::default(), limits: &limits })
        };
        assert_eq!(of(false, true), Sense::Try(Value::default()));
        assert!(matches!(of(false, false), Sense::Against(why) if why.contains("--compile")));
        assert_eq!(of(true, true), Sense::Nothing);
        assert_eq!(of(true, false), Sense::Nothing);
    }
}
