//! Matrix products for which Inductor compiled a kernel.
//!
//! Extents are constants in such a kernel, so no argument holds them: they follow from the sizes of the
//! operands and from the grid. The text that Triton keeps states the arithmetic.

use memfit_channel::WorkKind;

use super::{
    super::{
        Work,
        gemm::Gemm,
        speeds::{Math, Speeds},
    },
    flex,
};
use crate::{launch::Grid, triton};

/// A kernel compiled from one of Inductor's templates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Template {
    math: Math,
    /// Bytes per element.
    element: f64,
    /// `true` if the type is known, and the extents are those of matrices.
    certain: bool,
}

impl Template {
    /// Reads the name of a kernel, and the text that Triton keeps of it.
    pub(crate) fn from_kernel(kernel: &str, text: Option<&str>) -> Self {
        let body = text.and_then(|text| triton::function_parts(text, kernel)).map(|(_, body)| body);
        let math = body.and_then(flex::product).map(|(left, _, math)| (math, element(left)));
        let is_convolution = kernel.contains("convolution");
        let (math, element, known) = match math {
            Some((math, Some(element))) => (math, element, true),
            _ => (Math::Bf16, 2.0, false),
        };
        Self { math, element, certain: known && !is_convolution }
    }

    /// Duration of a launch; `bytes` are those that its arguments lead to. Each of the three largest operands
    /// has the size of two of the three extents multiplied, times the number of products: the grid's second
    /// extent.
    pub(super) fn work(self, grid: Grid, bytes: &[f64], speeds: &Speeds) -> Work {
        let mut largest = bytes.to_vec();
        largest.sort_by(|a, b| f64::total_cmp(b, a));
        let [a, b, c, ..] = largest[..] else { return Work::new(WorkKind::Guess, speeds.launch) };
        let count = f64::from(grid.blocks[1].max(1));
        let count = if self.certain { count } else { 1.0 };
        let [a, b, c] = [a, b, c].map(|bytes| bytes / self.element / count);
        let size = [(a * b / c).sqrt(), (a * c / b).sqrt(), (b * c / a).sqrt(), count];
        let work = Gemm::new(size, self.math, self.element, self.element).work(speeds);
        if self.certain { work } else { Work { kind: WorkKind::Guess, ..work } }
    }
}

/// Bytes per element of a tensor, from its shape such as `128x64xbf16`.
fn element(shape: &str) -> Option<f64> {
    Some(match shape.rsplit('x').next()? {
        "f64" => 8.0,
        "f32" => 4.0,
        "bf16" | "f16" => 2.0,
        "i8" | "f8E4M3FN" | "f8E5M2" => 1.0,
        _ => return None,
    })
}
