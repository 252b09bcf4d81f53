//! Kernels: how much memory a launch moves, and what else it does, by the kernel's name and its arguments.
//!
//! Which cost a kernel has is decided once ([`crate::families`]); a launch then only reads the few arguments
//! that say how large it is. Kernels over lists of tensors are in [`foreach`], fused attention is in
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
    Prepared, Work,
    speeds::{Math, Speeds},
};
use crate::{
    binary::{Code, Function},
    launch::{Arguments, Grid, Launch, Operands},
    values::Elementwise,
};

/// How the duration of a launch is found.
#[derive(Clone, Debug)]
pub(crate) enum Cost {
    /// Of PyTorch's elementwise kernels, whose count, types and strides are in the arguments.
    Elementwise(Elementwise),
    /// Over lists of tensors.
    Foreach(Foreach),
    /// Fused attention.
    Attention(Attention),
    /// Fused attention that Inductor made a kernel of its own for.
    Flex(Flex),
    /// Passes over all operands, at a share of what long copies achieve.
    Passes { share: f64, passes: f64 },
    /// As many elements as an argument says, in each of some tensors.
    Counted { argument: usize, tensors: f64, element: f64 },
    /// Picks rows of a table, or adds to them.
    Rows,
    /// So little that only the launch counts, whatever its operands are.
    Short,
    /// Inductor's own: pointwise kernels and reductions.
    Compiled,
    /// Inductor's own: products of matrices.
    Template(Template),
    /// Prepares many products of matrices of a type, for one kernel.
    Prepares((Math, f64)),
    /// Many products of matrices, as they were prepared.
    Grouped,
    /// Nothing but where its arguments lead.
    Unknown,
}

/// More bytes an element than any operand has, for operands whose type is not known.
const WIDEST: f64 = 8.0;
/// How many shortest kernels a short one is as long as.
const SHORT: f64 = 4.0;
/// Words that the lanes of a warp look up in a table lie in the same bank of the cache so often: the fullest
/// of 32 bins after 32 throws, in the mean.
const COLLISIONS: f64 = 3.5;
/// What a random access wastes: whole sectors are moved for single elements.
const SCATTERED: f64 = 2.0;

impl Cost {
    /// How long a launch takes; `function` gives what the machine code says, which is only asked where it is
    /// needed.
    pub(crate) fn work<'f>(
        &self,
        launch: Launch,
        prepared: &Prepared,
        speeds: &Speeds,
        function: impl Fn() -> &'f Function,
    ) -> Work {
        let Launch { grid, arguments, memory } = launch;
        let operands = || Operands::of(arguments, memory);
        let moved =
            |kind, bytes: f64, share: f64| Work::new(kind, speeds.launch + speeds.traffic(bytes, share));
        let shortest = Work::new(WorkKind::Guess, speeds.launch);
        match self {
            Self::Elementwise(elementwise) => match elementwise.bytes(arguments) {
                Some(bytes) => moved(WorkKind::Memory, bytes, elementwise.share()),
                None => shortest,
            },
            Self::Foreach(foreach) => moved(WorkKind::Memory, foreach.bytes(grid, arguments), Foreach::SHARE),
            Self::Attention(attention) => {
                attention.work(grid, arguments, speeds, &operands().bytes(f64::INFINITY))
            }
            Self::Flex(flex) => flex.work(launch, speeds, operands().bytes(f64::INFINITY).iter().sum()),
            Self::Passes { share, passes } => {
                let bytes: f64 = operands().bytes(f64::INFINITY).iter().sum();
                moved(WorkKind::Memory, passes * bytes, *share)
            }
            Self::Counted { argument, tensors, element } => match count(arguments, *argument) {
                Some(count) => moved(WorkKind::Memory, count * tensors * element, 0.7),
                None => shortest,
            },
            Self::Rows => {
                // A table's rows are picked: of the table, no more is read than is written.
                let mut bytes = operands().bytes(f64::INFINITY);
                bytes.sort_by(f64::total_cmp);
                let table = bytes.pop().unwrap_or(0.0);
                let rest: f64 = bytes.iter().sum();
                let picked = bytes.last().copied().unwrap_or(0.0).min(table);
                moved(WorkKind::Memory, rest + SCATTERED * picked, 0.7)
            }
            Self::Short => Work::new(WorkKind::Memory, SHORT * speeds.launch),
            Self::Compiled => {
                let bytes = compiled(arguments, &operands());
                let computing = computing(function().code, grid, bytes, speeds);
                Work::new(WorkKind::Memory, speeds.launch + speeds.traffic(bytes, 0.88).max(computing))
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
                Work::new(WorkKind::Guess, speeds.launch + speeds.traffic(bytes, 0.6).max(computing))
            }
        }
    }
}

/// A number of elements among the arguments.
fn count(arguments: Arguments, index: usize) -> Option<f64> {
    arguments.get::<i32>(index).filter(|count| *count > 0).map(f64::from)
}

/// Bytes that a kernel of Inductor's moves: each operand once. Its last arguments say how many elements there
/// are, so that an operand that is a part of a larger block counts as a part of it.
fn compiled(arguments: Arguments, operands: &Operands) -> f64 {
    let mut elements = 1.0;
    for (index, param) in arguments.params().unwrap_or_default().iter().enumerate() {
        if param.size == 4
            && let Some(extent) = count(arguments, index)
        {
            elements *= extent;
        }
    }
    let most = if elements > 1.0 { elements * WIDEST } else { f64::INFINITY };
    operands.bytes(most).iter().sum()
}

/// Nanoseconds in which the multiprocessors get through the instructions of a launch, beside what they look
/// up: a word that is loaded again, when every operand has been loaded once, comes out of a table in the
/// cache.
fn computing(code: Code, grid: Grid, bytes: f64, speeds: &Speeds) -> f64 {
    const WARP: f64 = 32.0;
    const WORD: f64 = 4.0;
    let threads =
        grid.blocks.iter().map(|blocks| f64::from(*blocks)).product::<f64>() * f64::from(grid.threads);
    let instructions = threads / WARP * f64::from(code.instructions) / speeds.instructions;
    let again = (threads * f64::from(code.loaded) - bytes).max(0.0);
    let lookups = again / (WARP * WORD) * COLLISIONS / speeds.lookups;
    instructions.max(lookups)
}
