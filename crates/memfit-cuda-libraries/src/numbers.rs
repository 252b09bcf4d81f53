//! Number types of the libraries: the size of an element, and the arithmetic used for it.

use memfit_kernels::cost::speeds::Math;

/// Bytes per element of a `cudaDataType`.
pub(super) fn element_bytes(kind: i32) -> f64 {
    match kind {
        33 => 0.5,
        3 | 8 | 28 | 29 | 30 => 1.0,
        2 | 7 | 9 | 14 | 18 | 20 | 22 => 2.0,
        1 | 4 | 11 | 13 | 24 | 26 => 8.0,
        5 | 25 | 27 => 16.0,
        _ => 4.0,
    }
}

/// Arithmetic of a product, from the `cudaDataType` of its operands and the `cublasComputeType_t`.
pub(super) fn compute_math(operands: i32, compute: i32) -> Math {
    /// `CUBLAS_COMPUTE_32F_FAST_16F`, `…_FAST_16BF`, `…_FAST_TF32`.
    const FAST: [(i32, Math); 3] = [(74, Math::F16), (75, Math::Bf16), (77, Math::Tf32)];
    match operands {
        33 => Math::F4,
        28 | 29 => Math::F8,
        3 | 8 => Math::I8,
        2 => Math::F16,
        14 => Math::Bf16,
        1 | 5 => Math::F64,
        _ => FAST.iter().find(|(number, _)| *number == compute).map_or(Math::F32, |(_, math)| *math),
    }
}

/// Bytes per element and arithmetic of a `cudnnDataType_t`.
pub(super) fn cudnn_element(kind: i32) -> (f64, Math) {
    match kind {
        1 => (8.0, Math::F64),
        2 => (2.0, Math::F16),
        3 | 5 | 6 | 7 => (1.0, Math::I8),
        9 => (2.0, Math::Bf16),
        10..=13 => (1.0, Math::F8),
        _ => (4.0, Math::F32),
    }
}
