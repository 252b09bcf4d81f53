//! Modules and libraries that a program loads itself: the output of run-time compilers (Triton, NVRTC).
//!
//! The driver's modules and libraries, and its functions and kernels, differ in when they are bound to a
//! context. Here they are the same object under the same handle.

#![allow(unsafe_code, reason = "pointers of C callers are followed here")]

use std::{
    ffi::{CStr, c_char},
    path::Path,
};

use super::{kernel::Kernel, module::Module, registry};
use crate::{
    guard::{Driver, Runtime},
    machine,
    status::{Outcome, Status},
};
use memfit_abi::{In, Out, Ptr, entry_points};

/// Loads the image at an address; returns the module's handle.
fn load(image: u64) -> Outcome<usize> {
    if image == 0 {
        return Err(Status::INVALID_VALUE);
    }
    let card = machine::current_context()?;
    let loaded = super::image::read_at(image).ok_or(Status::INVALID_IMAGE)?;
    let module = Module::loaded(loaded);
    let version = card.device.compute_capability.sm_version();
    if !module.runs_on(version) {
        return Err(Status::NO_KERNEL_IMAGE_FOR_DEVICE);
    }
    Ok(registry::add_module(Box::leak(Box::new(module))))
}

fn load_file(path: In<c_char>) -> Outcome<usize> {
    let path = path.text().ok_or(Status::INVALID_VALUE)?;
    let mut bytes = std::fs::read(&path).map_err(|_| Status::FILE_NOT_FOUND)?;
    // Text must end with NUL; an extra byte does not change an image.
    bytes.push(0);
    if bytes.len() < 64 {
        return Err(Status::INVALID_IMAGE);
    }
    let handle = load(bytes.as_ptr() as u64)?;
    // Triton stores its compilation stages side by side.
    if let Some(text) = read_text(&Path::new(&path).with_extension("ttir")) {
        module(handle as Ptr)?.keep_text(text);
    }
    Ok(handle)
}

/// Reads a compiler's text file, unless it is unreasonably long.
fn read_text(path: &Path) -> Option<String> {
    const MAX_TEXT_BYTES: u64 = 16 << 20;
    let fits = std::fs::metadata(path).is_ok_and(|found| found.len() <= MAX_TEXT_BYTES);
    if fits { std::fs::read_to_string(path).ok() } else { None }
}

/// Stores the intermediate text (TTIR) of a kernel that Triton has loaded; called by the probe.
///
/// # Safety
///
/// `text` must be a NUL-terminated string.
#[unsafe(no_mangle)]
unsafe extern "C" fn memfit_vgpu_kernel_text(function: usize, text: *const c_char) {
    if text.is_null() {
        return;
    }
    // SAFETY: the caller vouches for the string.
    let text = unsafe { CStr::from_ptr(text) };
    if let (Some(kernel), Ok(text)) = (registry::kernel(function), text.to_str()) {
        kernel.module().keep_text(text.to_owned());
    }
}

fn module(handle: Ptr) -> Outcome<&'static Module> {
    registry::module(handle as usize).ok_or(Status::INVALID_HANDLE)
}

fn kernel(handle: Ptr) -> Outcome<&'static Kernel> {
    registry::kernel(handle as usize).ok_or(Status::INVALID_HANDLE)
}

/// Finds a kernel by name; returns the same handle each time.
fn find(handle: Ptr, name: In<c_char>) -> Outcome<usize> {
    let name = name.text().ok_or(Status::INVALID_VALUE)?;
    let version = machine::current()?.device.compute_capability.sm_version();
    module(handle)?.kernel(version, &name).map(Kernel::handle).ok_or(Status::NOT_FOUND)
}

fn unload(handle: Ptr) -> Outcome {
    module(handle)?;
    registry::remove_module(handle as usize);
    Ok(())
}

fn kernel_count(handle: Ptr) -> Outcome<u32> {
    let version = machine::current()?.device.compute_capability.sm_version();
    Ok(module(handle)?.names(version).len() as u32)
}

fn enumerate(kernels: Out<usize>, most: u32, handle: Ptr) -> Outcome {
    let version = machine::current()?.device.compute_capability.sm_version();
    let module = module(handle)?;
    for (index, name) in module.names(version).iter().take(most as usize).enumerate() {
        kernels.set_at(index, module.kernel(version, name).map(Kernel::handle).ok_or(Status::NOT_FOUND)?);
    }
    Ok(())
}

entry_points! { Driver;
    fn cuModuleLoad(handle: Out<usize>, path: In<c_char>) {
        handle.set(load_file(path)?);
        Ok(())
    }

    fn cuModuleLoadData(handle: Out<usize>, image: u64) {
        handle.set(load(image)?);
        Ok(())
    }

    fn cuModuleLoadDataEx(handle: Out<usize>, image: u64, _count: u32, _options: Ptr, _values: Ptr) {
        handle.set(load(image)?);
        Ok(())
    }

    fn cuModuleLoadFatBinary(handle: Out<usize>, image: u64) {
        handle.set(load(image)?);
        Ok(())
    }

    fn cuModuleUnload(handle: Ptr) {
        unload(handle)
    }

    fn cuModuleGetFunction(function: Out<usize>, handle: Ptr, name: In<c_char>) {
        function.set(find(handle, name)?);
        Ok(())
    }

    fn cuModuleGetFunctionCount(functions: Out<u32>, handle: Ptr) {
        functions.set(kernel_count(handle)?);
        Ok(())
    }

    fn cuModuleEnumerateFunctions(functions: Out<usize>, most: u32, handle: Ptr) {
        enumerate(functions, most, handle)
    }

    fn cuModuleGetLoadingMode(mode: Out<i32>) {
        const LAZY: i32 = 2;
        mode.set(LAZY);
        Ok(())
    }

    fn cuLibraryLoadData(
        handle: Out<usize>, image: u64, _options: Ptr, _values: Ptr, _count: u32, _own: Ptr, _own_values: Ptr, _own_count: u32,
    ) {
        handle.set(load(image)?);
        Ok(())
    }

    fn cuLibraryLoadFromFile(
        handle: Out<usize>, path: In<c_char>, _options: Ptr, _values: Ptr, _count: u32, _own: Ptr, _own_values: Ptr,
        _own_count: u32,
    ) {
        handle.set(load_file(path)?);
        Ok(())
    }

    fn cuLibraryUnload(handle: Ptr) {
        unload(handle)
    }

    fn cuLibraryGetKernel(kernel: Out<usize>, handle: Ptr, name: In<c_char>) {
        kernel.set(find(handle, name)?);
        Ok(())
    }

    fn cuLibraryGetKernelCount(kernels: Out<u32>, handle: Ptr) {
        kernels.set(kernel_count(handle)?);
        Ok(())
    }

    fn cuLibraryEnumerateKernels(kernels: Out<usize>, most: u32, handle: Ptr) {
        enumerate(kernels, most, handle)
    }

    fn cuLibraryGetModule(own: Out<usize>, handle: Ptr) {
        module(handle)?;
        own.set(handle as usize);
        Ok(())
    }

    fn cuKernelGetFunction(function: Out<usize>, handle: Ptr) {
        function.set(kernel(handle)?.handle());
        Ok(())
    }

    fn cuKernelGetLibrary(library: Out<usize>, handle: Ptr) {
        library.set(kernel(handle)?.module().handle());
        Ok(())
    }

    fn cuKernelGetName(name: Out<*const c_char>, handle: Ptr) {
        name.set(CStr::as_ptr(kernel(handle)?.name()));
        Ok(())
    }

    fn cuFuncGetName(name: Out<*const c_char>, handle: Ptr) {
        name.set(CStr::as_ptr(kernel(handle)?.name()));
        Ok(())
    }

    fn cuFuncGetModule(own: Out<usize>, handle: Ptr) {
        own.set(kernel(handle)?.module().handle());
        Ok(())
    }

    fn cuFuncIsLoaded(state: Out<i32>, handle: Ptr) {
        const LOADED: i32 = 1;
        kernel(handle)?;
        state.set(LOADED);
        Ok(())
    }

    fn cuFuncLoad(handle: Ptr) {
        kernel(handle).map(|_| ())
    }
}

entry_points! { Runtime;
    fn cudaLibraryLoadData(
        handle: Out<usize>, image: u64, _options: Ptr, _values: Ptr, _count: u32, _own: Ptr, _own_values: Ptr, _own_count: u32,
    ) {
        handle.set(load(image)?);
        Ok(())
    }

    fn cudaLibraryLoadFromFile(
        handle: Out<usize>, path: In<c_char>, _options: Ptr, _values: Ptr, _count: u32, _own: Ptr, _own_values: Ptr,
        _own_count: u32,
    ) {
        handle.set(load_file(path)?);
        Ok(())
    }

    fn cudaLibraryUnload(handle: Ptr) {
        unload(handle)
    }

    fn cudaLibraryGetKernel(kernel: Out<usize>, handle: Ptr, name: In<c_char>) {
        kernel.set(find(handle, name)?);
        Ok(())
    }

    fn cudaLibraryGetKernelCount(kernels: Out<u32>, handle: Ptr) {
        kernels.set(kernel_count(handle)?);
        Ok(())
    }

    fn cudaLibraryEnumerateKernels(kernels: Out<usize>, most: u32, handle: Ptr) {
        enumerate(kernels, most, handle)
    }
}
