//! Registry of all kernels and variables of the process, with their look-up.
//!
//! A compiled program registers each of its fat binaries when it is loaded: for every kernel, the address of
//! its host stub and its mangled name. Launches name kernels by that address (CUDA 12) or by a handle
//! obtained for it (CUDA 13); both lead here. Registered objects are never freed: a program registers some
//! tens of thousands at start-up, and handles must stay valid.

#![allow(unsafe_code, reason = "pointers of C callers are followed here")]

use std::{
    cell::Cell,
    collections::HashMap,
    ffi::{CStr, c_char},
    sync::{
        PoisonError, RwLock,
        atomic::{
            AtomicU32,
            Ordering::{Acquire, Release},
        },
    },
};

use super::{kernel::Kernel, module::Module, variables::Variable};

/// Registered objects, by host address or handle.
#[derive(Default)]
struct Registry {
    /// By the handle returned for the fat binary.
    modules: HashMap<usize, Registered>,
    /// By host function and by handle.
    kernels: HashMap<usize, &'static Kernel>,
    variables: HashMap<usize, &'static Variable>,
}

/// A module and the addresses under which its parts are registered.
struct Registered {
    module: &'static Module,
    kernels: Vec<usize>,
    variables: Vec<usize>,
}

static REGISTRY: RwLock<Option<Registry>> = RwLock::new(None);
/// Incremented when an address changes its meaning; threads then drop their caches.
static GENERATION: AtomicU32 = AtomicU32::new(1);

const CACHE_ENTRIES: usize = 1024;

/// A thread's cache of the kernels that it launched last, by address.
struct Recent {
    generation: Cell<u32>,
    entries: [Cell<(usize, Option<&'static Kernel>)>; CACHE_ENTRIES],
}

thread_local! {
    static RECENT: Recent =
        const { Recent { generation: Cell::new(0), entries: [const { Cell::new((0, None)) }; CACHE_ENTRIES] } };
}

/// Returns the kernel behind an address or a handle.
#[inline]
pub(crate) fn kernel(address: usize) -> Option<&'static Kernel> {
    let generation = GENERATION.load(Acquire);
    RECENT.with(|recent| {
        // Functions are aligned to 16 bytes, and neighbours in a library are launched together.
        let entry = &recent.entries[(address >> 4 ^ address >> 14) % CACHE_ENTRIES];
        if recent.generation.get() == generation
            && let (known, Some(kernel)) = entry.get()
            && known == address
        {
            return Some(kernel);
        }
        look_up(address, recent, generation)
    })
}

#[cold]
fn look_up(address: usize, recent: &Recent, generation: u32) -> Option<&'static Kernel> {
    if recent.generation.replace(generation) != generation {
        recent.entries.iter().for_each(|entry| entry.set((0, None)));
    }
    let kernel = read(|registry| registry.kernels.get(&address).copied())?;
    recent.entries[(address >> 4 ^ address >> 14) % CACHE_ENTRIES].set((address, Some(kernel)));
    Some(kernel)
}

/// Returns the variable behind a host address.
pub(crate) fn variable(address: usize) -> Option<&'static Variable> {
    read(|registry| registry.variables.get(&address).copied())
}

/// Registers a module; returns its handle.
pub(crate) fn add_module(module: &'static Module) -> usize {
    let registered = Registered { module, kernels: Vec::new(), variables: Vec::new() };
    write(|registry| registry.modules.insert(module.handle(), registered));
    module.handle()
}

/// Returns the module behind a handle.
pub(crate) fn module(handle: usize) -> Option<&'static Module> {
    read(|registry| registry.modules.get(&handle).map(|registered| registered.module))
}

/// Registers a kernel under the address of its host function and under its handle.
pub(crate) fn add_kernel(host: usize, kernel: &'static Kernel) {
    let replaced = write(|registry| {
        if let Some(registered) = registry.modules.get_mut(&kernel.module().handle()) {
            registered.kernels.extend([kernel.handle(), host]);
        }
        registry.kernels.insert(kernel.handle(), kernel);
        host != 0 && registry.kernels.insert(host, kernel).is_some()
    });
    if replaced {
        // The address belonged to a library that was unloaded.
        GENERATION.fetch_add(1, Release);
    }
}

/// Registers a variable under the address of its shadow on the host.
pub(crate) fn add_variable(host: usize, variable: &'static Variable) {
    write(|registry| {
        if let Some(registered) = registry.modules.get_mut(&variable.module().handle()) {
            registered.variables.push(host);
        }
        registry.variables.insert(host, variable);
    });
}

/// Removes everything that a module registered, since its library is being unloaded.
pub(crate) fn remove_module(handle: usize) {
    let Some(registered) = write(|registry| registry.modules.remove(&handle)) else { return };
    registered.module.unload();
    write(|registry| {
        for address in &registered.kernels {
            // The address may belong to another library by now.
            let own = |kernel: &&'static Kernel| std::ptr::eq(kernel.module(), registered.module);
            if registry.kernels.get(address).is_some_and(own) {
                registry.kernels.remove(address);
            }
        }
        for address in &registered.variables {
            let own = |variable: &&'static Variable| std::ptr::eq(variable.module(), registered.module);
            if registry.variables.get(address).is_some_and(own) {
                registry.variables.remove(address);
            }
        }
    });
    GENERATION.fetch_add(1, Release);
}

fn read<T>(use_registry: impl FnOnce(&Registry) -> Option<T>) -> Option<T> {
    use_registry(REGISTRY.read().unwrap_or_else(PoisonError::into_inner).as_ref()?)
}

fn write<T>(use_registry: impl FnOnce(&mut Registry) -> T) -> T {
    use_registry(REGISTRY.write().unwrap_or_else(PoisonError::into_inner).get_or_insert_default())
}

/// A name that lies in a loaded library, or an owned copy that is never freed.
#[derive(Clone, Copy)]
pub(crate) struct Name(*const c_char);

// SAFETY: the bytes behind the pointer are never written.
unsafe impl Send for Name {}
// SAFETY: as above.
unsafe impl Sync for Name {}

impl Name {
    /// Creates a name that lies in a library. It must not be read after the library is unloaded:
    /// [`Module::name`] ensures that.
    pub(super) fn borrowed(name: *const c_char) -> Self {
        Self(name)
    }

    /// Creates an owned name, which is never freed.
    pub(super) fn owned(name: &str) -> Self {
        let bytes: Vec<u8> = name.bytes().filter(|byte| *byte != 0).chain([0]).collect();
        Self(bytes.leak().as_ptr().cast())
    }

    pub(super) fn get(&self) -> &CStr {
        if self.0.is_null() {
            return c"";
        }
        // SAFETY: names come from `owned`, or from a compiler's registration code, which passes C strings
        // that live as long as the library.
        unsafe { CStr::from_ptr(self.0) }
    }
}
