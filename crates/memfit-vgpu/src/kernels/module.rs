//! A module: one fat binary or image, and what the card in hand can run of it.

use std::{
    collections::HashMap,
    ffi::CStr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::{Acquire, Release}},
    },
};

use super::{
    cubin::{self, Function},
    fatbin::{self, Image, Kind},
    registry::Name,
};

/// A fat binary that a library registered, or an image that a program loaded.
pub(crate) struct Module {
    container: &'static [u8],
    /// Whether the bytes are a bare ELF image rather than a container.
    bare: bool,
    /// Set when the library that holds the bytes goes away.
    unloaded: AtomicBool,
    /// What is known for each architecture asked about so far; nearly always one.
    choices: Mutex<Vec<(u32, Arc<Choice>)>>,
}

/// What one card runs of a module.
pub(crate) struct Choice {
    /// How it would be run.
    pub(crate) code: Code,
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
    /// A module over bytes that live as long as the library they are in.
    pub(crate) fn new(bytes: &'static [u8]) -> Self {
        let bare = fatbin::container_size(bytes).is_none();
        Self { container: bytes, bare, unloaded: AtomicBool::new(false), choices: Mutex::default() }
    }

    /// The bytes must not be read again.
    pub(super) fn unload(&self) {
        self.unloaded.store(true, Release);
    }

    /// A name that lies beside the bytes, while it may be read.
    pub(super) fn name<'n>(&self, name: &'n Name) -> &'n CStr {
        if self.unloaded.load(Acquire) { c"" } else { name.get() }
    }

    /// What a card of compute capability `version` runs of it.
    pub(crate) fn choice(&self, version: u32) -> Arc<Choice> {
        let mut choices = self.choices.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, choice)) = choices.iter().find(|(known, _)| *known == version) {
            return Arc::clone(choice);
        }
        let choice = Arc::new(Choice { code: self.code(version), functions: Mutex::default() });
        choices.push((version, Arc::clone(&choice)));
        choice
    }

    /// What the machine code says of a kernel; nothing if there is only PTX, or the image has no such kernel.
    pub(crate) fn function(&self, version: u32, name: &str) -> Option<Function> {
        self.functions(version).get(name).cloned()
    }

    /// Every kernel of the machine code for a card, by mangled name.
    pub(crate) fn functions(&self, version: u32) -> Arc<HashMap<String, Function>> {
        let choice = self.choice(version);
        let mut functions = choice.functions.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(functions.get_or_insert_with(|| Arc::new(self.read_functions(version))))
    }

    fn read_functions(&self, version: u32) -> HashMap<String, Function> {
        if self.unloaded.load(Acquire) {
            return HashMap::new();
        }
        if self.bare {
            return cubin::functions(self.container);
        }
        let image = self.machine_image(version);
        image.and_then(|image| image.unpack().ok()).map(|elf| cubin::functions(&elf)).unwrap_or_default()
    }

    fn images(&self) -> Vec<Image<'static>> {
        if self.unloaded.load(Acquire) { Vec::new() } else { fatbin::images(self.container) }
    }

    fn machine_image(&self, version: u32) -> Option<Image<'static>> {
        let machine = |image: &Image<'_>| image.kind == Kind::Machine && image.target.runs_on(version);
        self.images().into_iter().filter(machine).max_by_key(|image| image.target.preference())
    }

    fn code(&self, version: u32) -> Code {
        if self.bare {
            // Whoever loads an image by hand had it compiled for the card in hand.
            return Code::Machine(version);
        }
        if let Some(image) = self.machine_image(version) {
            return Code::Machine(image.target.version);
        }
        let text = |image: &Image<'_>| image.kind == Kind::Ptx && image.target.compiles_for(version);
        match self.images().into_iter().filter(text).max_by_key(|image| image.target.preference()) {
            Some(image) => Code::Compiled(image.target.version),
            None => Code::Missing,
        }
    }
}
