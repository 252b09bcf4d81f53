//! Product of two sparse matrices (SpGEMM), whose number of entries depends on the data.
//!
//! It is estimated as if entries were spread evenly: each entry of the first matrix meets an average row of
//! the second. That is neither a lower nor an upper bound, except that a product is never larger than a dense
//! matrix. Each use is noted.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use memfit_vocabulary::Remark;

use super::handle::Context;
use super::status;
use crate::cost::library;
use crate::entry::{Fails, Handle, Out, Ptr, entry_points};
use crate::real::real;
use memfit_cuda::card;

/// Number of entries of computed products, by descriptor; the real library would keep it in the descriptor.
static PRODUCTS: Mutex<Option<HashMap<usize, i64>>> = Mutex::new(None);

fn products<R>(body: impl FnOnce(&mut HashMap<usize, i64>) -> R) -> R {
    let mut products = PRODUCTS.lock().unwrap_or_else(PoisonError::into_inner);
    body(products.get_or_insert_default())
}

/// Shape and number of entries of a sparse matrix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Shape {
    /// Number of rows.
    pub(super) rows: i64,
    /// Number of columns.
    pub(super) columns: i64,
    /// Number of entries.
    pub(super) entries: i64,
}

impl Shape {
    /// Reads the shape of a descriptor.
    pub(super) fn read(matrix: Ptr) -> Option<Self> {
        let mut shape = Self::default();
        let answered = real!(CUSPARSE, cusparseSpMatGetSize(
            matrix => Ptr, &raw mut shape.rows => *mut i64, &raw mut shape.columns => *mut i64,
            &raw mut shape.entries => *mut i64
        ) -> i32)?;
        if let Some(entries) = products(|products| products.get(&(matrix as usize)).copied()) {
            shape.entries = entries;
        }
        (answered == status::SUCCESS).then_some(shape)
    }

    /// Number of multiplications in the product with another matrix, if entries are spread evenly.
    fn multiplications(self, other: Self) -> i64 {
        let row = other
            .entries
            .checked_div(other.rows)
            .map_or(0, |full| full + i64::from(other.entries % other.rows != 0));
        self.entries.saturating_mul(row)
    }

    /// Estimated number of entries of the product.
    fn product_entries(self, other: Self) -> i64 {
        self.multiplications(other).min(self.rows.saturating_mul(other.columns))
    }
}

/// Maximum bytes per entry of a result: its column and its value.
const ENTRY_BYTES: u64 = 8 + 16;
/// Bytes per multiplication while a product is computed: a column and a value of up to 16 bytes, twice, for
/// sorting.
const MULTIPLICATION_BYTES: i64 = 2 * (8 + 16);

/// Runs one step of a product. The first call of each step queries a size without a buffer; the second one
/// works.
fn step(
    handle: Handle<Context>,
    first: Ptr,
    second: Ptr,
    size: Out<usize>,
    buffer: Ptr,
    bytes: impl FnOnce(Shape, Shape) -> i64,
    work: impl FnOnce(Shape, Shape),
) -> i32 {
    if handle.get().is_none() {
        return status::NOT_INITIALIZED;
    }
    let Some((first, second)) = Shape::read(first).zip(Shape::read(second)) else {
        return status::INVALID_VALUE;
    };
    if buffer.is_null() {
        let bytes = usize::try_from(bytes(first, second)).unwrap_or(usize::MAX);
        return if size.write(bytes) { status::SUCCESS } else { status::INVALID_VALUE };
    }
    work(first, second);
    status::SUCCESS
}

/// Queues a sparse matrix times a dense one of `columns` on the handle's stream, assuming single precision.
fn multiply(handle: Handle<Context>, matrix: Ptr, columns: i64) -> i32 {
    const WIDTH: f64 = 4.0;
    let Some(context) = handle.get() else { return status::NOT_INITIALIZED };
    let Some(shape) = Shape::read(matrix) else { return status::INVALID_VALUE };
    card::queue_work(context.stream(), |speeds| {
        let (entries, rows) = (shape.entries.max(0) as f64, shape.rows.max(0) as f64);
        library::sparse_times_dense(entries, rows, columns.max(1) as f64, WIDTH, speeds)
    });
    status::SUCCESS
}

entry_points! {
    Fails(status::INTERNAL_ERROR);

    /// Queues a sparse matrix times a dense one.
    fn cusparseSpMM(
        handle: Handle<Context>, _op_a: i32, _op_b: i32, _alpha: Ptr, a: Ptr, _b: Ptr, _beta: Ptr, c: Ptr, _compute: i32,
        _algorithm: i32, _buffer: Ptr,
    ) {
        let (mut rows, mut columns, mut step, mut values, mut kind, mut order) = (0_i64, 0_i64, 0_i64, 0_usize, 0_i32, 0_i32);
        let known = real!(CUSPARSE, cusparseDnMatGet(
            c => Ptr, &raw mut rows => *mut i64, &raw mut columns => *mut i64, &raw mut step => *mut i64,
            &raw mut values => *mut usize, &raw mut kind => *mut i32, &raw mut order => *mut i32
        ) -> i32);
        super::dense::forget_dense_matrix(c as u64);
        multiply(handle, a, if known == Some(status::SUCCESS) { columns } else { 1 })
    }

    /// Queues a sparse matrix times a vector.
    fn cusparseSpMV(
        handle: Handle<Context>, _op_a: i32, _alpha: Ptr, a: Ptr, _x: Ptr, _beta: Ptr, y: Ptr, _compute: i32,
        _algorithm: i32, _buffer: Ptr,
    ) {
        super::dense::forget_dense_vector(y as u64);
        multiply(handle, a, 1)
    }

    /// Runs the first step: the distribution of the work.
    fn cusparseSpGEMM_workEstimation(
        handle: Handle<Context>, _op_a: i32, _op_b: i32, _alpha: Ptr, a: Ptr, b: Ptr, _beta: Ptr, _c: Ptr, _compute: i32,
        _algorithm: i32, _state: Ptr, size: Out<usize>, buffer: Ptr,
    ) {
        step(handle, a, b, size, buffer, |first, _| first.rows.saturating_mul(8).saturating_add(256), |_, _| {})
    }

    /// Runs the second step: the product. From here on, the result's descriptor knows its size.
    fn cusparseSpGEMM_compute(
        handle: Handle<Context>, _op_a: i32, _op_b: i32, _alpha: Ptr, a: Ptr, b: Ptr, _beta: Ptr, c: Ptr, _compute: i32,
        _algorithm: i32, _state: Ptr, size: Out<usize>, buffer: Ptr,
    ) {
        let bytes = |first: Shape, second| first.multiplications(second).saturating_mul(MULTIPLICATION_BYTES).saturating_add(256);
        step(handle, a, b, size, buffer, bytes, |first, second| {
            let entries = u64::try_from(first.product_entries(second)).unwrap_or(0);
            card::remark_on_bytes(Remark::CusparseProduct, entries.saturating_mul(ENTRY_BYTES));
            products(|products| products.insert(c as usize, first.product_entries(second)));
        })
    }

    /// Runs the third step: copies the result out.
    fn cusparseSpGEMM_copy(
        handle: Handle<Context>, _op_a: i32, _op_b: i32, _alpha: Ptr, _a: Ptr, _b: Ptr, _beta: Ptr, _c: Ptr,
        _compute: i32, _algorithm: i32, _state: Ptr,
    ) {
        if handle.get().is_some() { status::SUCCESS } else { status::NOT_INITIALIZED }
    }

    /// Returns a matrix's shape; the number of entries may come from a product.
    fn cusparseSpMatGetSize(matrix: Ptr, rows: Out<i64>, columns: Out<i64>, entries: Out<i64>) {
        let Some(shape) = Shape::read(matrix) else { return status::INVALID_VALUE };
        if rows.write(shape.rows) && columns.write(shape.columns) && entries.write(shape.entries) {
            status::SUCCESS
        } else {
            status::INVALID_VALUE
        }
    }

    /// Destroys a matrix.
    fn cusparseDestroySpMat(matrix: Ptr) {
        products(|products| products.remove(&(matrix as usize)));
        real!(CUSPARSE, cusparseDestroySpMat(matrix => Ptr) -> i32).unwrap_or(status::NOT_INITIALIZED)
    }

    /// Returns an upper bound on the entries of a sum: those of both matrices, since none may coincide.
    fn cusparseXcsrgeam2Nnz(
        handle: Handle<Context>, m: i32, n: i32, _a: Ptr, a_entries: i32, _a_rows: Ptr, _a_columns: Ptr, _b: Ptr,
        b_entries: i32, _b_rows: Ptr, _b_columns: Ptr, _c: Ptr, _c_rows: Ptr, total: Out<i32>, _workspace: Ptr,
    ) {
        let Some(context) = handle.get() else { return status::NOT_INITIALIZED };
        if m < 0 || n < 0 || total.is_null() {
            return status::INVALID_VALUE;
        }
        if context.scalars_on_host() {
            let both = i64::from(a_entries) + i64::from(b_entries);
            let bytes = u64::try_from(both).unwrap_or(0).saturating_mul(ENTRY_BYTES);
            card::remark_on_bytes(Remark::CusparseSum, bytes);
            total.set(i32::try_from(both.min(i64::from(m) * i64::from(n))).unwrap_or(i32::MAX));
        }
        status::SUCCESS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_product_is_estimated_and_never_more_than_dense() {
        let sparse = Shape { rows: 100, columns: 200, entries: 300 };
        let other = Shape { rows: 200, columns: 50, entries: 500 };
        assert_eq!(sparse.multiplications(other), 900, "three entries a row at most on average");
        assert_eq!(sparse.product_entries(other), 900);
        let full = Shape { rows: 200, columns: 50, entries: 10_000 };
        assert_eq!(sparse.product_entries(full), 5_000);
        let empty = Shape { rows: 0, columns: 50, entries: 0 };
        assert_eq!(sparse.product_entries(empty), 0);
    }
}
