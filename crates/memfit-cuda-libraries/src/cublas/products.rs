//! Matrix products: nothing is computed; each takes time on the handle's stream and makes the contents of its
//! result unknown.

use std::sync::atomic::Ordering::Relaxed;

use super::{Context, status, with_context};
use crate::entry::{Fails, Handle, Ptr, entry_points};
use crate::numbers::{compute_math, element_bytes};
use memfit_cuda::card;
use memfit_kernels::cost::gemm::{Gemm, alignment};
use memfit_kernels::cost::speeds::Math;

/// `CUDA_R_32F`, `CUDA_R_64F`, `CUDA_C_32F`, `CUDA_C_64F`.
const R32: i32 = 0;
const R64: i32 = 1;
const C32: i32 = 4;
const C64: i32 = 5;
/// `CUBLAS_COMPUTE_32F`.
const COMPUTE_32F: i32 = 68;
/// `CUBLAS_COMPUTE_64F`.
const COMPUTE_64F: i32 = 70;
/// `CUBLAS_TF32_TENSOR_OP_MATH`, and the mask of mutually exclusive modes.
const TF32_MODE: i32 = 3;
const EXCLUSIVE: i32 = 0xf;

/// Addresses of the results.
#[derive(Clone, Copy)]
enum ResultAddresses {
    /// A single result.
    Single(Ptr),
    /// Results at a constant distance, in elements.
    Strided(Ptr, i64),
    /// A list of addresses in device memory.
    Listed(Ptr),
}

impl ResultAddresses {
    /// Records that `count` results of `bytes` each were written, with elements of the given size.
    fn overwrite(self, count: i64, bytes: u64, element: f64) {
        match self {
            Self::Single(address) => card::record_result(address, bytes),
            Self::Strided(address, step) => {
                let gap = (step.unsigned_abs() as f64 * element) as u64;
                card::record_result(
                    address,
                    gap.saturating_mul(count.unsigned_abs() - 1).saturating_add(bytes),
                );
            }
            Self::Listed(list) => {
                let length = usize::try_from(count).unwrap_or(0).saturating_mul(size_of::<u64>());
                let Some((addresses, _)) = card::known_contents(list, length, true) else { return };
                for address in addresses.as_chunks().0 {
                    card::record_result(u64::from_le_bytes(*address) as Ptr, bytes);
                }
            }
        }
    }
}

/// A matrix product as a call describes it.
struct Product {
    /// Rows and columns of the result, terms of each sum, and number of products.
    size: [i64; 4],
    /// Leading dimensions.
    leading: [i64; 3],
    /// `cudaDataType` of the operands and of the result.
    input: i32,
    output: i32,
    /// `cublasComputeType_t`.
    compute: i32,
    /// Addresses of the results; rows, columns and leading dimension of each.
    result: (ResultAddresses, [i64; 3]),
}

/// Queues a product.
fn multiply(handle: Handle<Context>, product: &Product) -> i32 {
    with_context(handle, |context| {
        if product.size.iter().any(|extent| *extent < 0) {
            return status::INVALID_VALUE;
        }
        if product.size.contains(&0) {
            return status::SUCCESS;
        }
        let allows_tf32 = context.math_mode.load(Relaxed) & EXCLUSIVE == TF32_MODE;
        let math = match compute_math(product.input, product.compute) {
            Math::F32 if allows_tf32 && product.compute == COMPUTE_32F => Math::Tf32,
            math => math,
        };
        let (input, output) = (element_bytes(product.input), element_bytes(product.output));
        let bytes = |leading: i64, size: f64| (leading.unsigned_abs() as f64 * size) as u64;
        let [a, b, c] = product.leading;
        let complex = matches!(product.input, C32 | C64);
        let gemm = Gemm {
            alignment: alignment(&[bytes(a, input), bytes(b, input), bytes(c, output)]),
            operations: if complex { 8.0 } else { 2.0 },
            ..Gemm::new(product.size.map(|extent| extent as f64), math, input, output)
        };
        card::queue_work(context.stream.load(Relaxed), |speeds| gemm.work(speeds));
        let (place, [rows, columns, step]) = product.result;
        let elements = step.saturating_mul(columns - 1).saturating_add(rows);
        place.overwrite(product.size[3], (elements.max(0) as f64 * output) as u64, output);
        status::SUCCESS
    })
}

/// `cudaDataType` and `cublasComputeType_t` of a call, from the type letter in its name.
fn types_from_name(name: &str) -> (i32, i32) {
    match name.as_bytes().get("cublas".len()) {
        Some(b'S') => (R32, COMPUTE_32F),
        Some(b'D') => (R64, COMPUTE_64F),
        Some(b'C') => (C32, COMPUTE_32F),
        _ => (C64, COMPUTE_64F),
    }
}

entry_points! {
    Fails(status::INTERNAL_ERROR);

    /// Multiplies matrices.
    fn cublasSgemm_v2(
        handle: Handle<Context>, _a_form: i32, _b_form: i32, m: i32, n: i32, k: i32, _alpha: Ptr, _a: Ptr, a_step: i32,
        _b: Ptr, b_step: i32, _beta: Ptr, c: Ptr, c_step: i32,
    ),
    fn cublasDgemm_v2(),
    fn cublasCgemm_v2(),
    fn cublasZgemm_v2() {
        let (input, compute) = types_from_name(NAME);
        let leading = [a_step.into(), b_step.into(), c_step.into()];
        let size = [m.into(), n.into(), k.into(), 1];
        let result = (ResultAddresses::Single(c), [m.into(), n.into(), c_step.into()]);
        multiply(handle, &Product { size, leading, input, output: input, compute, result })
    }

    /// Multiplies a batch of matrices, given by a list of addresses.
    fn cublasSgemmBatched(
        handle: Handle<Context>, _a_form: i32, _b_form: i32, m: i32, n: i32, k: i32, _alpha: Ptr, _a: Ptr, a_step: i32,
        _b: Ptr, b_step: i32, _beta: Ptr, c: Ptr, c_step: i32, count: i32,
    ),
    fn cublasDgemmBatched(),
    fn cublasCgemmBatched(),
    fn cublasZgemmBatched() {
        let (input, compute) = types_from_name(NAME);
        let leading = [a_step.into(), b_step.into(), c_step.into()];
        let size = [m.into(), n.into(), k.into(), count.into()];
        let result = (ResultAddresses::Listed(c), [m.into(), n.into(), c_step.into()]);
        multiply(handle, &Product { size, leading, input, output: input, compute, result })
    }

    /// Multiplies a strided batch of matrices.
    fn cublasSgemmStridedBatched(
        handle: Handle<Context>, _a_form: i32, _b_form: i32, m: i32, n: i32, k: i32, _alpha: Ptr, _a: Ptr, a_step: i32,
        _a_next: i64, _b: Ptr, b_step: i32, _b_next: i64, _beta: Ptr, c: Ptr, c_step: i32, c_next: i64, count: i32,
    ),
    fn cublasDgemmStridedBatched(),
    fn cublasCgemmStridedBatched(),
    fn cublasZgemmStridedBatched() {
        let (input, compute) = types_from_name(NAME);
        let leading = [a_step.into(), b_step.into(), c_step.into()];
        let size = [m.into(), n.into(), k.into(), count.into()];
        let result = (ResultAddresses::Strided(c, c_next), [m.into(), n.into(), c_step.into()]);
        multiply(handle, &Product { size, leading, input, output: input, compute, result })
    }

    /// Does the same with types given as arguments.
    fn cublasGemmEx(
        handle: Handle<Context>, _a_form: i32, _b_form: i32, m: i32, n: i32, k: i32, _alpha: Ptr, _a: Ptr, input: i32,
        a_step: i32, _b: Ptr, _b_kind: i32, b_step: i32, _beta: Ptr, c: Ptr, output: i32, c_step: i32, compute: i32,
        _algorithm: i32,
    ) {
        let leading = [a_step.into(), b_step.into(), c_step.into()];
        let size = [m.into(), n.into(), k.into(), 1];
        let result = (ResultAddresses::Single(c), [m.into(), n.into(), c_step.into()]);
        multiply(handle, &Product { size, leading, input, output, compute, result })
    }

    /// Does the same with types given as arguments.
    fn cublasGemmBatchedEx(
        handle: Handle<Context>, _a_form: i32, _b_form: i32, m: i32, n: i32, k: i32, _alpha: Ptr, _a: Ptr, input: i32,
        a_step: i32, _b: Ptr, _b_kind: i32, b_step: i32, _beta: Ptr, c: Ptr, output: i32, c_step: i32, count: i32,
        compute: i32, _algorithm: i32,
    ) {
        let leading = [a_step.into(), b_step.into(), c_step.into()];
        let size = [m.into(), n.into(), k.into(), count.into()];
        let result = (ResultAddresses::Listed(c), [m.into(), n.into(), c_step.into()]);
        multiply(handle, &Product { size, leading, input, output, compute, result })
    }

    /// Does the same with types given as arguments.
    fn cublasGemmStridedBatchedEx(
        handle: Handle<Context>, _a_form: i32, _b_form: i32, m: i32, n: i32, k: i32, _alpha: Ptr, _a: Ptr, input: i32,
        a_step: i32, _a_next: i64, _b: Ptr, _b_kind: i32, b_step: i32, _b_next: i64, _beta: Ptr, c: Ptr, output: i32,
        c_step: i32, c_next: i64, count: i32, compute: i32, _algorithm: i32,
    ) {
        let leading = [a_step.into(), b_step.into(), c_step.into()];
        let size = [m.into(), n.into(), k.into(), count.into()];
        let result = (ResultAddresses::Strided(c, c_next), [m.into(), n.into(), c_step.into()]);
        multiply(handle, &Product { size, leading, input, output, compute, result })
    }

    /// Multiplies a matrix and a vector.
    fn cublasSgemv_v2(
        handle: Handle<Context>, _form: i32, m: i32, n: i32, _alpha: Ptr, _a: Ptr, a_step: i32, _x: Ptr, _x_step: i32,
        _beta: Ptr, y: Ptr, y_step: i32,
    ),
    fn cublasDgemv_v2(),
    fn cublasCgemv_v2(),
    fn cublasZgemv_v2() {
        let (input, compute) = types_from_name(NAME);
        let (size, leading) = ([m.into(), 1, n.into(), 1], [a_step.into(), 16, 16]);
        // A transposed matrix has as many rows as it had columns.
        let result = (ResultAddresses::Single(y), [1, i64::from(m).max(n.into()), i64::from(y_step).abs()]);
        multiply(handle, &Product { size, leading, input, output: input, compute, result })
    }

    /// Solves a triangular system: half the work of a product, at half the rate.
    fn cublasStrsm_v2(
        handle: Handle<Context>, _side: i32, _part: i32, _form: i32, _unit: i32, m: i32, n: i32, _alpha: Ptr, _a: Ptr,
        a_step: i32, b: Ptr, b_step: i32,
    ),
    fn cublasDtrsm_v2(),
    fn cublasCtrsm_v2(),
    fn cublasZtrsm_v2() {
        let (input, compute) = types_from_name(NAME);
        let size = [m.into(), n.into(), m.into(), 1];
        let leading = [a_step.into(), b_step.into(), b_step.into()];
        let result = (ResultAddresses::Single(b), [m.into(), n.into(), b_step.into()]);
        multiply(handle, &Product { size, leading, input, output: input, compute, result })
    }

    /// Solves a batch of triangular systems.
    fn cublasStrsmBatched(
        handle: Handle<Context>, _side: i32, _part: i32, _form: i32, _unit: i32, m: i32, n: i32, _alpha: Ptr, _a: Ptr,
        a_step: i32, b: Ptr, b_step: i32, count: i32,
    ),
    fn cublasDtrsmBatched(),
    fn cublasCtrsmBatched(),
    fn cublasZtrsmBatched() {
        let (input, compute) = types_from_name(NAME);
        let size = [m.into(), n.into(), m.into(), count.into()];
        let leading = [a_step.into(), b_step.into(), b_step.into()];
        let result = (ResultAddresses::Listed(b), [m.into(), n.into(), b_step.into()]);
        multiply(handle, &Product { size, leading, input, output: input, compute, result })
    }

    /// Multiplies matrices.
    fn cublasSgemm_v2_64(
        handle: Handle<Context>, _a_form: i32, _b_form: i32, m: i64, n: i64, k: i64, _alpha: Ptr, _a: Ptr, a_step: i64,
        _b: Ptr, b_step: i64, _beta: Ptr, c: Ptr, c_step: i64,
    ),
    fn cublasDgemm_v2_64(),
    fn cublasCgemm_v2_64(),
    fn cublasZgemm_v2_64() {
        let (input, compute) = types_from_name(NAME);
        let leading = [a_step, b_step, c_step];
        let size = [m, n, k, 1];
        let result = (ResultAddresses::Single(c), [m, n, c_step]);
        multiply(handle, &Product { size, leading, input, output: input, compute, result })
    }

    /// Multiplies a batch of matrices, given by a list of addresses.
    fn cublasSgemmBatched_64(
        handle: Handle<Context>, _a_form: i32, _b_form: i32, m: i64, n: i64, k: i64, _alpha: Ptr, _a: Ptr, a_step: i64,
        _b: Ptr, b_step: i64, _beta: Ptr, c: Ptr, c_step: i64, count: i64,
    ),
    fn cublasDgemmBatched_64(),
    fn cublasCgemmBatched_64(),
    fn cublasZgemmBatched_64() {
        let (input, compute) = types_from_name(NAME);
        let leading = [a_step, b_step, c_step];
        let size = [m, n, k, count];
        let result = (ResultAddresses::Listed(c), [m, n, c_step]);
        multiply(handle, &Product { size, leading, input, output: input, compute, result })
    }

    /// Multiplies a strided batch of matrices.
    fn cublasSgemmStridedBatched_64(
        handle: Handle<Context>, _a_form: i32, _b_form: i32, m: i64, n: i64, k: i64, _alpha: Ptr, _a: Ptr, a_step: i64,
        _a_next: i64, _b: Ptr, b_step: i64, _b_next: i64, _beta: Ptr, c: Ptr, c_step: i64, c_next: i64, count: i64,
    ),
    fn cublasDgemmStridedBatched_64(),
    fn cublasCgemmStridedBatched_64(),
    fn cublasZgemmStridedBatched_64() {
        let (input, compute) = types_from_name(NAME);
        let leading = [a_step, b_step, c_step];
        let size = [m, n, k, count];
        let result = (ResultAddresses::Strided(c, c_next), [m, n, c_step]);
        multiply(handle, &Product { size, leading, input, output: input, compute, result })
    }

    /// Does the same with types given as arguments.
    fn cublasGemmEx_64(
        handle: Handle<Context>, _a_form: i32, _b_form: i32, m: i64, n: i64, k: i64, _alpha: Ptr, _a: Ptr, input: i32,
        a_step: i64, _b: Ptr, _b_kind: i32, b_step: i64, _beta: Ptr, c: Ptr, output: i32, c_step: i64, compute: i32,
        _algorithm: i32,
    ) {
        let leading = [a_step, b_step, c_step];
        let size = [m, n, k, 1];
        let result = (ResultAddresses::Single(c), [m, n, c_step]);
        multiply(handle, &Product { size, leading, input, output, compute, result })
    }

    /// Does the same with types given as arguments.
    fn cublasGemmBatchedEx_64(
        handle: Handle<Context>, _a_form: i32, _b_form: i32, m: i64, n: i64, k: i64, _alpha: Ptr, _a: Ptr, input: i32,
        a_step: i64, _b: Ptr, _b_kind: i32, b_step: i64, _beta: Ptr, c: Ptr, output: i32, c_step: i64, count: i64,
        compute: i32, _algorithm: i32,
    ) {
        let leading = [a_step, b_step, c_step];
        let size = [m, n, k, count];
        let result = (ResultAddresses::Listed(c), [m, n, c_step]);
        multiply(handle, &Product { size, leading, input, output, compute, result })
    }

    /// Does the same with types given as arguments.
    fn cublasGemmStridedBatchedEx_64(
        handle: Handle<Context>, _a_form: i32, _b_form: i32, m: i64, n: i64, k: i64, _alpha: Ptr, _a: Ptr, input: i32,
        a_step: i64, _a_next: i64, _b: Ptr, _b_kind: i32, b_step: i64, _b_next: i64, _beta: Ptr, c: Ptr, output: i32,
        c_step: i64, c_next: i64, count: i64, compute: i32, _algorithm: i32,
    ) {
        let leading = [a_step, b_step, c_step];
        let size = [m, n, k, count];
        let result = (ResultAddresses::Strided(c, c_next), [m, n, c_step]);
        multiply(handle, &Product { size, leading, input, output, compute, result })
    }

    /// Multiplies a matrix and a vector.
    fn cublasSgemv_v2_64(
        handle: Handle<Context>, _form: i32, m: i64, n: i64, _alpha: Ptr, _a: Ptr, a_step: i64, _x: Ptr, _x_step: i64,
        _beta: Ptr, y: Ptr, y_step: i64,
    ),
    fn cublasDgemv_v2_64(),
    fn cublasCgemv_v2_64(),
    fn cublasZgemv_v2_64() {
        let (input, compute) = types_from_name(NAME);
        let (size, leading) = ([m, 1, n, 1], [a_step, 16, 16]);
        // A transposed matrix has as many rows as it had columns.
        let result = (ResultAddresses::Single(y), [1, m.max(n), y_step.abs()]);
        multiply(handle, &Product { size, leading, input, output: input, compute, result })
    }

    /// Solves a triangular system: half the work of a product, at half the rate.
    fn cublasStrsm_v2_64(
        handle: Handle<Context>, _side: i32, _part: i32, _form: i32, _unit: i32, m: i64, n: i64, _alpha: Ptr, _a: Ptr,
        a_step: i64, b: Ptr, b_step: i64,
    ),
    fn cublasDtrsm_v2_64(),
    fn cublasCtrsm_v2_64(),
    fn cublasZtrsm_v2_64() {
        let (input, compute) = types_from_name(NAME);
        let size = [m, n, m, 1];
        let leading = [a_step, b_step, b_step];
        let result = (ResultAddresses::Single(b), [m, n, b_step]);
        multiply(handle, &Product { size, leading, input, output: input, compute, result })
    }

    /// Solves a batch of triangular systems.
    fn cublasStrsmBatched_64(
        handle: Handle<Context>, _side: i32, _part: i32, _form: i32, _unit: i32, m: i64, n: i64, _alpha: Ptr, _a: Ptr,
        a_step: i64, b: Ptr, b_step: i64, count: i64,
    ),
    fn cublasDtrsmBatched_64(),
    fn cublasCtrsmBatched_64(),
    fn cublasZtrsmBatched_64() {
        let (input, compute) = types_from_name(NAME);
        let size = [m, n, m, count];
        let leading = [a_step, b_step, b_step];
        let result = (ResultAddresses::Listed(b), [m, n, b_step]);
        multiply(handle, &Product { size, leading, input, output: input, compute, result })
    }
}
