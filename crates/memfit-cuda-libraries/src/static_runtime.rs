//! Detection of extensions with a statically linked CUDA runtime: the device cannot replace it, and it would
//! request undocumented tables from the driver. They are recognised by their file, before they are loaded.

#![allow(unsafe_code, reason = "pointers of C callers are followed here, and the real libraries called")]

use std::{
    ffi::{CStr, c_char},
    fs::File,
    os::unix::ffi::OsStrExt as _,
    path::Path,
};

use memfit_channel::ledger::NAME_BYTES;
use memfit_kernels::binary::cubin::{Section, sections};
use memmap2::Mmap;

use memfit_cuda::card;

use crate::entry::guarded;

/// Section in which the CUDA compiler registers device code with the runtime.
const WRAPPERS: &str = ".nvFatBinSegment";
/// Registration function: imported if the runtime is another library, absent if it is linked statically.
const REGISTER: &str = "__cudaRegisterFatBinary";
/// Bytes per symbol in a symbol table.
const SYMBOL_BYTES: usize = 24;
/// Maximum symbols of a file that are read.
const MAX_SYMBOLS: usize = 1 << 20;

/// Returns 1 if the library at a path contains its own CUDA runtime; the report names such libraries.
///
/// # Safety
/// `path` must be a NUL-terminated string.
#[unsafe(no_mangle)]
unsafe extern "C" fn memfit_vgpu_brings_runtime(path: *const c_char) -> i32 {
    guarded("memfit_vgpu_brings_runtime", 0, || {
        if path.is_null() {
            return 0;
        }
        // SAFETY: the caller guarantees a valid string.
        let path = Path::new(std::ffi::OsStr::from_bytes(unsafe { CStr::from_ptr(path) }.to_bytes()));
        let brings = with_bytes(path, brings_runtime).unwrap_or(false);
        if brings {
            let file = path.file_name().unwrap_or_default().to_string_lossy();
            card::count_unmodelled(&shorten(&format!("static CUDA runtime in {file}")));
        }
        i32::from(brings)
    })
}

/// Shortens a name to the bytes that the ledger has room for.
fn shorten(name: &str) -> String {
    name[..name.floor_char_boundary(NAME_BYTES)].to_owned()
}

/// Returns `true` if a shared object contains device code and registers it only with its own runtime.
fn brings_runtime(elf: &[u8]) -> bool {
    let Some(sections) = sections(elf) else { return false };
    let has = |name: &str| sections.iter().any(|section| section.name == name);
    has(WRAPPERS) && !imports(&sections, REGISTER)
}

/// Returns `true` if a name is among those that the loader must resolve elsewhere.
fn imports(sections: &[Section<'_>], wanted: &str) -> bool {
    let table = |name: &str| sections.iter().find(|section| section.name == name).map(|section| section.data);
    let (Some(symbols), Some(names)) = (table(".dynsym"), table(".dynstr")) else { return false };
    symbols.chunks_exact(SYMBOL_BYTES).take(MAX_SYMBOLS).any(|symbol| {
        let start = u32::from_le_bytes([symbol[0], symbol[1], symbol[2], symbol[3]]) as usize;
        let undefined = symbol[6] == 0 && symbol[7] == 0;
        undefined
            && names.get(start..).is_some_and(|rest| {
                rest.strip_prefix(wanted.as_bytes()).is_some_and(|rest| rest.first() == Some(&0))
            })
    })
}

/// Maps a file's bytes: extensions have hundreds of megabytes, of which only a few are read.
fn with_bytes<T>(path: &Path, read: impl FnOnce(&[u8]) -> T) -> Option<T> {
    let file = File::open(path).ok()?;
    file.metadata().ok().filter(std::fs::Metadata::is_file)?;
    // SAFETY: nothing writes to the mapping. Truncating a library while it is being loaded would end the
    // loading process in any case.
    let bytes = unsafe { Mmap::map(&file) }.ok()?;
    Some(read(&bytes))
}

#[cfg(test)]
mod tests {
    use std::{env, fs, process::Command};

    use super::*;

    /// Compiles a shared object from C: with or without device code, with its own or an external runtime.
    fn compile_shared_object(name: &str, source: &str) -> Option<Vec<u8>> {
        let folder = env::temp_dir().join(format!("memfit-static-{}-{name}", std::process::id()));
        fs::create_dir_all(&folder).ok()?;
        let (from, to) = (folder.join("source.c"), folder.join("made.so"));
        fs::write(&from, source).ok()?;
        let compiler = env::var_os("CC").unwrap_or_else(|| "cc".into());
        let done =
            Command::new(compiler).args(["-shared", "-fPIC", "-o"]).args([&to, &from]).status().ok()?;
        let bytes = done.success().then(|| fs::read(to).ok()).flatten();
        let _ = fs::remove_dir_all(folder);
        bytes
    }

    const WRAPPER: &str =
        "__attribute__((section(\".nvFatBinSegment\"), used)) static const long wrapper[3] = {0};\n";
    const OWN: &str = "static void *__cudaRegisterFatBinary(void *p) { return p; }\nvoid *start(void) { return __cudaRegisterFatBinary((void *)wrapper); }\n";
    const ANOTHERS: &str = "extern void *__cudaRegisterFatBinary(void *);\nvoid *start(void) { return __cudaRegisterFatBinary((void *)wrapper); }\n";

    #[test]
    fn a_runtime_of_its_own_is_told_from_another_s() {
        for (name, source, expected) in [
            ("own", format!("{WRAPPER}{OWN}"), true),
            ("another", format!("{WRAPPER}{ANOTHERS}"), false),
            ("neither", "int answer(void) { return 42; }".to_owned(), false),
        ] {
            let elf = compile_shared_object(name, &source).expect("a C compiler is there");
            assert_eq!(brings_runtime(&elf), expected, "{name}");
        }
    }

    #[test]
    fn nonsense_brings_nothing() {
        for bytes in [&b""[..], b"\x7fELF", &[0; 4096], b"\x7fELF\x02\x01\xff\xff\xff\xff\xff\xff\xff\xff"] {
            assert!(!brings_runtime(bytes));
        }
        assert_eq!(with_bytes(Path::new("/nowhere/at/all.so"), brings_runtime), None);
    }
}
