//! Kernel attributes and occupancy queries.

#![allow(unsafe_code, reason = "pointers of C callers are followed here")]

use std::sync::atomic::Ordering::Relaxed;

use super::{
    kernel::{Attributes, Kernel, multiprocessor},
    launch::Dim3,
    occupancy::Demand,
    registry,
};
use crate::{
    guard::{Driver, Runtime},
    machine::{self, Card},
    status::{Outcome, Status},
};
use memfit_abi::{In, Out, Ptr, entry_points};

/// `cudaFuncAttributes`, unchanged since CUDA 12.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FunctionAttributes {
    shared: usize,
    constant: usize,
    local: usize,
    threads: i32,
    registers: i32,
    ptx: i32,
    binary: i32,
    cache_mode: i32,
    dynamic_shared: i32,
    carveout: i32,
    cluster_must_be_set: i32,
    cluster_width: i32,
    cluster_height: i32,
    cluster_depth: i32,
    cluster_scheduling: i32,
    non_portable_cluster: i32,
    reserved: [i32; 16],
}

/// Numbers of `cudaFuncAttribute`, and the settable ones of the driver's `CUfunction_attribute`.
mod settable {
    pub(super) const DYNAMIC_SHARED: i32 = 8;
    pub(super) const CARVEOUT: i32 = 9;
    pub(super) const CLUSTER_WIDTH: i32 = 11;
    pub(super) const CLUSTER_HEIGHT: i32 = 12;
    pub(super) const CLUSTER_DEPTH: i32 = 13;
    pub(super) const NON_PORTABLE_CLUSTER: i32 = 14;
    pub(super) const CLUSTER_SCHEDULING: i32 = 15;
}

/// Maximum blocks per cluster; the larger one needs the kernel's opt-in.
const MAX_PORTABLE_CLUSTER: i32 = 8;
const MAX_CLUSTER: i32 = 16;

fn symbol(symbol: Ptr) -> Outcome<&'static Kernel> {
    registry::kernel(symbol as usize).ok_or(Status::INVALID_DEVICE_FUNCTION)
}

fn function(function: Ptr) -> Outcome<&'static Kernel> {
    registry::kernel(function as usize).ok_or(Status::INVALID_HANDLE)
}

/// Blocks of `threads` threads and `dynamic` bytes of dynamic shared memory that one multiprocessor holds.
pub(super) fn active_blocks(card: &Card, attributes: Attributes, threads: u32, dynamic: u32) -> u32 {
    let Some(shared) = attributes.shared.checked_add(dynamic) else { return 0 };
    if threads > attributes.threads {
        return 0;
    }
    multiprocessor(card).blocks(Demand { threads, registers: attributes.registers, shared })
}

fn occupancy(kernel: &Kernel, threads: i32, dynamic: u64) -> Outcome<i32> {
    let card = machine::current()?;
    let threads = u32::try_from(threads).ok().filter(|threads| *threads > 0).ok_or(Status::INVALID_VALUE)?;
    let dynamic = u32::try_from(dynamic).map_err(|_| Status::INVALID_VALUE)?;
    Ok(active_blocks(card, kernel.attributes(card)?, threads, dynamic) as i32)
}

fn set_attribute(kernel: &Kernel, card: &Card, attribute: i32, value: i32) -> Outcome {
    let amount = u32::try_from(value).map_err(|_| Status::INVALID_VALUE);
    let clusters = card.device.compute_capability.major >= 9;
    let cluster = |slot: &std::sync::atomic::AtomicU32| {
        slot.store(amount?, Relaxed);
        if clusters { Ok(()) } else { Err(Status::INVALID_VALUE) }
    };
    match attribute {
        settable::DYNAMIC_SHARED => kernel.allow_dynamic_shared(card, amount?),
        settable::CARVEOUT => kernel.set_carveout(value),
        settable::CLUSTER_WIDTH => cluster(&kernel.cluster.width),
        settable::CLUSTER_HEIGHT => cluster(&kernel.cluster.height),
        settable::CLUSTER_DEPTH => cluster(&kernel.cluster.depth),
        settable::NON_PORTABLE_CLUSTER => cluster(&kernel.cluster.non_portable),
        settable::CLUSTER_SCHEDULING => cluster(&kernel.cluster.scheduling),
        _ => Err(Status::INVALID_VALUE),
    }
}

/// Returns a `CUfunction_attribute`.
fn attribute(kernel: &Kernel, card: &Card, attribute: i32) -> Outcome<i32> {
    let known = kernel.attributes(card)?;
    Ok(match attribute {
        0 => known.threads as i32,
        1 => known.shared as i32,
        2 => known.constant as i32,
        3 => known.local as i32,
        4 => known.registers as i32,
        5 => known.ptx as i32,
        6 => known.binary as i32,
        // Cache mode CA (`-Xptxas -dlcm=ca`), and whether the cluster size must be set.
        7 | 10 => 0,
        settable::DYNAMIC_SHARED => known.dynamic_shared as i32,
        settable::CARVEOUT => kernel.carveout(),
        settable::CLUSTER_WIDTH => kernel.cluster.width.load(Relaxed) as i32,
        settable::CLUSTER_HEIGHT => kernel.cluster.height.load(Relaxed) as i32,
        settable::CLUSTER_DEPTH => kernel.cluster.depth.load(Relaxed) as i32,
        settable::NON_PORTABLE_CLUSTER => kernel.cluster.non_portable.load(Relaxed) as i32,
        settable::CLUSTER_SCHEDULING => kernel.cluster.scheduling.load(Relaxed) as i32,
        _ => return Err(Status::INVALID_VALUE),
    })
}

fn all_attributes(kernel: &Kernel, card: &Card) -> Outcome<FunctionAttributes> {
    let known = kernel.attributes(card)?;
    let cluster = |slot: &std::sync::atomic::AtomicU32| slot.load(Relaxed) as i32;
    Ok(FunctionAttributes {
        shared: known.shared as usize,
        constant: known.constant as usize,
        local: known.local as usize,
        threads: known.threads as i32,
        registers: known.registers as i32,
        ptx: known.ptx as i32,
        binary: known.binary as i32,
        dynamic_shared: known.dynamic_shared as i32,
        carveout: kernel.carveout(),
        cluster_width: cluster(&kernel.cluster.width),
        cluster_height: cluster(&kernel.cluster.height),
        cluster_depth: cluster(&kernel.cluster.depth),
        cluster_scheduling: cluster(&kernel.cluster.scheduling),
        non_portable_cluster: cluster(&kernel.cluster.non_portable),
        ..FunctionAttributes::default()
    })
}

/// Dynamic shared memory per block with which `blocks` blocks still fit on a multiprocessor.
fn available_shared(kernel: &Kernel, blocks: i32) -> Outcome<u64> {
    let card = machine::current()?;
    let blocks = u32::try_from(blocks).ok().filter(|blocks| *blocks > 0).ok_or(Status::INVALID_VALUE)?;
    let attributes = kernel.attributes(card)?;
    Ok(u64::from(
        multiprocessor(card).dynamic_shared(blocks, attributes.shared).min(attributes.dynamic_shared),
    ))
}

/// Clusters that are resident at the same time on the whole device, each within one GPC.
fn active_clusters(kernel: &Kernel, block: Dim3, shared: u64, cluster: i32) -> Outcome<i32> {
    let card = machine::current()?;
    if card.device.compute_capability.major < 9 {
        return Err(Status::NOT_SUPPORTED);
    }
    let threads = block.x.saturating_mul(block.y).saturating_mul(block.z);
    let blocks = occupancy(kernel, i32::try_from(threads).map_err(|_| Status::INVALID_VALUE)?, shared)?;
    Ok(blocks * card.device.sm_count as i32 / cluster.max(1))
}

fn max_cluster_size(kernel: &Kernel) -> Outcome<i32> {
    if machine::current()?.device.compute_capability.major < 9 {
        return Err(Status::NOT_SUPPORTED);
    }
    Ok(if kernel.cluster.non_portable.load(Relaxed) == 0 { MAX_PORTABLE_CLUSTER } else { MAX_CLUSTER })
}

/// Writes the offset and the size of one parameter.
fn parameter(kernel: &Kernel, index: u64, offset: Out<u64>, size: Out<u64>) -> Outcome {
    let version = machine::current()?.device.compute_capability.sm_version();
    let function = kernel.function(version).ok_or(Status::INVALID_VALUE)?;
    let param = function.params.get(index as usize).ok_or(Status::INVALID_VALUE)?;
    offset.set(u64::from(param.offset));
    size.set(u64::from(param.size));
    Ok(())
}

fn parameters(kernel: &Kernel) -> Outcome<u64> {
    let version = machine::current()?.device.compute_capability.sm_version();
    Ok(kernel.function(version).ok_or(Status::INVALID_VALUE)?.params.len() as u64)
}

/// A launch configuration. Its attribute list holds the cluster size.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct LaunchShape {
    grid: Dim3,
    block: Dim3,
    shared: u64,
    _stream: u64,
    attributes: u64,
    count: u32,
}

/// One launch attribute: an id and a value of 64 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
struct LaunchAttribute {
    id: i32,
    _padding: i32,
    value: [u32; 16],
}

impl LaunchShape {
    fn cluster(&self) -> i32 {
        const CLUSTER_DIMENSION: i32 = 4;
        const MAX_ATTRIBUTES: u32 = 64;
        // SAFETY: the caller's configuration states the number of attributes.
        let attributes = unsafe { In::<LaunchAttribute>::from_address(self.attributes) };
        let list = attributes.list(self.count.min(MAX_ATTRIBUTES) as usize);
        let dimension = list.iter().find(|attribute| attribute.id == CLUSTER_DIMENSION);
        dimension.map_or(1, |attribute| {
            attribute.value[..3]
                .iter()
                .fold(1i32, |size, extent| size.saturating_mul((*extent).max(1) as i32))
        })
    }
}

entry_points! { Runtime;
    fn cudaFuncGetAttributes(attributes: Out<FunctionAttributes>, host: Ptr) {
        attributes.set(all_attributes(symbol(host)?, machine::current()?)?);
        Ok(())
    }

    fn cudaFuncSetAttribute(host: Ptr, attribute: i32, value: i32) {
        set_attribute(symbol(host)?, machine::current()?, attribute, value)
    }

    fn cudaKernelSetAttributeForDevice(kernel: Ptr, attribute: i32, value: i32, device: i32) {
        set_attribute(symbol(kernel)?, machine::card(device)?, attribute, value)
    }

    fn cudaFuncGetParamInfo(host: Ptr, index: u64, offset: Out<u64>, size: Out<u64>) {
        parameter(symbol(host)?, index, offset, size)
    }

    fn cudaFuncGetParamCount(host: Ptr, count: Out<u64>) {
        count.set(parameters(symbol(host)?)?);
        Ok(())
    }

    fn cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks: Out<i32>, host: Ptr, threads: i32, dynamic: u64) {
        blocks.set(occupancy(symbol(host)?, threads, dynamic)?);
        Ok(())
    }

    fn cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        blocks: Out<i32>, host: Ptr, threads: i32, dynamic: u64, _flags: u32,
    ) {
        blocks.set(occupancy(symbol(host)?, threads, dynamic)?);
        Ok(())
    }

    fn cudaOccupancyAvailableDynamicSMemPerBlock(shared: Out<u64>, host: Ptr, blocks: i32, _threads: i32) {
        shared.set(available_shared(symbol(host)?, blocks)?);
        Ok(())
    }

    fn cudaOccupancyMaxActiveClusters(clusters: Out<i32>, host: Ptr, shape: In<LaunchShape>) {
        let shape = shape.get().ok_or(Status::INVALID_VALUE)?;
        clusters.set(active_clusters(symbol(host)?, shape.block, shape.shared, shape.cluster())?);
        Ok(())
    }

    fn cudaOccupancyMaxPotentialClusterSize(size: Out<i32>, host: Ptr, _shape: In<LaunchShape>) {
        size.set(max_cluster_size(symbol(host)?)?);
        Ok(())
    }
}

/// Callback of `cuOccupancyMaxPotentialBlockSize`: dynamic shared memory for a block size.
type BlockToShared = Option<extern "C" fn(i32) -> u64>;

fn potential_block(
    kernel: &Kernel,
    grid: Out<i32>,
    block: Out<i32>,
    shared: BlockToShared,
    fixed: u64,
    limit: i32,
) -> Outcome {
    const WARP: i32 = 32;
    let card = machine::current()?;
    let attributes = kernel.attributes(card)?;
    let most = attributes.threads as i32;
    let most = if limit > 0 { most.min(limit) } else { most };
    let mut best = (0, 0, 0);
    for threads in (1..=most / WARP).rev().map(|warps| warps * WARP) {
        let dynamic = shared.map_or(fixed, |shared| shared(threads));
        let blocks =
            active_blocks(card, attributes, threads as u32, u32::try_from(dynamic).unwrap_or(u32::MAX))
                as i32;
        if blocks * threads > best.0 {
            best = (blocks * threads, blocks, threads);
        }
    }
    grid.set(best.1 * card.device.sm_count as i32);
    block.set(best.2);
    Ok(())
}

entry_points! { Driver;
    fn cuFuncGetAttribute(value: Out<i32>, which: i32, handle: Ptr) {
        value.set(attribute(function(handle)?, machine::current()?, which)?);
        Ok(())
    }

    fn cuFuncSetAttribute(handle: Ptr, which: i32, value: i32) {
        set_attribute(function(handle)?, machine::current()?, which, value)
    }

    fn cuKernelGetAttribute(value: Out<i32>, which: i32, kernel: Ptr, device: i32) {
        value.set(attribute(function(kernel)?, machine::card(device)?, which)?);
        Ok(())
    }

    fn cuKernelSetAttribute(which: i32, value: i32, kernel: Ptr, device: i32) {
        set_attribute(function(kernel)?, machine::card(device)?, which, value)
    }

    fn cuFuncGetParamInfo(handle: Ptr, index: u64, offset: Out<u64>, size: Out<u64>) {
        parameter(function(handle)?, index, offset, size)
    }

    fn cuKernelGetParamInfo(kernel: Ptr, index: u64, offset: Out<u64>, size: Out<u64>) {
        parameter(function(kernel)?, index, offset, size)
    }

    fn cuFuncGetParamCount(handle: Ptr, count: Out<u64>) {
        count.set(parameters(function(handle)?)?);
        Ok(())
    }

    fn cuKernelGetParamCount(kernel: Ptr, count: Out<u64>) {
        count.set(parameters(function(kernel)?)?);
        Ok(())
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks: Out<i32>, handle: Ptr, threads: i32, dynamic: u64) {
        blocks.set(occupancy(function(handle)?, threads, dynamic)?);
        Ok(())
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        blocks: Out<i32>, handle: Ptr, threads: i32, dynamic: u64, _flags: u32,
    ) {
        blocks.set(occupancy(function(handle)?, threads, dynamic)?);
        Ok(())
    }

    fn cuOccupancyAvailableDynamicSMemPerBlock(shared: Out<u64>, handle: Ptr, blocks: i32, _threads: i32) {
        shared.set(available_shared(function(handle)?, blocks)?);
        Ok(())
    }

    fn cuOccupancyMaxPotentialBlockSize(
        grid: Out<i32>, block: Out<i32>, handle: Ptr, shared: BlockToShared, fixed: u64, limit: i32,
    ) {
        potential_block(function(handle)?, grid, block, shared, fixed, limit)
    }

    fn cuOccupancyMaxPotentialBlockSizeWithFlags(
        grid: Out<i32>, block: Out<i32>, handle: Ptr, shared: BlockToShared, fixed: u64, limit: i32, _flags: u32,
    ) {
        potential_block(function(handle)?, grid, block, shared, fixed, limit)
    }

    fn cuOccupancyMaxActiveClusters(clusters: Out<i32>, handle: Ptr, shape: In<LaunchShape>) {
        let shape = shape.get().ok_or(Status::INVALID_VALUE)?;
        // The driver's configuration has 32 bits of shared memory where the runtime's has 64.
        let shared = u64::from(shape.shared as u32);
        clusters.set(active_clusters(function(handle)?, shape.block, shared, shape.cluster())?);
        Ok(())
    }

    fn cuOccupancyMaxPotentialClusterSize(size: Out<i32>, handle: Ptr, _shape: In<LaunchShape>) {
        size.set(max_cluster_size(function(handle)?)?);
        Ok(())
    }
}
