//! What the watcher tells a virtual device in the same process, where there is one.

use std::sync::OnceLock;

type Fresh = extern "C" fn(u64, u64);

/// A block was handed out: a device that remembers contents must not take its last owner's for the new one's.
pub(crate) fn fresh(address: u64, bytes: u64) {
    static FRESH: OnceLock<Option<Fresh>> = OnceLock::new();
    let fresh = FRESH.get_or_init(|| {
        // SAFETY: a C string; the device, if there is one, was loaded before the program.
        let symbol = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"memfit_vgpu_fresh".as_ptr()) };
        // SAFETY: the device exports a function of this type under this name.
        (!symbol.is_null()).then(|| unsafe { std::mem::transmute::<*mut std::ffi::c_void, Fresh>(symbol) })
    });
    if let Some(fresh) = fresh {
        fresh(address, bytes);
    }
}
