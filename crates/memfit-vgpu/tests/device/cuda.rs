//! CUDA's calls as a C program declares them, and their error codes.

#![allow(unsafe_code, reason = "the tests call as C callers do")]

use std::ffi::{c_char, c_void};

// The calls below are the library's, so it must be linked.
use memfit_vgpu as _;

pub(crate) const INVALID_VALUE: i32 = 1;
pub(crate) const OUT_OF_MEMORY: i32 = 2;
pub(crate) const INITIALIZATION: i32 = 3;
pub(crate) const INVALID_COPY_DIRECTION: i32 = 21;
pub(crate) const NO_DEVICE: i32 = 100;
pub(crate) const INVALID_DEVICE: i32 = 101;
pub(crate) const INVALID_CONTEXT: i32 = 201;
pub(crate) const UNSUPPORTED_LIMIT: i32 = 215;
pub(crate) const INVALID_HANDLE: i32 = 400;
pub(crate) const ILLEGAL_STATE: i32 = 401;
pub(crate) const NOT_FOUND: i32 = 500;
pub(crate) const NOT_READY: i32 = 600;
pub(crate) const PEER_ALREADY: i32 = 704;
pub(crate) const PEER_NOT: i32 = 705;
pub(crate) const ALREADY_REGISTERED: i32 = 712;
pub(crate) const NOT_REGISTERED: i32 = 713;
pub(crate) const CAPTURE_UNSUPPORTED: i32 = 900;
pub(crate) const CAPTURE_INVALIDATED: i32 = 901;
pub(crate) const CAPTURE_UNMATCHED: i32 = 903;

pub(crate) const HOST_TO_DEVICE: i32 = 1;
pub(crate) const DEVICE_TO_HOST: i32 = 2;
pub(crate) const DEVICE_TO_DEVICE: i32 = 3;
pub(crate) const DEFAULT: i32 = 4;

/// `CUmemAllocationProp`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct Properties {
    pub(crate) kind: i32,
    pub(crate) shareable: u32,
    pub(crate) location_kind: i32,
    pub(crate) location: i32,
    pub(crate) windows: u64,
    pub(crate) flags: u64,
}

/// `CUmemAccessDesc`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Access {
    pub(crate) kind: i32,
    pub(crate) id: i32,
    pub(crate) flags: i32,
}

/// `cudaMemPoolProps`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct PoolProperties {
    pub(crate) kind: i32,
    pub(crate) handles: i32,
    pub(crate) location_kind: i32,
    pub(crate) location: i32,
    pub(crate) security: u64,
    pub(crate) max_size: u64,
    pub(crate) rest: [u64; 7],
}

/// `cudaIpcMemHandle_t`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct IpcHandle(pub(crate) [u64; 8]);

macro_rules! calls {
    ($(fn $name:ident($($argument:ident: $kind:ty),* $(,)?) -> $result:ty;)*) => {
        /// Declarations of the library.
        mod raw {
            use super::*;
            unsafe extern "C" { $(pub(super) fn $name($($argument: $kind),*) -> $result;)* }
        }
        $(
            /// Call as documented by CUDA.
            #[allow(clippy::too_many_arguments, reason = "CUDA's")]
            pub(crate) fn $name($($argument: $kind),*) -> $result {
                // SAFETY: tests pass arguments that CUDA's documentation allows, or that it promises to
                // refuse.
                unsafe { raw::$name($($argument),*) }
            }
        )*
    };
}

calls! {
    fn cudaMalloc(address: *mut u64, size: u64) -> i32;
    fn cudaMallocPitch(address: *mut u64, pitch: *mut u64, width: u64, height: u64) -> i32;
    fn cudaMallocManaged(address: *mut u64, size: u64, flags: u32) -> i32;
    fn cudaFree(address: u64) -> i32;
    fn cudaMemGetInfo(free: *mut u64, total: *mut u64) -> i32;
    fn cudaHostAlloc(address: *mut u64, size: u64, flags: u32) -> i32;
    fn cudaFreeHost(address: u64) -> i32;
    fn cudaHostRegister(address: u64, size: u64, flags: u32) -> i32;
    fn cudaHostUnregister(address: u64) -> i32;
    fn cudaHostGetDevicePointer(device: *mut u64, address: u64, flags: u32) -> i32;
    fn cudaHostGetFlags(flags: *mut u32, address: u64) -> i32;
    fn cudaPointerGetAttributes(attributes: *mut [u64; 11], address: u64) -> i32;
    fn cuPointerGetAttribute(value: *mut u64, attribute: i32, address: u64) -> i32;
    fn cuPointerGetAttributes(count: u32, attributes: *const i32, values: *const u64, address: u64) -> i32;
    fn cuMemGetAddressRange_v2(start: *mut u64, size: *mut u64, address: u64) -> i32;

    fn cudaMemcpy(target: u64, source: u64, size: u64, kind: i32) -> i32;
    fn cudaMemcpyAsync(target: u64, source: u64, size: u64, kind: i32, stream: u64) -> i32;
    fn cudaMemcpy2D(target: u64, target_pitch: u64, source: u64, source_pitch: u64, width: u64, height: u64, kind: i32) -> i32;
    fn cudaMemsetAsync(target: u64, value: i32, size: u64, stream: u64) -> i32;
    fn cudaMemset(target: u64, value: i32, size: u64) -> i32;
    fn cuMemsetD32_v2(target: u64, value: u32, count: u64) -> i32;
    fn cuMemcpyHtoD_v2(target: u64, source: u64, size: u64) -> i32;
    fn cuMemcpyDtoH_v2(target: u64, source: u64, size: u64) -> i32;

    fn cudaGetLastError() -> i32;
    fn cudaPeekAtLastError() -> i32;
    fn cudaGetErrorName(code: i32) -> *const c_char;
    fn cudaGetErrorString(code: i32) -> *const c_char;
    fn cuGetErrorName(code: i32, name: *mut *const c_char) -> i32;
    fn cuGetErrorString(code: i32, text: *mut *const c_char) -> i32;
    fn cuGetProcAddress_v2(name: *const c_char, function: *mut u64, version: i32, flags: u64, result: *mut i32) -> i32;
    fn cudaGetDriverEntryPointByVersion(name: *const c_char, function: *mut u64, version: u32, flags: u64, result: *mut i32) -> i32;
    fn cuMemAlloc_v2(address: *mut u64, size: u64) -> i32;
    fn cuMemAlloc(address: *mut u32, size: u32) -> i32;

    fn cudaGetDeviceCount(count: *mut i32) -> i32;
    fn cudaGetDevice(device: *mut i32) -> i32;
    fn cudaSetDevice(device: i32) -> i32;
    fn cudaDeviceSynchronize() -> i32;
    fn cudaDeviceGetAttribute(value: *mut i32, attribute: i32, device: i32) -> i32;
    fn cudaGetDeviceProperties_v2(properties: *mut u8, device: i32) -> i32;
    fn cudaDeviceGetLimit(value: *mut u64, limit: i32) -> i32;
    fn cudaDeviceSetLimit(limit: i32, value: u64) -> i32;
    fn cudaDeviceCanAccessPeer(answer: *mut i32, device: i32, peer: i32) -> i32;
    fn cudaDeviceEnablePeerAccess(peer: i32, flags: u32) -> i32;
    fn cudaDeviceDisablePeerAccess(peer: i32) -> i32;
    fn cudaDeviceGetPCIBusId(text: *mut u8, length: i32, device: i32) -> i32;
    fn cudaDeviceGetByPCIBusId(device: *mut i32, text: *const c_char) -> i32;
    fn cuDevicePrimaryCtxGetState(device: i32, flags: *mut u32, active: *mut i32) -> i32;
    fn cuDevicePrimaryCtxRetain(context: *mut u64, device: i32) -> i32;
    fn cuDevicePrimaryCtxRelease_v2(device: i32) -> i32;
    fn cuCtxCreate_v2(context: *mut u64, flags: u32, device: i32) -> i32;
    fn cuCtxDestroy_v2(context: u64) -> i32;
    fn cuCtxGetCurrent(context: *mut u64) -> i32;
    fn cuCtxSetCurrent(context: u64) -> i32;
    fn cuCtxPushCurrent_v2(context: u64) -> i32;
    fn cuCtxPopCurrent_v2(context: *mut u64) -> i32;
    fn cuCtxGetDevice(device: *mut i32) -> i32;
    fn cuInit(flags: u32) -> i32;

    fn cudaStreamCreate(stream: *mut u64) -> i32;
    fn cudaStreamCreateWithPriority(stream: *mut u64, flags: u32, priority: i32) -> i32;
    fn cudaStreamDestroy(stream: u64) -> i32;
    fn cudaStreamQuery(stream: u64) -> i32;
    fn cudaStreamSynchronize(stream: u64) -> i32;
    fn cudaStreamWaitEvent(stream: u64, event: u64, flags: u32) -> i32;
    fn cudaStreamGetPriority(stream: u64, priority: *mut i32) -> i32;
    fn cudaStreamGetFlags(stream: u64, flags: *mut u32) -> i32;
    fn cudaStreamGetId(stream: u64, id: *mut u64) -> i32;
    fn cudaStreamGetDevice(stream: u64, device: *mut i32) -> i32;
    fn cudaLaunchHostFunc(stream: u64, function: Option<extern "C" fn(*mut c_void)>, data: *mut c_void) -> i32;
    fn cudaStreamAddCallback(stream: u64, function: Option<extern "C" fn(u64, i32, *mut c_void)>, data: *mut c_void, flags: u32) -> i32;
    fn cudaEventCreateWithFlags(event: *mut u64, flags: u32) -> i32;
    fn cudaEventDestroy(event: u64) -> i32;
    fn cudaEventCreate(event: *mut u64) -> i32;
    fn cudaEventRecord(event: u64, stream: u64) -> i32;
    fn cudaEventQuery(event: u64) -> i32;
    fn cudaEventSynchronize(event: u64) -> i32;
    fn cudaEventElapsedTime(milliseconds: *mut f32, start: u64, end: u64) -> i32;

    fn cudaStreamBeginCapture(stream: u64, mode: i32) -> i32;
    fn cudaStreamEndCapture(stream: u64, graph: *mut u64) -> i32;
    fn cudaStreamIsCapturing(stream: u64, status: *mut i32) -> i32;
    fn cudaStreamGetCaptureInfo_v2(stream: u64, status: *mut i32, id: *mut u64, graph: *mut u64, nodes: *mut u64, count: *mut u64) -> i32;
    fn cudaThreadExchangeStreamCaptureMode(mode: *mut i32) -> i32;
    fn cudaGraphGetNodes(graph: u64, nodes: *mut u64, count: *mut u64) -> i32;
    fn cudaGraphInstantiateWithFlags(executable: *mut u64, graph: u64, flags: u64) -> i32;
    fn cudaGraphLaunch(executable: u64, stream: u64) -> i32;
    fn cudaGraphExecDestroy(executable: u64) -> i32;
    fn cudaGraphDestroy(graph: u64) -> i32;
    fn cudaUserObjectCreate(object: *mut u64, address: *mut c_void, destroy: Option<extern "C" fn(*mut c_void)>, references: u32, flags: u32) -> i32;
    fn cudaUserObjectRelease(object: u64, count: u32) -> i32;
    fn cudaGraphRetainUserObject(graph: u64, object: u64, count: u32, flags: u32) -> i32;

    fn cudaMallocAsync(address: *mut u64, size: u64, stream: u64) -> i32;
    fn cudaMallocFromPoolAsync(address: *mut u64, size: u64, pool: u64, stream: u64) -> i32;
    fn cudaFreeAsync(address: u64, stream: u64) -> i32;
    fn cudaDeviceGetDefaultMemPool(pool: *mut u64, device: i32) -> i32;
    fn cudaMemPoolCreate(pool: *mut u64, properties: *const PoolProperties) -> i32;
    fn cudaMemPoolDestroy(pool: u64) -> i32;
    fn cudaMemPoolTrimTo(pool: u64, keep: u64) -> i32;
    fn cudaMemPoolGetAttribute(pool: u64, attribute: i32, value: *mut u64) -> i32;
    fn cudaMemPoolSetAttribute(pool: u64, attribute: i32, value: *mut u64) -> i32;

    fn cuMemGetAllocationGranularity(size: *mut u64, properties: *const Properties, option: i32) -> i32;
    fn cuMemCreate(handle: *mut u64, size: u64, properties: *const Properties, flags: u64) -> i32;
    fn cuMemRelease(handle: u64) -> i32;
    fn cuMemAddressReserve(address: *mut u64, size: u64, alignment: u64, wish: u64, flags: u64) -> i32;
    fn cuMemAddressFree(address: u64, size: u64) -> i32;
    fn cuMemMap(address: u64, size: u64, offset: u64, handle: u64, flags: u64) -> i32;
    fn cuMemUnmap(address: u64, size: u64) -> i32;
    fn cuMemSetAccess(address: u64, size: u64, list: *const Access, count: u64) -> i32;
    fn cuMemGetAccess(flags: *mut u64, location: *const [i32; 2], address: u64) -> i32;
    fn cuMemRetainAllocationHandle(handle: *mut u64, address: u64) -> i32;
    fn cuMemExportToShareableHandle(target: *mut i32, handle: u64, kind: u32, flags: u64) -> i32;
    fn cuMemImportFromShareableHandle(handle: *mut u64, descriptor: u64, kind: u32) -> i32;

    fn cudaIpcGetMemHandle(handle: *mut IpcHandle, address: u64) -> i32;
    fn cudaIpcOpenMemHandle(address: *mut u64, handle: IpcHandle, flags: u32) -> i32;
    fn cudaIpcCloseMemHandle(address: u64) -> i32;
}

/// Value that a call writes; the call must succeed.
#[track_caller]
pub(crate) fn out<T: Default>(call: impl FnOnce(*mut T) -> i32) -> T {
    let mut value = T::default();
    assert_eq!(call(&raw mut value), 0);
    value
}

/// Allocates device memory.
#[track_caller]
pub(crate) fn malloc(size: u64) -> u64 {
    out(|address| cudaMalloc(address, size))
}

/// Free and total bytes of the current GPU.
#[track_caller]
pub(crate) fn info() -> (u64, u64) {
    let mut total = 0;
    let free = out(|free| cudaMemGetInfo(free, &raw mut total));
    (free, total)
}
