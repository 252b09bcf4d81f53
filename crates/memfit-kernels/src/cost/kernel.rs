//! Durations of kernels: the memory that a launch moves and its other work, from the kernel's name and
//! arguments.
//!
//! The cost model of a kernel is chosen once ([`crate::families`]); a launch then reads only the few
//! arguments that determine its size. Kernels over lists of tensors are in [`foreach`], fused attention in
//! [`attention`] and [`flex`].

mod attention;
mod flex;
mod foreach;
mod grouped;
mod template;

pub use attention::{Attention, Shape};
pub(crate) use flex::Flex;
pub(crate) use foreach::Foreach;
pub(crate) use grouped::numbers as grouped_numbers;
use memfit_channel::WorkKind;
pub(crate) use template::Template;

use super::{
    Prepared, Work, shares,
    speeds::{Math, Speeds},
};
use crate::{
    binary::{Code, Function},
    launch::{Arguments, Grid, Launch, Operands},
    values::Elementwise,
};

/// Cost model of a kernel.
#[derive(Clone, Debug)]
pub(crate) enum Cost {
    /// PyTorch's elementwise kernels, whose count, types and strides are in the arguments.
    Elementwise(Elementwise),
    /// Kernels over lists of tensors.
    Foreach(Foreach),
    /// Fused attention.
    Attention(Attention),
    /// Flex attention, compiled by Inductor.
    Flex(Flex),
    /// Passes over all operands, at a share of the bandwidth of long copies.
    Passes { share: f64, passes: f64 },
    /// Reads or writes as many elements as an argument specifies, in each of `tensors` tensors.
    Counted { argument: usize, tensors: f64, element: f64 },
    /// Passes over all its operands once, in blocks that load, compute and store one after the other, at a
    /// rate in bytes per cycle of each multiprocessor.
    Serial { rate: f64 },
    /// Gathers rows of a table, or adds to them.
    Rows,
    /// So short that only the launch counts, for any operands.
    Short,
    /// Inductor's pointwise kernels and reductions, at a share of the bandwidth of long copies.
    Compiled { share: f64 },
    /// Inductor's matrix products.
    Template(Template),
    /// Prepares a grouped matrix product of a type for the next kernel.
    Prepares((Math, f64)),
    /// Computes a prepared grouped matrix product.
    Grouped,
    /// Unknown: counts only the memory that its arguments lead to.
    Unknown,
}

/// Bytes per element assumed for operands of unknown type.
/// Definition: no real type is wider.
const MAX_ELEMENT_BYTES: f64 = 8.0;
/// Duration of a short kernel, in shortest launches.
/// Unsourced: one block, which reads one number per row. No table of kernels with the number of rows was
/// found.
const SHORT_LAUNCHES: f64 = 4.0;
/// Turns that a warp needs for a table look-up because words lie in the same bank of the cache.
/// Definition: the expected maximum of 32 bins after 32 balls are thrown.
const BANK_TURNS: f64 = 3.5;

impl Cost {
    /// Duration of a launch. `function` returns the machine code's description, and is only called if it is
    /// needed.
    pub(crate) fn work<'f>(
        &self,
        launch: Launch,
        prepared: &Prepared,
        speeds: &Speeds,
        function: impl Fn() -> &'f Function,
    ) -> Work {
        let Launch { grid, arguments, memory } = launch;
        let operands = || Operands::look_up(arguments, memory);
        let moved =
            |kind, bytes: f64, share: f64| Work::new(kind, speeds.launch + speeds.traffic(bytes, share));
        let shortest = Work::new(WorkKind::Guess, speeds.launch);
        match self {
            Self::Elementwise(elementwise) => match elementwise.bytes(arguments) {
                Some(bytes) => moved(WorkKind::Memory, bytes, shares::elementwise(elementwise.access())),
                None => shortest,
            },
            Self::Foreach(foreach) => {
                moved(WorkKind::Memory, foreach.bytes(grid, arguments), shares::FOREACH)
            }
            Self::Attention(attention) => {
                attention.work(grid, arguments, speeds, &operands().bytes(f64::INFINITY))
            }
            Self::Flex(flex) => flex.work(launch, speeds, operands().bytes(f64::INFINITY).iter().sum()),
            Self::Passes { share, passes } => {
                let bytes: f64 = operands().bytes(f64::INFINITY).iter().sum();
                moved(WorkKind::Memory, passes * bytes, *share)
            }
            Self::Serial { rate } => {
                let bytes: f64 = operands().bytes(f64::INFINITY).iter().sum();
                Work::new(WorkKind::Memory, speeds.launch + speeds.serial(bytes, *rate))
            }
            Self::Counted { argument, tensors, element } => match element_count(arguments, *argument) {
                Some(count) => moved(WorkKind::Memory, count * tensors * element, shares::COUNTED),
                None => shortest,
            },
            Self::Rows => {
                // Rows of a table are gathered: no more of the table is read than is written.
                let mut bytes = operands().bytes(f64::INFINITY);
                bytes.sort_by(f64::total_cmp);
                let table = bytes.pop().unwrap_or(0.0);
                let rest: f64 = bytes.iter().sum();
                let picked = bytes.last().copied().unwrap_or(0.0).min(table);
                moved(WorkKind::Memory, rest + picked, shares::ROWS)
            }
            Self::Short => Work::new(WorkKind::Memory, SHORT_LAUNCHES * speeds.launch),
            Self::Compiled { share } => {
                let bytes = compiled(arguments, &operands());
                let computing = computing(function().code, grid, bytes, speeds);
                Work::new(WorkKind::Memory, speeds.launch + speeds.traffic(bytes, *share).max(computing))
            }
            Self::Prepares(numbers) => {
                prepared.set(grouped::problem(arguments, f64::from(grid.threads), *numbers));
                Work::new(WorkKind::Memory, speeds.launch)
            }
            Self::Grouped => match prepared.take() {
                Some(gemm) => gemm.work(speeds),
                None => shortest,
            },
            Self::Template(template) => template.work(grid, &operands().bytes(f64::INFINITY), speeds),
            Self::Unknown => {
                let bytes: f64 = operands().bytes(f64::INFINITY).iter().sum();
                let computing = computing(function().code, grid, bytes, speeds);
                Work::new(
                    WorkKind::Guess,
                    speeds.launch + speeds.traffic(bytes, shares::UNKNOWN).max(computing),
                )
            }
        }
    }
}

/// Reads a number of elements from an argument.
fn element_count(arguments: Arguments, index: usize) -> Option<f64> {
    arguments.get::<i32>(index).filter(|count| *count > 0).map(f64::from)
}

/// Bytes that an Inductor kernel moves: each operand once. Its last arguments give the number of elements, so
/// an operand that is part of a larger block counts as that part.
fn compiled(arguments: Arguments, operands: &Operands) -> f64 {
    let mut elements = 1.0;
    for (index, param) in arguments.params().unwrap_or_default().iter().enumerate() {
        if param.size == 4
            && let Some(extent) = element_count(arguments, index)
        {
            elements *= extent;
        }
    }
    let most = if elements > 1.0 { elements * MAX_ELEMENT_BYTES } else { f64::INFINITY };
    operands.bytes(most).iter().sum()
}

/// Nanoseconds in which the multiprocessors execute the instructions of a launch and its table look-ups:
/// loads beyond one per operand element come from a table in the cache.
fn computing(code: Code, grid: Grid, bytes: f64, speeds: &Speeds) -> f64 {
    /// Threads of a warp.
    /// Source: CUDA C++ Programming Guide.
    const WARP: f64 = 32.0;
    /// Bytes of a word of a bank.
    /// Source: CUDA C++ Programming Guide.
    const WORD: f64 = 4.0;
    let threads =
        grid.blocks.iter().map(|blocks| f64::from(*blocks)).product::<f64>() * f64::from(grid.threads);
    let instructions = threads / WARP * f64::from(code.instructions) / speeds.instructions;
    let again = (threads * f64::from(code.loaded) - bytes).max(0.0);
    let lookups = again / (WARP * WORD) * BANK_TURNS / speeds.lookups;
    instructions.max(lookups)
}
