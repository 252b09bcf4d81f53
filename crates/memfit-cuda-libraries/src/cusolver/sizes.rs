//! Workspace sizes of decompositions.
//!
//! The real figures are undocumented and cannot be queried without a device. These follow LAPACK's
//! documentation of the algorithms that cuSOLVER names, with blocks of [`BLOCK`] columns, rounded up where
//! cuSOLVER is known to keep a copy: an upper bound for the sizes that matter, a few columns in addition to a
//! matrix or two. Each use is noted.

use memfit_vocabulary::Remark;

use super::handle::Context;
use super::status;
use crate::entry::{Fails, Handle, Out, Ptr, entry_points};
use memfit_cuda::card;

/// Block size: columns that blocked algorithms process at a time.
const BLOCK: i64 = 64;

/// Workspace of each family of algorithms, in elements. `m` and `n` are the rows and columns of the matrix.
mod elements {
    use super::BLOCK;

    /// Factorisations by panels: LU, QR, Cholesky, and applying or forming their reflections.
    pub(super) fn panel(m: i64, n: i64) -> i64 {
        m.max(n).max(1).saturating_mul(BLOCK).saturating_add(BLOCK * BLOCK)
    }

    /// Inverse from a factorisation, formed out of place.
    pub(super) fn inverse(n: i64) -> i64 {
        square(n).saturating_add(panel(n, n))
    }

    /// Bidiagonal reduction: panels on both sides.
    pub(super) fn bidiagonal(m: i64, n: i64) -> i64 {
        panel(m, m).saturating_add(panel(n, n))
    }

    /// Singular values by QR iterations: a triangle of the smaller side, and the reduction.
    pub(super) fn singular(m: i64, n: i64) -> i64 {
        square(m.min(n)).saturating_add(bidiagonal(m, n)).saturating_add(m.min(n).saturating_mul(5))
    }

    /// Singular values by Jacobi rotations: the matrix and the rotations, besides the results.
    pub(super) fn singular_jacobi(m: i64, n: i64) -> i64 {
        m.saturating_mul(n).saturating_add(square(m.max(n)).saturating_mul(2)).saturating_add(panel(m, n))
    }

    /// Approximate singular values: the product of the matrix with itself, and its decomposition.
    pub(super) fn singular_approximate(m: i64, n: i64, batch: i64) -> i64 {
        let each = m.saturating_mul(n).saturating_add(eigen(n));
        each.saturating_mul(batch.max(1))
    }

    /// Eigenvalues of a symmetric matrix by divide and conquer (LAPACK: 1 + 6n + 2n²), and the reduction
    /// before.
    pub(super) fn eigen(n: i64) -> i64 {
        square(n)
            .saturating_mul(2)
            .saturating_add(n.saturating_mul(6))
            .saturating_add(panel(n, n))
            .saturating_add(1)
    }

    /// Eigenvalues of a general matrix: Hessenberg form, Schur form, and vectors.
    pub(super) fn eigen_general(n: i64) -> i64 {
        square(n).saturating_mul(3).saturating_add(panel(n, n))
    }

    pub(super) fn square(n: i64) -> i64 {
        n.saturating_mul(n)
    }
}

/// Bytes of the widest element (complex double precision): the type is in a call's name, not in its
/// arguments.
const MAX_ELEMENT_BYTES: u64 = 16;

/// Writes a size in elements.
fn write_size(handle: Handle<Context>, valid: bool, size: Out<i32>, count: i64) -> i32 {
    if handle.get().is_none() {
        return status::NOT_INITIALIZED;
    }
    let bytes = u64::try_from(count).unwrap_or(0).saturating_mul(MAX_ELEMENT_BYTES);
    card::remark_on_bytes(Remark::CusolverWorkspaces, bytes);
    if valid && size.write(i32::try_from(count).unwrap_or(i32::MAX)) {
        status::SUCCESS
    } else {
        status::INVALID_VALUE
    }
}

entry_points! {
    Fails(status::INTERNAL_ERROR);

    /// Returns the workspace in elements.
    fn cusolverDnSpotrf_bufferSize(
        handle: Handle<Context>, _fill: i32, n: i32, _a: Ptr, lda: i32, size: Out<i32>,
    ),
    fn cusolverDnDpotrf_bufferSize(),
    fn cusolverDnCpotrf_bufferSize(),
    fn cusolverDnZpotrf_bufferSize() {
        write_size(handle, n >= 0 && lda >= n, size, elements::panel(n.into(), n.into()))
    }

    /// Returns the workspace in elements.
    fn cusolverDnSpotri_bufferSize(
        handle: Handle<Context>, _fill: i32, n: i32, _a: Ptr, lda: i32, size: Out<i32>,
    ),
    fn cusolverDnDpotri_bufferSize(),
    fn cusolverDnCpotri_bufferSize(),
    fn cusolverDnZpotri_bufferSize(),
    fn cusolverDnSlauum_bufferSize(),
    fn cusolverDnDlauum_bufferSize(),
    fn cusolverDnClauum_bufferSize(),
    fn cusolverDnZlauum_bufferSize() {
        write_size(handle, n >= 0 && lda >= n, size, elements::inverse(n.into()))
    }

    /// Returns the workspace in elements.
    fn cusolverDnSgetrf_bufferSize(handle: Handle<Context>, m: i32, n: i32, _a: Ptr, lda: i32, size: Out<i32>),
    fn cusolverDnDgetrf_bufferSize(),
    fn cusolverDnCgetrf_bufferSize(),
    fn cusolverDnZgetrf_bufferSize(),
    fn cusolverDnSgeqrf_bufferSize(),
    fn cusolverDnDgeqrf_bufferSize(),
    fn cusolverDnCgeqrf_bufferSize(),
    fn cusolverDnZgeqrf_bufferSize() {
        write_size(handle, m >= 0 && n >= 0 && lda >= m, size, elements::panel(m.into(), n.into()))
    }

    /// Returns the workspace in elements.
    fn cusolverDnSorgqr_bufferSize(
        handle: Handle<Context>, m: i32, n: i32, k: i32, _a: Ptr, lda: i32, _tau: Ptr, size: Out<i32>,
    ),
    fn cusolverDnDorgqr_bufferSize(),
    fn cusolverDnCungqr_bufferSize(),
    fn cusolverDnZungqr_bufferSize() {
        write_size(handle, m >= 0 && n >= 0 && k >= 0 && lda >= m, size, elements::panel(m.into(), n.into()))
    }

    /// Returns the workspace in elements.
    fn cusolverDnSormqr_bufferSize(
        handle: Handle<Context>, _side: i32, _trans: i32, m: i32, n: i32, k: i32, _a: Ptr, _lda: i32, _tau: Ptr,
        _c: Ptr, ldc: i32, size: Out<i32>,
    ),
    fn cusolverDnDormqr_bufferSize(),
    fn cusolverDnCunmqr_bufferSize(),
    fn cusolverDnZunmqr_bufferSize() {
        write_size(handle, m >= 0 && n >= 0 && k >= 0 && ldc >= m, size, elements::panel(m.into(), n.into()))
    }

    /// Returns the workspace in elements.
    fn cusolverDnSormtr_bufferSize(
        handle: Handle<Context>, _side: i32, _fill: i32, _trans: i32, m: i32, n: i32, _a: Ptr, _lda: i32,
        _tau: Ptr, _c: Ptr, ldc: i32, size: Out<i32>,
    ),
    fn cusolverDnDormtr_bufferSize(),
    fn cusolverDnCunmtr_bufferSize(),
    fn cusolverDnZunmtr_bufferSize() {
        write_size(handle, m >= 0 && n >= 0 && ldc >= m, size, elements::panel(m.into(), n.into()))
    }

    /// Returns the workspace in elements.
    fn cusolverDnSorgbr_bufferSize(
        handle: Handle<Context>, _side: i32, m: i32, n: i32, k: i32, _a: Ptr, lda: i32, _tau: Ptr,
        size: Out<i32>,
    ),
    fn cusolverDnDorgbr_bufferSize(),
    fn cusolverDnCungbr_bufferSize(),
    fn cusolverDnZungbr_bufferSize() {
        write_size(handle, m >= 0 && n >= 0 && k >= 0 && lda >= m, size, elements::panel(m.into(), n.into()))
    }

    /// Returns the workspace in elements.
    fn cusolverDnSorgtr_bufferSize(
        handle: Handle<Context>, _fill: i32, n: i32, _a: Ptr, lda: i32, _tau: Ptr, size: Out<i32>,
    ),
    fn cusolverDnDorgtr_bufferSize(),
    fn cusolverDnCungtr_bufferSize(),
    fn cusolverDnZungtr_bufferSize() {
        write_size(handle, n >= 0 && lda >= n, size, elements::panel(n.into(), n.into()))
    }

    /// Returns the workspace in elements.
    fn cusolverDnSsytrf_bufferSize(handle: Handle<Context>, n: i32, _a: Ptr, lda: i32, size: Out<i32>),
    fn cusolverDnDsytrf_bufferSize(),
    fn cusolverDnCsytrf_bufferSize(),
    fn cusolverDnZsytrf_bufferSize() {
        write_size(handle, n >= 0 && lda >= n, size, elements::panel(n.into(), n.into()))
    }

    /// Returns the workspace in elements.
    fn cusolverDnSsytri_bufferSize(
        handle: Handle<Context>, _fill: i32, n: i32, _a: Ptr, lda: i32, _pivots: Ptr, size: Out<i32>,
    ),
    fn cusolverDnDsytri_bufferSize(),
    fn cusolverDnCsytri_bufferSize(),
    fn cusolverDnZsytri_bufferSize() {
        write_size(handle, n >= 0 && lda >= n, size, elements::inverse(n.into()))
    }

    /// Returns the workspace in elements.
    fn cusolverDnSsytrd_bufferSize(
        handle: Handle<Context>, _fill: i32, n: i32, _a: Ptr, lda: i32, _d: Ptr, _e: Ptr, _tau: Ptr,
        size: Out<i32>,
    ),
    fn cusolverDnDsytrd_bufferSize(),
    fn cusolverDnChetrd_bufferSize(),
    fn cusolverDnZhetrd_bufferSize() {
        write_size(handle, n >= 0 && lda >= n, size, elements::panel(n.into(), n.into()))
    }

    /// Returns the workspace in elements.
    fn cusolverDnSgebrd_bufferSize(handle: Handle<Context>, m: i32, n: i32, size: Out<i32>),
    fn cusolverDnDgebrd_bufferSize(),
    fn cusolverDnCgebrd_bufferSize(),
    fn cusolverDnZgebrd_bufferSize() {
        write_size(handle, m >= 0 && n >= 0, size, elements::bidiagonal(m.into(), n.into()))
    }

    /// Returns the workspace in elements.
    fn cusolverDnSgesvd_bufferSize(handle: Handle<Context>, m: i32, n: i32, size: Out<i32>),
    fn cusolverDnDgesvd_bufferSize(),
    fn cusolverDnCgesvd_bufferSize(),
    fn cusolverDnZgesvd_bufferSize() {
        write_size(handle, m >= 0 && n >= 0, size, elements::singular(m.into(), n.into()))
    }

    /// Returns the workspace in elements.
    fn cusolverDnSgesvdj_bufferSize(
        handle: Handle<Context>, _vectors: i32, _economy: i32, m: i32, n: i32, _a: Ptr, lda: i32, _s: Ptr,
        _u: Ptr, _ldu: i32, _v: Ptr, _ldv: i32, size: Out<i32>, _parameters: Ptr,
    ),
    fn cusolverDnDgesvdj_bufferSize(),
    fn cusolverDnCgesvdj_bufferSize(),
    fn cusolverDnZgesvdj_bufferSize() {
        write_size(handle, m >= 0 && n >= 0 && lda >= m, size, elements::singular_jacobi(m.into(), n.into()))
    }

    /// Returns the workspace in elements.
    fn cusolverDnSgesvdjBatched_bufferSize(
        handle: Handle<Context>, _vectors: i32, m: i32, n: i32, _a: Ptr, lda: i32, _s: Ptr, _u: Ptr, _ldu: i32,
        _v: Ptr, _ldv: i32, size: Out<i32>, _parameters: Ptr, batch: i32,
    ),
    fn cusolverDnDgesvdjBatched_bufferSize(),
    fn cusolverDnCgesvdjBatched_bufferSize(),
    fn cusolverDnZgesvdjBatched_bufferSize() {
        write_size(handle, m >= 0 && n >= 0 && lda >= m && batch >= 0, size, elements::singular_jacobi(m.into(), n.into()).saturating_mul(batch.into()))
    }

    /// Returns the workspace in elements.
    fn cusolverDnSgesvdaStridedBatched_bufferSize(
        handle: Handle<Context>, _vectors: i32, _rank: i32, m: i32, n: i32, _a: Ptr, lda: i32, _step_a: i64,
        _s: Ptr, _step_s: i64, _u: Ptr, _ldu: i32, _step_u: i64, _v: Ptr, _ldv: i32, _step_v: i64,
        size: Out<i32>, batch: i32,
    ),
    fn cusolverDnDgesvdaStridedBatched_bufferSize(),
    fn cusolverDnCgesvdaStridedBatched_bufferSize(),
    fn cusolverDnZgesvdaStridedBatched_bufferSize() {
        write_size(handle, m >= 0 && n >= 0 && lda >= m && batch >= 0, size, elements::singular_approximate(m.into(), n.into(), batch.into()))
    }

    /// Returns the workspace in elements.
    fn cusolverDnSsyevd_bufferSize(
        handle: Handle<Context>, _vectors: i32, _fill: i32, n: i32, _a: Ptr, lda: i32, _w: Ptr, size: Out<i32>,
    ),
    fn cusolverDnDsyevd_bufferSize(),
    fn cusolverDnCheevd_bufferSize(),
    fn cusolverDnZheevd_bufferSize() {
        write_size(handle, n >= 0 && lda >= n, size, elements::eigen(n.into()))
    }

    /// Returns the workspace in elements.
    fn cusolverDnSsyevj_bufferSize(
        handle: Handle<Context>, _vectors: i32, _fill: i32, n: i32, _a: Ptr, lda: i32, _w: Ptr, size: Out<i32>,
        _parameters: Ptr,
    ),
    fn cusolverDnDsyevj_bufferSize(),
    fn cusolverDnCheevj_bufferSize(),
    fn cusolverDnZheevj_bufferSize() {
        write_size(handle, n >= 0 && lda >= n, size, elements::eigen(n.into()))
    }

    /// Returns the workspace in elements.
    fn cusolverDnSsyevjBatched_bufferSize(
        handle: Handle<Context>, _vectors: i32, _fill: i32, n: i32, _a: Ptr, lda: i32, _w: Ptr, size: Out<i32>,
        _parameters: Ptr, batch: i32,
    ),
    fn cusolverDnDsyevjBatched_bufferSize(),
    fn cusolverDnCheevjBatched_bufferSize(),
    fn cusolverDnZheevjBatched_bufferSize() {
        write_size(handle, n >= 0 && lda >= n && batch >= 0, size, elements::eigen(n.into()).saturating_mul(batch.into()))
    }

    /// Returns the workspace in elements.
    fn cusolverDnSsygvd_bufferSize(
        handle: Handle<Context>, _kind: i32, _vectors: i32, _fill: i32, n: i32, _a: Ptr, lda: i32, _b: Ptr,
        _ldb: i32, _w: Ptr, size: Out<i32>,
    ),
    fn cusolverDnDsygvd_bufferSize(),
    fn cusolverDnChegvd_bufferSize(),
    fn cusolverDnZhegvd_bufferSize() {
        write_size(handle, n >= 0 && lda >= n, size, elements::eigen(n.into()))
    }
}

/// Bytes per element of a `cudaDataType`.
fn width(kind: i32) -> i64 {
    match kind {
        0 | 6 => 4,
        1 | 4 => 8,
        5 => 16,
        _ => 2,
    }
}

/// Writes sizes in bytes. The host workspace is as large as a panel: it holds a small problem.
fn write_sizes(
    handle: Handle<Context>,
    valid: bool,
    kind: i32,
    count: i64,
    device: Out<usize>,
    host: Out<usize>,
    on_host: i64,
) -> i32 {
    if handle.get().is_none() {
        return status::NOT_INITIALIZED;
    }
    let bytes = |count: i64| usize::try_from(count.saturating_mul(width(kind))).unwrap_or(0);
    card::remark_on_bytes(Remark::CusolverWorkspaces, bytes(count) as u64);
    if !valid || device.is_null() {
        return status::INVALID_VALUE;
    }
    device.set(bytes(count));
    host.set(bytes(on_host));
    status::SUCCESS
}

entry_points! {
    Fails(status::INTERNAL_ERROR);

    /// Returns the workspace of a Cholesky factorisation.
    fn cusolverDnXpotrf_bufferSize(
        handle: Handle<Context>, _parameters: Ptr, _fill: i32, n: i64, kind: i32, _a: Ptr, lda: i64, _compute: i32,
        device: Out<usize>, host: Out<usize>,
    ) {
        write_sizes(handle, n >= 0 && lda >= n, kind, elements::panel(n, n), device, host, 0)
    }

    /// Returns the workspace of an LU factorisation.
    fn cusolverDnXgetrf_bufferSize(
        handle: Handle<Context>, _parameters: Ptr, m: i64, n: i64, kind: i32, _a: Ptr, lda: i64, _compute: i32,
        device: Out<usize>, host: Out<usize>,
    ) {
        write_sizes(handle, m >= 0 && n >= 0 && lda >= m, kind, elements::panel(m, n), device, host, 0)
    }

    /// Returns the workspace of a QR factorisation.
    fn cusolverDnXgeqrf_bufferSize(
        handle: Handle<Context>, _parameters: Ptr, m: i64, n: i64, kind: i32, _a: Ptr, lda: i64, _tau_kind: i32, _tau: Ptr,
        _compute: i32, device: Out<usize>, host: Out<usize>,
    ) {
        write_sizes(handle, m >= 0 && n >= 0 && lda >= m, kind, elements::panel(m, n), device, host, 0)
    }

    /// Returns the workspace of a solve after a symmetric factorisation.
    fn cusolverDnXsytrs_bufferSize(
        handle: Handle<Context>, _fill: i32, n: i64, columns: i64, kind: i32, _a: Ptr, lda: i64, _pivots: Ptr,
        _b_kind: i32, _b: Ptr, _ldb: i64, device: Out<usize>, host: Out<usize>,
    ) {
        write_sizes(handle, n >= 0 && lda >= n, kind, elements::panel(n, columns), device, host, 0)
    }

    /// Returns the workspace of a triangular inverse.
    fn cusolverDnXtrtri_bufferSize(
        handle: Handle<Context>, _fill: i32, _unit: i32, n: i64, kind: i32, _a: Ptr, lda: i64, device: Out<usize>,
        host: Out<usize>,
    ) {
        write_sizes(handle, n >= 0 && lda >= n, kind, elements::inverse(n), device, host, 0)
    }

    /// Returns the workspace of a singular value decomposition.
    fn cusolverDnXgesvd_bufferSize(
        handle: Handle<Context>, _parameters: Ptr, _u_vectors: u8, _v_vectors: u8, m: i64, n: i64, kind: i32, _a: Ptr,
        lda: i64, _s_kind: i32, _s: Ptr, _u_kind: i32, _u: Ptr, _ldu: i64, _v_kind: i32, _v: Ptr, _ldv: i64,
        _compute: i32, device: Out<usize>, host: Out<usize>,
    ) {
        write_sizes(handle, m >= 0 && n >= 0 && lda >= m, kind, elements::singular(m, n), device, host, 0)
    }

    /// Returns the workspace for a symmetric matrix's eigenvalues.
    fn cusolverDnXsyevd_bufferSize(
        handle: Handle<Context>, _parameters: Ptr, _vectors: i32, _fill: i32, n: i64, kind: i32, _a: Ptr, lda: i64,
        _w_kind: i32, _w: Ptr, _compute: i32, device: Out<usize>, host: Out<usize>,
    ) {
        write_sizes(handle, n >= 0 && lda >= n, kind, elements::eigen(n), device, host, 0)
    }

    /// Returns the workspace for the eigenvalues of a batch of symmetric matrices.
    fn cusolverDnXsyevBatched_bufferSize(
        handle: Handle<Context>, _parameters: Ptr, _vectors: i32, _fill: i32, n: i64, kind: i32, _a: Ptr, lda: i64,
        _w_kind: i32, _w: Ptr, _compute: i32, device: Out<usize>, host: Out<usize>, batch: i64,
    ) {
        let count = elements::eigen(n).saturating_mul(batch);
        write_sizes(handle, n >= 0 && lda >= n && batch >= 0, kind, count, device, host, 0)
    }

    /// Returns the workspace for a general matrix's eigenvalues; the iteration runs on the host.
    fn cusolverDnXgeev_bufferSize(
        handle: Handle<Context>, _parameters: Ptr, _left: i32, _right: i32, n: i64, kind: i32, _a: Ptr, lda: i64,
        _w_kind: i32, _w: Ptr, _left_kind: i32, _left_vectors: Ptr, _left_ld: i64, _right_kind: i32, _right_vectors: Ptr,
        _right_ld: i64, _compute: i32, device: Out<usize>, host: Out<usize>,
    ) {
        let (count, on_host) = (elements::eigen_general(n), elements::square(n));
        write_sizes(handle, n >= 0 && lda >= n, kind, count, device, host, on_host)
    }
}
