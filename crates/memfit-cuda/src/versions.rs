//! CUDA version that this process was built for: the two supported majors differ in layouts and signatures.

#![allow(unsafe_code, reason = "pointers of C callers are followed here")]

use std::{
    ffi::{CStr, CString, c_char, c_int, c_void},
    sync::atomic::{AtomicI32, Ordering::Relaxed},
};

/// Version used if no runtime library is loaded, as in a program that only uses the driver.
const NEWEST_RUNTIME: i32 = 13_020;

/// Version of the loaded CUDA runtime, in the encoding of `cudaRuntimeGetVersion`: 12080 for 12.8.
pub(crate) fn runtime() -> i32 {
    static FOUND: AtomicI32 = AtomicI32::new(0);
    match FOUND.load(Relaxed) {
        0 => {
            let Some(version) = loaded() else { return NEWEST_RUNTIME };
            FOUND.store(version, Relaxed);
            version
        }
        version => version,
    }
}

/// CUDA major version: 12 or 13.
pub(crate) fn major() -> i32 {
    runtime() / 1000
}

/// Driver version: as new as the newest supported runtime, or as the loaded one if that is newer.
pub(crate) fn driver() -> i32 {
    runtime().max(NEWEST_RUNTIME)
}

fn loaded() -> Option<i32> {
    let path = library_path(b"libcudart")?;
    query_version(&path).or_else(|| version_from_name(path.to_bytes()))
}

/// File name of the loaded library that contains an address.
pub(crate) fn file_at(address: u64) -> Option<String> {
    let mut found = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: the loader only compares the address, and fills in its result.
    if unsafe { libc::dladdr(address as *const c_void, found.as_mut_ptr()) } == 0 {
        return None;
    }
    // SAFETY: zeroed before, and filled by the loader since; a name is null or a NUL-terminated string.
    let name = unsafe { found.assume_init().dli_fname };
    if name.is_null() {
        return None;
    }
    // SAFETY: as above.
    let path = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    path.rsplit('/').next().map(str::to_owned)
}

/// Path of the loaded library whose file name begins with `prefix`.
pub(crate) fn library_path(prefix: &'static [u8]) -> Option<CString> {
    struct Search {
        prefix: &'static [u8],
        found: Option<CString>,
    }
    unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _: usize, search: *mut c_void) -> c_int {
        // SAFETY: the loader passes a valid entry, and `search` is the value given to `dl_iterate_phdr`
        // below.
        let (info, search) = unsafe { (&*info, &mut *search.cast::<Search>()) };
        if info.dlpi_name.is_null() {
            return 0;
        }
        // SAFETY: a loaded object's name is a NUL-terminated string.
        let name = unsafe { CStr::from_ptr(info.dlpi_name) };
        let file = name.to_bytes().rsplit(|&byte| byte == b'/').next().unwrap_or_default();
        if file.starts_with(search.prefix) {
            search.found = Some(name.to_owned());
            return 1;
        }
        0
    }
    let mut search = Search { prefix, found: None };
    // SAFETY: `visit` matches the callback's type, and `search` outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut search).cast()) };
    search.found
}

/// Queries the runtime library itself, bypassing this library's function of the same name.
fn query_version(path: &CStr) -> Option<i32> {
    // SAFETY: the library is loaded already and is not unloaded: no constructors run, and the function of
    // this name has this type.
    unsafe {
        let library = libc::dlopen(path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        if library.is_null() {
            return None;
        }
        let symbol = libc::dlsym(library, c"cudaRuntimeGetVersion".as_ptr());
        if symbol.is_null() {
            return None;
        }
        let function: extern "C" fn(*mut c_int) -> c_int = std::mem::transmute(symbol);
        let mut version = 0;
        (function(&raw mut version) == 0 && version > 0).then_some(version)
    }
}

/// Parses a version from a name such as `libcudart.so.12` or `libcudart-9335f6a2.so.12.4.127`.
fn version_from_name(path: &[u8]) -> Option<i32> {
    let text = std::str::from_utf8(path).ok()?;
    let mut numbers = text.rsplit_once(".so.")?.1.split('.').map(str::parse::<i32>);
    let major = numbers.next()?.ok()?;
    let minor = numbers.next().and_then(Result::ok).unwrap_or(0);
    Some(major * 1000 + minor * 10)
}

/// Looks a function up among all loaded libraries.
pub(crate) fn find_symbol(name: &'static CStr) -> Option<*mut c_void> {
    let name: *const c_char = name.as_ptr();
    // SAFETY: the name ends with NUL.
    let symbol = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name) };
    (!symbol.is_null()).then_some(symbol)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_names() {
        for (name, version) in [
            ("/a/libcudart.so.12", Some(12_000)),
            ("/a.so.9/libcudart-9335f6a2.so.12.4.127", Some(12_040)),
            ("libcudart.so.13", Some(13_000)),
            ("libcudart.so", None),
            ("libcudart.so.x", None),
        ] {
            assert_eq!(version_from_name(name.as_bytes()), version, "{name}");
        }
    }
}
