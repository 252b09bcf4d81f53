//! Events.

use crate::{
    clock,
    guard::calls,
    status::{Outcome, Status},
    streams,
};
use memfit_abi::Out;

fn record(event: u64, stream: u64) -> Outcome {
    let stream = streams::resolve(stream)?;
    streams::event(event)?.record(&stream)
}

calls! { runtime;
    fn cudaEventCreate(event: Out<u64>) {
        if event.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        event.put(streams::create_event(0)?);
        Ok(())
    }

    fn cudaEventCreateWithFlags | cuEventCreate(event: Out<u64>, flags: u32) {
        if event.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        event.put(streams::create_event(flags)?);
        Ok(())
    }

    fn cudaEventDestroy | cuEventDestroy_v2(event: u64) {
        streams::event(event)?;
        streams::destroy_event(event)
    }

    fn cudaEventRecord | cuEventRecord(event: u64, stream: u64) {
        record(event, stream)
    }

    fn cudaEventRecordWithFlags | cuEventRecordWithFlags(event: u64, stream: u64, flags: u32) {
        if flags > 1 {
            return Err(Status::INVALID_VALUE);
        }
        record(event, stream)
    }

    fn cudaEventQuery | cuEventQuery(event: u64) {
        if clock::is_done(streams::event(event)?.end()) { Ok(()) } else { Err(Status::NOT_READY) }
    }

    fn cudaEventSynchronize | cuEventSynchronize(event: u64) {
        clock::wait_until(streams::event(event)?.end());
        Ok(())
    }

    fn cudaEventElapsedTime | cuEventElapsedTime(milliseconds: Out<f32>, start: u64, end: u64) {
        if milliseconds.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        milliseconds.put(streams::event(start)?.elapsed(streams::event(end)?)?);
        Ok(())
    }

    fn cudaEventElapsedTime_v2 | cuEventElapsedTime_v2(milliseconds: Out<f32>, start: u64, end: u64) {
        if milliseconds.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        milliseconds.put(streams::event(start)?.elapsed(streams::event(end)?)?);
        Ok(())
    }
}
