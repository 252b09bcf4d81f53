//! `compile`: kernels that a compiler fuses. Alike blocks are compiled once, where the model has blocks; the search tries the model as a
//! whole where that stands (`search/whole.rs`).

use memfit_levers::Lever;

use super::{Asked, Entry, Sense, Turn};
use crate::setting::Value;

pub(super) const ENTRY: Entry =
    Entry { lever: Lever::Compile, turn: Turn::First, sense, instead_of: &[], with: &[] };

fn sense(asked: Asked<'_>) -> Sense {
    if !asked.training.optimizes {
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
