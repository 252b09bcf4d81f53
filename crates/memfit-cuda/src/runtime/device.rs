//! Devices, contexts and limits.

use std::ffi::c_char;

use memfit_channel::identity;

use crate::{
    attributes,
    guard::{Driver, Runtime},
    limits, machine,
    memory::pool,
    properties,
    status::{Outcome, Status},
    streams, thread, versions,
};
use memfit_abi::{In, Out, entry_points};

/// Flag that `cudaGetDeviceFlags` adds: host memory can be mapped.
const MAP_HOST: u32 = 8;
const KNOWN_FLAGS: u32 = 0x1f | 0x80;

fn put_properties(target: Out<u8>, ordinal: i32, major: i32, length: usize) -> Outcome {
    if target.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    let bytes = properties::structure_bytes(machine::card(ordinal)?, major);
    bytes.into_iter().take(length).enumerate().for_each(|(index, byte)| target.set_at(index, byte));
    Ok(())
}

/// PCI address as CUDA writes it: `domain:bus:device.function`.
pub(crate) fn pci_bus_id(card: &machine::Card) -> String {
    format!("0000:{:02X}:00.0", identity::pci_bus(card.index))
}

/// Finds a device by PCI address, with or without the domain and the function, as CUDA does.
pub(crate) fn by_pci_bus_id(text: &str) -> Outcome<&'static machine::Card> {
    let wanted = text.trim().to_ascii_uppercase();
    let machine = machine::get()?;
    let fits = |card: &&machine::Card| {
        let full = pci_bus_id(card);
        full == wanted
            || full.strip_suffix(".0") == Some(&wanted)
            || full[5..] == wanted
            || format!("0000{full}") == wanted
    };
    machine.cards.iter().find(fits).ok_or(Status::INVALID_DEVICE)
}

entry_points! { Runtime, Driver;
    fn cudaGetDeviceCount(count: Out<i32>) {
        if count.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        count.set(0);
        count.set(machine::get()?.cards.len() as i32);
        Ok(())
    }

    fn cudaGetDevice(device: Out<i32>) {
        if device.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        machine::get()?;
        device.set(thread::device() as i32);
        Ok(())
    }

    fn cudaSetDevice(device: i32) {
        let card = machine::card(device)?;
        // Since CUDA 12, this creates the context immediately.
        card.need_context()?;
        thread::set_device(card.ordinal);
        Ok(())
    }

    fn cudaInitDevice(device: i32, _device_flags: u32, _flags: u32) {
        machine::card(device)?.need_context()
    }

    fn cudaSetValidDevices(devices: In<i32>, count: i32) {
        for device in devices.list(usize::try_from(count).map_err(|_| Status::INVALID_VALUE)?) {
            machine::card(device)?;
        }
        Ok(())
    }

    fn cudaChooseDevice(device: Out<i32>, properties: In<u8>) {
        if device.is_null() || properties.get().is_none() {
            return Err(Status::INVALID_VALUE);
        }
        machine::get()?;
        device.set(0);
        Ok(())
    }

    fn cudaGetDeviceProperties(target: Out<u8>, device: i32) {
        let major = versions::major();
        let length = if major < 13 { properties::CUDA_11_SIZE } else { usize::MAX };
        put_properties(target, device, major, length)
    }

    fn cudaGetDeviceProperties_v2(target: Out<u8>, device: i32) {
        put_properties(target, device, 12, usize::MAX)
    }

    fn cudaDeviceGetAttribute(value: Out<i32>, attribute: i32, device: i32) {
        if value.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        value.set(attributes::get(machine::card(device)?, attribute).ok_or(Status::INVALID_VALUE)?);
        Ok(())
    }

    fn cudaDeviceGetPCIBusId(text: Out<u8>, length: i32, device: i32) {
        if text.is_null() || length < 13 {
            return Err(Status::INVALID_VALUE);
        }
        text.set_text(&pci_bus_id(machine::card(device)?), length as usize);
        Ok(())
    }

    fn cudaDeviceGetByPCIBusId(device: Out<i32>, text: In<c_char>) {
        if device.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        let card = by_pci_bus_id(&text.text().ok_or(Status::INVALID_VALUE)?)?;
        device.set(card.ordinal as i32);
        Ok(())
    }

    fn cudaDeviceSynchronize() {
        let card = machine::current_context()?;
        if crate::graphs::any_capture() {
            return Err(Status::STREAM_CAPTURE_UNSUPPORTED);
        }
        pool::synchronize(card.ordinal);
        Ok(())
    }

    fn cudaThreadSynchronize() {
        pool::synchronize(machine::current_context()?.ordinal);
        Ok(())
    }

    fn cudaDeviceReset() {
        crate::context::reset(machine::current()?);
        Ok(())
    }

    fn cudaDeviceGetStreamPriorityRange(least: Out<i32>, greatest: Out<i32>) {
        machine::current_context()?;
        least.set(streams::PRIORITIES.0);
        greatest.set(streams::PRIORITIES.1);
        Ok(())
    }

    fn cudaSetDeviceFlags(flags: u32) {
        if flags & !KNOWN_FLAGS != 0 {
            return Err(Status::INVALID_VALUE);
        }
        machine::current()?.flags.store(flags, std::sync::atomic::Ordering::Relaxed);
        Ok(())
    }

    fn cudaGetDeviceFlags(flags: Out<u32>) {
        if flags.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        flags.set(machine::current()?.flags.load(std::sync::atomic::Ordering::Relaxed) | MAP_HOST);
        Ok(())
    }

    fn cudaDeviceGetLimit(value: Out<u64>, limit: i32) {
        if value.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        machine::current_context()?;
        value.set(limits::get(limit)?);
        Ok(())
    }

    fn cudaDeviceSetLimit(limit: i32, value: u64) {
        machine::current_context()?;
        limits::set(limit, value)
    }

    fn cudaDeviceCanAccessPeer(answer: Out<i32>, device: i32, peer: i32) {
        if answer.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        machine::card(device)?;
        machine::card(peer)?;
        answer.set(i32::from(device != peer));
        Ok(())
    }

    fn cudaDeviceEnablePeerAccess(peer: i32, flags: u32) {
        if flags != 0 {
            return Err(Status::INVALID_VALUE);
        }
        crate::context::enable_peer(machine::current_context()?, machine::card(peer)?)
    }

    fn cudaDeviceDisablePeerAccess(peer: i32) {
        crate::context::disable_peer(machine::current_context()?, machine::card(peer)?)
    }

    fn cudaDeviceGetP2PAttribute(value: Out<i32>, attribute: i32, device: i32, peer: i32),
    fn cuDeviceGetP2PAttribute() {
        if value.is_null() || device == peer {
            return Err(Status::INVALID_VALUE);
        }
        machine::card(device)?;
        machine::card(peer)?;
        value.set(match attribute {
            1 | 5 => 0,     // performance rank, partial atomics
            2..=4 => 1,     // access, native atomics, arrays
            _ => return Err(Status::INVALID_VALUE),
        });
        Ok(())
    }

    fn cudaThreadExit() {
        crate::context::reset(machine::current()?);
        Ok(())
    }

    fn cudaThreadGetLimit(value: Out<u64>, limit: i32) {
        if value.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        machine::current_context()?;
        value.set(limits::get(limit)?);
        Ok(())
    }

    fn cudaThreadSetLimit(limit: i32, value: u64) {
        machine::current_context()?;
        limits::set(limit, value)
    }
}
