//! Shared test support for the device libraries: the built library, its symbols, and calls to them.

#![allow(unsafe_code, reason = "the test bench calls C functions")]

pub mod call;
pub mod canary;
pub mod fork;
pub mod promises;
pub mod recipe;

use std::collections::BTreeSet;
use std::ffi::{CString, c_void};
use std::fs;
use std::path::{Path, PathBuf};

use object::{Object, ObjectSymbol, SymbolSection};

use crate::{Library, read_folder};

/// Path of a shared object that was built together with the calling test, such as `libmemfit_vgpu.so`.
pub fn library_path(file: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a test has a path");
    let folders = test.ancestors().skip(1).take(2);
    let found = folders.map(|folder| folder.join(file)).find(|path| path.exists());
    found.expect("cargo builds the cdylib with its tests")
}

/// Reads the lists of crates next to the calling test's crate.
pub fn lists(crates: &[&str]) -> Vec<Library> {
    let own = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"));
    let read = |name: &&str| read_folder(&own.with_file_name(name).join("api"));
    crates.iter().flat_map(|name| read(name).unwrap_or_else(|problem| panic!("{problem}"))).collect()
}

/// Names that a shared object exports (`defined`), or imports.
pub fn dynamic_symbols(path: &Path, defined: bool) -> BTreeSet<String> {
    let file = fs::File::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let cache = object::ReadCache::new(file); // libtorch_cuda has a gigabyte: only its symbols are read.
    let file = object::File::parse(&cache).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    file.dynamic_symbols()
        .filter(|symbol| symbol.is_definition() == defined && symbol.section() != SymbolSection::Absolute)
        .filter(|symbol| defined || !symbol.is_weak()) // What is imported weakly may be missing.
        .filter_map(|symbol| symbol.name().ok())
        .filter(|name| !name.is_empty())
        .map(|name| name.split('@').next().unwrap_or(name).to_owned())
        .collect()
}

/// A library that is loaded into this process as a program loads it.
pub struct Loaded(*mut c_void);

impl Loaded {
    /// Loads the library, which does not initialise CUDA.
    pub fn new(path: &Path) -> Self {
        let path = CString::new(path.as_os_str().as_encoded_bytes()).expect("a path has no NUL");
        // SAFETY: the path ends with NUL, and loading the library runs no code of consequence.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!handle.is_null(), "{path:?} cannot be loaded");
        Self(handle)
    }

    /// Address of a name.
    pub fn symbol(&self, name: &str) -> *const c_void {
        let text = CString::new(name).expect("a name has no NUL");
        // SAFETY: the handle is open, the name ends with NUL.
        let address = unsafe { libc::dlsym(self.0, text.as_ptr()) };
        assert!(!address.is_null(), "{name} is not exported");
        address
    }
}

/// Environments to compare with, from `MEMFIT_TEST_SITE_PACKAGES` (separated by colons); empty if it is not
/// set.
pub fn environments() -> Vec<PathBuf> {
    let Some(value) = std::env::var_os("MEMFIT_TEST_SITE_PACKAGES") else {
        return Vec::new();
    };
    let folders: Vec<PathBuf> =
        std::env::split_paths(&value).filter(|path| !path.as_os_str().is_empty()).collect();
    for folder in &folders {
        assert!(folder.join("nvidia").is_dir(), "{} holds no NVIDIA wheels", folder.display());
    }
    folders
}

/// Shared objects of NVIDIA's wheels in an environment.
pub fn nvidia_libraries(environment: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for package in fs::read_dir(environment.join("nvidia")).into_iter().flatten().flatten() {
        found.extend(shared_objects(&package.path().join("lib")));
    }
    found.sort();
    found
}

/// Shared objects in a folder.
pub fn shared_objects(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Vec::new();
    };
    entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| {
            path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.contains(".so"))
        })
        .collect()
}

/// Soname of a shared object.
pub fn soname(path: &Path) -> Option<String> {
    use object::read::elf::{Dyn, ElfFile64, FileHeader};

    let bytes = fs::read(path).ok()?;
    let elf = ElfFile64::<object::Endianness>::parse(&*bytes).ok()?;
    let (endian, data) = (elf.endian(), elf.data());
    let sections = elf.elf_header().sections(endian, data).ok()?;
    let (dynamic, strings) = sections.dynamic(endian, data).ok()??;
    let strings = sections.strings(endian, data, strings).ok()?;
    let entry = dynamic.iter().find(|entry| entry.tag32(endian) == Some(object::elf::DT_SONAME))?;
    let name = entry.string(endian, strings).ok()?;
    Some(String::from_utf8_lossy(name).into_owned())
}
