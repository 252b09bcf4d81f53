//! Devices and contexts.

use std::{
    ffi::c_char,
    sync::atomic::Ordering::{AcqRel, Relaxed},
};

use memfit_channel::identity;

use crate::{
    attributes, context,
    guard::Driver,
    limits, machine,
    memory::pool,
    runtime::{by_pci_bus_id, pci_bus_id},
    status::{Outcome, Status},
    streams,
};
use memfit_abi::{In, Out, entry_points};

fn write_result<T>(target: Out<T>, value: impl FnOnce() -> Outcome<T>) -> Outcome {
    if target.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    target.set(value()?);
    Ok(())
}

/// Returns the current context; an error if there is none.
fn current() -> Outcome<u64> {
    match context::current()? {
        0 => Err(Status::INVALID_CONTEXT),
        context => Ok(context),
    }
}

fn set_flags(ordinal: i32, flags: u32) -> Outcome {
    machine::card(ordinal)?.flags.store(flags, Relaxed);
    Ok(())
}

fn release(ordinal: i32) -> Outcome {
    let card = machine::card(ordinal)?;
    let held = card.retained.fetch_update(AcqRel, Relaxed, |count| count.checked_sub(1));
    held.map(drop).map_err(|_| Status::INVALID_CONTEXT)
}

/// `CUdevprop`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct OldProperties([i32; 14]);

entry_points! { Driver;
    fn cuDeviceGet(device: Out<i32>, ordinal: i32) {
        write_result(device, || Ok(machine::card(ordinal)?.ordinal as i32))
    }

    fn cuDeviceGetCount(count: Out<i32>) {
        write_result(count, || Ok(machine::get()?.cards.len() as i32))
    }

    fn cuDeviceGetName(name: Out<u8>, length: i32, device: i32) {
        if name.is_null() || length <= 0 {
            return Err(Status::INVALID_VALUE);
        }
        name.set_text(&machine::card(device)?.device.name, length as usize);
        Ok(())
    }

    fn cuDeviceGetUuid(uuid: Out<[u8; 16]>, device: i32) {
        write_result(uuid, || Ok(identity::uuid(machine::card(device)?.index)))
    }

    fn cuDeviceGetUuid_v2(uuid: Out<[u8; 16]>, device: i32) {
        write_result(uuid, || Ok(identity::uuid(machine::card(device)?.index)))
    }

    fn cuDeviceTotalMem_v2(bytes: Out<u64>, device: i32) {
        write_result(bytes, || Ok(machine::card(device)?.device.memory.get()))
    }

    fn cuDeviceGetAttribute(value: Out<i32>, attribute: i32, device: i32) {
        write_result(value, || attributes::get(machine::card(device)?, attribute).ok_or(Status::INVALID_VALUE))
    }

    fn cuDeviceComputeCapability(major: Out<i32>, minor: Out<i32>, device: i32) {
        let capability = machine::card(device)?.device.compute_capability;
        write_result(major, || Ok(capability.major as i32))?;
        write_result(minor, || Ok(capability.minor as i32))
    }

    fn cuDeviceGetProperties(properties: Out<OldProperties>, device: i32) {
        write_result(properties, || {
            let card = machine::card(device)?;
            let at = |number| attributes::get(card, number).unwrap_or(0);
            let numbers = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14];
            Ok(OldProperties(numbers.map(at)))
        })
    }

    fn cuDeviceGetPCIBusId(text: Out<u8>, length: i32, device: i32) {
        if text.is_null() || length < 13 {
            return Err(Status::INVALID_VALUE);
        }
        text.set_text(&pci_bus_id(machine::card(device)?), length as usize);
        Ok(())
    }

    fn cuDeviceGetByPCIBusId(device: Out<i32>, text: In<c_char>) {
        write_result(device, || Ok(by_pci_bus_id(&text.text().ok_or(Status::INVALID_VALUE)?)?.ordinal as i32))
    }

    fn cuDeviceCanAccessPeer(answer: Out<i32>, device: i32, peer: i32) {
        write_result(answer, || {
            machine::card(device)?;
            machine::card(peer)?;
            Ok(i32::from(device != peer))
        })
    }

    fn cuDevicePrimaryCtxGetState(device: i32, flags: Out<u32>, active: Out<i32>) {
        let card = machine::card(device)?;
        write_result(flags, || Ok(card.flags.load(Relaxed)))?;
        write_result(active, || Ok(i32::from(card.has_context())))
    }

    fn cuDevicePrimaryCtxRetain(handle: Out<u64>, device: i32) {
        write_result(handle, || {
            let card = machine::card(device)?;
            card.need_context()?;
            card.retained.fetch_add(1, AcqRel);
            Ok(context::primary(card))
        })
    }

    fn cuDevicePrimaryCtxRelease(device: i32) {
        release(device)
    }

    fn cuDevicePrimaryCtxRelease_v2(device: i32) {
        release(device)
    }

    fn cuDevicePrimaryCtxReset(device: i32) {
        context::reset(machine::card(device)?);
        Ok(())
    }

    fn cuDevicePrimaryCtxReset_v2(device: i32) {
        context::reset(machine::card(device)?);
        Ok(())
    }

    fn cuDevicePrimaryCtxSetFlags(device: i32, flags: u32) {
        set_flags(device, flags)
    }

    fn cuDevicePrimaryCtxSetFlags_v2(device: i32, flags: u32) {
        set_flags(device, flags)
    }

    fn cuCtxCreate_v2(handle: Out<u64>, flags: u32, device: i32) {
        write_result(handle, || context::create(machine::card(device)?, flags))
    }

    fn cuCtxCreate_v3(handle: Out<u64>, _affinity: In<u64>, _count: i32, flags: u32, device: i32) {
        write_result(handle, || context::create(machine::card(device)?, flags))
    }

    fn cuCtxCreate_v4(handle: Out<u64>, _parameters: In<u64>, flags: u32, device: i32) {
        write_result(handle, || context::create(machine::card(device)?, flags))
    }

    fn cuCtxDestroy_v2(handle: u64) {
        machine::get()?;
        context::destroy(handle)
    }

    fn cuCtxPushCurrent_v2(handle: u64) {
        context::push(handle)
    }

    fn cuCtxPopCurrent_v2(handle: Out<u64>) {
        machine::get()?;
        handle.set(context::pop()?);
        Ok(())
    }

    fn cuCtxSetCurrent(handle: u64) {
        machine::get()?;
        context::set_current(handle)
    }

    fn cuCtxGetCurrent(handle: Out<u64>) {
        write_result(handle, context::current)
    }

    fn cuCtxGetDevice(device: Out<i32>) {
        write_result(device, || Ok(context::card_of(current()?)?.ordinal as i32))
    }

    fn cuCtxGetDevice_v2(device: Out<i32>, handle: u64) {
        write_result(device, || Ok(context::card_of(if handle == 0 { current()? } else { handle })?.ordinal as i32))
    }

    fn cuCtxGetFlags(flags: Out<u32>) {
        write_result(flags, || context::flags(current()?))
    }

    fn cuCtxSetFlags(flags: u32) {
        set_flags(context::card_of(current()?)?.ordinal as i32, flags)
    }

    fn cuCtxGetId(handle: u64, id: Out<u64>) {
        write_result(id, || {
            let handle = if handle == 0 { current()? } else { handle };
            context::card_of(handle).map(|_| handle)
        })
    }

    fn cuCtxGetApiVersion(handle: u64, version: Out<u32>) {
        write_result(version, || context::card_of(if handle == 0 { current()? } else { handle }).map(|_| 3020))
    }

    fn cuCtxSynchronize() {
        let card = context::card_of(current()?)?;
        if crate::graphs::any_capture() {
            return Err(Status::STREAM_CAPTURE_UNSUPPORTED);
        }
        pool::synchronize(card.ordinal);
        Ok(())
    }

    fn cuCtxSynchronize_v2(handle: u64) {
        pool::synchronize(context::card_of(handle)?.ordinal);
        Ok(())
    }

    fn cuCtxGetLimit(value: Out<u64>, limit: i32) {
        write_result(value, || current().and_then(|_| limits::get(limit)))
    }

    fn cuCtxSetLimit(limit: i32, value: u64) {
        current()?;
        limits::set(limit, value)
    }

    fn cuCtxGetStreamPriorityRange(least: Out<i32>, greatest: Out<i32>) {
        current()?;
        least.set(streams::PRIORITIES.0);
        greatest.set(streams::PRIORITIES.1);
        Ok(())
    }

    fn cuCtxEnablePeerAccess(peer: u64, flags: u32) {
        if flags != 0 {
            return Err(Status::INVALID_VALUE);
        }
        context::enable_peer(context::card_of(current()?)?, context::card_of(peer)?)
    }

    fn cuCtxDisablePeerAccess(peer: u64) {
        context::disable_peer(context::card_of(current()?)?, context::card_of(peer)?)
    }
}
