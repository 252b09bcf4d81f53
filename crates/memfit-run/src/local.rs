//! The real GPU, as NVIDIA's management library shows it: its name, its memory, and how much of that is
//! taken.
//!
//! The library is looked for when it is needed, and its absence means that there is no GPU: memfit itself
//! needs none.

#![allow(unsafe_code, reason = "processes are started, followed and ended through the system's calls")]

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};

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

/// `nvmlMemory_v2_t`: it tells what the driver keeps for itself apart from what is in use.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct MemoryV2 {
    version: c_uint,
    padding: c_uint,
    total: u64,
    reserved: u64,
    free: u64,
    used: u64,
}

impl MemoryV2 {
    /// What `version` holds: the structure's size and its number.
    const VERSION: c_uint = size_of::<Self>() as c_uint | 2 << 24;
}

/// The first GPU that this process may use.
#[derive(Clone, Copy, Debug)]
pub struct LocalGpu {
    handle: Handle,
    memory_info: unsafe extern "C" fn(Handle, *mut Memory) -> c_int,
    memory_info_v2: Option<unsafe extern "C" fn(Handle, *mut MemoryV2) -> c_int>,
}

/// Which card `CUDA_VISIBLE_DEVICES` puts first.
#[derive(Clone, Debug, PartialEq, Eq)]
enum First {
    Number(c_uint),
    Uuid(CString),
}

impl First {
    fn of(visible: Option<&str>) -> Self {
        let first = visible.and_then(|list| list.split(',').next()).unwrap_or_default().trim();
        let uuid = first.starts_with("GPU-").then(|| CString::new(first).ok()).flatten();
        uuid.map_or_else(|| Self::Number(first.parse().unwrap_or(0)), Self::Uuid)
    }
}

/// A real card at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Its name.
    pub name: String,
    /// Its memory.
    pub total: u64,
    /// How much of it is taken, by whatever.
    pub used: u64,
}

impl LocalGpu {
    /// The first GPU that this process may use, if there is one and its driver works.
    pub fn find() -> Option<Self> {
        let library = library()?;
        let init: unsafe extern "C" fn() -> c_int = symbol(library, c"nvmlInit_v2")?;
        let by_index: unsafe extern "C" fn(c_uint, *mut Handle) -> c_int =
            symbol(library, c"nvmlDeviceGetHandleByIndex_v2")?;
        let by_uuid: Option<unsafe extern "C" fn(*const c_char, *mut Handle) -> c_int> =
            symbol(library, c"nvmlDeviceGetHandleByUUID");
        let memory_info = symbol(library, c"nvmlDeviceGetMemoryInfo")?;
        let memory_info_v2 = symbol(library, c"nvmlDeviceGetMemoryInfo_v2");
        let visible = std::env::var("CUDA_VISIBLE_DEVICES").ok();
        let mut handle = std::ptr::null_mut();
        // SAFETY: the signatures are NVML's, the library stays loaded, `handle` is writable and the name ends
        // in a zero.
        let found = unsafe {
            init() == SUCCESS
                && match (First::of(visible.as_deref()), by_uuid) {
                    (First::Uuid(uuid), Some(by_uuid)) => by_uuid(uuid.as_ptr(), &raw mut handle) == SUCCESS,
                    (First::Uuid(_), None) => false,
                    (First::Number(index), _) => by_index(index, &raw mut handle) == SUCCESS,
                }
        };
        found.then_some(Self { handle, memory_info, memory_info_v2 })
    }

    /// What is taken of its memory, by whatever; without what the driver keeps for itself, where it tells
    /// that apart.
    pub fn used(&self) -> Option<u64> {
        let apart = self.memory_info_v2.and_then(|memory_info| {
            let mut memory = MemoryV2 { version: MemoryV2::VERSION, ..MemoryV2::default() };
            // SAFETY: as for the first version, and `memory` says which layout it has.
            let status = unsafe { memory_info(self.handle, &raw mut memory) };
            (status == SUCCESS).then_some(memory.used)
        });
        apart.or_else(|| self.memory().map(|memory| memory.used))
    }

    /// The driver's version.
    pub fn driver() -> Option<String> {
        let get: unsafe extern "C" fn(*mut c_char, c_uint) -> c_int =
            symbol(library()?, c"nvmlSystemGetDriverVersion")?;
        // SAFETY: the signature is NVML's, and the buffer is as long as it is said to be.
        text(|buffer, length| unsafe { get(buffer, length) })
    }

    fn memory(&self) -> Option<Memory> {
        let mut memory = Memory::default();
        // SAFETY: the handle came from the library, which stays loaded, and `memory` has the layout that it
        // writes.
        let status = unsafe { (self.memory_info)(self.handle, &raw mut memory) };
        (status == SUCCESS).then_some(memory)
    }

    /// The card now.
    pub fn read(&self) -> Option<Reading> {
        let memory = self.memory()?;
        Some(Reading { name: self.name()?, total: memory.total, used: self.used()? })
    }

    fn name(&self) -> Option<String> {
        let get: unsafe extern "C" fn(Handle, *mut c_char, c_uint) -> c_int =
            symbol(library()?, c"nvmlDeviceGetName")?;
        // SAFETY: the handle came from the library, and the buffer is as long as it is said to be.
        text(|buffer, length| unsafe { get(self.handle, buffer, length) })
    }
}

/// NVIDIA's management library, where there is one. Asked for again, it only counts one more user.
fn library() -> Option<*mut c_void> {
    // SAFETY: the name ends in a zero. Loading the driver's library runs its initialisers, which is what it
    // is for.
    let library = unsafe { libc::dlopen(c"libnvidia-ml.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    (!library.is_null()).then_some(library)
}

/// A text that a call writes into a buffer of a length.
fn text(write: impl FnOnce(*mut c_char, c_uint) -> c_int) -> Option<String> {
    let mut buffer = [0 as c_char; NAME_BYTES];
    if write(buffer.as_mut_ptr(), NAME_BYTES as c_uint - 1) != SUCCESS {
        return None;
    }
    // SAFETY: the buffer's last byte is still zero, since the call was told of one byte less.
    let text = unsafe { CStr::from_ptr(buffer.as_ptr()) };
    Some(text.to_string_lossy().into_owned())
}

/// A function of a library. The caller says its type.
fn symbol<F: Copy>(library: *mut c_void, name: &CStr) -> Option<F> {
    assert_eq!(size_of::<F>(), size_of::<*mut c_void>(), "only functions are looked up");
    if library.is_null() {
        return None;
    }
    // SAFETY: the library is loaded and the name ends in a zero.
    let address = unsafe { libc::dlsym(library, name.as_ptr()) };
    // SAFETY: a function pointer has the size of an address, which was checked, and the address is none or a
    // function's.
    (!address.is_null()).then(|| unsafe { std::mem::transmute_copy::<*mut c_void, F>(&address) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_visible_card_is_meant() {
        for (visible, wanted) in [
            (None, First::Number(0)),
            (Some(""), First::Number(0)),
            (Some("3,1"), First::Number(3)),
            (Some(" 2 "), First::Number(2)),
            (Some("GPU-6d65,1"), First::Uuid(c"GPU-6d65".to_owned())),
            (Some("nonsense"), First::Number(0)),
        ] {
            assert_eq!(First::of(visible), wanted, "{visible:?}");
        }
        assert_eq!(MemoryV2::VERSION, 0x0200_0028);
    }
}
