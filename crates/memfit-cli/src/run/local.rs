//! The real GPU, as NVIDIA's management library shows it: its name, its memory, and how much of that is taken.
//!
//! The library is looked for when it is needed, and its absence means that there is no GPU: memfit itself needs none.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

/// `NVML_SUCCESS`.
const SUCCESS: c_int = 0;
/// The names have room for this many bytes, more than `NVML_DEVICE_NAME_V2_BUFFER_SIZE`.
const NAME_BYTES: usize = 128;

type Handle = *mut c_void;

/// `nvmlMemory_t`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Memory {
    total: u64,
    free: u64,
    used: u64,
}

/// The machine's first GPU.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocalGpu {
    handle: Handle,
    memory_info: unsafe extern "C" fn(Handle, *mut Memory) -> c_int,
}

/// A real card at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reading {
    /// Its name.
    pub(crate) name: String,
    /// Its memory.
    pub(crate) total: u64,
    /// How much of it is taken, by whatever.
    pub(crate) used: u64,
}

impl LocalGpu {
    /// The machine's first GPU, if there is one and its driver works.
    pub(crate) fn find() -> Option<Self> {
        // SAFETY: the name ends in a zero. Loading the driver's library runs its initialisers, which is what it is for.
        let library =
            unsafe { libc::dlopen(c"libnvidia-ml.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if library.is_null() {
            return None;
        }
        let init: unsafe extern "C" fn() -> c_int = symbol(library, c"nvmlInit_v2")?;
        let by_index: unsafe extern "C" fn(c_uint, *mut Handle) -> c_int =
            symbol(library, c"nvmlDeviceGetHandleByIndex_v2")?;
        let memory_info = symbol(library, c"nvmlDeviceGetMemoryInfo")?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the signatures are NVML's, the library stays loaded, and `handle` is writable.
        let found = unsafe { init() == SUCCESS && by_index(0, &raw mut handle) == SUCCESS };
        found.then_some(Self { handle, memory_info })
    }

    /// What is taken of its memory, by whatever.
    pub(crate) fn used(&self) -> Option<u64> {
        self.memory().map(|memory| memory.used)
    }

    fn memory(&self) -> Option<Memory> {
        let mut memory = Memory::default();
        // SAFETY: the handle came from the library, which stays loaded, and `memory` has the layout that it writes.
        let status = unsafe { (self.memory_info)(self.handle, &raw mut memory) };
        (status == SUCCESS).then_some(memory)
    }

    /// The card now.
    pub(crate) fn read(&self) -> Option<Reading> {
        let memory = self.memory()?;
        Some(Reading { name: self.name()?, total: memory.total, used: memory.used })
    }

    fn name(&self) -> Option<String> {
        // SAFETY: as in `find`; the library is loaded already, so this only counts one more user.
        let library =
            unsafe { libc::dlopen(c"libnvidia-ml.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        let get_name: unsafe extern "C" fn(Handle, *mut c_char, c_uint) -> c_int =
            symbol(library, c"nvmlDeviceGetName")?;
        let mut name = [0 as c_char; NAME_BYTES];
        // SAFETY: the handle came from the library, and the buffer is as long as it is said to be.
        let status = unsafe { get_name(self.handle, name.as_mut_ptr(), NAME_BYTES as c_uint - 1) };
        if status != SUCCESS {
            return None;
        }
        // SAFETY: the buffer's last byte is still zero, since the library was told of one byte less.
        let name = unsafe { CStr::from_ptr(name.as_ptr()) };
        Some(name.to_string_lossy().into_owned())
    }
}

/// A function of a library. The caller says its type.
fn symbol<F: Copy>(library: *mut c_void, name: &CStr) -> Option<F> {
    assert_eq!(size_of::<F>(), size_of::<*mut c_void>(), "only functions are looked up");
    if library.is_null() {
        return None;
    }
    // SAFETY: the library is loaded and the name ends in a zero.
    let address = unsafe { libc::dlsym(library, name.as_ptr()) };
    // SAFETY: a function pointer has the size of an address, which was checked, and the address is none or a function's.
    (!address.is_null()).then(|| unsafe { std::mem::transmute_copy::<*mut c_void, F>(&address) })
}
