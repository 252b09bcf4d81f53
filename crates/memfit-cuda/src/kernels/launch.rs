//! Launches: checked as CUDA checks them, then passed to [`crate::values`].

#![allow(unsafe_code, reason = "pointers of C callers are followed here")]

use std::cell::RefCell;

use super::{kernel::Kernel, registry};
use crate::{
    clock::Effort,
    graphs,
    guard::{Driver, Runtime},
    machine::{self, Card},
    status::{Outcome, Status},
    streams,
};
use memfit_abi::{In, Out, Ptr, entry_points};
use memfit_kernels::launch::{Arguments, Grid};

/// CUDA's `dim3`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dim3 {
    pub(crate) x: u32,
    pub(crate) y: u32,
    pub(crate) z: u32,
}

/// Configuration of a kernel launch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Launch {
    pub(crate) grid: Dim3,
    pub(crate) block: Dim3,
    /// Dynamic shared memory in bytes.
    pub(crate) shared: u64,
    /// Stream that the launch is queued on.
    pub(crate) stream: u64,
}

impl Dim3 {
    pub(crate) const fn new(x: u32, y: u32, z: u32) -> Self {
        Self { x, y, z }
    }

    pub(super) fn volume(self) -> u64 {
        u64::from(self.x) * u64::from(self.y) * u64::from(self.z)
    }

    fn fits_in(self, most: Self) -> bool {
        (1..=most.x).contains(&self.x) && (1..=most.y).contains(&self.y) && (1..=most.z).contains(&self.z)
    }
}

const MAX_GRID: Dim3 = Dim3::new(i32::MAX as u32, 65_535, 65_535);
const MAX_BLOCK: Dim3 = Dim3::new(1024, 1024, 64);

impl Launch {
    /// Grid and block extents.
    pub(super) fn grid(&self) -> Grid {
        let blocks = [self.grid.x, self.grid.y, self.grid.z];
        Grid { blocks, threads: self.block.volume() as u32 }
    }

    /// Checks that the device can run this many blocks of this many threads.
    fn check(&self, kernel: &Kernel, card: &Card) -> Outcome {
        let fits = self.grid.fits_in(MAX_GRID)
            && self.block.fits_in(MAX_BLOCK)
            && self.block.volume() <= u64::from(card.device.sm.max_threads_per_block);
        if !fits {
            return Err(Status::INVALID_CONFIGURATION);
        }
        kernel.check(card)?;
        let version = card.device.compute_capability.sm_version();
        let function = kernel.known_function(version);
        if self.shared > 0 {
            // Static shared memory is only known after the machine code was read; without it, the check errs
            // in the program's favour.
            let fixed = function.map_or(0, |function| function.shared);
            if self.shared > u64::from(kernel.max_dynamic_shared(card, fixed)) {
                return Err(Status::INVALID_VALUE);
            }
        }
        if let Some(function) = function {
            let most = super::kernel::multiprocessor(card).max_threads(function.registers);
            if self.block.volume() > u64::from(most) {
                return Err(Status::LAUNCH_OUT_OF_RESOURCES);
            }
        }
        Ok(())
    }
}

/// Launches a kernel. `arguments` holds the address of each argument.
#[inline]
fn launch(kernel: &'static Kernel, launch: Launch, arguments: In<Ptr>, effort: Effort) -> Outcome {
    let card = machine::current_context()?;
    launch.check(kernel, card)?;
    let params = kernel.on_card(card);
    // SAFETY: the caller passes the address of each argument of the kernel.
    let arguments = unsafe { Arguments::new(arguments, &params) };
    let work = kernel.work(card, &launch, arguments);
    let grid = launch.grid();
    match streams::launch(launch.stream, work, effort)? {
        0 => kernel.apply(arguments, grid),
        capture => {
            // A captured kernel runs when the graph is launched, with the arguments of the capture.
            if let Some(act) = kernel.captured_effect(card, arguments, grid) {
                graphs::add_effect(capture, act);
            }
        }
    }
    Ok(())
}

/// Launches through the runtime, which names kernels by host function or by handle.
#[inline]
fn launch_symbol(
    symbol: Ptr,
    grid: Dim3,
    block: Dim3,
    arguments: In<Ptr>,
    shared: usize,
    stream: Ptr,
) -> Outcome {
    let kernel = registry::kernel(symbol as usize).ok_or(Status::INVALID_DEVICE_FUNCTION)?;
    let plan = Launch { grid, block, shared: shared as u64, stream: stream as u64 };
    launch(kernel, plan, arguments, Effort::Operator)
}

/// The part of `cudaLaunchConfig_t` that is read.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct RuntimeConfig {
    grid: Dim3,
    block: Dim3,
    shared: usize,
    stream: Ptr,
    _attributes: Ptr,
    _count: u32,
}

/// The part of `CUlaunchConfig` that is read.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct DriverConfig {
    grid: Dim3,
    block: Dim3,
    shared: u32,
    stream: Ptr,
    _attributes: Ptr,
    _count: u32,
}

impl DriverConfig {
    fn launch(&self) -> Launch {
        Launch {
            grid: self.grid,
            block: self.block,
            shared: u64::from(self.shared),
            stream: self.stream as u64,
        }
    }
}

entry_points! { Runtime;
    fn cudaLaunchKernel(symbol: Ptr, grid: Dim3, block: Dim3, arguments: In<Ptr>, shared: usize, stream: Ptr) {
        launch_symbol(symbol, grid, block, arguments, shared, stream)
    }

    fn cudaLaunchKernel_ptsz(symbol: Ptr, grid: Dim3, block: Dim3, arguments: In<Ptr>, shared: usize, stream: Ptr) {
        launch_symbol(symbol, grid, block, arguments, shared, stream)
    }

    fn __cudaLaunchKernel(kernel: Ptr, grid: Dim3, block: Dim3, arguments: In<Ptr>, shared: usize, stream: Ptr) {
        launch_symbol(kernel, grid, block, arguments, shared, stream)
    }

    fn __cudaLaunchKernel_ptsz(kernel: Ptr, grid: Dim3, block: Dim3, arguments: In<Ptr>, shared: usize, stream: Ptr) {
        launch_symbol(kernel, grid, block, arguments, shared, stream)
    }

    fn cudaLaunchCooperativeKernel(symbol: Ptr, grid: Dim3, block: Dim3, arguments: In<Ptr>, shared: usize, stream: Ptr) {
        launch_cooperative(symbol, grid, block, arguments, shared, stream)
    }

    fn cudaLaunchCooperativeKernel_ptsz(
        symbol: Ptr, grid: Dim3, block: Dim3, arguments: In<Ptr>, shared: usize, stream: Ptr,
    ) {
        launch_cooperative(symbol, grid, block, arguments, shared, stream)
    }

    fn cudaLaunchKernelExC(config: In<RuntimeConfig>, symbol: Ptr, arguments: In<Ptr>) {
        let config = config.get().ok_or(Status::INVALID_VALUE)?;
        launch_symbol(symbol, config.grid, config.block, arguments, config.shared, config.stream)
    }

    fn cudaLaunchKernelExC_ptsz(config: In<RuntimeConfig>, symbol: Ptr, arguments: In<Ptr>) {
        let config = config.get().ok_or(Status::INVALID_VALUE)?;
        launch_symbol(symbol, config.grid, config.block, arguments, config.shared, config.stream)
    }
}

/// Checks and launches a cooperative kernel: all its blocks must be resident at the same time.
fn launch_cooperative(
    symbol: Ptr,
    grid: Dim3,
    block: Dim3,
    arguments: In<Ptr>,
    shared: usize,
    stream: Ptr,
) -> Outcome {
    let kernel = registry::kernel(symbol as usize).ok_or(Status::INVALID_DEVICE_FUNCTION)?;
    check_cooperative(kernel, grid, block, shared as u64)?;
    let plan = Launch { grid, block, shared: shared as u64, stream: stream as u64 };
    launch(kernel, plan, arguments, Effort::Operator)
}

fn check_cooperative(kernel: &Kernel, grid: Dim3, block: Dim3, shared: u64) -> Outcome {
    let card = machine::current()?;
    let attributes = kernel.attributes(card)?;
    let threads = u32::try_from(block.volume()).map_err(|_| Status::INVALID_CONFIGURATION)?;
    let shared = u32::try_from(shared).map_err(|_| Status::INVALID_VALUE)?;
    let blocks = super::attributes::active_blocks(card, attributes, threads, shared);
    if grid.volume() > u64::from(blocks) * u64::from(card.device.sm_count) {
        return Err(Status::COOPERATIVE_LAUNCH_TOO_LARGE);
    }
    Ok(())
}

/// Launches through the driver, which also accepts arguments packed into one buffer.
fn launch_function(function: Ptr, plan: Launch, arguments: In<Ptr>, extra: In<Ptr>) -> Outcome {
    let kernel = registry::kernel(function as usize).ok_or(Status::INVALID_HANDLE)?;
    let run = |arguments| launch(kernel, plan, arguments, Effort::Compiled).map_err(as_driver);
    if arguments.get().is_some() || extra.get().is_none() {
        return run(arguments);
    }
    let version = machine::current()?.device.compute_capability.sm_version();
    let params = kernel.function(version).map(|function| function.params).unwrap_or_default();
    let Some(block) = packed_arguments(extra) else { return Err(Status::INVALID_VALUE) };
    let addresses: Vec<Ptr> = params.iter().map(|param| (block + u64::from(param.offset)) as Ptr).collect();
    // SAFETY: the addresses outlive the launch.
    run(unsafe { In::from_address(if addresses.is_empty() { 0 } else { addresses.as_ptr() as u64 }) })
}

/// Returns the address of the packed arguments from an `extra` list: pairs of key and value, ended by a zero
/// key.
fn packed_arguments(extra: In<Ptr>) -> Option<u64> {
    const END: usize = 0;
    const BUFFER_POINTER: usize = 1;
    const MAX_PAIRS: usize = 8;
    for pair in 0..MAX_PAIRS {
        match extra.get_at(2 * pair)? as usize {
            END => return None,
            BUFFER_POINTER => return Some(extra.get_at(2 * pair + 1)? as u64),
            _ => {}
        }
    }
    None
}

/// Maps an error to the driver's: it reports an impossible launch as an invalid value.
fn as_driver(status: Status) -> Status {
    if status == Status::INVALID_CONFIGURATION { Status::INVALID_VALUE } else { status }
}

entry_points! { Driver;
    fn cuLaunchKernel(
        function: Ptr, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32, shared: u32,
        stream: Ptr, arguments: In<Ptr>, extra: In<Ptr>,
    ) {
        let (grid, block) = (Dim3::new(grid_x, grid_y, grid_z), Dim3::new(block_x, block_y, block_z));
        launch_function(function, Launch { grid, block, shared: u64::from(shared), stream: stream as u64 }, arguments, extra)
    }

    fn cuLaunchKernel_ptsz(
        function: Ptr, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32, shared: u32,
        stream: Ptr, arguments: In<Ptr>, extra: In<Ptr>,
    ) {
        let (grid, block) = (Dim3::new(grid_x, grid_y, grid_z), Dim3::new(block_x, block_y, block_z));
        launch_function(function, Launch { grid, block, shared: u64::from(shared), stream: stream as u64 }, arguments, extra)
    }

    fn cuLaunchCooperativeKernel(
        function: Ptr, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32, shared: u32,
        stream: Ptr, arguments: In<Ptr>,
    ) {
        let (grid, block) = (Dim3::new(grid_x, grid_y, grid_z), Dim3::new(block_x, block_y, block_z));
        let kernel = registry::kernel(function as usize).ok_or(Status::INVALID_HANDLE)?;
        check_cooperative(kernel, grid, block, u64::from(shared)).map_err(as_driver)?;
        let plan = Launch { grid, block, shared: u64::from(shared), stream: stream as u64 };
        launch(kernel, plan, arguments, Effort::Compiled).map_err(as_driver)
    }

    fn cuLaunchCooperativeKernel_ptsz(
        function: Ptr, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32, shared: u32,
        stream: Ptr, arguments: In<Ptr>,
    ) {
        let (grid, block) = (Dim3::new(grid_x, grid_y, grid_z), Dim3::new(block_x, block_y, block_z));
        let kernel = registry::kernel(function as usize).ok_or(Status::INVALID_HANDLE)?;
        check_cooperative(kernel, grid, block, u64::from(shared)).map_err(as_driver)?;
        let plan = Launch { grid, block, shared: u64::from(shared), stream: stream as u64 };
        launch(kernel, plan, arguments, Effort::Compiled).map_err(as_driver)
    }

    fn cuLaunchKernelEx(config: In<DriverConfig>, function: Ptr, arguments: In<Ptr>, extra: In<Ptr>) {
        let config = config.get().ok_or(Status::INVALID_VALUE)?;
        let plan = config.launch();
        launch_function(function, plan, arguments, extra)
    }

    fn cuLaunchKernelEx_ptsz(config: In<DriverConfig>, function: Ptr, arguments: In<Ptr>, extra: In<Ptr>) {
        let config = config.get().ok_or(Status::INVALID_VALUE)?;
        let plan = config.launch();
        launch_function(function, plan, arguments, extra)
    }
}

/// Launch configuration that `kernel<<<…>>>` pushes for the stub that then launches.
#[derive(Clone, Copy)]
struct Configuration {
    grid: Dim3,
    block: Dim3,
    shared: usize,
    stream: u64,
}

thread_local! {
    static CONFIGURATIONS: RefCell<Vec<Configuration>> = const { RefCell::new(Vec::new()) };
}

/// Pushes the configuration between `<<<` and `>>>`; the compiler's stub pops it. Zero is success.
#[allow(non_snake_case, reason = "exported names are CUDA's")]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn __cudaPushCallConfiguration(
    grid: Dim3,
    block: Dim3,
    shared: usize,
    stream: Ptr,
) -> u32 {
    let configuration = Configuration { grid, block, shared, stream: stream as u64 };
    CONFIGURATIONS.with_borrow_mut(|configurations| configurations.push(configuration));
    0
}

entry_points! { Runtime;
    fn __cudaPopCallConfiguration(grid: Out<Dim3>, block: Out<Dim3>, shared: Out<usize>, stream: Out<u64>) {
        let configuration = CONFIGURATIONS
            .with_borrow_mut(Vec::pop)
            .ok_or(Status::MISSING_CONFIGURATION)?;
        grid.set(configuration.grid);
        block.set(configuration.block);
        shared.set(configuration.shared);
        stream.set(configuration.stream);
        Ok(())
    }
}
