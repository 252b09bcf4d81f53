//! Which CUDA this process was built for: the two majors that are supported differ in layouts and signatures.

#![allow(unsafe_code, reason = "pointers of C callers are followed here")]

use std::{
    ffi::{CStr, CString, c_char, c_int, c_void},
    sync::atomic::{AtomicI32, Ordering::Relaxed},
};

/// Taken where no runtime library is loaded, as in a program that only uses the driver.
const NEWEST: i32 = 13_020;

/// The loaded CUDA runtime's version, as `cudaRuntimeGetVersion` counts: 12080 for 12.8.
pub(crate) fn runtime() -> i32 {
    static FOUND: AtomicI32 = AtomicI32::new(0);
    match FOUND.load(Relaxed) {
        0 => {
            let Some(version) = loaded() else { return NEWEST };
            FOUND.store(version, Relaxed);
            version
        }
        version => version,
    }
}

/// The CUDA major: 12 or 13.
pub(crate) fn major() -> i32 {
    runtime() / 1000
}

/// The driver is as new as the newest runtime that is supported, or as the loaded one.
pub(crate) fn driver() -> i32 {
    runtime().max(NEWEST)
}

fn loaded() -> Option<i32> {
    let path = path_of(b"libcudart")?;
    ask(&path).or_else(|| from_name(path.to_bytes()))
}

/// The file name of the loaded library that an address lies in.
pub(crate) fn file_at(address: u64) -> Option<String> {
    let mut found = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: the loader only compares the address, and fills in what it finds.
    if unsafe { libc::dladdr(address as *const c_void, found.as_mut_ptr()) } == 0 {
        return None;
    }
    // SAFETY: filled with zeros before, and by the loader since; a name is null or a string that ends with
    // NUL.
    let name = unsafe { found.assume_init().dli_fname };
    if name.is_null() {
        return None;
    }
    // SAFETY: as above.
    let path = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    path.rsplit('/').next().map(str::to_owned)
}

/// The path of a loaded library whose file name begins with these bytes.
pub(crate) fn path_of(prefix: &'static [u8]) -> Option<CString> {
    struct Search {
        prefix: &'static [u8],
        found: Option<CString>,
    }
    unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _: usize, search: *mut c_void) -> c_int {
        // SAFETY: the loader hands in a valid entry, and `search` is the value given to `dl_iterate_phdr`
        // below.
        let (info, search) = unsafe { (&*info, &mut *search.cast::<Search>()) };
        if info.dlpi_name.is_null() {
            return 0;
        }
        // SAFETY: a loaded object's name is a string that ends with NUL.
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

/// Asks the runtime library itself, past our own function of the same name.
fn ask(path: &CStr) -> Option<i32> {
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

/// From a name such as `libcudart.so.12` or `libcudart-9335f6a2.so.12.4.127`.
fn from_name(path: &[u8]) -> Option<i32> {
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
            assert_eq!(from_name(name.as_bytes()), version, "{name}");
        }
    }
}
