//! Allocation.

use crate::{
    guard::{Driver, Runtime},
    machine,
    memory::{device, host, pool},
    space::{self, Kind},
    status::{Outcome, Status},
};
use memfit_abi::{Out, entry_points};

/// Alignment of pitches.
const PITCH: u64 = 512;

fn write_allocation(
    target: Out<u64>,
    size: u64,
    allocate: impl FnOnce(&machine::Card) -> Outcome<u64>,
) -> Outcome {
    if target.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    let card = machine::current_context()?;
    // CUDA returns null without an error for a size of zero.
    target.set(if size == 0 { 0 } else { allocate(card)? });
    Ok(())
}

/// `cudaExtent`, and other structures of three sizes.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Extent {
    pub(crate) width: u64,
    pub(crate) height: u64,
    pub(crate) depth: u64,
}

/// `cudaPitchedPtr`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct PitchedPointer {
    pub(crate) address: u64,
    pub(crate) pitch: u64,
    pub(crate) width: u64,
    pub(crate) height: u64,
}

fn product(factors: &[u64]) -> Outcome<u64> {
    factors.iter().try_fold(1u64, |all, &factor| all.checked_mul(factor)).ok_or(Status::OUT_OF_MEMORY)
}

entry_points! { Runtime, Driver;
    fn cudaMalloc(address: Out<u64>, size: u64),
    fn cuMemAlloc_v2() {
        write_allocation(address, size, |card| device::allocate(card, size, Kind::Device))
    }

    fn cudaMallocPitch(address: Out<u64>, pitch: Out<u64>, width: u64, height: u64) {
        let row = width.checked_next_multiple_of(PITCH).ok_or(Status::OUT_OF_MEMORY)?;
        let size = product(&[row, height])?;
        write_allocation(address, size, |card| device::allocate(card, size, Kind::Device))?;
        pitch.set(row);
        Ok(())
    }

    fn cudaMalloc3D(pitched: Out<PitchedPointer>, extent: Extent) {
        let pitch = extent.width.checked_next_multiple_of(PITCH).ok_or(Status::OUT_OF_MEMORY)?;
        let size = product(&[pitch, extent.height, extent.depth])?;
        write_allocation(pitched.cast(), size, |card| device::allocate(card, size, Kind::Device))?;
        let address = pitched.cast::<u64>().get().unwrap_or(0);
        pitched.set(PitchedPointer { address, pitch, width: extent.width, height: extent.height });
        Ok(())
    }

    fn cudaMallocManaged(address: Out<u64>, size: u64, flags: u32),
    fn cuMemAllocManaged() {
        if size == 0 || !matches!(flags, 1 | 2) {
            return Err(Status::INVALID_VALUE);
        }
        write_allocation(address, size, |card| host::allocate_managed(card, size))
    }

    fn cudaFree(address: u64) {
        // Programs call `cudaFree(0)` to create a context.
        machine::current_context()?;
        if address == 0 {
            return Ok(());
        }
        match space::find(address).map(|block| block.kind) {
            Some(Kind::Managed) => host::free_managed(address),
            Some(Kind::Pooled(_)) => pool::free(address),
            _ => device::free(address, |kind| kind == Kind::Device),
        }
    }

    fn cudaMallocHost(address: Out<u64>, size: u64),
    fn cuMemAllocHost_v2() {
        write_allocation(address, size, |card| host::allocate(card, size, 0))
    }

    fn cudaHostAlloc(address: Out<u64>, size: u64, flags: u32),
    fn cuMemHostAlloc() {
        if flags & !7 != 0 {
            return Err(Status::INVALID_VALUE);
        }
        write_allocation(address, size, |card| host::allocate(card, size, flags))
    }

    fn cudaFreeHost(address: u64),
    fn cuMemFreeHost() {
        machine::current_context()?;
        if address == 0 { Ok(()) } else { host::free(address) }
    }

    fn cudaHostRegister(address: u64, size: u64, flags: u32),
    fn cuMemHostRegister_v2() {
        if flags & !15 != 0 {
            return Err(Status::INVALID_VALUE);
        }
        host::register(machine::current()?, address, size, flags)
    }

    fn cudaHostUnregister(address: u64),
    fn cuMemHostUnregister() {
        machine::current_context()?;
        host::unregister(address)
    }

    fn cudaHostGetDevicePointer(device: Out<u64>, address: u64, flags: u32),
    fn cuMemHostGetDevicePointer_v2() {
        if device.is_null() || flags != 0 {
            return Err(Status::INVALID_VALUE);
        }
        machine::current_context()?;
        match space::find(address) {
            Some(block) if block.is_host() => {
                device.set(address);
                Ok(())
            }
            _ => Err(Status::INVALID_VALUE),
        }
    }

    fn cudaHostGetFlags(flags: Out<u32>, address: u64),
    fn cuMemHostGetFlags() {
        if flags.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        machine::current_context()?;
        match space::find(address).map(|block| block.kind) {
            // Host memory is always mapped for the device, requested or not.
            Some(Kind::HostAllocated(given) | Kind::HostRegistered(given)) => flags.set(given | 2),
            _ => return Err(Status::INVALID_VALUE),
        }
        Ok(())
    }

    fn cudaMemGetInfo(free: Out<u64>, total: Out<u64>),
    fn cuMemGetInfo_v2() {
        if free.is_null() || total.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        let card = machine::current_context()?;
        let (left, capacity) = machine::get()?.ledger.free(card.index).map_err(|_| Status::INVALID_DEVICE)?;
        free.set(left);
        total.set(capacity);
        Ok(())
    }

    fn cudaPointerGetAttributes(attributes: Out<PointerAttributes>, address: u64) {
        if attributes.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        machine::get()?;
        let answer = PointerAttributes::read(address);
        attributes.set(answer);
        if crate::versions::major() >= 13 {
            let reserved = attributes.cast::<u64>();
            (0..8).for_each(|index| reserved.set_at(size_of::<PointerAttributes>() / 8 + index, 0));
        }
        Ok(())
    }
}

/// `cudaPointerAttributes`; CUDA 13 appends eight reserved words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct PointerAttributes {
    kind: i32,
    device: i32,
    device_pointer: u64,
    host_pointer: u64,
}

impl PointerAttributes {
    fn read(address: u64) -> Self {
        let Some(block) = space::find(address) else {
            // Memory unknown to CUDA.
            return Self { kind: 0, device: -2, device_pointer: 0, host_pointer: address };
        };
        let device = block.card as i32;
        match block.kind {
            Kind::HostAllocated(_) | Kind::HostRegistered(_) => {
                Self { kind: 1, device, device_pointer: address, host_pointer: address }
            }
            Kind::Managed => Self { kind: 3, device, device_pointer: address, host_pointer: address },
            _ => Self { kind: 2, device, device_pointer: address, host_pointer: 0 },
        }
    }
}
