//! Buffer sizes of sparse algorithms. The real library computes them only on a device; these are what the
//! algorithms must hold: a copy of the row offsets, a transposed copy, keys and values to sort. Each use is
//! noted.

use memfit_vocabulary::Remark;

use super::handle::{Context, write_result};
use super::product::Shape;
use super::status;
use crate::entry::{Fails, Handle, Out, Ptr, entry_points};
use memfit_cuda::card;

/// `CUSPARSE_OPERATION_NON_TRANSPOSE`.
const NON_TRANSPOSE: i32 = 0;
/// Bytes per index.
const INDEX_BYTES: i64 = 4;
/// Bytes of the widest value, complex double precision.
const VALUE_BYTES: i64 = 16;
/// Bytes that a scan over a whole array needs.
const SCAN_BYTES: i64 = 4096;

/// A copy of the row offsets, and a transposed copy if the matrix is transposed.
fn offsets(shape: Shape, operation: i32) -> i64 {
    let copy =
        if operation == NON_TRANSPOSE { 0 } else { shape.entries.saturating_mul(INDEX_BYTES + VALUE_BYTES) };
    shape.rows.max(shape.columns).saturating_add(1).saturating_mul(2 * INDEX_BYTES).saturating_add(copy)
}

/// Analysis of a triangular solve: the levels of the rows, and the dependencies of each.
fn levels(shape: Shape) -> i64 {
    shape
        .rows
        .saturating_mul(8 * INDEX_BYTES)
        .saturating_add(shape.entries.saturating_mul(2 * INDEX_BYTES))
        .saturating_add(SCAN_BYTES)
}

/// Keys and a permutation, double-buffered.
fn sorting(entries: i64) -> i64 {
    entries.saturating_mul(4 * INDEX_BYTES).saturating_add(SCAN_BYTES)
}

fn write_matrix_buffer(
    handle: Handle<Context>,
    matrix: Ptr,
    size: Out<usize>,
    bytes: impl FnOnce(Shape) -> i64,
) -> i32 {
    let Some(shape) = Shape::read(matrix) else { return status::INVALID_VALUE };
    write(handle, size, bytes(shape))
}

fn write(handle: Handle<Context>, size: Out<usize>, bytes: i64) -> i32 {
    card::remark_on_bytes(Remark::CusparseBuffers, u64::try_from(bytes).unwrap_or(0));
    write_result(handle, size, usize::try_from(bytes).unwrap_or(usize::MAX))
}

fn write_int(handle: Handle<Context>, size: Out<i32>, bytes: i64) -> i32 {
    card::remark_on_bytes(Remark::CusparseBuffers, u64::try_from(bytes).unwrap_or(0));
    write_result(handle, size, i32::try_from(bytes).unwrap_or(i32::MAX))
}

entry_points! {
    Fails(status::INTERNAL_ERROR);

    /// Returns the buffer size of sparse times dense.
    fn cusparseSpMM_bufferSize(
        handle: Handle<Context>, op_a: i32, _op_b: i32, _alpha: Ptr, a: Ptr, _b: Ptr, _beta: Ptr, _c: Ptr, _compute: i32,
        _algorithm: i32, size: Out<usize>,
    ) {
        write_matrix_buffer(handle, a, size, |shape| offsets(shape, op_a))
    }

    /// Returns the buffer size of sparse times a vector.
    fn cusparseSpMV_bufferSize(
        handle: Handle<Context>, op_a: i32, _alpha: Ptr, a: Ptr, _x: Ptr, _beta: Ptr, _y: Ptr, _compute: i32,
        _algorithm: i32, size: Out<usize>,
    ) {
        write_matrix_buffer(handle, a, size, |shape| offsets(shape, op_a))
    }

    /// Returns the buffer size of a sampled dense-dense product (SDDMM).
    fn cusparseSDDMM_bufferSize(
        handle: Handle<Context>, _op_a: i32, _op_b: i32, _alpha: Ptr, _a: Ptr, _b: Ptr, _beta: Ptr, c: Ptr, _compute: i32,
        _algorithm: i32, size: Out<usize>,
    ) {
        write_matrix_buffer(handle, c, size, |shape| offsets(shape, NON_TRANSPOSE))
    }

    /// Returns the buffer size of a triangular solve for one vector.
    fn cusparseSpSV_bufferSize(
        handle: Handle<Context>, op_a: i32, _alpha: Ptr, a: Ptr, _x: Ptr, _y: Ptr, _compute: i32, _algorithm: i32,
        _state: Ptr, size: Out<usize>,
    ) {
        write_matrix_buffer(handle, a, size, |shape| levels(shape).saturating_add(offsets(shape, op_a)))
    }

    /// Returns the buffer size of a triangular solve for many vectors.
    fn cusparseSpSM_bufferSize(
        handle: Handle<Context>, op_a: i32, _op_b: i32, _alpha: Ptr, a: Ptr, _b: Ptr, _c: Ptr, _compute: i32,
        _algorithm: i32, _state: Ptr, size: Out<usize>,
    ) {
        write_matrix_buffer(handle, a, size, |shape| levels(shape).saturating_add(offsets(shape, op_a)))
    }

    /// Returns the buffer size of a sparse to dense conversion.
    fn cusparseSparseToDense_bufferSize(
        handle: Handle<Context>, sparse: Ptr, _dense: Ptr, _algorithm: i32, size: Out<usize>,
    ) {
        write_matrix_buffer(handle, sparse, size, |shape| offsets(shape, NON_TRANSPOSE))
    }

    /// Returns the buffer size of a sparse vector times a dense one.
    fn cusparseSpVV_bufferSize(
        handle: Handle<Context>, _operation: i32, _x: Ptr, _y: Ptr, _result: Ptr, _compute: i32, size: Out<usize>,
    ) {
        write(handle, size, SCAN_BYTES)
    }

    /// Returns the buffer size of a CSR to CSC conversion.
    fn cusparseCsr2cscEx2_bufferSize(
        handle: Handle<Context>, m: i32, n: i32, entries: i32, _values: Ptr, _rows: Ptr, _columns: Ptr, _csc_values: Ptr,
        _csc_columns: Ptr, _csc_rows: Ptr, _kind: i32, _action: i32, _base: i32, _algorithm: i32, size: Out<usize>,
    ) {
        write(handle, size, sorting(entries.into()).saturating_add(i64::from(m.max(n)).saturating_mul(2 * INDEX_BYTES)))
    }

    /// Returns the buffer size of sorting coordinates.
    fn cusparseXcoosort_bufferSizeExt(
        handle: Handle<Context>, _m: i32, _n: i32, entries: i32, _rows: Ptr, _columns: Ptr, size: Out<usize>,
    ) {
        write(handle, size, sorting(entries.into()))
    }

    /// Returns the buffer size of sorting rows.
    fn cusparseXcsrsort_bufferSizeExt(
        handle: Handle<Context>, _m: i32, _n: i32, entries: i32, _rows: Ptr, _columns: Ptr, size: Out<usize>,
    ) {
        write(handle, size, sorting(entries.into()))
    }

    /// Returns the buffer size of sorting columns.
    fn cusparseXcscsort_bufferSizeExt(
        handle: Handle<Context>, _m: i32, _n: i32, entries: i32, _columns: Ptr, _rows: Ptr, size: Out<usize>,
    ) {
        write(handle, size, sorting(entries.into()))
    }
}

entry_points! {
    Fails(status::INTERNAL_ERROR);

    /// Returns the buffer size of a sparse sum.
    fn cusparseScsrgeam2_bufferSizeExt(
        handle: Handle<Context>, m: i32, _n: i32, _alpha: Ptr, _a: Ptr, _a_entries: i32, _a_values: Ptr,
        _a_rows: Ptr, _a_columns: Ptr, _beta: Ptr, _b: Ptr, _b_entries: i32, _b_values: Ptr, _b_rows: Ptr,
        _b_columns: Ptr, _c: Ptr, _c_values: Ptr, _c_rows: Ptr, _c_columns: Ptr, size: Out<usize>,
    ),
    fn cusparseDcsrgeam2_bufferSizeExt(),
    fn cusparseCcsrgeam2_bufferSizeExt(),
    fn cusparseZcsrgeam2_bufferSizeExt() {
        write(handle, size, i64::from(m).saturating_add(1).saturating_mul(INDEX_BYTES).saturating_add(SCAN_BYTES))
    }

    /// Returns the buffer size of a block triangular solve.
    fn cusparseSbsrsv2_bufferSize(
        handle: Handle<Context>, _direction: i32, _operation: i32, rows: i32, entries: i32, _a: Ptr,
        _values: Ptr, _row_offsets: Ptr, _columns: Ptr, _block: i32, _info: Ptr, size: Out<i32>,
    ),
    fn cusparseDbsrsv2_bufferSize(),
    fn cusparseCbsrsv2_bufferSize(),
    fn cusparseZbsrsv2_bufferSize() {
        let (rows, entries) = (rows.into(), entries.into());
        write_int(handle, size, levels(Shape { rows, columns: rows, entries }))
    }

    /// Returns the buffer size of a block triangular solve.
    fn cusparseSbsrsm2_bufferSize(
        handle: Handle<Context>, _direction: i32, _op_a: i32, _op_x: i32, rows: i32, _vectors: i32,
        entries: i32, _a: Ptr, _values: Ptr, _row_offsets: Ptr, _columns: Ptr, _block: i32, _info: Ptr,
        size: Out<i32>,
    ),
    fn cusparseDbsrsm2_bufferSize(),
    fn cusparseCbsrsm2_bufferSize(),
    fn cusparseZbsrsm2_bufferSize() {
        let (rows, entries) = (rows.into(), entries.into());
        write_int(handle, size, levels(Shape { rows, columns: rows, entries }))
    }

    /// Returns the buffer size of an incomplete factorisation.
    fn cusparseScsrilu02_bufferSize(
        handle: Handle<Context>, rows: i32, entries: i32, _a: Ptr, _values: Ptr, _row_offsets: Ptr,
        _columns: Ptr, _info: Ptr, size: Out<i32>,
    ),
    fn cusparseDcsrilu02_bufferSize(),
    fn cusparseCcsrilu02_bufferSize(),
    fn cusparseZcsrilu02_bufferSize(),
    fn cusparseScsric02_bufferSize(),
    fn cusparseDcsric02_bufferSize(),
    fn cusparseCcsric02_bufferSize(),
    fn cusparseZcsric02_bufferSize() {
        let (rows, entries) = (rows.into(), entries.into());
        write_int(handle, size, levels(Shape { rows, columns: rows, entries }))
    }
}
