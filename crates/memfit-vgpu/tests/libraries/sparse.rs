//! cuSPARSE.

use memfit_vocabulary::Remark;

use crate::calls::*;
use crate::machine::enter;
use crate::real;

fn matrix(rows: i64, columns: i64, entries: i64) -> usize {
    // 32-bit indices and values; the addresses are the device's, and are not dereferenced.
    let data = 0x7f00_0000_0000;
    create_handle(|matrix| cusparseCreateCsr(matrix, rows, columns, entries, data, data, data, 2, 2, 0, 0))
}

fn size(matrix: usize) -> (i64, i64, i64) {
    let (mut rows, mut columns, mut entries) = (-1, -1, -1);
    assert_eq!(cusparseSpMatGetSize(matrix, &mut rows, &mut columns, &mut entries), 0);
    (rows, columns, entries)
}

#[test]
fn a_products_size_is_known_once_it_is_computed() {
    if !real::loaded() {
        return;
    }
    enter();
    let handle = create_handle(|handle| cusparseCreate(handle));
    let (a, b, c) = (matrix(100, 200, 300), matrix(200, 50, 500), matrix(100, 50, 0));
    assert_eq!(size(a), (100, 200, 300), "descriptors are the real library's");
    let mut bytes = 0;
    let mut compute =
        |buffer| cusparseSpGEMM_compute(handle, 0, 0, &1.0, a, b, &0.0, c, 0, 0, 0, &mut bytes, buffer);
    assert_eq!(compute(0), 0);
    assert_eq!(size(c), (100, 50, 0), "so far it was only asked for its buffer");
    assert_eq!(compute(0x7f00_0000_0000), 0);
    assert_eq!(size(c), (100, 50, 900), "each entry meets an average row of three");
    assert!(bytes >= 900 * 8);
    for each in [a, b, c] {
        assert_eq!(cusparseDestroySpMat(each), 0);
    }
    assert_eq!(cusparseDestroy(handle), 0);
}

#[test]
fn a_transposed_matrix_is_copied() {
    if !real::loaded() {
        return;
    }
    enter();
    let handle = create_handle(|handle| cusparseCreate(handle));
    let a = matrix(1000, 1000, 50_000);
    let buffer = |operation| {
        let mut bytes = 0;
        assert_eq!(cusparseSpMM_bufferSize(handle, operation, 0, &1.0, a, a, &0.0, a, 0, 0, &mut bytes), 0);
        bytes
    };
    assert!(buffer(0) < 50_000 * 8);
    assert!(buffer(1) >= 50_000 * 8);
    assert_eq!(cusparseDestroySpMat(a), 0);
    assert_eq!(cusparseDestroy(handle), 0);
}

#[test]
fn a_sum_has_at_most_both_matrices_entries() {
    enter();
    let handle = create_handle(|handle| cusparseCreate(handle));
    let total = |rows, columns, a_entries, b_entries| {
        let mut total = -1;
        let counted = cusparseXcsrgeam2Nnz(
            handle, rows, columns, 0, a_entries, 0, 0, 0, b_entries, 0, 0, 0, 0, &mut total, 0,
        );
        assert_eq!(counted, 0);
        total
    };
    assert_eq!(total(100, 100, 30, 40), 70);
    assert_eq!(total(5, 5, 20, 20), 25, "no more than there are places");
    assert!(remarked(Remark::CusparseSum));
    assert_eq!(cusparseDestroy(handle), 0);
}
