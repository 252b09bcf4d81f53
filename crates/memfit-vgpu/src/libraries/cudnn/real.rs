//! The real `libcudnn.so.9`, which PyTorch has loaded beside this library.

use std::ffi::{CStr, c_int, c_void};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

/// What the real library's file name begins with. Only the releases that the prototype list names are asked: another major
/// release has other prototypes.
const FILE: &[u8] = b"libcudnn.so.9";

/// The loader's handle of the real library, which stays loaded for ever.
struct Library(*mut c_void);

// SAFETY: the loader's handle may be used from any thread.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

/// The real library. One that is not loaded yet may be so later, so only success is remembered.
fn library() -> Option<&'static Library> {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    if let Some(library) = LIBRARY.get() {
        return Some(library);
    }
    let mut found: *mut c_void = ptr::null_mut();
    // SAFETY: `visit` has the signature that the loader calls, and `found` outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut found).cast()) };
    (!found.is_null()).then(|| LIBRARY.get_or_init(|| Library(found)))
}

/// Looks at one loaded object; stops at the real library, opened once more.
unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _: libc::size_t, found: *mut c_void) -> c_int {
    // SAFETY: the loader passes a valid description.
    let path = unsafe { (*info).dlpi_name };
    if path.is_null() {
        return 0;
    }
    // SAFETY: the loader's names end with NUL.
    let bytes = unsafe { CStr::from_ptr(path) }.to_bytes();
    let file = bytes.rsplit(|byte| *byte == b'/').next().unwrap_or(bytes);
    if !file.starts_with(FILE) {
        return 0;
    }
    // SAFETY: the path is a string; the object is loaded already, so nothing of it runs.
    let handle = unsafe { libc::dlopen(path, libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if handle.is_null() {
        return 0;
    }
    // SAFETY: `library` passes a place for a handle.
    unsafe { found.cast::<*mut c_void>().write(handle) };
    1
}

/// One function of the real library, looked up at its first use.
pub(super) struct Function {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

impl Function {
    /// The function of that name.
    pub(super) const fn new(name: &'static CStr) -> Self {
        Self { name, address: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Its address, unless the real library is not loaded or has no such function.
    pub(super) fn address(&self) -> Option<*mut c_void> {
        let known = self.address.load(Ordering::Relaxed);
        if !known.is_null() {
            return Some(known);
        }
        // SAFETY: the handle is open, and the name a string. Asked of this handle, the loader looks in the real library
        // first, not in the one that stands in front of it.
        let found = unsafe { libc::dlsym(library()?.0, self.name.as_ptr()) };
        self.address.store(found, Ordering::Relaxed);
        (!found.is_null()).then_some(found)
    }

    /// Its name.
    pub(super) fn name(&self) -> &'static str {
        self.name.to_str().unwrap_or("cudnn")
    }
}

/// Calls a function of the real library: `real!(cudnnCreateTensorDescriptor(out: Ptr) -> i32)`. Gives `None` where the real
/// library has no such function.
macro_rules! real {
    ($name:ident($($argument:expr => $kind:ty),* $(,)?) -> $result:ty) => {{
        static FUNCTION: $crate::libraries::cudnn::real::Function = {
            const NAME: &std::ffi::CStr =
                match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => panic!("a function's name holds NUL"),
                };
            $crate::libraries::cudnn::real::Function::new(NAME)
        };
        FUNCTION.address().map(|address| {
            // SAFETY: the address is that function's, of a release whose header declares it with these parameters.
            let function: extern "C" fn($($kind),*) -> $result = unsafe { std::mem::transmute(address) };
            function($($argument),*)
        })
    }};
}
pub(super) use real;
