//! Forwards calls that need no device to the real libraries, which PyTorch has loaded as well.

#![allow(unsafe_code, reason = "pointers of C callers are followed here, and the real libraries called")]

use std::ffi::{CStr, c_void};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use memfit_abi::tally::Muted;
use memfit_cuda::card;

/// A real library. It stays loaded for ever.
pub(crate) struct Library {
    /// Beginning of its file name. Only releases that the prototype list covers are called: others have other
    /// prototypes.
    file: &'static str,
    handle: OnceLock<LoaderHandle>,
}

/// cuDNN.
pub(crate) static CUDNN: Library = Library::new("libcudnn.so.9");
/// cuBLAS.
pub(crate) static CUBLAS: Library = Library::new("libcublas.so.");
/// cuBLASLt.
pub(crate) static CUBLASLT: Library = Library::new("libcublasLt.so.");
/// cuFFT.
pub(crate) static CUFFT: Library = Library::new("libcufft.so.");
/// cuRAND.
pub(crate) static CURAND: Library = Library::new("libcurand.so.");
/// cuSOLVER.
pub(crate) static CUSOLVER: Library = Library::new("libcusolver.so.");
/// cuSPARSE.
pub(crate) static CUSPARSE: Library = Library::new("libcusparse.so.");
/// NCCL.
pub(crate) static NCCL: Library = Library::new("libnccl.so.");
/// NVRTC.
pub(crate) static NVRTC: Library = Library::new("libnvrtc.so.");

struct LoaderHandle(*mut c_void);

// SAFETY: the loader's handle may be used from any thread.
unsafe impl Send for LoaderHandle {}
// SAFETY: as above.
unsafe impl Sync for LoaderHandle {}

impl Library {
    const fn new(file: &'static str) -> Self {
        Self { file, handle: OnceLock::new() }
    }

    /// Returns the loader's handle. A library may be loaded later, so only success is cached.
    fn handle(&self) -> Option<*mut c_void> {
        if let Some(known) = self.handle.get() {
            return Some(known.0);
        }
        let path = card::library_path(self.file.as_bytes())?;
        // SAFETY: the path is a NUL-terminated string; the object is loaded already, so none of its code
        // runs.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        (!handle.is_null()).then(|| self.handle.get_or_init(|| LoaderHandle(handle)).0)
    }
}

/// A function of a real library, looked up at its first use.
pub(crate) struct Function {
    library: &'static Library,
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

impl Function {
    /// Names a function of a library.
    pub(crate) const fn new(library: &'static Library, name: &'static CStr) -> Self {
        Self { library, name, address: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Address of the function; `None` if the library is not loaded or has no such function.
    pub(crate) fn address(&self) -> Option<*mut c_void> {
        let known = self.address.load(Ordering::Relaxed);
        if !known.is_null() {
            return Some(known);
        }
        // SAFETY: the handle is open, and the name a NUL-terminated string. With this handle, the loader
        // searches that library first, and not this one, which precedes it in the search order.
        let found = unsafe { libc::dlsym(self.library.handle()?, self.name.as_ptr()) };
        self.address.store(found, Ordering::Relaxed);
        (!found.is_null()).then_some(found)
    }
}

/// Begins a call of a real library. The CUDA runtime that is linked into such a library looks for a driver
/// and fails with this one; that does no harm, so its refused calls are not counted.
pub(crate) fn mute_refusals() -> Muted {
    Muted::begin()
}

/// Calls a function of a real library: `real!(CUFFT, cufftGetProperty(kind => i32, value => Out<i32>) ->
/// i32)`. Returns `None` if the library is not loaded or has no such function.
macro_rules! real {
    ($library:ident, $name:ident($($argument:expr => $kind:ty),* $(,)?) -> $result:ty) => {{
        static FUNCTION: $crate::real::Function = {
            const NAME: &std::ffi::CStr =
                match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => panic!("a function's name holds NUL"),
                };
            $crate::real::Function::new(&$crate::real::$library, NAME)
        };
        FUNCTION.address().map(|address| {
            // SAFETY: the address is that function's, of a release whose header declares it with these
            // parameters.
            #[allow(unsafe_code, reason = "a function of another library is called")]
            let function: extern "C" fn($($kind),*) -> $result = unsafe { std::mem::transmute(address) };
            let _visit = $crate::real::mute_refusals();
            function($($argument),*)
        })
    }};
}
pub(crate) use real;

/// Declares exported calls that are forwarded unchanged to the real library. A call that an older release
/// lacks returns `missing`.
macro_rules! forward {
    (
        $library:ident, missing $missing:expr, fail $failure:expr;
        $(fn $name:ident($($argument:ident: $kind:ty),* $(,)?);)*
    ) => {
        $crate::entry::entry_points! {
            $crate::entry::Fails($failure);
            $(
                /// Forwards to the real library.
                fn $name($($argument: $kind),*) {
                    $crate::real::real!($library, $name($($argument => $kind),*) -> i32).unwrap_or_else(|| {
                        memfit_cuda::card::count_unmodelled(stringify!($name));
                        $missing
                    })
                }
            )*
        }
    };
}
pub(crate) use forward;
