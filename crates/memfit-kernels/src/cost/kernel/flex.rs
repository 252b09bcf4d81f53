//! Flex attention: kernels that Inductor makes from a template of PyTorch's, and that leave out blocks which
//! a mask forbids.
//!
//! Shapes are constants of such a kernel, so they stand in no argument. The text that Triton keeps says what
//! its parameters are for and how wide its tiles are; how many blocks each row of blocks has left is read
//! from the card's memory, where that is known.

use memfit_channel::WorkKind;

use super::{
    super::{
        Work,
        speeds::{Math, Speeds},
    },
    attention::Attention,
};
use crate::{
    launch::{Grid, Launch},
    memory::Memory,
    triton,
};

/// A kernel made from one of the templates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Flex {
    backward: bool,
    math: Math,
    /// Queries of a tile, in the forward kernel.
    tile: f64,
    /// Elements of a vector.
    width: f64,
    /// Which parameter counts the blocks that are masked in part, and which those that are not masked, for
    /// each row of blocks; and which has room for a number of each block.
    partial: usize,
    full: Option<usize>,
    each: Option<usize>,
    /// Which parameter has a number for each query.
    queries: Option<usize>,
    /// Which parameters are keys and values: what a launch must read at least.
    operands: [Option<usize>; 2],
}

/// The share of blocks that is left where nobody knows: half, as for causal attention.
const UNKNOWN: f64 = 0.5;
/// Bytes of a number, of a query or of a row of blocks.
const NUMBER: f64 = 4.0;
/// What it achieves of FlashAttention's speed, forward and backward (PyTorch's introduction of FlexAttention,
/// August 2024).
const OF_FLASH: [f64; 2] = [0.90, 0.85];

impl Flex {
    /// From the text that Triton keeps of a kernel; nothing if it was not made from one of the templates.
    pub(crate) fn of(text: &str, kernel: &str) -> Option<Self> {
        let (params, body) = triton::function_parts(text, kernel)?;
        let find = |name: &str| {
            // By the name of the parameter, or where it is numbered, by the place that it has in the source.
            let (own, place) = (format!("%arg_{name}"), format!("\"arg_{name}\""));
            params.iter().position(|param| {
                param.split([':', ' ']).next() == Some(own.as_str()) || param.contains(&place)
            })
        };
        let partial = find("KV_NUM_BLKS")?;
        let backward = find("DELTA");
        // Queries times keys: the width of the vectors is what both factors have in common.
        let (left, right, math) = product(body)?;
        let (tile, width) = (extent(left, 0)?, extent(right, 0)?);
        Some(Self {
            backward: backward.is_some(),
            math,
            tile,
            width,
            partial,
            full: find("FULL_KV_NUM_BLKS"),
            each: find("KV_IDX"),
            queries: backward.or_else(|| find("LSE")),
            operands: [find("K"), find("V")],
        })
    }

    /// How long a launch takes; `operands` are the bytes that its arguments lead to.
    pub(crate) fn work(&self, launch: Launch, speeds: &Speeds, operands: f64) -> Work {
        let Launch { grid, arguments, memory, .. } = launch;
        let reach = |param: usize| {
            let address = arguments.get::<u64>(param)?;
            Some((address, memory.reach(address)?.bytes as f64))
        };
        let programs: f64 = grid.blocks.iter().map(|blocks| f64::from(*blocks)).product();
        let queries = match self.queries.map(reach) {
            Some(Some((_, bytes))) if self.backward => bytes / NUMBER,
            Some(_) => programs * self.tile,
            // What decodes a token at a time reads keys and values, and computes next to nothing.
            None => 0.0,
        };
        let left = self.left(memory, &reach);
        // Two products forward; five backward, which computes the scores again.
        let products = if self.backward { 5.0 } else { 2.0 };
        let keys = left.unwrap_or(UNKNOWN) * self.keys(grid, &reach);
        let operations = products * 2.0 * queries * keys * self.width;
        let share = Attention::flash(self.math, self.backward).share(speeds, self.width)
            * OF_FLASH[usize::from(self.backward)];
        let computing = operations / (speeds.rate(self.math) * share);
        let kind = if left.is_some() { WorkKind::Attention } else { WorkKind::Guess };
        Work::new(kind, speeds.launch + computing.max(speeds.traffic(operands, 0.8)))
    }

    /// The share of a mask's blocks that is left; nothing where that is not known.
    fn left(&self, memory: &dyn Memory, reach: &impl Fn(usize) -> Option<(u64, f64)>) -> Option<f64> {
        let (address, bytes) = reach(self.partial)?;
        let partial = memory.known_numbers(address, bytes as u64);
        let rows = partial.len();
        if rows == 0 {
            return None;
        }
        let mut blocks: f64 = partial.into_iter().map(f64::from).sum();
        // A mask without full blocks has an empty list of them.
        if let Some((address, bytes)) = self.full.and_then(reach) {
            let full = memory.known_numbers(address, bytes as u64);
            if full.len() != rows {
                return None;
            }
            blocks += full.into_iter().map(f64::from).sum::<f64>();
        }
        let (address, bytes) = self.each.and_then(reach)?;
        let all = match memory.known_numbers(address, bytes as u64).len() {
            0 => bytes / NUMBER,
            known => known as f64,
        };
        Some((blocks / all).clamp(0.0, 1.0))
    }

    /// Keys that there are, as far as the launch tells.
    fn keys(&self, grid: Grid, reach: &impl Fn(usize) -> Option<(u64, f64)>) -> f64 {
        const ELEMENT: f64 = 2.0;
        let [tiles, second, third] = grid.blocks.map(f64::from);
        let heads = second * third;
        let element = if matches!(self.math, Math::F32 | Math::Tf32) { 2.0 * ELEMENT } else { ELEMENT };
        let all = self.operands.iter().flatten().find_map(|param| reach(*param));
        match all {
            // Each program of the backward kernel stands for one head of the keys.
            Some((_, bytes)) if self.backward => bytes / (element * self.width * heads),
            // Fewer heads of keys than of queries share them, so that the keys are as many as the queries.
            Some((_, bytes)) => (bytes / (element * self.width * heads)).max(tiles * self.tile),
            None => tiles * self.tile,
        }
    }
}

/// The first product of tensors in a kernel's text: the shapes of both factors, and in which type they are
/// multiplied.
pub(super) fn product(body: &str) -> Option<(&str, &str, Math)> {
    let product = body.lines().find(|line| line.contains("= tt.dot "))?;
    let (left, right) = product.split_once(" : tensor<")?.1.split_once("> * tensor<")?;
    let math = match left.rsplit('x').next()? {
        "bf16" => Math::Bf16,
        "f16" => Math::F16,
        "f64" => Math::F64,
        "i8" => Math::I8,
        kind if kind.starts_with("f8") => Math::F8,
        "f32" if product.contains("tf32") => Math::Tf32,
        _ => Math::F32,
    };
    Some((left, right, math))
}

/// The extent of a tensor's shape, as `128x64xbf16` has it, along an axis.
fn extent(shape: &str, axis: usize) -> Option<f64> {
    shape.split('x').nth(axis)?.parse().ok()
}
