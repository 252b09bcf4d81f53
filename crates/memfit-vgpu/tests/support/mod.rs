//! What the tests of the export surface share: the lists, the library as built, and its symbols.

#![allow(dead_code, reason = "each test uses a part")]

#[path = "../../build/api.rs"]
pub(crate) mod api;
pub(crate) mod call;
pub(crate) mod canary;
pub(crate) mod fork;
pub(crate) mod recipe;

use std::collections::BTreeSet;
use std::ffi::{CString, c_void};
use std::fs;
use std::path::{Path, PathBuf};

use object::{Object, ObjectSymbol, SymbolSection};

/// The prototype lists.
pub(crate) fn lists() -> Vec<api::Library> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("api");
    api::read_folder(&folder).unwrap_or_else(|problem| panic!("{problem}"))
}

/// The shared object that was built together with this test.
pub(crate) fn library_path() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let folder = test.parent().unwrap();
    let candidates = [folder.join("libmemfit_vgpu.so"), folder.parent().unwrap().join("libmemfit_vgpu.so")];
    candidates.into_iter().find(|path| path.exists()).expect("cargo builds the cdylib with its tests")
}

/// The names that a shared object exports (`defined`), or imports.
pub(crate) fn dynamic_symbols(path: &Path, defined: bool) -> BTreeSet<String> {
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

/// The library, loaded into this process as a program loads it.
pub(crate) struct Loaded(*mut c_void);

impl Loaded {
    /// Loads it; nothing of CUDA is initialised by that.
    pub(crate) fn new() -> Self {
        let path = CString::new(library_path().into_os_string().into_encoded_bytes()).unwrap();
        // SAFETY: the path ends with NUL, and loading the library runs no code of consequence.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!handle.is_null(), "{path:?} cannot be loaded");
        Self(handle)
    }

    /// The address of a name.
    pub(crate) fn symbol(&self, name: &str) -> *const c_void {
        let text = CString::new(name).unwrap();
        // SAFETY: the handle is open, the name ends with NUL.
        let address = unsafe { libc::dlsym(self.0, text.as_ptr()) };
        assert!(!address.is_null(), "{name} is not exported");
        address
    }
}

/// The environments to compare with, from `MEMFIT_TEST_SITE_PACKAGES` (separated by colons); none if it is not set.
pub(crate) fn environments() -> Vec<PathBuf> {
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

/// The shared objects of NVIDIA's wheels in an environment.
pub(crate) fn nvidia_libraries(environment: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for package in fs::read_dir(environment.join("nvidia")).unwrap().flatten() {
        found.extend(shared_objects(&package.path().join("lib")));
    }
    found.sort();
    found
}

/// The shared objects in a folder.
pub(crate) fn shared_objects(folder: &Path) -> Vec<PathBuf> {
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

/// The name under which the loader knows a shared object.
pub(crate) fn soname(elf: &object::read::elf::ElfFile64<'_, object::Endianness>) -> Option<String> {
    use object::read::elf::{Dyn, FileHeader};

    let (endian, data) = (elf.endian(), elf.data());
    let sections = elf.elf_header().sections(endian, data).ok()?;
    let (dynamic, strings) = sections.dynamic(endian, data).ok()??;
    let strings = sections.strings(endian, data, strings).ok()?;
    let entry = dynamic.iter().find(|entry| entry.tag32(endian) == Some(object::elf::DT_SONAME))?;
    let name = entry.string(endian, strings).ok()?;
    Some(String::from_utf8_lossy(name).into_owned())
}
