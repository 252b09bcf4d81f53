//! Many products of matrices in one kernel, as layers of experts have them (`torch._grouped_mm`).
//!
//! The sizes stand in the arguments of a kernel that prepares the problem on the card. Where the groups
//! divide one matrix between them, how much of it each gets is known to the card alone, so they are taken to
//! be alike; that changes little of the whole.

use super::super::gemm::Gemm;
use super::super::speeds::Math;
use crate::launch::Arguments;

/// Arguments of the kernel that prepares: the three extents, of which the divided one is negative, and the
/// extents of both operands.
const EXTENTS: usize = 15;
const FIRST: usize = 21;
const SECOND: usize = 22;

/// The problem that a launch prepares, of so many groups of elements of a size.
pub(super) fn problem(arguments: Arguments, groups: f64, (math, element): (Math, f64)) -> Option<Gemm> {
    let extent = |index: usize| arguments.get::<i32>(EXTENTS + index).map(f64::from);
    let whole = |operand: usize, dimension: usize| {
        arguments
            .get_at::<i64>(operand, 8 * dimension)
            .filter(|extent| *extent >= 0)
            .map(|extent| extent as f64)
    };
    let (mut m, mut n, mut k) = (extent(0)?, extent(1)?, extent(2)?);
    if m < 0.0 {
        m = whole(FIRST, 0)? / groups;
    } else if n < 0.0 {
        n = whole(SECOND, 1)? / groups;
    } else if k < 0.0 {
        k = whole(FIRST, 1)? / groups;
    }
    Some(Gemm::new([m, n, k, groups], math, element, 2.0))
}

/// In what a problem's elements are multiplied, by the name of its kernel.
pub(crate) fn numbers(mangled: &str) -> (Math, f64) {
    if mangled.contains("float_e4m3") || mangled.contains("float_e5m2") {
        (Math::F8, 1.0)
    } else {
        (Math::Bf16, 2.0)
    }
}
