//! Names and texts of all error codes of the runtime and the driver.
//!
//! Both number their errors alike. If only one of them has a code, the other's name is empty.

use std::ffi::CStr;

/// One error code.
pub(crate) struct ErrorText {
    code: i32,
    /// `cudaGetErrorName`.
    pub(crate) runtime: &'static CStr,
    /// `cuGetErrorName`.
    pub(crate) driver: &'static CStr,
    /// `cudaGetErrorString`, `cuGetErrorString`.
    pub(crate) text: &'static CStr,
}

/// Text that the runtime returns for any other code.
pub(crate) const UNRECOGNIZED: &CStr = c"unrecognized error code";

/// Looks up the texts of a code.
pub(crate) fn find(code: i32) -> Option<&'static ErrorText> {
    TABLE.binary_search_by_key(&code, |error| error.code).ok().map(|index| &TABLE[index])
}

const fn error(code: i32, runtime: &'static CStr, driver: &'static CStr, text: &'static CStr) -> ErrorText {
    ErrorText { code, runtime, driver, text }
}

/// In ascending order of code.
#[rustfmt::skip]
static TABLE: &[ErrorText] = &[
    error(0, c"cudaSuccess", c"CUDA_SUCCESS", c"no error"),
    error(1, c"cudaErrorInvalidValue", c"CUDA_ERROR_INVALID_VALUE", c"invalid argument"),
    error(2, c"cudaErrorMemoryAllocation", c"CUDA_ERROR_OUT_OF_MEMORY", c"out of memory"),
    error(3, c"cudaErrorInitializationError", c"CUDA_ERROR_NOT_INITIALIZED", c"initialization error"),
    error(4, c"cudaErrorCudartUnloading", c"CUDA_ERROR_DEINITIALIZED", c"driver shutting down"),
    error(5, c"cudaErrorProfilerDisabled", c"CUDA_ERROR_PROFILER_DISABLED", c"profiler disabled while using external profiling tool"),
    error(6, c"cudaErrorProfilerNotInitialized", c"CUDA_ERROR_PROFILER_NOT_INITIALIZED", c"profiler not initialized: call cudaProfilerInitialize()"),
    error(7, c"cudaErrorProfilerAlreadyStarted", c"CUDA_ERROR_PROFILER_ALREADY_STARTED", c"profiler already started"),
    error(8, c"cudaErrorProfilerAlreadyStopped", c"CUDA_ERROR_PROFILER_ALREADY_STOPPED", c"profiler already stopped"),
    error(9, c"cudaErrorInvalidConfiguration", c"", c"invalid configuration argument"),
    error(10, c"cudaErrorVersionTranslation", c"", c"Driver is newer than runtime and returned parameters the runtime cannot process"),
    error(12, c"cudaErrorInvalidPitchValue", c"", c"invalid pitch argument"),
    error(13, c"cudaErrorInvalidSymbol", c"", c"invalid device symbol"),
    error(16, c"cudaErrorInvalidHostPointer", c"", c"invalid host pointer"),
    error(17, c"cudaErrorInvalidDevicePointer", c"", c"invalid device pointer"),
    error(18, c"cudaErrorInvalidTexture", c"", c"invalid texture reference"),
    error(19, c"cudaErrorInvalidTextureBinding", c"", c"texture is not bound to a pointer"),
    error(20, c"cudaErrorInvalidChannelDescriptor", c"", c"invalid channel descriptor"),
    error(21, c"cudaErrorInvalidMemcpyDirection", c"", c"invalid copy direction for memcpy"),
    error(22, c"cudaErrorAddressOfConstant", c"", c"invalid address of constant"),
    error(23, c"cudaErrorTextureFetchFailed", c"", c"fetch from texture failed"),
    error(24, c"cudaErrorTextureNotBound", c"", c"cannot fetch from a texture that is not bound"),
    error(25, c"cudaErrorSynchronizationError", c"", c"incorrect use of __syncthreads()"),
    error(26, c"cudaErrorInvalidFilterSetting", c"", c"linear filtering not supported for non-float type"),
    error(27, c"cudaErrorInvalidNormSetting", c"", c"read as normalized float not supported for data type"),
    error(28, c"cudaErrorMixedDeviceExecution", c"", c"device emulation mode and device execution mode cannot be mixed"),
    error(31, c"cudaErrorNotYetImplemented", c"", c"feature not yet implemented"),
    error(32, c"cudaErrorMemoryValueTooLarge", c"", c"memory size or pointer value too large to fit in 32 bit"),
    error(34, c"cudaErrorStubLibrary", c"CUDA_ERROR_STUB_LIBRARY", c"CUDA driver is a stub library"),
    error(35, c"cudaErrorInsufficientDriver", c"", c"CUDA driver version is insufficient for CUDA runtime version"),
    error(36, c"cudaErrorCallRequiresNewerDriver", c"CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER", c"API call is not supported in the installed CUDA driver"),
    error(37, c"cudaErrorInvalidSurface", c"", c"invalid surface reference"),
    error(43, c"cudaErrorDuplicateVariableName", c"", c"duplicate global variable looked up by string name"),
    error(44, c"cudaErrorDuplicateTextureName", c"", c"duplicate texture looked up by string name"),
    error(45, c"cudaErrorDuplicateSurfaceName", c"", c"duplicate surface looked up by string name"),
    error(46, c"cudaErrorDevicesUnavailable", c"CUDA_ERROR_DEVICE_UNAVAILABLE", c"CUDA-capable device(s) is/are busy or unavailable"),
    error(49, c"cudaErrorIncompatibleDriverContext", c"", c"incompatible driver context"),
    error(52, c"cudaErrorMissingConfiguration", c"", c"__global__ function call is not configured"),
    error(53, c"cudaErrorPriorLaunchFailure", c"", c"unspecified launch failure in prior launch"),
    error(65, c"cudaErrorLaunchMaxDepthExceeded", c"", c"launch would exceed maximum depth of nested launches"),
    error(66, c"cudaErrorLaunchFileScopedTex", c"", c"launch failed because kernel uses unsupported, file-scoped textures (texture objects are supported)"),
    error(67, c"cudaErrorLaunchFileScopedSurf", c"", c"launch failed because kernel uses unsupported, file-scoped surfaces (surface objects are supported)"),
    error(68, c"cudaErrorSyncDepthExceeded", c"", c"cudaDeviceSynchronize failed because caller's grid depth exceeds cudaLimitDevRuntimeSyncDepth"),
    error(69, c"cudaErrorLaunchPendingCountExceeded", c"", c"launch failed because launch would exceed cudaLimitDevRuntimePendingLaunchCount"),
    error(98, c"cudaErrorInvalidDeviceFunction", c"", c"invalid device function"),
    error(100, c"cudaErrorNoDevice", c"CUDA_ERROR_NO_DEVICE", c"no CUDA-capable device is detected"),
    error(101, c"cudaErrorInvalidDevice", c"CUDA_ERROR_INVALID_DEVICE", c"invalid device ordinal"),
    error(102, c"cudaErrorDeviceNotLicensed", c"CUDA_ERROR_DEVICE_NOT_LICENSED", c"device doesn't have valid Grid license"),
    error(103, c"cudaErrorSoftwareValidityNotEstablished", c"", c"integrity checks failed"),
    error(127, c"cudaErrorStartupFailure", c"", c"startup failure in cuda runtime"),
    error(200, c"cudaErrorInvalidKernelImage", c"CUDA_ERROR_INVALID_IMAGE", c"device kernel image is invalid"),
    error(201, c"cudaErrorDeviceUninitialized", c"CUDA_ERROR_INVALID_CONTEXT", c"invalid device context"),
    error(202, c"", c"CUDA_ERROR_CONTEXT_ALREADY_CURRENT", c"context already current"),
    error(205, c"cudaErrorMapBufferObjectFailed", c"CUDA_ERROR_MAP_FAILED", c"mapping of buffer object failed"),
    error(206, c"cudaErrorUnmapBufferObjectFailed", c"CUDA_ERROR_UNMAP_FAILED", c"unmapping of buffer object failed"),
    error(207, c"cudaErrorArrayIsMapped", c"CUDA_ERROR_ARRAY_IS_MAPPED", c"array is mapped"),
    error(208, c"cudaErrorAlreadyMapped", c"CUDA_ERROR_ALREADY_MAPPED", c"resource already mapped"),
    error(209, c"cudaErrorNoKernelImageForDevice", c"CUDA_ERROR_NO_BINARY_FOR_GPU", c"no kernel image is available for execution on the device"),
    error(210, c"cudaErrorAlreadyAcquired", c"CUDA_ERROR_ALREADY_ACQUIRED", c"resource already acquired"),
    error(211, c"cudaErrorNotMapped", c"CUDA_ERROR_NOT_MAPPED", c"resource not mapped"),
    error(212, c"cudaErrorNotMappedAsArray", c"CUDA_ERROR_NOT_MAPPED_AS_ARRAY", c"resource not mapped as array"),
    error(213, c"cudaErrorNotMappedAsPointer", c"CUDA_ERROR_NOT_MAPPED_AS_POINTER", c"resource not mapped as pointer"),
    error(214, c"cudaErrorECCUncorrectable", c"CUDA_ERROR_ECC_UNCORRECTABLE", c"uncorrectable ECC error encountered"),
    error(215, c"cudaErrorUnsupportedLimit", c"CUDA_ERROR_UNSUPPORTED_LIMIT", c"limit is not supported on this architecture"),
    error(216, c"cudaErrorDeviceAlreadyInUse", c"CUDA_ERROR_CONTEXT_ALREADY_IN_USE", c"exclusive-thread device already in use by a different thread"),
    error(217, c"cudaErrorPeerAccessUnsupported", c"CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", c"peer access is not supported between these two devices"),
    error(218, c"cudaErrorInvalidPtx", c"CUDA_ERROR_INVALID_PTX", c"a PTX JIT compilation failed"),
    error(219, c"cudaErrorInvalidGraphicsContext", c"CUDA_ERROR_INVALID_GRAPHICS_CONTEXT", c"invalid OpenGL or DirectX context"),
    error(220, c"cudaErrorNvlinkUncorrectable", c"CUDA_ERROR_NVLINK_UNCORRECTABLE", c"uncorrectable NVLink error detected during the execution"),
    error(221, c"cudaErrorJitCompilerNotFound", c"CUDA_ERROR_JIT_COMPILER_NOT_FOUND", c"PTX JIT compiler library not found"),
    error(222, c"cudaErrorUnsupportedPtxVersion", c"CUDA_ERROR_UNSUPPORTED_PTX_VERSION", c"the provided PTX was compiled with an unsupported toolchain."),
    error(223, c"cudaErrorJitCompilationDisabled", c"CUDA_ERROR_JIT_COMPILATION_DISABLED", c"PTX JIT compilation was disabled"),
    error(224, c"cudaErrorUnsupportedExecAffinity", c"CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY", c"the provided execution affinity is not supported"),
    error(225, c"cudaErrorUnsupportedDevSideSync", c"CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC", c"the provided PTX contains unsupported call to cudaDeviceSynchronize"),
    error(226, c"cudaErrorContained", c"CUDA_ERROR_CONTAINED", c"Invalid access of peer GPU memory over nvlink or a hardware error"),
    error(300, c"cudaErrorInvalidSource", c"CUDA_ERROR_INVALID_SOURCE", c"device kernel image is invalid"),
    error(301, c"cudaErrorFileNotFound", c"CUDA_ERROR_FILE_NOT_FOUND", c"file not found"),
    error(302, c"cudaErrorSharedObjectSymbolNotFound", c"CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND", c"shared object symbol not found"),
    error(303, c"cudaErrorSharedObjectInitFailed", c"CUDA_ERROR_SHARED_OBJECT_INIT_FAILED", c"shared object initialization failed"),
    error(304, c"cudaErrorOperatingSystem", c"CUDA_ERROR_OPERATING_SYSTEM", c"OS call failed or operation not supported on this OS"),
    error(400, c"cudaErrorInvalidResourceHandle", c"CUDA_ERROR_INVALID_HANDLE", c"invalid resource handle"),
    error(401, c"cudaErrorIllegalState", c"CUDA_ERROR_ILLEGAL_STATE", c"the operation cannot be performed in the present state"),
    error(402, c"cudaErrorLossyQuery", c"CUDA_ERROR_LOSSY_QUERY", c"attempted introspection would be semantically lossy"),
    error(500, c"cudaErrorSymbolNotFound", c"CUDA_ERROR_NOT_FOUND", c"named symbol not found"),
    error(600, c"cudaErrorNotReady", c"CUDA_ERROR_NOT_READY", c"device not ready"),
    error(700, c"cudaErrorIllegalAddress", c"CUDA_ERROR_ILLEGAL_ADDRESS", c"an illegal memory access was encountered"),
    error(701, c"cudaErrorLaunchOutOfResources", c"CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", c"too many resources requested for launch"),
    error(702, c"cudaErrorLaunchTimeout", c"CUDA_ERROR_LAUNCH_TIMEOUT", c"the launch timed out and was terminated"),
    error(703, c"cudaErrorLaunchIncompatibleTexturing", c"CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING", c"launch uses incompatible texturing mode"),
    error(704, c"cudaErrorPeerAccessAlreadyEnabled", c"CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", c"peer access is already enabled"),
    error(705, c"cudaErrorPeerAccessNotEnabled", c"CUDA_ERROR_PEER_ACCESS_NOT_ENABLED", c"peer access has not been enabled"),
    error(708, c"cudaErrorSetOnActiveProcess", c"CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE", c"cannot set while device is active in this process"),
    error(709, c"cudaErrorContextIsDestroyed", c"CUDA_ERROR_CONTEXT_IS_DESTROYED", c"context is destroyed"),
    error(710, c"cudaErrorAssert", c"CUDA_ERROR_ASSERT", c"device-side assert triggered"),
    error(711, c"cudaErrorTooManyPeers", c"CUDA_ERROR_TOO_MANY_PEERS", c"peer mapping resources exhausted"),
    error(712, c"cudaErrorHostMemoryAlreadyRegistered", c"CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", c"part or all of the requested memory range is already mapped"),
    error(713, c"cudaErrorHostMemoryNotRegistered", c"CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", c"pointer does not correspond to a registered memory region"),
    error(714, c"cudaErrorHardwareStackError", c"CUDA_ERROR_HARDWARE_STACK_ERROR", c"hardware stack error"),
    error(715, c"cudaErrorIllegalInstruction", c"CUDA_ERROR_ILLEGAL_INSTRUCTION", c"an illegal instruction was encountered"),
    error(716, c"cudaErrorMisalignedAddress", c"CUDA_ERROR_MISALIGNED_ADDRESS", c"misaligned address"),
    error(717, c"cudaErrorInvalidAddressSpace", c"CUDA_ERROR_INVALID_ADDRESS_SPACE", c"operation not supported on global/shared address space"),
    error(718, c"cudaErrorInvalidPc", c"CUDA_ERROR_INVALID_PC", c"invalid program counter"),
    error(719, c"cudaErrorLaunchFailure", c"CUDA_ERROR_LAUNCH_FAILED", c"unspecified launch failure"),
    error(720, c"cudaErrorCooperativeLaunchTooLarge", c"CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE", c"too many blocks in cooperative launch"),
    error(721, c"cudaErrorTensorMemoryLeak", c"CUDA_ERROR_TENSOR_MEMORY_LEAK", c"tensor memory not completely freed"),
    error(800, c"cudaErrorNotPermitted", c"CUDA_ERROR_NOT_PERMITTED", c"operation not permitted"),
    error(801, c"cudaErrorNotSupported", c"CUDA_ERROR_NOT_SUPPORTED", c"operation not supported"),
    error(802, c"cudaErrorSystemNotReady", c"CUDA_ERROR_SYSTEM_NOT_READY", c"system not yet initialized"),
    error(803, c"cudaErrorSystemDriverMismatch", c"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", c"system has unsupported display driver / cuda driver combination"),
    error(804, c"cudaErrorCompatNotSupportedOnDevice", c"CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE", c"forward compatibility was attempted on non supported HW"),
    error(805, c"cudaErrorMpsConnectionFailed", c"CUDA_ERROR_MPS_CONNECTION_FAILED", c"MPS client failed to connect to the MPS control daemon or the MPS server"),
    error(806, c"cudaErrorMpsRpcFailure", c"CUDA_ERROR_MPS_RPC_FAILURE", c"the remote procedural call between the MPS server and the MPS client failed"),
    error(807, c"cudaErrorMpsServerNotReady", c"CUDA_ERROR_MPS_SERVER_NOT_READY", c"MPS server is not ready to accept new MPS client requests"),
    error(808, c"cudaErrorMpsMaxClientsReached", c"CUDA_ERROR_MPS_MAX_CLIENTS_REACHED", c"the hardware resources required to create MPS client have been exhausted"),
    error(809, c"cudaErrorMpsMaxConnectionsReached", c"CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED", c"the hardware resources required to support device connections have been exhausted"),
    error(810, c"cudaErrorMpsClientTerminated", c"CUDA_ERROR_MPS_CLIENT_TERMINATED", c"the MPS client has been terminated by the server"),
    error(811, c"cudaErrorCdpNotSupported", c"CUDA_ERROR_CDP_NOT_SUPPORTED", c"is using CUDA Dynamic Parallelism, but the current configuration, like MPS, does not support it"),
    error(812, c"cudaErrorCdpVersionMismatch", c"CUDA_ERROR_CDP_VERSION_MISMATCH", c"unsupported interaction between different versions of CUDA Dynamic Parallelism"),
    error(900, c"cudaErrorStreamCaptureUnsupported", c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", c"operation not permitted when stream is capturing"),
    error(901, c"cudaErrorStreamCaptureInvalidated", c"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", c"operation failed due to a previous error during capture"),
    error(902, c"cudaErrorStreamCaptureMerge", c"CUDA_ERROR_STREAM_CAPTURE_MERGE", c"operation would result in a merge of separate capture sequences"),
    error(903, c"cudaErrorStreamCaptureUnmatched", c"CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", c"capture was not ended in the same stream as it began"),
    error(904, c"cudaErrorStreamCaptureUnjoined", c"CUDA_ERROR_STREAM_CAPTURE_UNJOINED", c"capturing stream has unjoined work"),
    error(905, c"cudaErrorStreamCaptureIsolation", c"CUDA_ERROR_STREAM_CAPTURE_ISOLATION", c"dependency created on uncaptured work in another stream"),
    error(906, c"cudaErrorStreamCaptureImplicit", c"CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", c"operation would make the legacy stream depend on a capturing blocking stream"),
    error(907, c"cudaErrorCapturedEvent", c"CUDA_ERROR_CAPTURED_EVENT", c"operation not permitted on an event last recorded in a capturing stream"),
    error(908, c"cudaErrorStreamCaptureWrongThread", c"CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD", c"attempt to terminate a thread-local capture sequence from another thread"),
    error(909, c"cudaErrorTimeout", c"CUDA_ERROR_TIMEOUT", c"wait operation timed out"),
    error(910, c"cudaErrorGraphExecUpdateFailure", c"CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE", c"the graph update was not performed because it included changes which violated constraints specific to instantiated graph update"),
    error(911, c"cudaErrorExternalDevice", c"CUDA_ERROR_EXTERNAL_DEVICE", c"an async error has occured in external entity outside of CUDA"),
    error(912, c"cudaErrorInvalidClusterSize", c"CUDA_ERROR_INVALID_CLUSTER_SIZE", c"a kernel launch error has occurred due to cluster misconfiguration"),
    error(913, c"cudaErrorFunctionNotLoaded", c"CUDA_ERROR_FUNCTION_NOT_LOADED", c"the function handle is not loaded when calling an API that requires a loaded function"),
    error(914, c"cudaErrorInvalidResourceType", c"CUDA_ERROR_INVALID_RESOURCE_TYPE", c"one or more resources passed in are not valid resource types for the operation"),
    error(915, c"cudaErrorInvalidResourceConfiguration", c"CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION", c"one or more resources are insufficient or non-applicable for the operation"),
    error(916, c"", c"CUDA_ERROR_KEY_ROTATION", c"driver has detected that key rotation occurred"),
    error(917, c"cudaErrorStreamDetached", c"CUDA_ERROR_STREAM_DETACHED", c"API call not permitted since the green context associated with the stream has been destroyed"),
    error(999, c"cudaErrorUnknown", c"CUDA_ERROR_UNKNOWN", c"unknown error"),
    error(10000, c"cudaErrorApiFailureBase", c"", c"api failure base"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_ascend_and_every_one_has_a_name_and_a_text() {
        assert!(TABLE.is_sorted_by(|a, b| a.code < b.code));
        for error in TABLE {
            assert!(!error.runtime.is_empty() || !error.driver.is_empty(), "{}", error.code);
            assert!(!error.text.is_empty(), "{}", error.code);
        }
        assert_eq!(find(2).unwrap().runtime, c"cudaErrorMemoryAllocation");
        assert_eq!(find(2).unwrap().driver, c"CUDA_ERROR_OUT_OF_MEMORY");
        assert!(find(11).is_none());
    }
}
