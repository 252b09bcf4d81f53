//! NVRTC is a compiler and does not use the device. The real library compiles; its output is loaded like any
//! other module.

#![allow(unsafe_code, reason = "pointers of C callers are followed here, and the real libraries called")]

use std::ffi::{CStr, c_char};

use super::entry::{Ptr, guarded};
use super::real::{forward, real};

/// `nvrtcResult` of a call that does not exist.
const INTERNAL_ERROR: i32 = 11;

forward! {
    NVRTC, missing INTERNAL_ERROR, fail INTERNAL_ERROR;

    fn nvrtcVersion(major: Ptr, minor: Ptr);
    fn nvrtcGetNumSupportedArchs(count: Ptr);
    fn nvrtcGetSupportedArchs(architectures: Ptr);
    fn nvrtcCreateProgram(program: Ptr, source: Ptr, name: Ptr, headers: i32, contents: Ptr, names: Ptr);
    fn nvrtcDestroyProgram(program: Ptr);
    fn nvrtcCompileProgram(program: Ptr, count: i32, options: Ptr);
    fn nvrtcAddNameExpression(program: Ptr, expression: Ptr);
    fn nvrtcGetLoweredName(program: Ptr, expression: Ptr, name: Ptr);
    fn nvrtcGetPTXSize(program: Ptr, size: Ptr);
    fn nvrtcGetPTX(program: Ptr, image: Ptr);
    fn nvrtcGetCUBINSize(program: Ptr, size: Ptr);
    fn nvrtcGetCUBIN(program: Ptr, image: Ptr);
    fn nvrtcGetLTOIRSize(program: Ptr, size: Ptr);
    fn nvrtcGetLTOIR(program: Ptr, image: Ptr);
    fn nvrtcGetNVVMSize(program: Ptr, size: Ptr);
    fn nvrtcGetNVVM(program: Ptr, image: Ptr);
    fn nvrtcGetOptiXIRSize(program: Ptr, size: Ptr);
    fn nvrtcGetOptiXIR(program: Ptr, image: Ptr);
    fn nvrtcGetTileIRSize(program: Ptr, size: Ptr);
    fn nvrtcGetTileIR(program: Ptr, image: Ptr);
    fn nvrtcGetProgramLogSize(program: Ptr, size: Ptr);
    fn nvrtcGetProgramLog(program: Ptr, log: Ptr);
    fn nvrtcSetFlowCallback(program: Ptr, callback: Ptr, payload: Ptr);
    fn nvrtcGetPCHCreateStatus(program: Ptr);
    fn nvrtcGetPCHHeapSize(size: Ptr);
    fn nvrtcSetPCHHeapSize(size: usize);
    fn nvrtcGetPCHHeapSizeRequired(program: Ptr, size: Ptr);
}

/// Name of a result.
#[unsafe(no_mangle)]
extern "C" fn nvrtcGetErrorString(code: i32) -> *const c_char {
    const UNKNOWN: &CStr = c"NVRTC_ERROR unknown";
    guarded("nvrtcGetErrorString", UNKNOWN.as_ptr(), || {
        real!(NVRTC, nvrtcGetErrorString(code => i32) -> *const c_char).unwrap_or(UNKNOWN.as_ptr())
    })
}
