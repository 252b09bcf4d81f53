//! Fused attention: FlashAttention, the memory-efficient kernels, and their backward passes.
//!
//! The shape is in the parameter structure that is a launch's first argument; the grid, which is derived from
//! the same shape, confirms that it was read correctly. Otherwise, the operands' sizes replace it.

use memfit_channel::WorkKind;

use super::super::{
    Work, shares,
    speeds::{Math, Speeds},
};
use crate::launch::{Arguments, Grid};

/// FlashAttention 2 forward, and cuDNN's kernel, relative to a large product.
/// Source: its author measured 50 to 73 % of an A100's peak (Dao, FlashAttention-2, 2023), where
/// large products reach 83 to 85 %.
const FLASH: f64 = 0.72;
/// The same on Hopper, whose own instructions it does not use.
/// Source: 287 to 304 TFLOP/s of PyTorch's SDPA on an H100 (pytorch/benchmark at d5f0a12), and 35 % of 989
/// (Shah et al., FlashAttention-3, 2024), where large products reach 78 %.
const FLASH_ON_HOPPER: f64 = 0.42;
/// cuDNN with Hopper's own instructions.
/// Source: FlashAttention 3's authors measured about 600 of 989 TFLOP/s forward.
const GRAPH_ON_HOPPER: f64 = 0.82;
/// The memory-efficient kernels on tensor cores, relative to FlashAttention 2.
/// Source: 0.44 to 0.47 of it at 1,024 to 4,096 keys (SDPA-Flash and SDPA-MemEff in
/// github.com/NVIDIA/TileGym/pull/49), 0.45 to 0.82 (xformers in
/// github.com/Dao-AILab/flash-attention/issues/416), about half on an A40
/// (github.com/facebookresearch/xformers/issues/1074).
const EFFICIENT_TO_FLASH: f64 = 0.5;
/// The same where they are bound by ordinary cores or slow tensor cores, relative to a large product.
/// Unsourced: such a card's products are slower by more than its attention. xFormers' tables give times of a
/// V100 and a P100 as ratios alone.
const EFFICIENT_WITHOUT_TENSOR_CORES: f64 = 0.60;
/// Heads of 64 elements relative to 128.
/// Source: FlashAttention 2 on an H100 with 512 to 8,192 keys: 252 to 310 TFLOP/s (FlashAttention's pull
/// request 2688), and with 128 elements 290 to 356 (`flash_v2` in github.com/pytorch/benchmark/pull/2443):
/// 0.87 to 0.90.
const HALF_WIDTH: f64 = 0.88;
/// Gradients relative to the forward pass.
/// Source: 0.75 at 512 to 0.96 at 8,192 keys, 0.81 at 1,024 (output of FlashAttention's benchmark in
/// github.com/Dao-AILab/flash-attention/pull/2688, heads of 64 elements).
const BACKWARD: f64 = 0.82;
/// Keys in a tile on the diagonal, which is computed whole.
/// Source: kBlockN of FlashAttention's kernels (flash_fwd_launch_template.h), 64 or 128.
const DIAGONAL_TILE: f64 = 64.0;

/// Implementation of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Make {
    Flash,
    Efficient,
    /// cuDNN's own kernel for the device.
    Graph,
}

/// A fused attention kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    make: Make,
    backward: bool,
    causal: bool,
    math: Math,
}

/// Shape of the attention: scores of `queries` by `keys` for each head, with vectors of `width` elements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// Heads over all sequences.
    pub heads: f64,
    /// Queries per head.
    pub queries: f64,
    /// Keys per head.
    pub keys: f64,
    /// Elements per vector.
    pub width: f64,
    /// `true` if the parameters, not the kernel's name, declare a causal mask.
    pub causal: bool,
}

impl Attention {
    /// Recognises a kernel by its mangled name; `None` for other kernels, and those that only prepare
    /// attention.
    pub(crate) fn from_name(mangled: &str) -> Option<Self> {
        let flash = ["flash_fwd_kernel", "flash_fwd_splitkv_kernel", "flash_bwd_dq_dk_dv"];
        let efficient = ["fmha_cutlass"];
        let has = |parts: &[&str]| parts.iter().any(|part| mangled.contains(part));
        let make = if has(&flash) {
            Make::Flash
        } else if has(&efficient) {
            Make::Efficient
        } else {
            return None;
        };
        let math = match make {
            Make::Flash if mangled.contains("bfloat16") => Math::Bf16,
            Make::Flash => Math::F16,
            Make::Efficient if mangled.contains("_bf16_") => Math::Bf16,
            Make::Efficient if mangled.contains("_f16_") => Math::F16,
            Make::Efficient | Make::Graph => Math::F32,
        };
        let backward = mangled.contains("bwd") || mangled.contains("fmha_cutlassB");
        Some(Self { make, backward, causal: causal(mangled), math })
    }

    /// Creates a FlashAttention kernel for a type.
    pub(super) fn flash(math: Math, backward: bool) -> Self {
        Self { make: Make::Flash, backward, causal: false, math }
    }

    /// Creates a cuDNN graph.
    pub fn graph(math: Math, backward: bool) -> Self {
        Self { make: Make::Graph, backward, causal: false, math }
    }

    /// Duration of a launch; `operands` are the bytes that its arguments lead to.
    pub(crate) fn work(self, grid: Grid, arguments: Arguments, speeds: &Speeds, operands: &[f64]) -> Work {
        let read = match self.make {
            Make::Flash => flash(grid, arguments, self.backward),
            Make::Efficient => efficient(grid, arguments, self.backward),
            Make::Graph => None,
        };
        let moved: f64 = operands.iter().sum();
        let Some(shape) = read.or_else(|| guess_shape(grid, operands, self.element())) else {
            return Work::new(WorkKind::Guess, speeds.launch + speeds.traffic(moved, shares::UNKNOWN));
        };
        self.shape_work(shape, speeds)
    }

    /// Duration for a known shape.
    pub fn shape_work(self, shape: Shape, speeds: &Speeds) -> Work {
        // Two products forward; five backward, which recomputes the scores.
        let products = if self.backward { 5.0 } else { 2.0 };
        let mut scores = shape.queries * shape.keys;
        if self.causal || shape.causal {
            // Only the part below the diagonal, and whole tiles along it.
            scores *= f64::midpoint(1.0, DIAGONAL_TILE / shape.keys.max(DIAGONAL_TILE));
        }
        let operations = products * 2.0 * shape.heads * scores * shape.width;
        let tensors = shape.heads * shape.width * self.element() * if self.backward { 4.0 } else { 2.0 };
        let bytes = tensors * (shape.queries + shape.keys);
        let computing = operations / (speeds.rate(self.math) * self.share(speeds, shape.width));
        Work::new(WorkKind::Attention, speeds.launch + computing.max(speeds.traffic(bytes, shares::SOFTMAX)))
    }

    /// Bytes per number.
    fn element(self) -> f64 {
        if self.math == Math::F32 { 4.0 } else { 2.0 }
    }

    /// Share of the rate of a large matrix product that it reaches.
    pub(super) fn share(self, speeds: &Speeds, width: f64) -> f64 {
        let make = match (self.make, speeds.version) {
            (Make::Flash, 90..) if speeds.version < 120 => FLASH_ON_HOPPER,
            (Make::Efficient, 90..) if speeds.version < 120 => EFFICIENT_TO_FLASH * FLASH_ON_HOPPER,
            (Make::Efficient, 70..) if speeds.version != 75 => EFFICIENT_TO_FLASH * FLASH,
            (Make::Efficient, _) => EFFICIENT_WITHOUT_TENSOR_CORES,
            (Make::Graph, 90..) if speeds.version < 120 => GRAPH_ON_HOPPER,
            (Make::Flash | Make::Graph, _) => FLASH,
        };
        let narrow = if width < 64.0 {
            width / 64.0
        } else if width < 128.0 {
            HALF_WIDTH
        } else {
            1.0
        };
        make * narrow * if self.backward { BACKWARD } else { 1.0 }
    }
}

/// Returns `true` if a FlashAttention kernel's name declares a causal mask: its second flag in the forward
/// kernel, its second or third in the backward one, always after the one for dropout. The other kernels
/// declare it in their parameters.
fn causal(mangled: &str) -> bool {
    let Some(kernel) = mangled.find("flash_") else { return false };
    // The kernel's traits end with the flags `Lb0E` and `Lb1E`, one for each template argument.
    let flags: Vec<bool> = mangled[kernel..]
        .split("Lb")
        .skip(1)
        .map_while(|rest| match rest.as_bytes() {
            [b'0', b'E', ..] => Some(false),
            [b'1', b'E', ..] => Some(true),
            _ => None,
        })
        .collect();
    // The traits themselves have flags; the kernel's are the last ones.
    let own = if mangled.contains("bwd") { 7 } else { 8 };
    flags.len().checked_sub(own).and_then(|start| flags.get(start + 1)).copied().unwrap_or(false)
}

/// Upper bounds on the elements of a vector and on the length of a sequence.
const MAX_WIDTH: i32 = 1024;
const MAX_LENGTH: i32 = 1 << 26;

/// Reads FlashAttention's parameters: three addresses, nine strides, the numbers of heads; then the output's
/// addresses and strides, the scores' addresses, the batch and the lengths.
fn flash(grid: Grid, arguments: Arguments, backward: bool) -> Option<Shape> {
    const HEADS: usize = 96;
    const BATCH: usize = 176;
    let int = |offset: usize| arguments.get_at::<i32>(0, offset);
    let (heads, batch) = (int(HEADS)?, int(BATCH)?);
    let (queries, keys, width) = (int(BATCH + 4)?, int(BATCH + 8)?, int(BATCH + 16)?);
    let shape = checked(heads, batch, queries, keys, width)?;
    let [_, second, third] = grid.blocks.map(i64::from);
    let (heads, batch) = (i64::from(heads), i64::from(batch));
    // Forward: tiles, batch, heads. With split keys: tiles, parts, batch × heads. Backward: tiles, batch,
    // heads.
    let fits = (second == batch && third == heads) || third == batch * heads || (backward && third == heads);
    fits.then_some(shape)
}

/// Reads the memory-efficient kernels' parameters: after the addresses come the widths of keys and values and
/// the numbers of queries and keys, and a little later the kind of mask. The grid shows in which words:
/// forward, its first extent counts tiles of queries; backward, it counts parts of the keys, and the number
/// of heads follows the lengths.
fn efficient(grid: Grid, arguments: Arguments, backward: bool) -> Option<Shape> {
    const SEARCHED_WORDS: usize = 60;
    let [tiles, heads, batch] = grid.blocks;
    let word = |index: usize| arguments.get_at::<i32>(0, 4 * index);
    let start = if backward { 28 } else { 20 };
    for index in start..start + SEARCHED_WORDS {
        let [width, value_width, queries, keys] =
            [word(index)?, word(index + 1)?, word(index + 2)?, word(index + 3)?];
        let widths = 8..=MAX_WIDTH;
        if !widths.contains(&width) || !widths.contains(&value_width) || queries <= 0 || keys <= 0 {
            continue;
        }
        let agrees = if backward {
            i64::from(word(index + 4)?) == i64::from(heads)
        } else {
            let queries = i64::from(queries);
            queries <= i64::from(tiles) * 128 && queries > (i64::from(tiles) - 1) * 32
        };
        if agrees {
            let mask = if backward { mask_of_backward(&word, index)? } else { index + 5 };
            let causal = matches!(arguments.get_at::<u8>(0, 4 * mask)?, 1 | 2);
            let middle = i32::midpoint(width, value_width);
            return checked(heads as i32, batch as i32, queries, keys, middle)
                .map(|shape| Shape { causal, ..shape });
        }
    }
    None
}

/// Position of the mask kind in the backward parameters, where the lengths begin at word `lengths`. Later
/// releases have one more word before it (2.15 does, 2.13 does not). They differ in what follows: six strides
/// of 64 bits, the first three of them never small, and a byte that is one or three.
fn mask_of_backward(word: &impl Fn(usize) -> Option<i32>, lengths: usize) -> Option<usize> {
    let strides_at = |first: usize| {
        let stride = |number: usize| {
            let at = lengths + first + 2 * number;
            Some(word(at)? >= 8 && word(at + 1)? == 0)
        };
        let packed = word(lengths + first + 12)? & 0xff;
        Some(stride(0)? && stride(1)? && stride(2)? && matches!(packed, 1 | 3))
    };
    let later = strides_at(8)? && !strides_at(6)?;
    Some(lengths + if later { 6 } else { 5 })
}

fn checked(heads: i32, batch: i32, queries: i32, keys: i32, width: i32) -> Option<Shape> {
    let sensible = (1..=65_535).contains(&heads)
        && (1..=1 << 24).contains(&batch)
        && (1..=MAX_LENGTH).contains(&queries)
        && (1..=MAX_LENGTH).contains(&keys)
        && (8..=MAX_WIDTH).contains(&width);
    sensible.then(|| Shape {
        heads: f64::from(heads) * f64::from(batch),
        queries: f64::from(queries),
        keys: f64::from(keys),
        width: f64::from(width),
        causal: false,
    })
}

/// Assumes self-attention over tiles of 128 queries, in vectors as wide as the largest operand allows.
fn guess_shape(grid: Grid, operands: &[f64], element: f64) -> Option<Shape> {
    /// Queries of a tile.
    /// Source: kBlockM of most of FlashAttention's forward kernels (flash_fwd_launch_template.h).
    const TILE: f64 = 128.0;
    let [tiles, second, third] = grid.blocks.map(f64::from);
    let heads = second * third;
    let queries = tiles * TILE;
    let largest = operands.iter().copied().reduce(f64::max)?;
    let width = (largest / (element * heads * queries)).clamp(16.0, 256.0);
    Some(Shape { heads, queries, keys: queries, width, causal: false })
}
