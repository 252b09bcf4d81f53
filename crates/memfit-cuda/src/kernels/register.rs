//! What compiled programs call when they are loaded: for each fat binary, its kernels and its variables.

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

/// What the compiler passes for each fat binary.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Wrapper {
    magic: u32,
    _version: u32,
    container: u64,
    _name_or_linked: u64,
}

impl Wrapper {
    /// Where the container is.
    pub(super) fn container(self) -> u64 {
        self.container
    }
}

/// The bytes of a fat binary inside a loaded library; none if this is none.
fn container(wrapper: In<Wrapper>) -> &'static [u8] {
    let Some(wrapper) = wrapper.get().filter(|wrapper| wrapper.magic == WRAPPER_MAGIC) else { return &[] };
    container_at(wrapper.container)
}

/// The bytes of the container that starts at an address; none if none does.
fn container_at(address: u64) -> &'static [u8] {
    // SAFETY: the caller's wrapper says that a container is there.
    let header: Vec<u8> = unsafe { In::<u8>::from_address(address) }.list(fatbin::HEADER);
    let Some(size) = fatbin::container_size(&header) else { return &[] };
    // SAFETY: the compiler laid the container out in the library's read-only data, with its size in the
    // header. It is read no more once the library has unregistered it.
    unsafe { std::slice::from_raw_parts(address as *const u8, size) }
}

/// The module that a handle from `__cudaRegisterFatBinary` stands for.
fn module(handle: Ptr) -> &'static Module {
    // A program that makes up handles would crash with CUDA's runtime as well; here it gets a module without
    // code.
    static NONE: OnceLock<Module> = OnceLock::new();
    registry::module(handle as usize).unwrap_or_else(|| NONE.get_or_init(|| Module::in_library(&[])))
}

/// A fat binary is there; gives the handle by which its kernels are then registered.
#[allow(non_snake_case, reason = "exported names are CUDA's")]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn __cudaRegisterFatBinary(wrapper: In<Wrapper>) -> Ptr {
    let module: &'static Module = Box::leak(Box::new(Module::in_library(container(wrapper))));
    registry::add_module(module) as Ptr
}

/// All its kernels have been registered.
#[allow(non_snake_case, reason = "exported names are CUDA's")]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn __cudaRegisterFatBinaryEnd(_handle: Ptr) {}

/// Its library goes away.
#[allow(non_snake_case, reason = "exported names are CUDA's")]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn __cudaUnregisterFatBinary(handle: Ptr) {
    registry::remove_module(handle as usize);
}

/// Initialises a module before the first launch from it; it is already.
#[allow(non_snake_case, reason = "exported names are CUDA's")]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn __cudaInitModule(_handle: Ptr) -> u8 {
    1
}

/// A kernel: the host function that stands for it, and its mangled name.
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

/// A variable in device memory, and its shadow on the host.
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

/// A variable that host and device share; the program reads its address from `host`.
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
    host.put(variable.address().unwrap_or(0));
}

/// A variable on the host that device code may use; nothing follows from it.
#[allow(non_snake_case, reason = "exported names are CUDA's")]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn __cudaRegisterHostVar(_handle: Ptr, _name: *const c_char, _host: Ptr, _size: usize) {
}

/// A table of functions for both sides; nothing follows from it.
#[allow(non_snake_case, reason = "exported names are CUDA's")]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn __cudaRegisterUnifiedTable(_handle: Ptr, _table: Ptr) {}

entry_points! { Runtime;
    fn __cudaGetKernel(kernel: Out<usize>, host: Ptr) {
        kernel.put(registry::kernel(host as usize).ok_or(Status::INVALID_DEVICE_FUNCTION)?.handle());
        Ok(())
    }

    fn cudaGetKernel(kernel: Out<usize>, host: Ptr) {
        kernel.put(registry::kernel(host as usize).ok_or(Status::INVALID_DEVICE_FUNCTION)?.handle());
        Ok(())
    }

    fn cudaGetFuncBySymbol(function: Out<usize>, host: Ptr) {
        function.put(registry::kernel(host as usize).ok_or(Status::INVALID_DEVICE_FUNCTION)?.handle());
        Ok(())
    }

    fn cudaFuncGetName(name: Out<*const c_char>, host: Ptr) {
        let kernel = registry::kernel(host as usize).ok_or(Status::INVALID_DEVICE_FUNCTION)?;
        name.put(CStr::as_ptr(kernel.name()));
        Ok(())
    }
}
