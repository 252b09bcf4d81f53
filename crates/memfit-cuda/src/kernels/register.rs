//! Registration calls that compiled programs make when they are loaded: each fat binary, its kernels and
//! variables.

#![allow(unsafe_code, reason = "pointers of C callers are followed here")]

use std::{
    ffi::{CStr, c_char},
    sync::OnceLock,
};

use super::{
    kernel::Kernel,
    module::Module,
    registry::{self, Name},
    variables::Variable,
};
use crate::{guard::Runtime, status::Status};
use memfit_abi::{In, Out, Ptr, entry_points};
use memfit_kernels::binary::fatbin::{self, WRAPPER_MAGIC};

/// Wrapper that the compiler passes for each fat binary.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Wrapper {
    magic: u32,
    _version: u32,
    container: u64,
    _name_or_linked: u64,
}

impl Wrapper {
    /// Address of the container.
    pub(super) fn container(self) -> u64 {
        self.container
    }
}

/// Returns the bytes of a fat binary inside a loaded library; empty if the wrapper is invalid.
fn container(wrapper: In<Wrapper>) -> &'static [u8] {
    let Some(wrapper) = wrapper.get().filter(|wrapper| wrapper.magic == WRAPPER_MAGIC) else { return &[] };
    container_at(wrapper.container)
}

/// Returns the bytes of the container at an address; empty if there is none.
fn container_at(address: u64) -> &'static [u8] {
    // SAFETY: the caller's wrapper points to a container.
    let header: Vec<u8> = unsafe { In::<u8>::from_address(address) }.list(fatbin::HEADER);
    let Some(size) = fatbin::container_size(&header) else { return &[] };
    // SAFETY: the compiler placed the container in the library's read-only data, with its size in the header.
    // It is not read again once the library has unregistered it.
    unsafe { std::slice::from_raw_parts(address as *const u8, size) }
}

/// Returns the module behind a handle from `__cudaRegisterFatBinary`.
fn module(handle: Ptr) -> &'static Module {
    // A program that invents handles would crash with CUDA's runtime as well; here it gets a module without
    // code.
    static EMPTY_MODULE: OnceLock<Module> = OnceLock::new();
    registry::module(handle as usize).unwrap_or_else(|| EMPTY_MODULE.get_or_init(|| Module::in_library(&[])))
}

/// Registers a fat binary; returns the handle under which its kernels are then registered.
#[allow(non_snake_case, reason = "exported names are CUDA's")]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn __cudaRegisterFatBinary(wrapper: In<Wrapper>) -> Ptr {
    let module: &'static Module = Box::leak(Box::new(Module::in_library(container(wrapper))));
    registry::add_module(module) as Ptr
}

/// Ends the registration of a fat binary's kernels.
#[allow(non_snake_case, reason = "exported names are CUDA's")]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn __cudaRegisterFatBinaryEnd(_handle: Ptr) {}

/// Unregisters a fat binary whose library is being unloaded.
#[allow(non_snake_case, reason = "exported names are CUDA's")]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn __cudaUnregisterFatBinary(handle: Ptr) {
    registry::remove_module(handle as usize);
}

/// Initialises a module before the first launch from it; here it already is.
#[allow(non_snake_case, reason = "exported names are CUDA's")]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn __cudaInitModule(_handle: Ptr) -> u8 {
    1
}

/// Registers a kernel: its host function and its mangled name.
#[allow(non_snake_case, clippy::too_many_arguments, reason = "names and signatures are CUDA's")]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn __cudaRegisterFunction(
    handle: Ptr,
    host: Ptr,
    _device: Ptr,
    name: *const c_char,
    _thread_limit: i32,
    _thread: Ptr,
    _block: Ptr,
    _block_dim: Ptr,
    _grid_dim: Ptr,
    _warp_size: Ptr,
) {
    let kernel: &'static Kernel = Box::leak(Box::new(Kernel::new(module(handle), Name::borrowed(name))));
    registry::add_kernel(host as usize, kernel);
}

/// Registers a variable in device memory and its shadow on the host.
#[allow(non_snake_case, clippy::too_many_arguments, reason = "names and signatures are CUDA's")]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn __cudaRegisterVar(
    handle: Ptr,
    host: Ptr,
    _device: Ptr,
    _name: *const c_char,
    _external: i32,
    size: usize,
    _constant: i32,
    _global: i32,
) {
    let variable: &'static Variable = Box::leak(Box::new(Variable::new(module(handle), size as u64)));
    registry::add_variable(host as usize, variable);
}

/// Registers a managed variable; the program reads its address from `host`.
#[allow(non_snake_case, clippy::too_many_arguments, reason = "names and signatures are CUDA's")]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn __cudaRegisterManagedVar(
    handle: Ptr,
    host: Out<u64>,
    _device: Ptr,
    _name: *const c_char,
    _external: i32,
    size: usize,
    _constant: i32,
    _global: i32,
) {
    let variable: &'static Variable = Box::leak(Box::new(Variable::managed(module(handle), size as u64)));
    registry::add_variable(host.address() as usize, variable);
    host.set(variable.address().unwrap_or(0));
}

/// Registers a host variable that device code may use; has no effect.
#[allow(non_snake_case, reason = "exported names are CUDA's")]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn __cudaRegisterHostVar(_handle: Ptr, _name: *const c_char, _host: Ptr, _size: usize) {
}

/// Registers a table of functions for both sides; has no effect.
#[allow(non_snake_case, reason = "exported names are CUDA's")]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn __cudaRegisterUnifiedTable(_handle: Ptr, _table: Ptr) {}

entry_points! { Runtime;
    fn __cudaGetKernel(kernel: Out<usize>, host: Ptr) {
        kernel.set(registry::kernel(host as usize).ok_or(Status::INVALID_DEVICE_FUNCTION)?.handle());
        Ok(())
    }

    fn cudaGetKernel(kernel: Out<usize>, host: Ptr) {
        kernel.set(registry::kernel(host as usize).ok_or(Status::INVALID_DEVICE_FUNCTION)?.handle());
        Ok(())
    }

    fn cudaGetFuncBySymbol(function: Out<usize>, host: Ptr) {
        function.set(registry::kernel(host as usize).ok_or(Status::INVALID_DEVICE_FUNCTION)?.handle());
        Ok(())
    }

    fn cudaFuncGetName(name: Out<*const c_char>, host: Ptr) {
        let kernel = registry::kernel(host as usize).ok_or(Status::INVALID_DEVICE_FUNCTION)?;
        name.set(CStr::as_ptr(kernel.name()));
        Ok(())
    }
}
