//! Allocation and pointer attributes.

#![allow(unsafe_code, reason = "pointers of C callers are followed here")]

use crate::{
    context,
    guard::Driver,
    machine,
    memory::{device, host, pool},
    space::{self, Kind},
    status::{Outcome, Status},
};
use memfit_abi::{In, Out, entry_points};

/// The numbers of `CUpointer_attribute`.
mod attribute {
    pub(super) const CONTEXT: i32 = 1;
    pub(super) const MEMORY_TYPE: i32 = 2;
    pub(super) const DEVICE_POINTER: i32 = 3;
    pub(super) const HOST_POINTER: i32 = 4;
    pub(super) const SYNC_MEMOPS: i32 = 6;
    pub(super) const BUFFER_ID: i32 = 7;
    pub(super) const IS_MANAGED: i32 = 8;
    pub(super) const ORDINAL: i32 = 9;
    pub(super) const IPC_CAPABLE: i32 = 10;
    pub(super) const START: i32 = 11;
    pub(super) const SIZE: i32 = 12;
    pub(super) const MAPPED: i32 = 13;
    pub(super) const HANDLE_TYPES: i32 = 14;
    pub(super) const RDMA_CAPABLE: i32 = 15;
    pub(super) const ACCESS: i32 = 16;
    pub(super) const POOL: i32 = 17;
    pub(super) const MAPPING_SIZE: i32 = 18;
    pub(super) const MAPPING_START: i32 = 19;
    pub(super) const BLOCK_ID: i32 = 20;
    pub(super) const DECOMPRESSION: i32 = 21;
}

/// Value of a pointer attribute, in the width of its type.
enum Value {
    Flag(bool),
    Int(i32),
    Long(u64),
}

impl Value {
    fn write(&self, target: Out<u64>) {
        match *self {
            Self::Flag(value) => target.cast::<u8>().set(u8::from(value)),
            Self::Int(value) => target.cast::<i32>().set(value),
            Self::Long(value) => target.set(value),
        }
    }
}

#[allow(clippy::match_same_arms, reason = "one line for each kind of attribute")]
fn read_attribute(address: u64, which: i32) -> Outcome<Value> {
    let block = space::find(address).ok_or(Status::INVALID_VALUE)?;
    let on_card = !block.is_host();
    Ok(match which {
        attribute::CONTEXT => Value::Long(context::primary(machine::card(block.card as i32)?)),
        attribute::MEMORY_TYPE => Value::Int(if on_card { 2 } else { 1 }),
        attribute::DEVICE_POINTER => Value::Long(address),
        attribute::HOST_POINTER if block.is_host() || block.kind == Kind::Managed => Value::Long(address),
        attribute::SYNC_MEMOPS => Value::Flag(false),
        attribute::BUFFER_ID | attribute::BLOCK_ID => Value::Long(block.id),
        attribute::IS_MANAGED => Value::Flag(block.kind == Kind::Managed),
        attribute::ORDINAL => Value::Int(block.card as i32),
        attribute::IPC_CAPABLE => Value::Flag(block.kind == Kind::Device),
        attribute::START | attribute::MAPPING_START => Value::Long(block.start),
        attribute::SIZE | attribute::MAPPING_SIZE => Value::Long(block.size),
        attribute::MAPPED => Value::Flag(true),
        attribute::HANDLE_TYPES => Value::Long(u64::from(matches!(block.kind, Kind::Mapped(_)))),
        attribute::RDMA_CAPABLE | attribute::DECOMPRESSION => Value::Flag(false),
        attribute::ACCESS => Value::Int(3),
        attribute::POOL => match block.kind {
            Kind::Pooled(pool) => Value::Long(pool),
            _ => Value::Long(0),
        },
        _ => return Err(Status::INVALID_VALUE),
    })
}

entry_points! { Driver;
    fn cuMemAllocPitch_v2(address: Out<u64>, pitch: Out<u64>, width: u64, height: u64, element: u32) {
        if address.is_null() || pitch.is_null() || !matches!(element, 4 | 8 | 16) {
            return Err(Status::INVALID_VALUE);
        }
        let row = width.checked_next_multiple_of(512).ok_or(Status::OUT_OF_MEMORY)?;
        let size = row.checked_mul(height).ok_or(Status::OUT_OF_MEMORY)?;
        address.set(device::allocate(machine::current_context()?, size, Kind::Device)?);
        pitch.set(row);
        Ok(())
    }

    fn cuMemFree_v2(address: u64) {
        machine::current_context()?;
        match space::find(address).map(|block| block.kind) {
            _ if address == 0 => Ok(()),
            Some(Kind::Managed) => host::free_managed(address),
            Some(Kind::Pooled(_)) => pool::free(address),
            _ => device::free(address, |kind| kind == Kind::Device),
        }
    }

    fn cuMemGetAddressRange_v2(start: Out<u64>, size: Out<u64>, address: u64) {
        machine::get()?;
        let block = space::find(address).ok_or(Status::NOT_FOUND)?;
        start.set(block.start);
        size.set(block.size);
        Ok(())
    }

    fn cuPointerGetAttribute(value: Out<u64>, which: i32, address: u64) {
        if value.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        machine::get()?;
        read_attribute(address, which)?.write(value);
        Ok(())
    }

    fn cuPointerGetAttributes(count: u32, attributes: In<i32>, values: In<u64>, address: u64) {
        machine::get()?;
        for index in 0..count as usize {
            let (Some(which), Some(target)) = (attributes.get_at(index), values.get_at(index)) else {
                return Err(Status::INVALID_VALUE);
            };
            // SAFETY: the caller provides storage for the value of each attribute.
            let target = unsafe { Out::<u64>::from_address(target) };
            // Every attribute of memory unknown to CUDA is empty.
            match read_attribute(address, which) {
                Ok(value) => value.write(target),
                Err(_) => empty(which).write(target),
            }
        }
        Ok(())
    }

    fn cuPointerSetAttribute(value: In<u32>, which: i32, address: u64) {
        machine::get()?;
        if value.get().is_none() || which != attribute::SYNC_MEMOPS || space::find(address).is_none() {
            return Err(Status::INVALID_VALUE);
        }
        Ok(())
    }

    fn cuMemPrefetchAsync(address: u64, _size: u64, _to: i32, _stream: u64) {
        hint(address)
    }

    fn cuMemAdvise(address: u64, _size: u64, _advice: i32, _to: i32) {
        hint(address)
    }
}

/// Returns the empty value of an attribute, in its width.
fn empty(which: i32) -> Value {
    match which {
        attribute::MEMORY_TYPE | attribute::ACCESS => Value::Int(0),
        attribute::ORDINAL => Value::Int(-2),
        attribute::SYNC_MEMOPS
        | attribute::IS_MANAGED
        | attribute::IPC_CAPABLE
        | attribute::MAPPED
        | attribute::RDMA_CAPABLE
        | attribute::DECOMPRESSION => Value::Flag(false),
        _ => Value::Long(0),
    }
}

/// Checks the arguments of a hint. Hints concern managed memory and have no effect here.
fn hint(address: u64) -> Outcome {
    machine::current_context()?;
    match space::find(address) {
        Some(block) if block.kind == Kind::Managed => Ok(()),
        _ => Err(Status::INVALID_VALUE),
    }
}
