//! A module: one fat binary or image, and the code of it that a device can run.

use std::{
    collections::HashMap,
    ffi::CStr,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{
            AtomicBool,
            Ordering::{Acquire, Release},
        },
    },
};

use memfit_kernels::binary::{
    Function,
    arch::Target,
    cubin,
    fatbin::{self, Image, Kind},
};

use super::{
    image::Loaded,
    kernel::Kernel,
    registry::{self, Name},
};

/// A fat binary that a library registered, or an image that a program loaded.
pub(crate) struct Module {
    source: Source,
    /// Set when the library that holds the bytes is unloaded.
    unloaded: AtomicBool,
    /// Code chosen for each architecture queried so far; nearly always one.
    choices: Mutex<Vec<(u32, Arc<Choice>)>>,
    /// Kernels that the program has looked up by name.
    named: Mutex<HashMap<String, &'static Kernel>>,
    /// Intermediate text of its compiler, if available.
    text: OnceLock<String>,
}

enum Source {
    /// Fat binary container inside a loaded library.
    Library(&'static [u8]),
    /// Owned fat binary container.
    Container(Vec<u8>),
    /// One image of machine code, already parsed.
    Machine { target: Target, functions: Arc<HashMap<String, Function>> },
    /// PTX text, of which only the names are known.
    Ptx { target: Target, kernels: Vec<String> },
}

/// The code of a module that one architecture runs.
struct Choice {
    code: Code,
    /// Kernels of the machine code; loaded on demand.
    functions: Mutex<Option<Arc<HashMap<String, Function>>>>,
}

/// Kind of code that a device would run from a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    /// Machine code for this architecture.
    Machine(u32),
    /// Compiled by the driver from PTX of this architecture.
    Compiled(u32),
    /// None: the device cannot run the module.
    Missing,
}

impl Module {
    /// Creates the module of a container that lies in a library.
    pub(super) fn in_library(container: &'static [u8]) -> Self {
        Self::new(Source::Library(container))
    }

    /// Creates the module of an image that the program loads.
    pub(super) fn loaded(image: Loaded) -> Self {
        Self::new(match image {
            Loaded::Container(bytes) => Source::Container(bytes),
            Loaded::Ptx { target, kernels } => Source::Ptx { target: Target::new(target, 0), kernels },
            Loaded::Machine { target, elf } => Source::Machine {
                target: Target::new(target, 0),
                functions: Arc::new(cubin::functions(&elf)),
            },
        })
    }

    fn new(source: Source) -> Self {
        Self {
            source,
            unloaded: AtomicBool::new(false),
            choices: Mutex::default(),
            named: Mutex::default(),
            text: OnceLock::new(),
        }
    }

    /// Handle that programs use: the module's address.
    pub(super) fn handle(&'static self) -> usize {
        std::ptr::from_ref(self) as usize
    }

    /// Stores the intermediate text of its compiler; the first text is kept.
    pub(super) fn keep_text(&self, text: String) {
        let _ = self.text.set(text);
    }

    /// Intermediate text of its compiler.
    pub(super) fn text(&self) -> Option<&str> {
        self.text.get().map(String::as_str)
    }

    /// Marks the bytes as unreadable, since their library is unloaded.
    pub(super) fn unload(&self) {
        self.unloaded.store(true, Release);
    }

    /// Returns a name that is stored next to the bytes; empty once they are unloaded.
    pub(super) fn name<'n>(&self, name: &'n Name) -> &'n CStr {
        let gone = matches!(self.source, Source::Library(_)) && self.unloaded.load(Acquire);
        if gone { c"" } else { name.get() }
    }

    /// Returns the code that a device of compute capability `version` (89 for 8.9) runs.
    pub(super) fn code(&self, version: u32) -> Code {
        self.choice(version).code
    }

    /// Returns `true` if such a device runs the module at all.
    pub(super) fn runs_on(&self, version: u32) -> bool {
        self.code(version) != Code::Missing
    }

    /// Description of a kernel in the machine code; `None` if there is only PTX, or no such kernel.
    pub(super) fn function(&self, version: u32, name: &str) -> Option<Function> {
        self.functions(version).get(name).cloned()
    }

    /// Finds a kernel by mangled name in a module that the program loaded.
    pub(super) fn kernel(&'static self, version: u32, name: &str) -> Option<&'static Kernel> {
        let mut named = self.named.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kernel) = named.get(name) {
            return Some(kernel);
        }
        if !self.names(version).iter().any(|known| known == name) {
            return None;
        }
        let kernel: &'static Kernel = Box::leak(Box::new(Kernel::new(self, Name::owned(name))));
        registry::add_kernel(0, kernel);
        named.insert(name.to_owned(), kernel);
        Some(kernel)
    }

    /// Mangled names of its kernels, in alphabetical order.
    pub(super) fn names(&self, version: u32) -> Vec<String> {
        let mut names = match &self.source {
            Source::Ptx { kernels, .. } => kernels.clone(),
            _ => self.functions(version).keys().cloned().collect(),
        };
        names.sort();
        names
    }

    /// All kernels of the machine code for a device, by mangled name.
    fn functions(&self, version: u32) -> Arc<HashMap<String, Function>> {
        let choice = self.choice(version);
        let mut functions = choice.functions.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(functions.get_or_insert_with(|| self.read_functions(version)))
    }

    fn read_functions(&self, version: u32) -> Arc<HashMap<String, Function>> {
        if let Source::Machine { functions, .. } = &self.source {
            return Arc::clone(functions);
        }
        let elf = machine_image(&self.images(), version).and_then(|image| image.unpack().ok());
        Arc::new(elf.map(|elf| cubin::functions(&elf)).unwrap_or_default())
    }

    fn images(&self) -> Vec<Image<'_>> {
        match &self.source {
            Source::Library(_) if self.unloaded.load(Acquire) => Vec::new(),
            Source::Library(bytes) => fatbin::images(bytes),
            Source::Container(bytes) => fatbin::images(bytes),
            Source::Machine { .. } | Source::Ptx { .. } => Vec::new(),
        }
    }

    fn choice(&self, version: u32) -> Arc<Choice> {
        let mut choices = self.choices.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, choice)) = choices.iter().find(|(known, _)| *known == version) {
            return Arc::clone(choice);
        }
        let choice = Arc::new(Choice { code: self.choose(version), functions: Mutex::default() });
        choices.push((version, Arc::clone(&choice)));
        choice
    }

    fn choose(&self, version: u32) -> Code {
        match &self.source {
            Source::Machine { target, .. } if target.runs_on(version) => Code::Machine(target.version),
            Source::Ptx { target, .. } if target.compiles_for(version) => Code::Compiled(target.version),
            Source::Machine { .. } | Source::Ptx { .. } => Code::Missing,
            Source::Library(_) | Source::Container(_) => {
                let images = self.images();
                if let Some(image) = machine_image(&images, version) {
                    return Code::Machine(image.target.version);
                }
                let text = |image: &&Image<'_>| image.kind == Kind::Ptx && image.target.compiles_for(version);
                let best = images.iter().filter(text).max_by_key(|image| image.target.preference());
                best.map_or(Code::Missing, |image| Code::Compiled(image.target.version))
            }
        }
    }
}

/// Selects the machine code that the driver prefers for a device.
fn machine_image<'i, 'b>(images: &'i [Image<'b>], version: u32) -> Option<&'i Image<'b>> {
    let machine = |image: &&Image<'_>| image.kind == Kind::Machine && image.target.runs_on(version);
    images.iter().filter(machine).max_by_key(|image| image.target.preference())
}
