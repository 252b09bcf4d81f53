//! Kernels: how much memory a launch moves, and what else it does, by the kernel's name and its arguments.
//!
//! What a kernel is, is decided once from its name ([`Family`]); a launch then only reads the few arguments
//! that say how large it is. Kernels over lists of tensors are in [`foreach`], fused attention is in
//! [`attention`] and [`flex`].

mod attention;
mod family;
mod flex;
mod foreach;
mod grouped;
#[cfg(test)]
mod tests;

use std::sync::OnceLock;

pub use attention::{Attention, Shape};
use family::Family;
use flex::Flex;
use foreach::Foreach;
use memfit_channel::WorkKind;

use super::{
    Work,
    gemm::Gemm,
    launched::Operands,
    speeds::{Math, Speeds},
};
use crate::{
    binary::{Code, Function, Param},
    launch::{Arguments, Grid, Launch},
};

/// What is known of a kernel's length.
#[derive(Debug)]
pub struct KernelCost {
    family: Family,
    function: OnceLock<Function>,
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

impl KernelCost {
    /// The cost of the kernel with this mangled name, and of which Triton kept this text.
    pub fn of(mangled: &str, text: Option<&str>) -> Self {
        Self { family: Family::of(mangled, text), function: OnceLock::new() }
    }

    /// How long a launch takes; `function` gives what the machine code says, which is only asked where it is
    /// needed.
    pub fn work(&self, launch: Launch, speeds: &Speeds, function: impl Fn() -> Function) -> Work {
        let Launch { grid, arguments, memory, prepared } = launch;
        let function = || self.function.get_or_init(&function);
        let operands = || Operands::of(&function().params, arguments, memory);
        let moved =
            |kind, bytes: f64, share: f64| Work::new(kind, speeds.launch + speeds.traffic(bytes, share));
        let shortest = Work::new(WorkKind::Guess, speeds.launch);
        match &self.family {
            Family::Elementwise(elementwise) => match elementwise.bytes(arguments) {
                Some(bytes) => moved(WorkKind::Memory, bytes, elementwise.share()),
                None => shortest,
            },
            Family::Foreach(foreach) => {
                moved(WorkKind::Memory, foreach.bytes(grid, arguments), Foreach::SHARE)
            }
            Family::Attention(attention) => {
                attention.work(grid, arguments, speeds, &operands().bytes(f64::INFINITY))
            }
            Family::Flex(flex) => flex.work(launch, speeds, operands().bytes(f64::INFINITY).iter().sum()),
            Family::Known { share, passes } => {
                let bytes: f64 = operands().bytes(f64::INFINITY).iter().sum();
                moved(WorkKind::Memory, passes * bytes, *share)
            }
            Family::Counted { argument, tensors, element } => match count(arguments, *argument) {
                Some(count) => moved(WorkKind::Memory, count * tensors * element, 0.7),
                None => shortest,
            },
            Family::Rows => {
                // A table's rows are picked: of the table, no more is read than is written.
                let mut bytes = operands().bytes(f64::INFINITY);
                bytes.sort_by(f64::total_cmp);
                let table = bytes.pop().unwrap_or(0.0);
                let rest: f64 = bytes.iter().sum();
                let picked = bytes.last().copied().unwrap_or(0.0).min(table);
                moved(WorkKind::Memory, rest + SCATTERED * picked, 0.7)
            }
            Family::Short => Work::new(WorkKind::Memory, SHORT * speeds.launch),
            Family::Compiled => {
                let bytes = compiled(&function().params, arguments, &operands());
                let computing = computing(function().code, grid, bytes, speeds);
                Work::new(WorkKind::Memory, speeds.launch + speeds.traffic(bytes, 0.88).max(computing))
            }
            Family::Prepares(numbers) => {
                prepared.set(grouped::problem(arguments, f64::from(grid.threads), *numbers));
                Work::new(WorkKind::Memory, speeds.launch)
            }
            Family::Grouped => match prepared.take() {
                Some(gemm) => gemm.work(speeds),
                None => shortest,
            },
            Family::Template => template(&operands().bytes(f64::INFINITY), speeds),
            Family::Unknown => {
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
fn compiled(params: &[Param], arguments: Arguments, operands: &Operands) -> f64 {
    let mut elements = 1.0;
    for (index, param) in params.iter().enumerate() {
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

/// A product of matrices that Inductor made a kernel of its own for: of its three largest operands, each is a
/// product of two of the three extents.
fn template(bytes: &[f64], speeds: &Speeds) -> Work {
    const ELEMENT: f64 = 2.0;
    let mut largest = bytes.to_vec();
    largest.sort_by(|a, b| f64::total_cmp(b, a));
    let [a, b, c, ..] = largest[..] else { return Work::new(WorkKind::Guess, speeds.launch) };
    let (a, b, c) = (a / ELEMENT, b / ELEMENT, c / ELEMENT);
    let size = [(a * b / c).sqrt(), (a * c / b).sqrt(), (b * c / a).sqrt(), 1.0];
    Gemm::new(size, Math::Bf16, ELEMENT, ELEMENT).work(speeds)
}
