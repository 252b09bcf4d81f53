//! Grouped matrix products: many products in one kernel, as mixture-of-experts layers use
//! (`torch._grouped_mm`).
//!
//! The sizes are arguments of a kernel that prepares the problem on the device. If the groups divide one
//! matrix among them, only the device knows each group's share, so equal shares are assumed; the total
//! changes little.

use super::super::gemm::Gemm;
use super::super::speeds::Math;
use crate::launch::Arguments;

/// Argument indices in the preparing kernel: the three extents, of which the divided one is negative, and the
/// extents of both operands.
const EXTENTS: usize = 15;
const FIRST: usize = 21;
const SECOND: usize = 22;

/// Problem that a launch prepares for `groups` groups of the given element type.
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

/// Arithmetic and element size of a problem, from the name of its kernel.
pub(crate) fn numbers(mangled: &str) -> (Math, f64) {
    if mangled.contains("float_e4m3") || mangled.contains("float_e5m2") {
        (Math::F8, 1.0)
    } else {
        (Math::Bf16, 2.0)
    }
}
