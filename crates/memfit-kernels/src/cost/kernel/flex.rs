//! Flex attention: kernels that Inductor compiles from a PyTorch template, and that skip blocks which a mask
//! forbids.
//!
//! Shapes are constants in such a kernel, so they are not among its arguments. The text that Triton keeps
//! describes its parameters and its tile width; the number of remaining blocks in each row of blocks is read
//! from device memory, if it is known.

use memfit_channel::WorkKind;

use super::{
    super::{
        Work, shares,
        speeds::{Math, Speeds},
    },
    attention::Attention,
};
use crate::{
    launch::{Grid, Launch},
    memory::Memory,
    triton,
};

/// A kernel compiled from one of the templates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Flex {
    backward: bool,
    math: Math,
    /// Queries per tile, in the forward kernel.
    tile: f64,
    /// Elements per vector.
    width: f64,
    /// Indices of the parameters that count partially masked blocks and unmasked blocks for each row of
    /// blocks, and of the one that has space for an index of each block.
    partial: usize,
    full: Option<usize>,
    each: Option<usize>,
    /// Index of the parameter that has a number for each query.
    queries: Option<usize>,
    /// Indices of keys and values, which a launch must read at least.
    operands: [Option<usize>; 2],
}

/// Share of blocks assumed to remain if the mask is unknown.
/// Definition: half, as for causal attention.
const UNKNOWN_MASK_SHARE: f64 = 0.5;
/// Bytes of a number for a query or a row of blocks.
/// Definition: PyTorch's template keeps them in 32 bits.
const NUMBER_BYTES: f64 = 4.0;
/// Speed relative to FlashAttention, forward and backward.
/// Source: PyTorch's introduction of FlexAttention, August 2024.
const FLASH_SHARE: [f64; 2] = [0.90, 0.85];

impl Flex {
    /// Reads the text that Triton keeps of a kernel; `None` if it was not compiled from one of the templates.
    pub(crate) fn from_text(text: &str, kernel: &str) -> Option<Self> {
        let (params, body) = triton::function_parts(text, kernel)?;
        let find = |name: &str| {
            // Parameters match by name, or if they are numbered, by their name in the source location.
            let (own, place) = (format!("%arg_{name}"), format!("\"arg_{name}\""));
            params.iter().position(|param| {
                param.split([':', ' ']).next() == Some(own.as_str()) || param.contains(&place)
            })
        };
        let partial = find("KV_NUM_BLKS")?;
        let backward = find("DELTA");
        // Queries times keys: the width of the vectors is the dimension that both factors share.
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

    /// Duration of a launch; `operands` are the bytes that its arguments lead to.
    pub(crate) fn work(&self, launch: Launch, speeds: &Speeds, operands: f64) -> Work {
        let Launch { grid, arguments, memory, .. } = launch;
        let reach = |param: usize| {
            let address = arguments.get::<u64>(param)?;
            Some((address, memory.reach(address)?.bytes as f64))
        };
        let programs: f64 = grid.blocks.iter().map(|blocks| f64::from(*blocks)).product();
        let queries = match self.queries.map(reach) {
            Some(Some((_, bytes))) if self.backward => bytes / NUMBER_BYTES,
            Some(_) => programs * self.tile,
            // Decoding one token at a time reads keys and values, and computes hardly anything.
            None => 0.0,
        };
        let left = self.remaining_share(memory, &reach);
        // Two products forward; five backward, which recomputes the scores.
        let products = if self.backward { 5.0 } else { 2.0 };
        let keys = left.unwrap_or(UNKNOWN_MASK_SHARE) * self.keys(grid, &reach);
        let operations = products * 2.0 * queries * keys * self.width;
        let share = Attention::flash(self.math, self.backward).share(speeds, self.width)
            * FLASH_SHARE[usize::from(self.backward)];
        let computing = operations / (speeds.rate(self.math) * share);
        let kind = if left.is_some() { WorkKind::Attention } else { WorkKind::Guess };
        Work::new(kind, speeds.launch + computing.max(speeds.traffic(operands, shares::SOFTMAX)))
    }

    /// Share of a mask's blocks that remain; `None` if that is unknown.
    fn remaining_share(
        &self,
        memory: &dyn Memory,
        reach: &impl Fn(usize) -> Option<(u64, f64)>,
    ) -> Option<f64> {
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
            0 => bytes / NUMBER_BYTES,
            known => known as f64,
        };
        Some((blocks / all).clamp(0.0, 1.0))
    }

    /// Number of keys, if the launch determines it.
    fn keys(&self, grid: Grid, reach: &impl Fn(usize) -> Option<(u64, f64)>) -> f64 {
        /// Bytes of an element in half precision.
        /// Definition: 16 bits.
        const ELEMENT: f64 = 2.0;
        let [tiles, second, third] = grid.blocks.map(f64::from);
        let heads = second * third;
        let element = if matches!(self.math, Math::F32 | Math::Tf32) { 2.0 * ELEMENT } else { ELEMENT };
        let all = self.operands.iter().flatten().find_map(|param| reach(*param));
        match all {
            // Each program of the backward kernel handles one head of the keys.
            Some((_, bytes)) if self.backward => bytes / (element * self.width * heads),
            // With grouped-query attention, fewer heads of keys serve the queries; the keys are as many as
            // the queries.
            Some((_, bytes)) => (bytes / (element * self.width * heads)).max(tiles * self.tile),
            None => tiles * self.tile,
        }
    }
}

/// First tensor product in a kernel's text: the shapes of both factors, and the arithmetic.
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

/// Extent along an axis of a tensor's shape, written as `128x64xbf16`.
fn extent(shape: &str, axis: usize) -> Option<f64> {
    shape.split('x').nth(axis)?.parse().ok()
}
