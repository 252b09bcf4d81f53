//! A module: one fat binary or image, and what the card in hand can run of it.

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
    /// Set when the library that holds the bytes goes away.
    unloaded: AtomicBool,
    /// What is known for each architecture asked about so far; nearly always one.
    choices: Mutex<Vec<(u32, Arc<Choice>)>>,
    /// The kernels that the program has asked for by name.
    named: Mutex<HashMap<String, &'static Kernel>>,
    /// What its compiler made on the way to the machine code, where that is at hand.
    text: OnceLock<String>,
}

enum Source {
    /// A container inside a loaded library.
    Library(&'static [u8]),
    /// A container of its own.
    Container(Vec<u8>),
    /// One image of machine code, read already.
    Machine { target: Target, functions: Arc<HashMap<String, Function>> },
    /// Text, of which only names are known.
    Ptx { target: Target, kernels: Vec<String> },
}

/// What one card runs of a module.
struct Choice {
    code: Code,
    /// The kernels of the machine code, once somebody wanted to know.
    functions: Mutex<Option<Arc<HashMap<String, Function>>>>,
}

/// How a card would run a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    /// Machine code that was compiled for this architecture.
    Machine(u32),
    /// Compiled by the driver from PTX for this architecture.
    Compiled(u32),
    /// Not at all.
    Missing,
}

impl Module {
    /// The module of a container that lies in a library.
    pub(super) fn in_library(container: &'static [u8]) -> Self {
        Self::new(Source::Library(container))
    }

    /// The module of an image that the program loads.
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

    /// What a program calls it by: its address.
    pub(super) fn handle(&'static self) -> usize {
        std::ptr::from_ref(self) as usize
    }

    /// Keeps what its compiler made on the way; what is told first stays.
    pub(super) fn keep_text(&self, text: String) {
        let _ = self.text.set(text);
    }

    /// What its compiler made on the way to the machine code.
    pub(super) fn text(&self) -> Option<&str> {
        self.text.get().map(String::as_str)
    }

    /// The bytes must not be read again.
    pub(super) fn unload(&self) {
        self.unloaded.store(true, Release);
    }

    /// A name that lies beside the bytes, while it may be read.
    pub(super) fn name<'n>(&self, name: &'n Name) -> &'n CStr {
        let gone = matches!(self.source, Source::Library(_)) && self.unloaded.load(Acquire);
        if gone { c"" } else { name.get() }
    }

    /// How a card of compute capability `version` (89 for 8.9) runs it.
    pub(super) fn code(&self, version: u32) -> Code {
        self.choice(version).code
    }

    /// Whether such a card runs it at all.
    pub(super) fn runs_on(&self, version: u32) -> bool {
        self.code(version) != Code::Missing
    }

    /// What the machine code says of a kernel; nothing if there is only PTX, or the image has no such kernel.
    pub(super) fn function(&self, version: u32, name: &str) -> Option<Function> {
        self.functions(version).get(name).cloned()
    }

    /// The kernel of a mangled name, of a module that the program loaded.
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

    /// The mangled names of its kernels, in alphabetical order.
    pub(super) fn names(&self, version: u32) -> Vec<String> {
        let mut names = match &self.source {
            Source::Ptx { kernels, .. } => kernels.clone(),
            _ => self.functions(version).keys().cloned().collect(),
        };
        names.sort();
        names
    }

    /// Every kernel of the machine code for a card, by mangled name.
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

/// The machine code that the driver takes for a card.
fn machine_image<'i, 'b>(images: &'i [Image<'b>], version: u32) -> Option<&'i Image<'b>> {
    let machine = |image: &&Image<'_>| image.kind == Kind::Machine && image.target.runs_on(version);
    images.iter().filter(machine).max_by_key(|image| image.target.preference())
}
