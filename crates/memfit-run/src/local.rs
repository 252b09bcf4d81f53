//! The real GPU as NVIDIA's management library shows it: its name, its memory, and the memory in use.
//!
//! The library is loaded on demand; if it is missing, there is no GPU. memfit itself works without it.

#![allow(unsafe_code, reason = "NVML is loaded at run time and called through function pointers")]

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};

/// `NVML_SUCCESS`.
const SUCCESS: c_int = 0;
/// Buffer size for names in bytes, more than `NVML_DEVICE_NAME_V2_BUFFER_SIZE`.
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

/// `nvmlMemory_v2_t`, which separates the memory reserved by the driver from the memory in use.
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
    /// Value of `version`: the structure's size and its number.
    const VERSION: c_uint = size_of::<Self>() as c_uint | 2 << 24;
}

/// `nvmlProcessInfo_t` since version 2.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct ProcessInfo {
    pid: c_uint,
    /// `u64::MAX` where the driver does not tell processes apart.
    used: u64,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

/// Most processes on a GPU that are read.
const MAX_PROCESSES: usize = 256;

type MemoryInfo = unsafe extern "C" fn(Handle, *mut Memory) -> c_int;
type MemoryInfoV2 = unsafe extern "C" fn(Handle, *mut MemoryV2) -> c_int;
type Processes = unsafe extern "C" fn(Handle, *mut c_uint, *mut ProcessInfo) -> c_int;

/// First visible GPU that this process may use.
#[derive(Clone, Copy, Debug)]
pub struct LocalGpu {
    handle: Handle,
    memory_info: MemoryInfo,
    memory_info_v2: Option<MemoryInfoV2>,
    processes: Option<Processes>,
}

// SAFETY: the handle belongs to NVML, whose functions may be called with it from any thread, also
// concurrently.
unsafe impl Send for LocalGpu {}

/// First device in `CUDA_VISIBLE_DEVICES`.
#[derive(Clone, Debug, PartialEq, Eq)]
enum FirstVisible {
    Number(c_uint),
    Uuid(CString),
}

impl FirstVisible {
    fn parse(visible: Option<&str>) -> Self {
        let first = visible.and_then(|list| list.split(',').next()).unwrap_or_default().trim();
        let uuid = first.starts_with("GPU-").then(|| CString::new(first).ok()).flatten();
        uuid.map_or_else(|| Self::Number(first.parse().unwrap_or(0)), Self::Uuid)
    }
}

/// State of a real device at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Name of the device.
    pub name: String,
    /// Total memory in bytes, as programs see it.
    pub total: u64,
    /// Bytes in use by all programs.
    pub used: u64,
}

impl LocalGpu {
    /// Finds the first GPU that this process may use; `None` if there is none or its driver does not work.
    pub fn find() -> Option<Self> {
        let library = library()?;
        let init: unsafe extern "C" fn() -> c_int = symbol(library, c"nvmlInit_v2")?;
        let by_index: unsafe extern "C" fn(c_uint, *mut Handle) -> c_int =
            symbol(library, c"nvmlDeviceGetHandleByIndex_v2")?;
        let by_uuid: Option<unsafe extern "C" fn(*const c_char, *mut Handle) -> c_int> =
            symbol(library, c"nvmlDeviceGetHandleByUUID");
        let memory_info = symbol(library, c"nvmlDeviceGetMemoryInfo")?;
        let memory_info_v2 = symbol(library, c"nvmlDeviceGetMemoryInfo_v2");
        let processes = symbol(library, c"nvmlDeviceGetComputeRunningProcesses_v3");
        let visible = std::env::var("CUDA_VISIBLE_DEVICES").ok();
        let mut handle = std::ptr::null_mut();
        // SAFETY: the signatures are NVML's, the library stays loaded, `handle` is writable and the name ends
        // with NUL.
        let found = unsafe {
            init() == SUCCESS
                && match (FirstVisible::parse(visible.as_deref()), by_uuid) {
                    (FirstVisible::Uuid(uuid), Some(by_uuid)) => {
                        by_uuid(uuid.as_ptr(), &raw mut handle) == SUCCESS
                    }
                    (FirstVisible::Uuid(_), None) => false,
                    (FirstVisible::Number(index), _) => by_index(index, &raw mut handle) == SUCCESS,
                }
        };
        found.then_some(Self { handle, memory_info, memory_info_v2, processes })
    }

    /// Bytes in use by all programs, without those reserved by the driver if NVML separates them.
    pub fn used(&self) -> Option<u64> {
        self.memory().map(|memory| memory.used)
    }

    /// Bytes that each process uses; empty if the driver does not tell processes apart, as in many
    /// containers.
    pub(crate) fn used_by_process(&self) -> BTreeMap<u32, u64> {
        let mut infos = [ProcessInfo::default(); MAX_PROCESSES];
        let mut count = MAX_PROCESSES as c_uint;
        let Some(processes) = self.processes else { return BTreeMap::new() };
        // SAFETY: the handle came from the library, which stays loaded; `count` is the length of `infos`,
        // whose layout is that of this version.
        if unsafe { processes(self.handle, &raw mut count, infos.as_mut_ptr()) } != SUCCESS {
            return BTreeMap::new();
        }
        let told = infos.iter().take(count as usize).filter(|info| info.used != u64::MAX);
        told.map(|info| (info.pid, info.used)).collect()
    }

    /// Version of the driver.
    pub fn driver() -> Option<String> {
        let get: unsafe extern "C" fn(*mut c_char, c_uint) -> c_int =
            symbol(library()?, c"nvmlSystemGetDriverVersion")?;
        // SAFETY: the signature is NVML's, and the buffer has the stated length.
        text(|buffer, length| unsafe { get(buffer, length) })
    }

    /// The memory as programs see it: without what the driver reserved, if NVML separates that.
    fn memory(&self) -> Option<Memory> {
        if let Some(memory_info) = self.memory_info_v2 {
            let mut apart = MemoryV2 { version: MemoryV2::VERSION, ..MemoryV2::default() };
            // SAFETY: the handle came from the library, which stays loaded; the version field of `apart`
            // states its layout.
            if unsafe { memory_info(self.handle, &raw mut apart) } == SUCCESS {
                let MemoryV2 { total, reserved, free, used, .. } = apart;
                return Some(Memory { total: total.saturating_sub(reserved), free, used });
            }
        }
        let mut memory = Memory::default();
        // SAFETY: as above, and `memory` has the layout that the first version writes.
        let status = unsafe { (self.memory_info)(self.handle, &raw mut memory) };
        (status == SUCCESS).then_some(memory)
    }

    /// Reads the current state.
    pub fn read(&self) -> Option<Reading> {
        let memory = self.memory()?;
        Some(Reading { name: self.name()?, total: memory.total, used: memory.used })
    }

    fn name(&self) -> Option<String> {
        let get: unsafe extern "C" fn(Handle, *mut c_char, c_uint) -> c_int =
            symbol(library()?, c"nvmlDeviceGetName")?;
        // SAFETY: the handle came from the library, and the buffer has the stated length.
        text(|buffer, length| unsafe { get(self.handle, buffer, length) })
    }
}

/// Loads NVIDIA's management library, if there is one. Further calls only add a reference.
fn library() -> Option<*mut c_void> {
    // SAFETY: the name ends with NUL. Loading the driver's library runs its initialisers, as intended.
    let library = unsafe { libc::dlopen(c"libnvidia-ml.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    (!library.is_null()).then_some(library)
}

/// Returns the text that a call writes into a buffer.
fn text(write: impl FnOnce(*mut c_char, c_uint) -> c_int) -> Option<String> {
    let mut buffer = [0 as c_char; NAME_BYTES];
    if write(buffer.as_mut_ptr(), NAME_BYTES as c_uint - 1) != SUCCESS {
        return None;
    }
    // SAFETY: the buffer's last byte is still zero, since the call was given one byte less.
    let text = unsafe { CStr::from_ptr(buffer.as_ptr()) };
    Some(text.to_string_lossy().into_owned())
}

/// Looks up a function of a library. The caller states its type.
fn symbol<F: Copy>(library: *mut c_void, name: &CStr) -> Option<F> {
    assert_eq!(size_of::<F>(), size_of::<*mut c_void>(), "only functions are looked up");
    if library.is_null() {
        return None;
    }
    // SAFETY: the library is loaded and the name ends with NUL.
    let address = unsafe { libc::dlsym(library, name.as_ptr()) };
    // SAFETY: a function pointer has the size of an address, which was checked, and the address is a
    // function's.
    (!address.is_null()).then(|| unsafe { std::mem::transmute_copy::<*mut c_void, F>(&address) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn visible_devices_select_the_first_card() {
        for (visible, wanted) in [
            (None, FirstVisible::Number(0)),
            (Some(""), FirstVisible::Number(0)),
            (Some("3,1"), FirstVisible::Number(3)),
            (Some(" 2 "), FirstVisible::Number(2)),
            (Some("GPU-6d65,1"), FirstVisible::Uuid(c"GPU-6d65".to_owned())),
            (Some("nonsense"), FirstVisible::Number(0)),
        ] {
            assert_eq!(FirstVisible::parse(visible), wanted, "{visible:?}");
        }
        assert_eq!(MemoryV2::VERSION, 0x0200_0028);
    }
}
