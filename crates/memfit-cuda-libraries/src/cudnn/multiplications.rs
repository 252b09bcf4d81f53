//! cuDNN's engines that multiply matrices with cuBLASLt.
//!
//! cuDNN computes convolutions with 1x1 filters, and some others, by cuBLASLt: its heuristics rank these
//! engines first for most of them, and their workspaces decide what a convolutional network reserves. An
//! engine is supported only if `cublasLtCreate` succeeds. cuDNN does not link that library, but looks its
//! functions up by `dlsym`, and would get the real ones, which need a device. So the library of these engines
//! gets another `dlsym`, which finds this crate's functions of cuBLASLt.

#![allow(unsafe_code, reason = "tables of the loader are read and written here")]

use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::ptr;
use std::sync::Once;

use memfit_cuda::card;

/// The library with these engines, in the folder of [`MAIN`].
const ENGINES: &str = "libcudnn_engines_precompiled.so.9";
const MAIN: &[u8] = b"libcudnn.so.9";
/// Beginning of the names that are looked up elsewhere.
const PREFIX: &[u8] = b"cublasLt";

/// Tags of `Elf64_Dyn`.
mod tag {
    pub(super) const END: i64 = 0;
    pub(super) const PLT_SIZE: i64 = 2;
    pub(super) const STRINGS: i64 = 5;
    pub(super) const SYMBOLS: i64 = 6;
    pub(super) const RELOCATIONS: i64 = 7;
    pub(super) const RELOCATIONS_SIZE: i64 = 8;
    pub(super) const PLT: i64 = 23;
}

/// `Elf64_Dyn`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Entry {
    tag: i64,
    value: u64,
}

/// `Elf64_Rela`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Relocation {
    offset: u64,
    info: u64,
    _addend: i64,
}

/// Makes the engines available, once. Without their library, or if it has another form, they stay
/// unsupported.
pub(super) fn support() {
    static DONE: Once = Once::new();
    DONE.call_once(|| {
        let Some(path) = card::library_path(MAIN).as_deref().and_then(beside) else { return };
        // SAFETY: the path ends with NUL. cuDNN itself loads this library when it ranks engines.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_LAZY) };
        if !handle.is_null() {
            // SAFETY: the callback has the expected type, and uses no data.
            unsafe { libc::dl_iterate_phdr(Some(visit), ptr::null_mut()) };
        }
    });
}

/// Path of the engines' library in the folder of another library.
fn beside(main: &CStr) -> Option<CString> {
    let folder = Path::new(OsStr::from_bytes(main.to_bytes())).parent()?;
    CString::new(folder.join(ENGINES).into_os_string().as_encoded_bytes()).ok()
}

/// Replaces `dlsym` if a loaded object is the engines' library; ends the iteration then.
unsafe extern "C" fn visit(object: *mut libc::dl_phdr_info, _size: usize, _data: *mut c_void) -> c_int {
    // SAFETY: the loader passes a valid description of the object.
    let object = unsafe { &*object };
    if object.dlpi_name.is_null() {
        return 0;
    }
    // SAFETY: the name of a loaded object ends with NUL.
    let name = unsafe { CStr::from_ptr(object.dlpi_name) };
    if !name.to_bytes().ends_with(ENGINES.as_bytes()) {
        return 0;
    }
    // SAFETY: the object has this many program headers.
    let headers = unsafe { std::slice::from_raw_parts(object.dlpi_phdr, usize::from(object.dlpi_phnum)) };
    let dynamic = headers.iter().find(|header| header.p_type == libc::PT_DYNAMIC);
    if let Some(dynamic) = dynamic {
        let base = object.dlpi_addr as usize;
        // SAFETY: the object stays loaded, since it was just opened.
        unsafe { replace(base, base + dynamic.p_vaddr as usize) };
    }
    1
}

/// Writes the address of [`look_up`] wherever a loaded object's tables have that of `dlsym`.
///
/// # Safety
/// `dynamic` is the dynamic section of an object that is loaded at `base`.
unsafe fn replace(base: usize, dynamic: usize) {
    let found = |wanted: i64| {
        let mut entry = dynamic as *const Entry;
        loop {
            // SAFETY: the section ends with an entry of the tag `END`.
            let Entry { tag, value } = unsafe { *entry };
            if tag == wanted || tag == tag::END {
                return (tag == wanted).then_some(value as usize);
            }
            // SAFETY: the entry read was not the last one.
            entry = unsafe { entry.add(1) };
        }
    };
    let (Some(symbols), Some(strings)) = (found(tag::SYMBOLS), found(tag::STRINGS)) else { return };
    for (table, size) in [(tag::PLT, tag::PLT_SIZE), (tag::RELOCATIONS, tag::RELOCATIONS_SIZE)]
        .map(|(t, s)| (found(t), found(s)))
    {
        let (Some(table), Some(size)) = (table, size) else { continue };
        let count = size / size_of::<Relocation>();
        // SAFETY: the loader relocated the object by this table of this size.
        for relocation in unsafe { std::slice::from_raw_parts(table as *const Relocation, count) } {
            let number = (relocation.info >> 32) as usize;
            // SAFETY: a relocation names a symbol of the object's table, whose name is in its strings.
            let name = unsafe {
                let symbol = &*(symbols as *const libc::Elf64_Sym).add(number);
                CStr::from_ptr((strings as *const c_char).add(symbol.st_name as usize))
            };
            if number != 0 && name == c"dlsym" {
                // SAFETY: the relocation's place in the object holds the address of `dlsym`.
                unsafe { write((base + relocation.offset as usize) as *mut usize) };
            }
        }
    }
}

/// Writes the address of [`look_up`] to a place that the loader may have made read-only.
///
/// # Safety
/// The place holds the address of a function of this type.
unsafe fn write(place: *mut usize) {
    // SAFETY: the call has no preconditions.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    let Ok(page) = usize::try_from(page) else { return };
    let start = place as usize & !(page - 1);
    // SAFETY: the place is mapped; an aligned word does not cross the page's end.
    if unsafe { libc::mprotect(start as *mut c_void, page, libc::PROT_READ | libc::PROT_WRITE) } != 0 {
        return;
    }
    // SAFETY: the page is writable now. It stays so: others may be writing to it.
    unsafe { ptr::write_volatile(place, look_up as *const () as usize) };
}

/// `dlsym` for the engines' library: names of cuBLASLt are this crate's, where it has them.
unsafe extern "C" fn look_up(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    if !name.is_null() {
        // SAFETY: callers of `dlsym` pass a text that ends with NUL.
        let text = unsafe { CStr::from_ptr(name) };
        if text.to_bytes().starts_with(PREFIX) {
            // SAFETY: as above. This library precedes all others, so its own functions are found first.
            let own = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name) };
            if !own.is_null() {
                return own;
            }
        }
    }
    // SAFETY: the caller's own arguments.
    unsafe { libc::dlsym(handle, name) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_engines_are_beside_the_library() {
        let path = beside(c"/a/b/libcudnn.so.9").map(CString::into_bytes);
        assert_eq!(path.as_deref(), Some(&b"/a/b/libcudnn_engines_precompiled.so.9"[..]));
    }

    #[test]
    fn other_names_are_looked_up_as_before() {
        // SAFETY: both are names that the process has.
        let (own, usual) = unsafe {
            (
                look_up(libc::RTLD_DEFAULT, c"malloc".as_ptr()),
                libc::dlsym(libc::RTLD_DEFAULT, c"malloc".as_ptr()),
            )
        };
        assert_eq!(own, usual);
        // SAFETY: as above.
        assert!(unsafe { look_up(libc::RTLD_DEFAULT, c"cublasLtNothing".as_ptr()) }.is_null());
    }
}
