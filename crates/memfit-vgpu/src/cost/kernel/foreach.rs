//! Kernels over lists of tensors: foreach operations and fused optimizers. The first argument lists the tensors, with the
//! number of elements of each, and says for each block which piece of which tensor is its.

use super::super::Grid;
use crate::values::{Arguments, Signature, Type, type_parts};

/// A kernel over lists of tensors.
#[derive(Debug, PartialEq)]
pub(super) struct Foreach {
    /// How many lists there are.
    depth: usize,
    /// Tensors of each list that one launch has room for.
    tensors: usize,
    /// Bytes that lie between the addresses and the numbers of elements: a number for each tensor, in some operations.
    scalars: usize,
    /// Bytes that are read and written for each element.
    bytes: f64,
    /// Whether the numbers of elements are doubled by addresses of steps.
    fused: bool,
}

/// Elements of one block's piece.
const CHUNK: u64 = 65_536;
/// Blocks that one launch has room for.
const BLOCKS: usize = 320;

impl Foreach {
    /// What these kernels achieve of what long copies do.
    pub(super) const SHARE: f64 = 0.90;

    /// From a kernel's name; nothing if it is of another family.
    pub(super) fn of(signature: &Signature) -> Option<Self> {
        if signature.name() != "multi_tensor_apply_kernel" {
            return None;
        }
        let (kind, arguments) = type_parts(signature.template(0)?);
        let depth: usize = arguments.last()?.parse().ok()?;
        let (room, scalars, fused) = match kind {
            "TensorListMetadata" => ([110, 64, 48, 36, 30], 0, false),
            "TensorListScalarListMetadata" => {
                ([96, 64, 48, 36, 30], if arguments.first()?.contains("double") { 8 } else { 4 }, false)
            }
            "FusedOptimizerTensorListMetadata" => ([72, 60, 48, 36, 30], 0, true),
            _ => return None,
        };
        let tensors = *room.get(depth.checked_sub(1)?)?;
        let functor = signature.template(1)?;
        let touched = touched(functor, depth);
        Some(Self { depth, tensors, scalars, bytes: touched * Type::mentioned(functor) as f64, fused })
    }

    /// Bytes that a launch moves.
    pub(super) fn bytes(&self, grid: Grid, arguments: Arguments) -> Option<f64> {
        let after_addresses = 8 * self.depth * self.tensors;
        let (sizes, pieces) = self.layout(after_addresses);
        let blocks = (grid.blocks[0] as usize).min(BLOCKS);
        let mut elements = 0;
        for block in 0..blocks {
            let tensor = usize::from(arguments.get_at::<u8>(0, pieces + block)?);
            let piece = arguments.get_at::<i32>(0, (pieces + BLOCKS).next_multiple_of(4) + 4 * block)?;
            if tensor >= self.tensors {
                return None;
            }
            let size = arguments.get_at::<i64>(0, sizes + 8 * tensor)?;
            let before = u64::try_from(piece).ok()?.checked_mul(CHUNK)?;
            elements += u64::try_from(size).ok()?.saturating_sub(before).min(CHUNK);
        }
        Some(elements as f64 * self.bytes)
    }

    /// Where the numbers of elements are, and where the blocks' tensors.
    fn layout(&self, after_addresses: usize) -> (usize, usize) {
        let sizes = after_addresses;
        let after_sizes = sizes + 8 * self.tensors;
        let pieces = if self.fused {
            after_sizes + 8 * self.tensors
        } else {
            after_sizes + self.scalars * self.tensors
        };
        (sizes, pieces)
    }
}

/// How many elements are read or written for one element of a tensor.
fn touched(functor: &str, depth: usize) -> f64 {
    let (name, arguments) = type_parts(functor);
    // `<type, depth, lists that are read, the list that is written>`
    let numbers: Vec<usize> = arguments.iter().filter_map(|argument| argument.parse().ok()).collect();
    let (all, read) = match numbers.as_slice() {
        [_, read, _] => (depth, *read),
        _ => (depth, depth),
    };
    let written = match name {
        // Adam and SGD write all but the gradient.
        _ if name.starts_with("Fused") => all.saturating_sub(1),
        "LpNormFunctor" | "LpMaxFunctor" => 0,
        _ => 1,
    };
    (read.min(all) + written) as f64
}
