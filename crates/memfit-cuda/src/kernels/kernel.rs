//! A kernel: its name, parameters, attributes and machine code.

#![allow(unsafe_code, reason = "pointers of C callers are followed here")]

use std::{
    ffi::CStr,
    sync::{
        OnceLock,
        atomic::{AtomicI32, AtomicU32, Ordering::Relaxed},
    },
};

use super::{
    launch::Launch,
    module::{Code, Module},
    occupancy::Multiprocessor,
    registry::Name,
};
use crate::{
    beside,
    graphs::Effect,
    machine::Card,
    status::{Outcome, Status},
    thread, values,
};
use memfit_abi::{In, Ptr};
use memfit_kernels::{
    Descriptor,
    binary::{Function, Param},
    cost::Work,
    launch::{self, Arguments, Grid, Parameters},
};

/// Registers per thread assumed for a kernel that the driver would still have to compile.
const UNKNOWN_REGISTERS: u32 = 32;

/// A kernel, shared by all its names and handles.
pub(crate) struct Kernel {
    module: &'static Module,
    name: Name,
    /// The compute capability for which [`Kernel::check`] last succeeded.
    checked: AtomicU32,
    /// Properties derived from the name.
    descriptor: OnceLock<Descriptor>,
    /// Parameters, read for the first device that asked: they are the same for all.
    params: OnceLock<Option<Vec<Param>>>,
    /// Description in the machine code, for the first device that asked.
    function: OnceLock<(u32, Option<Function>)>,
    /// `cudaFuncAttributeMaxDynamicSharedMemorySize`; 0 if it was not set.
    dynamic_shared: AtomicU32,
    /// `cudaFuncAttributePreferredSharedMemoryCarveout`; −1 if it was not set.
    carveout: AtomicI32,
    pub(super) cluster: Cluster,
}

/// Cluster attributes as the program set them.
#[derive(Default)]
pub(super) struct Cluster {
    pub(super) width: AtomicU32,
    pub(super) height: AtomicU32,
    pub(super) depth: AtomicU32,
    pub(super) non_portable: AtomicU32,
    pub(super) scheduling: AtomicU32,
}

/// A kernel on one device, where its parameters are known.
#[derive(Clone, Copy)]
pub(super) struct OnCard {
    kernel: &'static Kernel,
    card: &'static Card,
}

impl Parameters for OnCard {
    fn parameters(&self) -> Option<&[Param]> {
        self.kernel.params(self.card)
    }
}

/// Properties that determine whether a kernel fits on a device, and how many of its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attributes {
    /// Registers per thread.
    pub(crate) registers: u32,
    /// Static shared memory per block.
    pub(crate) shared: u32,
    /// Local memory per thread.
    pub(crate) local: u32,
    /// Constant memory of the kernel.
    pub(crate) constant: u32,
    /// Maximum threads per block.
    pub(crate) threads: u32,
    /// Maximum dynamic shared memory that a launch may request.
    pub(crate) dynamic_shared: u32,
    /// Architecture of the PTX that it was compiled from.
    pub(crate) ptx: u32,
    /// Architecture of the machine code.
    pub(crate) binary: u32,
}

impl Kernel {
    /// Creates a kernel of a module.
    pub(super) fn new(module: &'static Module, name: Name) -> Self {
        Self {
            module,
            name,
            checked: AtomicU32::new(0),
            descriptor: OnceLock::new(),
            params: OnceLock::new(),
            function: OnceLock::new(),
            dynamic_shared: AtomicU32::new(0),
            carveout: AtomicI32::new(-1),
            cluster: Cluster::default(),
        }
    }

    /// Handle that programs use: the kernel's address.
    pub(crate) fn handle(&'static self) -> usize {
        std::ptr::from_ref(self) as usize
    }

    /// Module that contains the kernel.
    pub(crate) fn module(&self) -> &'static Module {
        self.module
    }

    /// Pairs the kernel with a device.
    pub(super) fn on_card(&'static self, card: &'static Card) -> OnCard {
        OnCard { kernel: self, card }
    }

    /// Mangled name.
    pub(crate) fn name(&self) -> &CStr {
        self.module.name(&self.name)
    }

    /// Properties derived from the name.
    #[inline]
    fn descriptor(&self) -> &Descriptor {
        self.descriptor.get_or_init(|| Descriptor::new(&self.name().to_string_lossy(), self.module.text()))
    }

    /// Applies the effect of a launch to the known contents of memory.
    #[inline]
    pub(super) fn apply(&self, arguments: Arguments, grid: Grid) {
        self.descriptor().apply(launch::Launch { grid, arguments, memory: values::memory() });
    }

    /// Returns the effect of a captured launch with these arguments, applied at each launch of the graph;
    /// `None` if it affects no known contents.
    pub(super) fn captured_effect(
        &'static self,
        card: &'static Card,
        arguments: Arguments,
        grid: Grid,
    ) -> Option<Effect> {
        let descriptor = self.descriptor();
        if descriptor.is_inert() {
            return None;
        }
        let Some(params) = self.params(card) else {
            // The sizes of the arguments are unknown, so the memory that the kernel writes is unknown, too.
            return Some(Effect::new(|| values::memory().forget(0, u64::MAX)));
        };
        let values: Option<Vec<Vec<u8>>> = params
            .iter()
            .enumerate()
            .map(|(index, param)| arguments.bytes(index, param.size as usize))
            .collect();
        let values = values?;
        let kernel = self.on_card(card);
        Some(Effect::new(move || {
            let addresses: Vec<Ptr> = values.iter().map(|value| value.as_ptr().cast_mut().cast()).collect();
            // SAFETY: the addresses and the values behind them, each as large as its parameter, outlive the
            // launch.
            let arguments = unsafe { Arguments::new(In::from_address(addresses.as_ptr() as u64), &kernel) };
            descriptor.apply(launch::Launch { grid, arguments, memory: values::memory() });
        }))
    }

    /// Estimates the work of a launch, also for the GPUs of the auxiliary clocks.
    #[inline]
    pub(crate) fn work(&self, card: &Card, launch: &Launch, arguments: Arguments) -> Work {
        let descriptor = self.descriptor();
        thread::with_prepared(|prepared| {
            let launch = launch::Launch { grid: launch.grid(), arguments, memory: values::memory() };
            let function = || self.function(card.device.compute_capability.sm_version()).unwrap_or_default();
            // An estimate uses up the prepared problem, so those for other GPUs get a copy. Their durations
            // are queued together with the work of this GPU.
            beside::measure(|speeds| descriptor.work(launch, &prepared.copied(), speeds, function));
            descriptor.work(launch, prepared, &card.speeds, function)
        })
    }

    /// Parameters on a device; `None` if its machine code does not describe them.
    fn params(&self, card: &Card) -> Option<&[Param]> {
        let params = self.params.get_or_init(|| {
            let version = card.device.compute_capability.sm_version();
            let function = self.module.function(version, &self.name().to_string_lossy());
            function.map(|function| function.params)
        });
        params.as_deref()
    }

    /// Checks that the device has code for the kernel.
    #[inline]
    pub(crate) fn check(&self, card: &Card) -> Outcome {
        let version = card.device.compute_capability.sm_version();
        if self.checked.load(Relaxed) == version { Ok(()) } else { self.check_slowly(version) }
    }

    #[cold]
    fn check_slowly(&self, version: u32) -> Outcome {
        if !self.module.runs_on(version) {
            return Err(Status::NO_KERNEL_IMAGE_FOR_DEVICE);
        }
        self.checked.store(version, Relaxed);
        Ok(())
    }

    /// Description of the kernel in the machine code for a device.
    pub(crate) fn function(&self, version: u32) -> Option<Function> {
        let find = || self.module.function(version, &self.name().to_string_lossy());
        let (known, function) = self.function.get_or_init(|| (version, find()));
        if *known == version { function.clone() } else { find() }
    }

    /// Same as [`Self::function`] if the description is cached; `None` otherwise.
    pub(super) fn known_function(&self, version: u32) -> Option<&Function> {
        self.function.get().filter(|(known, _)| *known == version)?.1.as_ref()
    }

    /// Attributes on a device.
    pub(crate) fn attributes(&self, card: &Card) -> Outcome<Attributes> {
        let version = card.device.compute_capability.sm_version();
        let (ptx, binary) = match self.module.code(version) {
            Code::Machine(target) => (target, target),
            Code::Compiled(target) => (target, version),
            Code::Missing => return Err(Status::NO_KERNEL_IMAGE_FOR_DEVICE),
        };
        let function = self
            .function(version)
            .unwrap_or(Function { registers: UNKNOWN_REGISTERS, ..Function::default() });
        let sm = multiprocessor(card);
        let bound = if function.launch_bound == 0 { u32::MAX } else { function.launch_bound };
        Ok(Attributes {
            registers: function.registers,
            shared: function.shared,
            local: function.local,
            constant: function.constant,
            threads: sm.max_threads(function.registers).min(bound),
            dynamic_shared: self.max_dynamic_shared(card, function.shared),
            ptx,
            binary,
        })
    }

    /// Maximum dynamic shared memory of a launch: the value set by the program, or the default that every
    /// kernel has.
    pub(super) fn max_dynamic_shared(&self, card: &Card, fixed: u32) -> u32 {
        match self.dynamic_shared.load(Relaxed) {
            0 => (card.device.sm.shared_memory_per_block.get() as u32).saturating_sub(fixed),
            set => set,
        }
    }

    /// Sets the maximum dynamic shared memory that a launch may request.
    pub(super) fn allow_dynamic_shared(&self, card: &Card, bytes: u32) -> Outcome {
        let version = card.device.compute_capability.sm_version();
        let fixed = self.function(version).map_or(0, |function| function.shared);
        if u64::from(bytes) + u64::from(fixed) > card.device.sm.shared_memory_per_block_optin.get() {
            return Err(Status::INVALID_VALUE);
        }
        self.dynamic_shared.store(bytes, Relaxed);
        Ok(())
    }

    /// Preferred shared memory carveout in percent; −1 for the default.
    pub(super) fn carveout(&self) -> i32 {
        self.carveout.load(Relaxed)
    }

    /// Sets the preferred shared memory carveout.
    pub(super) fn set_carveout(&self, percent: i32) -> Outcome {
        if !(-1..=100).contains(&percent) {
            return Err(Status::INVALID_VALUE);
        }
        self.carveout.store(percent, Relaxed);
        Ok(())
    }
}

/// Resources of a device's multiprocessors.
pub(crate) fn multiprocessor(card: &Card) -> Multiprocessor {
    let sm = &card.device.sm;
    Multiprocessor {
        version: card.device.compute_capability.sm_version(),
        threads: sm.max_threads,
        blocks: sm.max_blocks,
        threads_per_block: sm.max_threads_per_block,
        registers: sm.registers,
        registers_per_block: sm.registers_per_block,
        shared: sm.shared_memory.get() as u32,
        shared_per_block: sm.shared_memory_per_block_optin.get() as u32,
        shared_reserved: sm.reserved_shared_memory_per_block.get() as u32,
    }
}
