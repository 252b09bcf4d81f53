//! The two functions of libc10 that PyTorch's allocators call on each of their events.
//!
//! `c10/core/Allocator.h` declares them; their mangled names have never changed (2.6 to 2.15 at least). The
//! caching allocator calls them with its device's lock held, so the order of the log is the order of events.

#![allow(unsafe_code, reason = "functions of PyTorch are interposed")]

use std::{
    ffi::{CStr, c_void},
    mem, ptr,
    sync::{
        OnceLock,
        atomic::{AtomicPtr, Ordering},
    },
};

use crate::watch::{Report, Watch};

/// `c10::DeviceType::CUDA`.
const CUDA: u8 = 1;

/// `c10::Device` by value: the type in the low byte, the index in the high one.
type Device = u16;

type ReportMemoryUsage = unsafe extern "C" fn(*mut c_void, i64, usize, usize, Device);
type ReportOutOfMemory = unsafe extern "C" fn(i64, usize, usize, Device);

/// libc10's own functions.
static MEMORY_USAGE: Original = Original::new(c"_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE");
static OUT_OF_MEMORY: Original = Original::new(c"_ZN3c1027reportOutOfMemoryToProfilerElmmNS_6DeviceE");

/// Index of a CUDA device; `None` for other devices.
fn cuda(device: Device) -> Option<u8> {
    let [kind, index] = device.to_le_bytes();
    (kind == CUDA).then_some(index)
}

/// `c10::reportMemoryUsageToProfiler(void*, int64_t, size_t, size_t, c10::Device)`.
///
/// # Safety
/// Must be called by PyTorch, as its own function would be.
#[unsafe(export_name = "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE")]
pub unsafe extern "C" fn report_memory_usage(
    block: *mut c_void,
    bytes: i64,
    allocated: usize,
    reserved: usize,
    device: Device,
) {
    if let (Some(device), Some(watch)) = (cuda(device), Watch::get()) {
        watch.report(&Report {
            device,
            address: block as u64,
            bytes,
            allocated: allocated as u64,
            reserved: reserved as u64,
        });
    }
    if bytes > 0 && cuda(device).is_some() {
        report_new_owner(block as u64, bytes.unsigned_abs());
    }
    if let Some(next) = MEMORY_USAGE.find(report_memory_usage as *mut c_void) {
        // SAFETY: the symbol of this name in libc10 has this signature.
        let next: ReportMemoryUsage = unsafe { mem::transmute(next) };
        // SAFETY: the caller's own arguments, passed on.
        unsafe { next(block, bytes, allocated, reserved, device) };
    }
}

/// `c10::reportOutOfMemoryToProfiler(int64_t, size_t, size_t, c10::Device)`.
///
/// # Safety
/// Must be called by PyTorch, as its own function would be.
#[unsafe(export_name = "_ZN3c1027reportOutOfMemoryToProfilerElmmNS_6DeviceE")]
pub unsafe extern "C" fn report_out_of_memory(bytes: i64, allocated: usize, reserved: usize, device: Device) {
    if let (Some(device), Some(watch)) = (cuda(device), Watch::get()) {
        let (allocated, reserved) = (allocated as u64, reserved as u64);
        watch.out_of_memory(&Report { device, address: 0, bytes, allocated, reserved });
    }
    if let Some(next) = OUT_OF_MEMORY.find(report_out_of_memory as *mut c_void) {
        // SAFETY: the symbol of this name in libc10 has this signature.
        let next: ReportOutOfMemory = unsafe { mem::transmute(next) };
        // SAFETY: the caller's own arguments, passed on.
        unsafe { next(bytes, allocated, reserved, device) };
    }
}

/// Tells the virtual device, if there is one, that a block has a new owner: its earlier contents are no
/// longer known.
fn report_new_owner(address: u64, bytes: u64) {
    type HandedOut = extern "C" fn(u64, u64);
    static DEVICE: OnceLock<Option<HandedOut>> = OnceLock::new();
    let device = DEVICE.get_or_init(|| {
        // SAFETY: the name is a C string.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"memfit_vgpu_handed_out".as_ptr()) };
        // SAFETY: the virtual device exports a function of this type under this name.
        (!found.is_null()).then(|| unsafe { mem::transmute::<*mut c_void, HandedOut>(found) })
    });
    if let Some(device) = device {
        device(address, bytes);
    }
}

/// A function of libc10 that an interposed one hides, looked up once.
struct Original {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Original {
    const fn new(name: &'static CStr) -> Self {
        Self { name, found: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Finds the function; `None` if libc10 is not loaded or only the interposed one has the name.
    fn find(&self, ours: *mut c_void) -> Option<*mut c_void> {
        let known = self.found.load(Ordering::Relaxed);
        if !known.is_null() {
            return Some(known);
        }
        // Python loads PyTorch's libraries into a scope of their own, which RTLD_NEXT does not search: look
        // the loaded library up by its name instead. SAFETY: with RTLD_NOLOAD this loads nothing; the name is
        // a C string.
        let library = unsafe { libc::dlopen(c"libc10.so".as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_LAZY) };
        if library.is_null() {
            return None;
        }
        // SAFETY: a valid handle and a C string.
        let found = unsafe { libc::dlsym(library, self.name.as_ptr()) };
        if found.is_null() || found == ours {
            return None;
        }
        self.found.store(found, Ordering::Relaxed);
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_two_bytes() {
        assert_eq!(cuda(0x0001), Some(0));
        assert_eq!(cuda(0x0301), Some(3));
        assert_eq!(cuda(0xff00), None, "the CPU has type 0 and index -1");
    }
}
