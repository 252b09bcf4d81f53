//! Products of matrices: nothing is computed, each takes its time on the handle's stream, and what its result
//! overwrites is not known any more.

use std::sync::atomic::Ordering::Relaxed;

use super::{Context, status, with};
use crate::entry::{Handle, Ptr, entry_points};
use crate::numbers::{compute_math, element};
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
/// `CUBLAS_TF32_TENSOR_OP_MATH`, among the modes that exclude each other.
const TF32_MODE: i32 = 3;
const EXCLUSIVE: i32 = 0xf;

/// Where results go.
#[derive(Clone, Copy)]
enum Place {
    /// There is one, at an address.
    One(Ptr),
    /// Each is so many elements behind the one before.
    Spaced(Ptr, i64),
    /// The device has a list of their addresses.
    Listed(Ptr),
}

impl Place {
    /// So many results of so many bytes, of elements of a size, were written.
    fn overwrite(self, count: i64, bytes: u64, element: f64) {
        match self {
            Self::One(address) => card::computed(address, bytes),
            Self::Spaced(address, step) => {
                let gap = (step.unsigned_abs() as f64 * element) as u64;
                card::computed(address, gap.saturating_mul(count.unsigned_abs() - 1).saturating_add(bytes));
            }
            Self::Listed(list) => {
                let length = usize::try_from(count).unwrap_or(0).saturating_mul(size_of::<u64>());
                let Some((addresses, _)) = card::known(list, length, true) else { return };
                for address in addresses.as_chunks().0 {
                    card::computed(u64::from_le_bytes(*address) as Ptr, bytes);
                }
            }
        }
    }
}

/// What is multiplied.
struct Product {
    /// Rows and columns of the result, terms of each sum, and how many products.
    size: [i64; 4],
    /// Distances from column to column.
    leading: [i64; 3],
    /// `cudaDataType`s of the operands and of the result.
    input: i32,
    output: i32,
    /// `cublasComputeType_t`.
    compute: i32,
    /// Where results go; rows, columns and the distance from column to column of each.
    result: (Place, [i64; 3]),
}

/// Multiplies: queues the work.
fn multiply(handle: Handle<Context>, product: &Product) -> i32 {
    with(handle, |context| {
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
        let (input, output) = (element(product.input), element(product.output));
        let bytes = |leading: i64, size: f64| (leading.unsigned_abs() as f64 * size) as u64;
        let [a, b, c] = product.leading;
        let complex = matches!(product.input, C32 | C64);
        let gemm = Gemm {
            alignment: alignment(&[bytes(a, input), bytes(b, input), bytes(c, output)]),
            operations: if complex { 8.0 } else { 2.0 },
            ..Gemm::new(product.size.map(|extent| extent as f64), math, input, output)
        };
        card::launch(context.stream.load(Relaxed), |speeds| gemm.work(speeds));
        let (place, [rows, columns, step]) = product.result;
        let elements = step.saturating_mul(columns - 1).saturating_add(rows);
        place.overwrite(product.size[3], (elements.max(0) as f64 * output) as u64, output);
        status::SUCCESS
    })
}

/// Declares products whose types are in their names: `type, compute: plain, batched, strided;`, for indices
/// of one width.
macro_rules! products {
    ($int:ty; $($kind:ident, $compute:literal: $plain:ident, $batched:ident, $strided:ident;)*) => {
        entry_points! {
            fail status::INTERNAL_ERROR;
            $(
                /// One product.
                fn $plain(
                    handle: Handle<Context>, _a_form: i32, _b_form: i32, m: $int, n: $int, k: $int, _alpha: Ptr, _a: Ptr,
                    a_step: $int, _b: Ptr, b_step: $int, _beta: Ptr, c: Ptr, c_step: $int,
                ) {
                    let leading = [a_step.into(), b_step.into(), c_step.into()];
                    let size = [m.into(), n.into(), k.into(), 1];
                    let result = (Place::One(c), [m.into(), n.into(), c_step.into()]);
                    multiply(handle, &Product { size, leading, input: $kind, output: $kind, compute: $compute, result })
                }

                /// Many, each at its own address.
                fn $batched(
                    handle: Handle<Context>, _a_form: i32, _b_form: i32, m: $int, n: $int, k: $int, _alpha: Ptr, _a: Ptr,
                    a_step: $int, _b: Ptr, b_step: $int, _beta: Ptr, c: Ptr, c_step: $int, count: $int,
                ) {
                    let leading = [a_step.into(), b_step.into(), c_step.into()];
                    let size = [m.into(), n.into(), k.into(), count.into()];
                    let result = (Place::Listed(c), [m.into(), n.into(), c_step.into()]);
                    multiply(handle, &Product { size, leading, input: $kind, output: $kind, compute: $compute, result })
                }

                /// Many, at equal distances.
                fn $strided(
                    handle: Handle<Context>, _a_form: i32, _b_form: i32, m: $int, n: $int, k: $int, _alpha: Ptr, _a: Ptr,
                    a_step: $int, _a_next: i64, _b: Ptr, b_step: $int, _b_next: i64, _beta: Ptr, c: Ptr, c_step: $int,
                    c_next: i64, count: $int,
                ) {
                    let leading = [a_step.into(), b_step.into(), c_step.into()];
                    let size = [m.into(), n.into(), k.into(), count.into()];
                    let result = (Place::Spaced(c, c_next), [m.into(), n.into(), c_step.into()]);
                    multiply(handle, &Product { size, leading, input: $kind, output: $kind, compute: $compute, result })
                }
            )*
        }
    };
}

products! { i32;
    R32, 68: cublasSgemm_v2, cublasSgemmBatched, cublasSgemmStridedBatched;
    R64, 70: cublasDgemm_v2, cublasDgemmBatched, cublasDgemmStridedBatched;
    C32, 68: cublasCgemm_v2, cublasCgemmBatched, cublasCgemmStridedBatched;
    C64, 70: cublasZgemm_v2, cublasZgemmBatched, cublasZgemmStridedBatched;
}
products! { i64;
    R32, 68: cublasSgemm_v2_64, cublasSgemmBatched_64, cublasSgemmStridedBatched_64;
    R64, 70: cublasDgemm_v2_64, cublasDgemmBatched_64, cublasDgemmStridedBatched_64;
    C32, 68: cublasCgemm_v2_64, cublasCgemmBatched_64, cublasCgemmStridedBatched_64;
    C64, 70: cublasZgemm_v2_64, cublasZgemmBatched_64, cublasZgemmStridedBatched_64;
}

/// Declares products whose types are arguments, for indices of one width.
macro_rules! typed {
    ($int:ty: $plain:ident, $batched:ident, $strided:ident) => {
        entry_points! {
            fail status::INTERNAL_ERROR;

            /// One product.
            fn $plain(
                handle: Handle<Context>, _a_form: i32, _b_form: i32, m: $int, n: $int, k: $int, _alpha: Ptr, _a: Ptr,
                input: i32, a_step: $int, _b: Ptr, _b_kind: i32, b_step: $int, _beta: Ptr, c: Ptr, output: i32,
                c_step: $int, compute: i32, _algorithm: i32,
            ) {
                let leading = [a_step.into(), b_step.into(), c_step.into()];
                let size = [m.into(), n.into(), k.into(), 1];
                let result = (Place::One(c), [m.into(), n.into(), c_step.into()]);
                multiply(handle, &Product { size, leading, input, output, compute, result })
            }

            /// Many, each at its own address.
            fn $batched(
                handle: Handle<Context>, _a_form: i32, _b_form: i32, m: $int, n: $int, k: $int, _alpha: Ptr, _a: Ptr,
                input: i32, a_step: $int, _b: Ptr, _b_kind: i32, b_step: $int, _beta: Ptr, c: Ptr, output: i32,
                c_step: $int, count: $int, compute: i32, _algorithm: i32,
            ) {
                let leading = [a_step.into(), b_step.into(), c_step.into()];
                let size = [m.into(), n.into(), k.into(), count.into()];
                let result = (Place::Listed(c), [m.into(), n.into(), c_step.into()]);
                multiply(handle, &Product { size, leading, input, output, compute, result })
            }

            /// Many, at equal distances.
            fn $strided(
                handle: Handle<Context>, _a_form: i32, _b_form: i32, m: $int, n: $int, k: $int, _alpha: Ptr, _a: Ptr,
                input: i32, a_step: $int, _a_next: i64, _b: Ptr, _b_kind: i32, b_step: $int, _b_next: i64, _beta: Ptr,
                c: Ptr, output: i32, c_step: $int, c_next: i64, count: $int, compute: i32, _algorithm: i32,
            ) {
                let leading = [a_step.into(), b_step.into(), c_step.into()];
                let size = [m.into(), n.into(), k.into(), count.into()];
                let result = (Place::Spaced(c, c_next), [m.into(), n.into(), c_step.into()]);
                multiply(handle, &Product { size, leading, input, output, compute, result })
            }
        }
    };
}

typed!(i32: cublasGemmEx, cublasGemmBatchedEx, cublasGemmStridedBatchedEx);
typed!(i64: cublasGemmEx_64, cublasGemmBatchedEx_64, cublasGemmStridedBatchedEx_64);

/// Declares products of a matrix with a vector, and triangular systems, which take half the work at half the
/// rate.
macro_rules! others {
    ($int:ty; $($kind:ident, $compute:literal: $vector:ident, $solve:ident, $solve_batched:ident;)*) => {
        entry_points! {
            fail status::INTERNAL_ERROR;
            $(
                /// A matrix with a vector.
                fn $vector(
                    handle: Handle<Context>, _form: i32, m: $int, n: $int, _alpha: Ptr, _a: Ptr, a_step: $int, _x: Ptr,
                    _x_step: $int, _beta: Ptr, y: Ptr, y_step: $int,
                ) {
                    let (size, leading) = ([m.into(), 1, n.into(), 1], [a_step.into(), 16, 16]);
                    // Turned over, the matrix has as many rows as it had columns.
                    let result = (Place::One(y), [1, i64::from(m).max(n.into()), i64::from(y_step).abs()]);
                    multiply(handle, &Product { size, leading, input: $kind, output: $kind, compute: $compute, result })
                }

                /// A triangular system.
                fn $solve(
                    handle: Handle<Context>, _side: i32, _part: i32, _form: i32, _unit: i32, m: $int, n: $int, _alpha: Ptr,
                    _a: Ptr, a_step: $int, b: Ptr, b_step: $int,
                ) {
                    let (size, leading) = ([m.into(), n.into(), m.into(), 1], [a_step.into(), b_step.into(), b_step.into()]);
                    let result = (Place::One(b), [m.into(), n.into(), b_step.into()]);
                    multiply(handle, &Product { size, leading, input: $kind, output: $kind, compute: $compute, result })
                }

                /// Many of them.
                fn $solve_batched(
                    handle: Handle<Context>, _side: i32, _part: i32, _form: i32, _unit: i32, m: $int, n: $int, _alpha: Ptr,
                    _a: Ptr, a_step: $int, b: Ptr, b_step: $int, count: $int,
                ) {
                    let size = [m.into(), n.into(), m.into(), count.into()];
                    let leading = [a_step.into(), b_step.into(), b_step.into()];
                    let result = (Place::Listed(b), [m.into(), n.into(), b_step.into()]);
                    multiply(handle, &Product { size, leading, input: $kind, output: $kind, compute: $compute, result })
                }
            )*
        }
    };
}

others! { i32;
    R32, 68: cublasSgemv_v2, cublasStrsm_v2, cublasStrsmBatched;
    R64, 70: cublasDgemv_v2, cublasDtrsm_v2, cublasDtrsmBatched;
    C32, 68: cublasCgemv_v2, cublasCtrsm_v2, cublasCtrsmBatched;
    C64, 70: cublasZgemv_v2, cublasZtrsm_v2, cublasZtrsmBatched;
}
others! { i64;
    R32, 68: cublasSgemv_v2_64, cublasStrsm_v2_64, cublasStrsmBatched_64;
    R64, 70: cublasDgemv_v2_64, cublasDtrsm_v2_64, cublasDtrsmBatched_64;
    C32, 68: cublasCgemv_v2_64, cublasCtrsm_v2_64, cublasCtrsmBatched_64;
    C64, 70: cublasZgemv_v2_64, cublasZtrsm_v2_64, cublasZtrsmBatched_64;
}
