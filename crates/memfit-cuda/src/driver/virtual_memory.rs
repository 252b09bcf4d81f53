//! Virtual memory management: physical memory and virtual address ranges are separate.

use crate::{
    failing,
    guard::Driver,
    machine,
    memory::{GRANULARITY, physical},
    runtime::pool::{Access, Location, ON_DEVICE},
    status::{Outcome, Status},
};
use memfit_abi::{In, Out, entry_points};

/// `CUmemAllocationProp`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Properties {
    kind: i32,
    shareable: u32,
    location: Location,
    windows: u64,
    /// Hints about compression, GPUDirect and usage.
    flags: u64,
}

/// `CU_MEM_ALLOCATION_TYPE_PINNED`.
const PINNED: i32 = 1;
/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
const DESCRIPTOR: u32 = 1;

/// Accepts only supported properties: device memory, shareable by file descriptor or not at all. Returns the
/// device and the shareable handle types.
fn checked(properties: In<Properties>) -> Outcome<(&'static machine::Card, u32)> {
    let properties = properties.get().ok_or(Status::INVALID_VALUE)?;
    if properties.kind != PINNED {
        return Err(Status::INVALID_VALUE);
    }
    if properties.location.kind != ON_DEVICE {
        crate::machine::count_unmodelled("cuMemCreate (location)");
        return Err(Status::NOT_SUPPORTED);
    }
    // As on a machine whose devices have no fabric: programs query it to find out.
    if properties.shareable & !DESCRIPTOR != 0 {
        return Err(Status::NOT_SUPPORTED);
    }
    Ok((machine::card(properties.location.id)?, properties.shareable))
}

fn write_result(target: Out<u64>, value: impl FnOnce() -> Outcome<u64>) -> Outcome {
    if target.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    target.set(value()?);
    Ok(())
}

entry_points! { Driver;
    fn cuMemGetAllocationGranularity(granularity: Out<u64>, properties: In<Properties>, option: i32) {
        if !(0..=1).contains(&option) {
            return Err(Status::INVALID_VALUE);
        }
        write_result(granularity, || checked(properties).map(|_| GRANULARITY))
    }

    fn cuMemCreate(handle: Out<u64>, size: u64, properties: In<Properties>, flags: u64) {
        if flags != 0 {
            return Err(Status::INVALID_VALUE);
        }
        write_result(handle, || {
            let (card, shareable) = checked(properties)?;
            failing::check()?;
            physical::create(card, size, shareable)
        })
    }

    fn cuMemRelease(handle: u64) {
        machine::get()?;
        physical::release(handle)
    }

    fn cuMemAddressReserve(address: Out<u64>, size: u64, alignment: u64, wish: u64, flags: u64) {
        if flags != 0 {
            return Err(Status::INVALID_VALUE);
        }
        write_result(address, || machine::get().and_then(|_| physical::reserve(size, alignment, wish)))
    }

    fn cuMemAddressFree(address: u64, size: u64) {
        machine::get()?;
        physical::unreserve(address, size)
    }

    fn cuMemMap(address: u64, size: u64, offset: u64, handle: u64, flags: u64) {
        if flags != 0 {
            return Err(Status::INVALID_VALUE);
        }
        machine::get()?;
        physical::map(address, size, offset, handle)
    }

    fn cuMemUnmap(address: u64, size: u64) {
        machine::get()?;
        physical::unmap(address, size)
    }

    fn cuMemSetAccess(address: u64, size: u64, list: In<Access>, count: u64) {
        machine::get()?;
        for access in list.list(count as usize) {
            if access.location.kind == ON_DEVICE {
                machine::card(access.location.id)?;
            }
            physical::set_access(address, size, access.flags != 0)?;
        }
        Ok(())
    }

    fn cuMemGetAccess(flags: Out<u64>, location: In<Location>, address: u64) {
        machine::card(location.get().ok_or(Status::INVALID_VALUE)?.id)?;
        write_result(flags, || Ok(if physical::is_accessible(address)? { 3 } else { 0 }))
    }

    fn cuMemRetainAllocationHandle(handle: Out<u64>, address: u64) {
        machine::get()?;
        write_result(handle, || physical::retain_at(address))
    }

    fn cuMemGetAllocationPropertiesFromHandle(properties: Out<Properties>, handle: u64) {
        if properties.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        let found = physical::get(handle)?;
        let location = Location { kind: ON_DEVICE, id: found.card as i32 };
        properties.set(Properties { kind: PINNED, shareable: found.shareable, location, windows: 0, flags: 0 });
        Ok(())
    }

    fn cuMemExportToShareableHandle(target: Out<i32>, handle: u64, kind: u32, flags: u64) {
        if target.is_null() || flags != 0 {
            return Err(Status::INVALID_VALUE);
        }
        if kind != DESCRIPTOR {
            return Err(Status::NOT_SUPPORTED);
        }
        target.set(physical::export(handle)?);
        Ok(())
    }

    fn cuMemImportFromShareableHandle(handle: Out<u64>, descriptor: u64, kind: u32) {
        if kind != DESCRIPTOR {
            return Err(Status::NOT_SUPPORTED);
        }
        write_result(handle, || physical::import(descriptor as i32))
    }
}
