//! Streams.

use std::ffi::c_void;

use crate::{
    capture, clock, graphs,
    guard::{Driver, Runtime},
    machine,
    status::{Outcome, Status},
    streams::{self, StreamRef},
    thread,
};
use memfit_abi::{In, Out, Ptr, entry_points};

/// `cudaLaunchAttributePriority`.
const PRIORITY: i32 = 8;

type HostFunction = extern "C" fn(Ptr);
type StreamCallback = extern "C" fn(u64, i32, Ptr);

fn create(stream: Out<u64>, flags: u32, priority: i32) -> Outcome {
    if stream.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    stream.set(streams::create(machine::current()?, flags, priority)?);
    Ok(())
}

/// Resolves a stream that must not be queried while it is being captured.
fn uncaptured(stream: u64) -> Outcome<StreamRef> {
    let stream = streams::resolve(stream)?;
    match stream.capture() {
        0 => Ok(stream),
        capture => Err(graphs::invalidate(capture)),
    }
}

entry_points! { Runtime, Driver;
    fn cudaStreamCreate(stream: Out<u64>) {
        create(stream, 0, 0)
    }

    fn cudaStreamCreateWithFlags(stream: Out<u64>, flags: u32),
    fn cuStreamCreate() {
        create(stream, flags, 0)
    }

    fn cudaStreamCreateWithPriority(stream: Out<u64>, flags: u32, priority: i32),
    fn cuStreamCreateWithPriority() {
        create(stream, flags, priority)
    }

    fn cudaStreamDestroy(stream: u64),
    fn cuStreamDestroy_v2() {
        machine::get()?;
        streams::destroy(stream)
    }

    fn cudaStreamQuery(stream: u64),
    fn cuStreamQuery() {
        if clock::is_done(uncaptured(stream)?.end()) { Ok(()) } else { Err(Status::NOT_READY) }
    }

    fn cudaStreamSynchronize(stream: u64),
    fn cuStreamSynchronize() {
        clock::wait_until(uncaptured(stream)?.end());
        Ok(())
    }

    fn cudaStreamWaitEvent(stream: u64, event: u64, flags: u32),
    fn cuStreamWaitEvent() {
        if flags > 1 {
            return Err(Status::INVALID_VALUE);
        }
        let stream = streams::resolve(stream)?;
        let event = streams::event(event)?;
        stream.wait_for(event);
        capture::join(&stream, event)
    }

    fn cudaStreamGetPriority(stream: u64, priority: Out<i32>),
    fn cuStreamGetPriority() {
        priority.set(streams::resolve(stream)?.priority());
        Ok(())
    }

    fn cudaStreamGetFlags(stream: u64, flags: Out<u32>),
    fn cuStreamGetFlags() {
        flags.set(streams::resolve(stream)?.flags());
        Ok(())
    }

    fn cudaStreamGetId(stream: u64, id: Out<u64>),
    fn cuStreamGetId() {
        id.set(streams::resolve(stream)?.id());
        Ok(())
    }

    fn cudaStreamGetDevice(stream: u64, device: Out<i32>),
    fn cuStreamGetDevice() {
        device.set(streams::resolve(stream)?.card() as i32);
        Ok(())
    }

    fn cudaStreamCopyAttributes(target: u64, source: u64),
    fn cuStreamCopyAttributes() {
        streams::resolve(target)?;
        streams::resolve(source).map(drop)
    }

    fn cudaStreamAddCallback(stream: u64, callback: Option<StreamCallback>, data: Ptr, flags: u32),
    fn cuStreamAddCallback() {
        let callback = callback.ok_or(Status::INVALID_VALUE)?;
        if flags != 0 {
            return Err(Status::INVALID_VALUE);
        }
        streams::resolve(stream)?;
        callback(stream, 0, data);
        Ok(())
    }

    fn cudaLaunchHostFunc(stream: u64, function: Option<HostFunction>, data: Ptr),
    fn cuLaunchHostFunc() {
        let function = function.ok_or(Status::INVALID_VALUE)?;
        // A captured function runs with the graph, not now.
        if streams::resolve(stream)?.capture() == 0 {
            function(data);
        }
        Ok(())
    }

    fn cudaLaunchHostFunc_v2(stream: u64, function: Option<HostFunction>, data: Ptr, _mode: u32),
    fn cuLaunchHostFunc_v2() {
        let function = function.ok_or(Status::INVALID_VALUE)?;
        if streams::resolve(stream)?.capture() == 0 {
            function(data);
        }
        Ok(())
    }

    fn cudaThreadExchangeStreamCaptureMode(mode: Out<i32>),
    fn cuThreadExchangeStreamCaptureMode() {
        match mode.get() {
            Some(wanted @ 0..=2) => {
                mode.set(thread::exchange_capture_mode(wanted));
                Ok(())
            }
            _ => Err(Status::INVALID_VALUE),
        }
    }

    fn cudaStreamAttachMemAsync(stream: u64, _address: *mut c_void, _size: usize, _flags: u32),
    fn cuStreamAttachMemAsync() {
        streams::resolve(stream).map(drop)
    }

    fn cudaStreamSetAttribute(stream: u64, _attribute: i32, value: In<u64>),
    fn cuStreamSetAttribute() {
        if value.get().is_none() {
            return Err(Status::INVALID_VALUE);
        }
        // Cache windows and synchronisation policies only affect timing.
        streams::resolve(stream).map(drop)
    }

    fn cudaStreamGetAttribute(stream: u64, attribute: i32, value: Out<u64>),
    fn cuStreamGetAttribute() {
        if value.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        let stream = streams::resolve(stream)?;
        for word in 0..8 {
            value.set_at(word, 0);
        }
        if attribute == PRIORITY {
            value.cast::<i32>().set(stream.priority());
        }
        Ok(())
    }
}
