//! Descriptors of matrices, vectors and algorithms: the real library's own.

use super::status;
use crate::entry::Ptr;
use crate::real::forward;

forward! {
    CUSPARSE, missing status::NOT_INITIALIZED, fail status::INTERNAL_ERROR;

    fn cusparseBlockedEllGet(
        sp_mat_descr: Ptr, rows: Ptr, cols: Ptr, ell_block_size: Ptr, ell_cols: Ptr, ell_col_ind: Ptr,
        ell_value: Ptr, ell_idx_type: Ptr, idx_base: Ptr, value_type: Ptr,
    );
    fn cusparseBsrSetStridedBatch(
        sp_mat_descr: Ptr, batch_count: i32, offsets_batch_stride: i64, columns_batch_stride: i64,
        values_batch_stride: i64,
    );
    fn cusparseConstBlockedEllGet(
        sp_mat_descr: Ptr, rows: Ptr, cols: Ptr, ell_block_size: Ptr, ell_cols: Ptr, ell_col_ind: Ptr,
        ell_value: Ptr, ell_idx_type: Ptr, idx_base: Ptr, value_type: Ptr,
    );
    fn cusparseConstCooGet(
        sp_mat_descr: Ptr, rows: Ptr, cols: Ptr, nnz: Ptr, coo_row_ind: Ptr, coo_col_ind: Ptr,
        coo_values: Ptr, idx_type: Ptr, idx_base: Ptr, value_type: Ptr,
    );
    fn cusparseConstCscGet(
        sp_mat_descr: Ptr, rows: Ptr, cols: Ptr, nnz: Ptr, csc_col_offsets: Ptr, csc_row_ind: Ptr,
        csc_values: Ptr, csc_col_offsets_type: Ptr, csc_row_ind_type: Ptr, idx_base: Ptr, value_type: Ptr,
    );
    fn cusparseConstCsrGet(
        sp_mat_descr: Ptr, rows: Ptr, cols: Ptr, nnz: Ptr, csr_row_offsets: Ptr, csr_col_ind: Ptr,
        csr_values: Ptr, csr_row_offsets_type: Ptr, csr_col_ind_type: Ptr, idx_base: Ptr, value_type: Ptr,
    );
    fn cusparseConstDnMatGet(
        dn_mat_descr: Ptr, rows: Ptr, cols: Ptr, ld: Ptr, values: Ptr, kind: Ptr, order: Ptr,
    );
    fn cusparseConstDnMatGetValues(dn_mat_descr: Ptr, values: Ptr);
    fn cusparseConstDnVecGet(dn_vec_descr: Ptr, size: Ptr, values: Ptr, value_type: Ptr);
    fn cusparseConstDnVecGetValues(dn_vec_descr: Ptr, values: Ptr);
    fn cusparseConstSpMatGetValues(sp_mat_descr: Ptr, values: Ptr);
    fn cusparseConstSpVecGet(
        sp_vec_descr: Ptr, size: Ptr, nnz: Ptr, indices: Ptr, values: Ptr, idx_type: Ptr, idx_base: Ptr,
        value_type: Ptr,
    );
    fn cusparseConstSpVecGetValues(sp_vec_descr: Ptr, values: Ptr);
    fn cusparseCooGet(
        sp_mat_descr: Ptr, rows: Ptr, cols: Ptr, nnz: Ptr, coo_row_ind: Ptr, coo_col_ind: Ptr,
        coo_values: Ptr, idx_type: Ptr, idx_base: Ptr, value_type: Ptr,
    );
    fn cusparseCooSetPointers(sp_mat_descr: Ptr, coo_rows: Ptr, coo_columns: Ptr, coo_values: Ptr);
    fn cusparseCooSetStridedBatch(sp_mat_descr: Ptr, batch_count: i32, batch_stride: i64);
    fn cusparseCreateBlockedEll(
        sp_mat_descr: Ptr, rows: i64, cols: i64, ell_block_size: i64, ell_cols: i64, ell_col_ind: Ptr,
        ell_value: Ptr, ell_idx_type: i32, idx_base: i32, value_type: i32,
    );
    fn cusparseCreateBsr(
        sp_mat_descr: Ptr, brows: i64, bcols: i64, bnnz: i64, row_block_size: i64, col_block_size: i64,
        bsr_row_offsets: Ptr, bsr_col_ind: Ptr, bsr_values: Ptr, bsr_row_offsets_type: i32,
        bsr_col_ind_type: i32, idx_base: i32, value_type: i32, order: i32,
    );
    fn cusparseCreateConstBlockedEll(
        sp_mat_descr: Ptr, rows: i64, cols: i64, ell_block_size: i64, ell_cols: i64, ell_col_ind: Ptr,
        ell_value: Ptr, ell_idx_type: i32, idx_base: i32, value_type: i32,
    );
    fn cusparseCreateConstBsr(
        sp_mat_descr: Ptr, brows: i64, bcols: i64, bnnz: i64, row_block_dim: i64, col_block_dim: i64,
        bsr_row_offsets: Ptr, bsr_col_ind: Ptr, bsr_values: Ptr, bsr_row_offsets_type: i32,
        bsr_col_ind_type: i32, idx_base: i32, value_type: i32, order: i32,
    );
    fn cusparseCreateConstCoo(
        sp_mat_descr: Ptr, rows: i64, cols: i64, nnz: i64, coo_row_ind: Ptr, coo_col_ind: Ptr,
        coo_values: Ptr, coo_idx_type: i32, idx_base: i32, value_type: i32,
    );
    fn cusparseCreateConstCsc(
        sp_mat_descr: Ptr, rows: i64, cols: i64, nnz: i64, csc_col_offsets: Ptr, csc_row_ind: Ptr,
        csc_values: Ptr, csc_col_offsets_type: i32, csc_row_ind_type: i32, idx_base: i32, value_type: i32,
    );
    fn cusparseCreateConstCsr(
        sp_mat_descr: Ptr, rows: i64, cols: i64, nnz: i64, csr_row_offsets: Ptr, csr_col_ind: Ptr,
        csr_values: Ptr, csr_row_offsets_type: i32, csr_col_ind_type: i32, idx_base: i32, value_type: i32,
    );
    fn cusparseCreateConstDnMat(
        dn_mat_descr: Ptr, rows: i64, cols: i64, ld: i64, values: Ptr, value_type: i32, order: i32,
    );
    fn cusparseCreateConstDnVec(dn_vec_descr: Ptr, size: i64, values: Ptr, value_type: i32);
    fn cusparseCreateConstSlicedEll(
        sp_mat_descr: Ptr, rows: i64, cols: i64, nnz: i64, sell_values_size: i64, slice_size: i64,
        sell_slice_offsets: Ptr, sell_col_ind: Ptr, sell_values: Ptr, sell_slice_offsets_type: i32,
        sell_col_ind_type: i32, idx_base: i32, value_type: i32,
    );
    fn cusparseCreateConstSpVec(
        sp_vec_descr: Ptr, size: i64, nnz: i64, indices: Ptr, values: Ptr, idx_type: i32, idx_base: i32,
        value_type: i32,
    );
    fn cusparseCreateCoo(
        sp_mat_descr: Ptr, rows: i64, cols: i64, nnz: i64, coo_row_ind: Ptr, coo_col_ind: Ptr,
        coo_values: Ptr, coo_idx_type: i32, idx_base: i32, value_type: i32,
    );
    fn cusparseCreateCsc(
        sp_mat_descr: Ptr, rows: i64, cols: i64, nnz: i64, csc_col_offsets: Ptr, csc_row_ind: Ptr,
        csc_values: Ptr, csc_col_offsets_type: i32, csc_row_ind_type: i32, idx_base: i32, value_type: i32,
    );
    fn cusparseCreateCsr(
        sp_mat_descr: Ptr, rows: i64, cols: i64, nnz: i64, csr_row_offsets: Ptr, csr_col_ind: Ptr,
        csr_values: Ptr, csr_row_offsets_type: i32, csr_col_ind_type: i32, idx_base: i32, value_type: i32,
    );
    fn cusparseCreateDnMat(
        dn_mat_descr: Ptr, rows: i64, cols: i64, ld: i64, values: Ptr, value_type: i32, order: i32,
    );
    fn cusparseCreateDnVec(dn_vec_descr: Ptr, size: i64, values: Ptr, value_type: i32);
    fn cusparseCreateMatDescr(descr_a: Ptr);
    fn cusparseCreateSlicedEll(
        sp_mat_descr: Ptr, rows: i64, cols: i64, nnz: i64, sell_values_size: i64, slice_size: i64,
        sell_slice_offsets: Ptr, sell_col_ind: Ptr, sell_values: Ptr, sell_slice_offsets_type: i32,
        sell_col_ind_type: i32, idx_base: i32, value_type: i32,
    );
    fn cusparseCreateSpVec(
        sp_vec_descr: Ptr, size: i64, nnz: i64, indices: Ptr, values: Ptr, idx_type: i32, idx_base: i32,
        value_type: i32,
    );
    fn cusparseCscGet(
        sp_mat_descr: Ptr, rows: Ptr, cols: Ptr, nnz: Ptr, csc_col_offsets: Ptr, csc_row_ind: Ptr,
        csc_values: Ptr, csc_col_offsets_type: Ptr, csc_row_ind_type: Ptr, idx_base: Ptr, value_type: Ptr,
    );
    fn cusparseCscSetPointers(sp_mat_descr: Ptr, csc_col_offsets: Ptr, csc_row_ind: Ptr, csc_values: Ptr);
    fn cusparseCsrGet(
        sp_mat_descr: Ptr, rows: Ptr, cols: Ptr, nnz: Ptr, csr_row_offsets: Ptr, csr_col_ind: Ptr,
        csr_values: Ptr, csr_row_offsets_type: Ptr, csr_col_ind_type: Ptr, idx_base: Ptr, value_type: Ptr,
    );
    fn cusparseCsrSetPointers(sp_mat_descr: Ptr, csr_row_offsets: Ptr, csr_col_ind: Ptr, csr_values: Ptr);
    fn cusparseCsrSetStridedBatch(
        sp_mat_descr: Ptr, batch_count: i32, offsets_batch_stride: i64, columns_values_batch_stride: i64,
    );
    fn cusparseDestroyDnMat(dn_mat_descr: Ptr);
    fn cusparseDestroyDnVec(dn_vec_descr: Ptr);
    fn cusparseDestroyMatDescr(descr_a: Ptr);
    fn cusparseDestroySpVec(sp_vec_descr: Ptr);
    fn cusparseDnMatGet(dn_mat_descr: Ptr, rows: Ptr, cols: Ptr, ld: Ptr, values: Ptr, kind: Ptr, order: Ptr);
    fn cusparseDnMatGetStridedBatch(dn_mat_descr: Ptr, batch_count: Ptr, batch_stride: Ptr);
    fn cusparseDnMatGetValues(dn_mat_descr: Ptr, values: Ptr);
    fn cusparseDnMatSetStridedBatch(dn_mat_descr: Ptr, batch_count: i32, batch_stride: i64);
    fn cusparseDnMatSetValues(dn_mat_descr: Ptr, values: Ptr);
    fn cusparseDnVecGet(dn_vec_descr: Ptr, size: Ptr, values: Ptr, value_type: Ptr);
    fn cusparseDnVecGetValues(dn_vec_descr: Ptr, values: Ptr);
    fn cusparseDnVecSetValues(dn_vec_descr: Ptr, values: Ptr);
    fn cusparseGetMatDiagType(descr_a: Ptr);
    fn cusparseGetMatFillMode(descr_a: Ptr);
    fn cusparseGetMatIndexBase(descr_a: Ptr);
    fn cusparseGetMatType(descr_a: Ptr);
    fn cusparseGetProperty(kind: i32, value: Ptr);
    fn cusparseSetMatDiagType(descr_a: Ptr, diag_type: i32);
    fn cusparseSetMatFillMode(descr_a: Ptr, fill_mode: i32);
    fn cusparseSetMatIndexBase(descr_a: Ptr, base: i32);
    fn cusparseSetMatType(descr_a: Ptr, kind: i32);
    fn cusparseSpGEMM_createDescr(descr: Ptr);
    fn cusparseSpGEMM_destroyDescr(descr: Ptr);
    fn cusparseSpMatGetAttribute(sp_mat_descr: Ptr, attribute: i32, data: Ptr, data_size: usize);
    fn cusparseSpMatGetFormat(sp_mat_descr: Ptr, format: Ptr);
    fn cusparseSpMatGetIndexBase(sp_mat_descr: Ptr, idx_base: Ptr);
    fn cusparseSpMatGetStridedBatch(sp_mat_descr: Ptr, batch_count: Ptr);
    fn cusparseSpMatGetValues(sp_mat_descr: Ptr, values: Ptr);
    fn cusparseSpMatSetAttribute(sp_mat_descr: Ptr, attribute: i32, data: Ptr, data_size: usize);
    fn cusparseSpMatSetValues(sp_mat_descr: Ptr, values: Ptr);
    fn cusparseSpSM_createDescr(descr: Ptr);
    fn cusparseSpSM_destroyDescr(descr: Ptr);
    fn cusparseSpSV_createDescr(descr: Ptr);
    fn cusparseSpSV_destroyDescr(descr: Ptr);
    fn cusparseSpVecGet(
        sp_vec_descr: Ptr, size: Ptr, nnz: Ptr, indices: Ptr, values: Ptr, idx_type: Ptr, idx_base: Ptr,
        value_type: Ptr,
    );
    fn cusparseSpVecGetIndexBase(sp_vec_descr: Ptr, idx_base: Ptr);
    fn cusparseSpVecGetValues(sp_vec_descr: Ptr, values: Ptr);
    fn cusparseSpVecSetValues(sp_vec_descr: Ptr, values: Ptr);
}
