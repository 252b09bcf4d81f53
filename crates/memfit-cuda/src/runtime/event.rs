//! Events.

use crate::{
    clock,
    guard::{Driver, Runtime},
    status::{Outcome, Status},
    streams,
};
use memfit_abi::{Out, entry_points};

fn record(event: u64, stream: u64) -> Outcome {
    let stream = streams::resolve(stream)?;
    streams::event(event)?.record(&stream)
}

entry_points! { Runtime, Driver;
    fn cudaEventCreate(event: Out<u64>) {
        if event.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        event.set(streams::create_event(0)?);
        Ok(())
    }

    fn cudaEventCreateWithFlags(event: Out<u64>, flags: u32),
    fn cuEventCreate() {
        if event.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        event.set(streams::create_event(flags)?);
        Ok(())
    }

    fn cudaEventDestroy(event: u64),
    fn cuEventDestroy_v2() {
        streams::event(event)?;
        streams::destroy_event(event)
    }

    fn cudaEventRecord(event: u64, stream: u64),
    fn cuEventRecord() {
        record(event, stream)
    }

    fn cudaEventRecordWithFlags(event: u64, stream: u64, flags: u32),
    fn cuEventRecordWithFlags() {
        if flags > 1 {
            return Err(Status::INVALID_VALUE);
        }
        record(event, stream)
    }

    fn cudaEventQuery(event: u64),
    fn cuEventQuery() {
        if clock::is_done(streams::event(event)?.end()) { Ok(()) } else { Err(Status::NOT_READY) }
    }

    fn cudaEventSynchronize(event: u64),
    fn cuEventSynchronize() {
        clock::wait_until(streams::event(event)?.end());
        Ok(())
    }

    fn cudaEventElapsedTime(milliseconds: Out<f32>, start: u64, end: u64),
    fn cuEventElapsedTime() {
        if milliseconds.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        milliseconds.set(streams::event(start)?.elapsed(streams::event(end)?)?);
        Ok(())
    }

    fn cudaEventElapsedTime_v2(milliseconds: Out<f32>, start: u64, end: u64),
    fn cuEventElapsedTime_v2() {
        if milliseconds.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        milliseconds.set(streams::event(start)?.elapsed(streams::event(end)?)?);
        Ok(())
    }
}
