//! The libraries' calls as a C program declares them.

#![allow(unsafe_code, reason = "the tests call as C callers do")]

use std::ffi::{c_char, c_void};

// The calls below are the library's, so it must be linked.
use memfit_vgpu as _;

pub(crate) type Ptr = *mut c_void;

/// `ncclUniqueId`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct UniqueId(pub(crate) [u64; 16]);

unsafe extern "C" {
    pub(crate) safe fn cublasCreate_v2(handle: &mut usize) -> i32;
    pub(crate) safe fn cublasDestroy_v2(handle: usize) -> i32;
    pub(crate) safe fn cublasSetStream_v2(handle: usize, stream: usize) -> i32;
    pub(crate) safe fn cublasGetStream_v2(handle: usize, stream: &mut usize) -> i32;
    pub(crate) safe fn cublasSetMathMode(handle: usize, mode: i32) -> i32;
    pub(crate) safe fn cublasGetMathMode(handle: usize, mode: &mut i32) -> i32;
    pub(crate) safe fn cublasSetPointerMode_v2(handle: usize, mode: i32) -> i32;
    pub(crate) safe fn cublasGetPointerMode_v2(handle: usize, mode: &mut i32) -> i32;
    pub(crate) safe fn cublasSetWorkspace_v2(handle: usize, workspace: usize, size: usize) -> i32;
    pub(crate) safe fn cublasGetVersion_v2(handle: usize, version: &mut i32) -> i32;
    pub(crate) fn cublasSetMatrix(
        rows: i32,
        columns: i32,
        element: i32,
        from: *const u8,
        from_rows: i32,
        to: usize,
        to_rows: i32,
    ) -> i32;
    pub(crate) fn cublasGetMatrix(
        rows: i32,
        columns: i32,
        element: i32,
        from: usize,
        from_rows: i32,
        to: *mut u8,
        to_rows: i32,
    ) -> i32;

    pub(crate) safe fn cublasLtCreate(handle: &mut usize) -> i32;
    pub(crate) safe fn cublasLtDestroy(handle: usize) -> i32;
    pub(crate) safe fn cublasLtMatmulDescCreate(descriptor: &mut usize, compute: i32, scale: i32) -> i32;
    pub(crate) safe fn cublasLtMatmulDescSetAttribute(
        descriptor: usize,
        which: i32,
        value: &i32,
        size: usize,
    ) -> i32;
    pub(crate) safe fn cublasLtMatmulDescGetAttribute(
        descriptor: usize,
        which: i32,
        value: &mut i32,
        size: usize,
        written: &mut usize,
    ) -> i32;
    pub(crate) safe fn cublasLtMatmulDescDestroy(descriptor: usize) -> i32;
    pub(crate) safe fn cublasLtMatrixLayoutCreate(
        layout: &mut usize,
        kind: i32,
        rows: u64,
        columns: u64,
        leading: i64,
    ) -> i32;
    pub(crate) safe fn cublasLtMatrixLayoutDestroy(layout: usize) -> i32;
    pub(crate) safe fn cublasLtMatmulPreferenceCreate(preference: &mut usize) -> i32;
    pub(crate) safe fn cublasLtMatmulPreferenceDestroy(preference: usize) -> i32;
    pub(crate) safe fn cublasLtMatmulAlgoGetHeuristic(
        handle: usize,
        operation: usize,
        a: usize,
        b: usize,
        c: usize,
        d: usize,
        preference: usize,
        requested: i32,
        results: &mut [[u64; 12]; 2],
        returned: &mut i32,
    ) -> i32;
    pub(crate) safe fn cublasLtMatmulAlgoConfigSetAttribute(
        algorithm: &mut [u64; 8],
        which: i32,
        value: &u32,
        size: usize,
    ) -> i32;
    pub(crate) safe fn cublasLtMatmulAlgoConfigGetAttribute(
        algorithm: &[u64; 8],
        which: i32,
        value: &mut u32,
        size: usize,
        written: &mut usize,
    ) -> i32;

    pub(crate) safe fn cudnnCreate(handle: &mut usize) -> i32;
    pub(crate) safe fn cudnnDestroy(handle: usize) -> i32;
    pub(crate) safe fn cudnnSetStream(handle: usize, stream: usize) -> i32;
    pub(crate) safe fn cudnnGetStream(handle: usize, stream: &mut usize) -> i32;
    pub(crate) safe fn cudnnGetVersion() -> usize;
    pub(crate) safe fn cudnnBackendCreateDescriptor(kind: i32, descriptor: &mut usize) -> i32;
    pub(crate) safe fn cudnnBackendDestroyDescriptor(descriptor: usize) -> i32;
    pub(crate) safe fn cudnnBackendFinalize(descriptor: usize) -> i32;
    pub(crate) fn cudnnBackendSetAttribute(
        descriptor: usize,
        name: i32,
        kind: i32,
        count: i64,
        values: *const c_void,
    ) -> i32;
    pub(crate) fn cudnnBackendGetAttribute(
        descriptor: usize,
        name: i32,
        kind: i32,
        requested: i64,
        count: &mut i64,
        values: *mut c_void,
    ) -> i32;
    pub(crate) safe fn cudnnBackendExecute(handle: usize, plan: usize, variant_pack: usize) -> i32;
    pub(crate) safe fn cudnnCreateTensorDescriptor(descriptor: &mut usize) -> i32;
    pub(crate) safe fn cudnnDestroyTensorDescriptor(descriptor: usize) -> i32;
    pub(crate) fn cudnnSetTensorNdDescriptor(
        descriptor: usize,
        kind: i32,
        count: i32,
        dimensions: *const i32,
        strides: *const i32,
    ) -> i32;
    pub(crate) fn cudnnGetTensorNdDescriptor(
        descriptor: usize,
        requested: i32,
        kind: *mut i32,
        count: *mut i32,
        dimensions: *mut i32,
        strides: *mut i32,
    ) -> i32;
    pub(crate) safe fn cudnnCreateFilterDescriptor(descriptor: &mut usize) -> i32;
    pub(crate) fn cudnnSetFilterNdDescriptor(
        descriptor: usize,
        kind: i32,
        format: i32,
        count: i32,
        dimensions: *const i32,
    ) -> i32;
    pub(crate) safe fn cudnnCreateConvolutionDescriptor(descriptor: &mut usize) -> i32;
    pub(crate) fn cudnnSetConvolutionNdDescriptor(
        descriptor: usize,
        count: i32,
        padding: *const i32,
        stride: *const i32,
        dilation: *const i32,
        mode: i32,
        kind: i32,
    ) -> i32;
    pub(crate) fn cudnnFindConvolutionForwardAlgorithmEx(
        handle: usize,
        x: usize,
        x_data: Ptr,
        w: usize,
        w_data: Ptr,
        convolution: usize,
        y: usize,
        y_data: Ptr,
        requested: i32,
        returned: *mut i32,
        results: *mut [u64; 6],
        workspace: Ptr,
        size: usize,
    ) -> i32;
    pub(crate) safe fn cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(
        handle: usize,
        mode: i32,
        operations: i32,
        x: usize,
        z: usize,
        y: usize,
        parameters: usize,
        activation: usize,
        size: &mut usize,
    ) -> i32;
    pub(crate) safe fn cudnnDropoutGetStatesSize(handle: usize, size: &mut usize) -> i32;
    pub(crate) safe fn cudnnCreateDropoutDescriptor(descriptor: &mut usize) -> i32;
    pub(crate) safe fn cudnnSetDropoutDescriptor(
        descriptor: usize,
        handle: usize,
        probability: f32,
        states: usize,
        size: usize,
        seed: u64,
    ) -> i32;
    pub(crate) safe fn cudnnCreateRNNDescriptor(descriptor: &mut usize) -> i32;
    pub(crate) safe fn cudnnSetRNNDescriptor_v8(
        descriptor: usize,
        algorithm: i32,
        cell: i32,
        bias: i32,
        direction: i32,
        input: i32,
        kind: i32,
        precision: i32,
        math: i32,
        input_size: i32,
        hidden_size: i32,
        projection_size: i32,
        layers: i32,
        dropout: usize,
        flags: u32,
    ) -> i32;
    pub(crate) safe fn cudnnGetRNNWeightSpaceSize(handle: usize, network: usize, size: &mut usize) -> i32;
    pub(crate) safe fn cudnnGetRNNWeightParams(
        handle: usize,
        network: usize,
        layer: i32,
        size: usize,
        space: usize,
        which: i32,
        matrix: usize,
        matrix_address: &mut usize,
        bias: usize,
        bias_address: &mut usize,
    ) -> i32;
    pub(crate) safe fn cudnnCreateRNNDataDescriptor(descriptor: &mut usize) -> i32;
    pub(crate) fn cudnnSetRNNDataDescriptor(
        descriptor: usize,
        kind: i32,
        layout: i32,
        steps: i32,
        batch: i32,
        size: i32,
        lengths: *const i32,
        fill: Ptr,
    ) -> i32;
    pub(crate) safe fn cudnnGetRNNTempSpaceSizes(
        handle: usize,
        network: usize,
        mode: i32,
        input: usize,
        workspace: &mut usize,
        reserve: &mut usize,
    ) -> i32;

    pub(crate) safe fn cufftCreate(plan: &mut i32) -> i32;
    pub(crate) safe fn cufftDestroy(plan: i32) -> i32;
    pub(crate) safe fn cufftSetAutoAllocation(plan: i32, allocates: i32) -> i32;
    pub(crate) safe fn cufftSetWorkArea(plan: i32, area: usize) -> i32;
    pub(crate) safe fn cufftMakePlan1d(plan: i32, size: i32, kind: i32, batch: i32, work: &mut usize) -> i32;
    pub(crate) safe fn cufftGetSize(plan: i32, work: &mut usize) -> i32;
    pub(crate) safe fn cufftPlan2d(plan: &mut i32, x: i32, y: i32, kind: i32) -> i32;

    pub(crate) safe fn ncclGetUniqueId(id: &mut UniqueId) -> i32;
    pub(crate) safe fn ncclCommInitRank(communicator: &mut usize, size: i32, id: UniqueId, rank: i32) -> i32;
    pub(crate) safe fn ncclCommInitAll(communicators: &mut [usize; 2], count: i32, cards: &[i32; 2]) -> i32;
    pub(crate) safe fn ncclCommSplit(
        communicator: usize,
        color: i32,
        key: i32,
        create_handle: &mut usize,
        configuration: usize,
    ) -> i32;
    pub(crate) safe fn ncclCommShrink(
        communicator: usize,
        excluded: &[i32; 2],
        count: i32,
        create_handle: &mut usize,
        configuration: usize,
        flags: i32,
    ) -> i32;
    pub(crate) safe fn ncclCommDestroy(communicator: usize) -> i32;
    pub(crate) safe fn ncclCommCount(communicator: usize, count: &mut i32) -> i32;
    pub(crate) safe fn ncclCommUserRank(communicator: usize, rank: &mut i32) -> i32;
    pub(crate) safe fn ncclCommCuDevice(communicator: usize, card: &mut i32) -> i32;
    pub(crate) safe fn ncclCommGetAsyncError(communicator: usize, error: &mut i32) -> i32;
    pub(crate) safe fn ncclMemAlloc(address: &mut usize, size: usize) -> i32;
    pub(crate) safe fn ncclMemFree(address: usize) -> i32;
    pub(crate) safe fn ncclAllGather(
        from: usize,
        to: usize,
        count: usize,
        kind: i32,
        communicator: usize,
        stream: usize,
    ) -> i32;
    pub(crate) safe fn ncclReduceScatter(
        from: usize,
        to: usize,
        count: usize,
        kind: i32,
        operation: i32,
        communicator: usize,
        stream: usize,
    ) -> i32;
    pub(crate) safe fn ncclAllReduce(
        from: usize,
        to: usize,
        count: usize,
        kind: i32,
        operation: i32,
        communicator: usize,
        stream: usize,
    ) -> i32;
    pub(crate) safe fn ncclBroadcast(
        from: usize,
        to: usize,
        count: usize,
        kind: i32,
        root: i32,
        communicator: usize,
        stream: usize,
    ) -> i32;
    pub(crate) safe fn ncclGroupStart() -> i32;
    pub(crate) safe fn ncclGroupEnd() -> i32;
    pub(crate) safe fn ncclRecv(
        data: usize,
        count: usize,
        kind: i32,
        peer: i32,
        communicator: usize,
        stream: usize,
    ) -> i32;
    pub(crate) safe fn ncclSend(
        data: usize,
        count: usize,
        kind: i32,
        peer: i32,
        communicator: usize,
        stream: usize,
    ) -> i32;
    pub(crate) safe fn ncclGetErrorString(code: i32) -> *const c_char;

    pub(crate) safe fn cusolverDnCreate(handle: &mut usize) -> i32;
    pub(crate) safe fn cusolverDnDestroy(handle: usize) -> i32;
    pub(crate) safe fn cusolverDnSgetrf_bufferSize(
        handle: usize,
        m: i32,
        n: i32,
        a: usize,
        lda: i32,
        size: &mut i32,
    ) -> i32;
    pub(crate) safe fn cusolverDnSsyevd_bufferSize(
        handle: usize,
        vectors: i32,
        fill: i32,
        n: i32,
        a: usize,
        lda: i32,
        w: usize,
        size: &mut i32,
    ) -> i32;
    pub(crate) safe fn cusolverDnXpotrf_bufferSize(
        handle: usize,
        parameters: usize,
        fill: i32,
        n: i64,
        kind: i32,
        a: usize,
        lda: i64,
        compute: i32,
        device: &mut usize,
        host: &mut usize,
    ) -> i32;

    pub(crate) safe fn cusparseCreate(handle: &mut usize) -> i32;
    pub(crate) safe fn cusparseDestroy(handle: usize) -> i32;
    pub(crate) safe fn cusparseCreateCsr(
        matrix: &mut usize,
        rows: i64,
        columns: i64,
        entries: i64,
        offsets: usize,
        indices: usize,
        values: usize,
        offset_kind: i32,
        index_kind: i32,
        base: i32,
        kind: i32,
    ) -> i32;
    pub(crate) safe fn cusparseDestroySpMat(matrix: usize) -> i32;
    pub(crate) safe fn cusparseSpMatGetSize(
        matrix: usize,
        rows: &mut i64,
        columns: &mut i64,
        entries: &mut i64,
    ) -> i32;
    pub(crate) safe fn cusparseSpMM_bufferSize(
        handle: usize,
        op_a: i32,
        op_b: i32,
        alpha: &f32,
        a: usize,
        b: usize,
        beta: &f32,
        c: usize,
        kind: i32,
        algorithm: i32,
        size: &mut usize,
    ) -> i32;
    pub(crate) safe fn cusparseSpGEMM_compute(
        handle: usize,
        op_a: i32,
        op_b: i32,
        alpha: &f32,
        a: usize,
        b: usize,
        beta: &f32,
        c: usize,
        kind: i32,
        algorithm: i32,
        state: usize,
        size: &mut usize,
        buffer: usize,
    ) -> i32;
    pub(crate) safe fn cusparseXcsrgeam2Nnz(
        handle: usize,
        m: i32,
        n: i32,
        a: usize,
        a_entries: i32,
        a_rows: usize,
        a_columns: usize,
        b: usize,
        b_entries: i32,
        b_rows: usize,
        b_columns: usize,
        c: usize,
        c_rows: usize,
        total: &mut i32,
        workspace: usize,
    ) -> i32;

    pub(crate) safe fn cudaMalloc(address: &mut usize, size: usize) -> i32;
    pub(crate) safe fn cudaFree(address: usize) -> i32;
    pub(crate) fn cudaMemcpy(to: usize, from: usize, size: usize, way: i32) -> i32;
}

/// Allocates device memory.
pub(crate) fn device_memory(size: usize) -> usize {
    let mut address = 0;
    assert_eq!(cudaMalloc(&mut address, size), 0);
    address
}

/// Uploads values to the device.
pub(crate) fn upload(values: &[i32]) -> usize {
    let address = device_memory(size_of_val(values));
    // SAFETY: the array is readable.
    assert_eq!(unsafe { cudaMemcpy(address, values.as_ptr() as usize, size_of_val(values), 1) }, 0);
    address
}

/// Downloads values from the device.
pub(crate) fn download(address: usize, count: usize) -> Vec<i32> {
    let mut values = vec![-1; count];
    // SAFETY: the array is writable.
    assert_eq!(unsafe { cudaMemcpy(values.as_mut_ptr() as usize, address, 4 * count, 2) }, 0);
    values
}

/// Creates an object whose constructor writes its handle to the first argument.
pub(crate) fn create_handle(make: impl FnOnce(&mut usize) -> i32) -> usize {
    let mut handle = 0;
    assert_eq!(make(&mut handle), 0);
    assert_ne!(handle, 0);
    handle
}

/// Returns `true` if a remark has been recorded.
pub(crate) fn remarked(remark: memfit_vocabulary::Remark) -> bool {
    crate::machine::ledger().tally.iter().any(|entry| entry.name == remark.id())
}
