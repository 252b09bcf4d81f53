//! The real libraries, loaded next to the virtual device as PyTorch loads them.

#![allow(unsafe_code, reason = "the tests call as C callers do")]

use std::ffi::CString;
use std::path::PathBuf;
use std::sync::OnceLock;

use memfit_prototypes::testing::{environments, nvidia_libraries};

/// Loads the real libraries of the first environment; `false` if there is none.
pub(crate) fn loaded() -> bool {
    static LOADED: OnceLock<bool> = OnceLock::new();
    *LOADED.get_or_init(|| {
        let Some(environment) = environments().into_iter().next() else {
            println!("MEMFIT_TEST_SITE_PACKAGES lists no environment: the real libraries are not asked");
            return false;
        };
        let libraries = nvidia_libraries(&environment);
        // In an order in which each finds its dependencies loaded.
        for name in [
            "libcublasLt.so",
            "libcublas.so",
            "libnvJitLink.so",
            "libcusparse.so",
            "libcusolver.so",
            "libcudnn.so",
            "libnccl.so",
        ] {
            let found: Option<&PathBuf> = libraries
                .iter()
                .find(|path| path.file_name().is_some_and(|file| file.to_string_lossy().starts_with(name)));
            let path = found.unwrap_or_else(|| panic!("{} has no {name}", environment.display()));
            let path = CString::new(path.to_string_lossy().into_owned()).unwrap();
            // SAFETY: the path is a NUL-terminated string; any program that loads the library runs its
            // initialisers.
            let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_GLOBAL) };
            assert!(!handle.is_null(), "{path:?} cannot be loaded");
        }
        true
    })
}
