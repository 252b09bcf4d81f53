//! Memory and events shared between processes.

use crate::{
    guard::{Driver, Runtime},
    machine,
    memory::ipc::{self, Handle},
    status::{Outcome, Status},
    streams,
};
use memfit_abi::{Out, entry_points};

/// `cudaIpcEventHandle_t`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct EventHandle([u64; 8]);

const MAGIC: u64 = u64::from_le_bytes(*b"memfitEV");

fn put_handle(handle: Out<Handle>, address: u64) -> Outcome {
    if handle.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    machine::current_context()?;
    handle.set(ipc::export(address)?);
    Ok(())
}

fn open(address: Out<u64>, handle: Handle, flags: u32) -> Outcome {
    if address.is_null() || flags != 1 {
        return Err(Status::INVALID_VALUE);
    }
    machine::current_context()?;
    address.set(ipc::open(handle)?);
    Ok(())
}

entry_points! { Runtime, Driver;
    fn cudaIpcGetMemHandle(handle: Out<Handle>, address: u64),
    fn cuIpcGetMemHandle() {
        put_handle(handle, address)
    }

    fn cudaIpcOpenMemHandle(address: Out<u64>, handle: Handle, flags: u32),
    fn cuIpcOpenMemHandle_v2() {
        open(address, handle, flags)
    }

    fn cudaIpcCloseMemHandle(address: u64),
    fn cuIpcCloseMemHandle() {
        machine::current_context()?;
        ipc::close(address)
    }

    fn cudaIpcGetEventHandle(handle: Out<EventHandle>, event: u64),
    fn cuIpcGetEventHandle() {
        if handle.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        let found = streams::event(event)?;
        if found.flags.load(std::sync::atomic::Ordering::Relaxed) & streams::INTERPROCESS == 0 {
            return Err(Status::INVALID_HANDLE);
        }
        handle.set(EventHandle([MAGIC, u64::from(std::process::id()), event, 0, 0, 0, 0, 0]));
        Ok(())
    }

    fn cudaIpcOpenEventHandle(event: Out<u64>, handle: EventHandle),
    fn cuIpcOpenEventHandle() {
        if event.is_null() || handle.0[0] != MAGIC {
            return Err(Status::INVALID_VALUE);
        }
        // Work completes as soon as it is queued, in the other process too, so the event is always complete.
        event.set(streams::create_event(streams::DISABLE_TIMING | streams::INTERPROCESS)?);
        Ok(())
    }
}
