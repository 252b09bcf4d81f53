//! Stream calls that only the driver has.

use crate::{
    capture, context,
    copies::{self, Moved},
    guard::Driver,
    machine,
    status::{Outcome, Status},
    streams,
};
use memfit_abi::{Out, entry_points};

fn put_context(stream: u64, target: Out<u64>) -> Outcome {
    if target.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    let stream = streams::resolve(stream)?;
    target.set(context::primary(machine::card(stream.card() as i32)?));
    Ok(())
}

/// Writes a word from the device. (A wait for a word returns at once, since all work before it is complete.)
fn write(stream: u64, target: u64, value: u64, width: u64) -> Outcome {
    let word =
        |moved, word| Ok(moved + copies::fill(target + word * 4, (value >> (word * 32)) as u32, 4, 1)?);
    copies::run_on_stream(stream, || (0..width / 4).try_fold(Moved::default(), word))
}

entry_points! { Driver;
    fn cuStreamGetCtx(stream: u64, context: Out<u64>) {
        put_context(stream, context)
    }

    fn cuStreamGetCtx_v2(stream: u64, context: Out<u64>, green: Out<u64>) {
        green.set(0);
        put_context(stream, context)
    }

    fn cuStreamGetCaptureInfo(stream: u64, status: Out<i32>, id: Out<u64>) {
        if status.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        let (now, capture, _) = capture::stream_status(&streams::resolve(stream)?);
        status.set(now as i32);
        if capture != 0 {
            id.set(capture);
        }
        Ok(())
    }

    fn cuStreamBeginCapture(stream: u64) {
        capture::begin(stream, 0, None)
    }

    fn cuStreamWriteValue32_v2(stream: u64, target: u64, value: u32, _flags: u32) {
        write(stream, target, u64::from(value), 4)
    }

    fn cuStreamWriteValue64_v2(stream: u64, target: u64, value: u64, _flags: u32) {
        write(stream, target, value, 8)
    }

    fn cuStreamWriteValue32(stream: u64, target: u64, value: u32, _flags: u32) {
        write(stream, target, u64::from(value), 4)
    }

    fn cuStreamWriteValue64(stream: u64, target: u64, value: u64, _flags: u32) {
        write(stream, target, value, 8)
    }

    fn cuStreamWaitValue32_v2(stream: u64, _target: u64, _value: u32, _flags: u32) {
        streams::resolve(stream).map(drop)
    }

    fn cuStreamWaitValue64_v2(stream: u64, _target: u64, _value: u64, _flags: u32) {
        streams::resolve(stream).map(drop)
    }

    fn cuStreamWaitValue32(stream: u64, _target: u64, _value: u32, _flags: u32) {
        streams::resolve(stream).map(drop)
    }

    fn cuStreamWaitValue64(stream: u64, _target: u64, _value: u64, _flags: u32) {
        streams::resolve(stream).map(drop)
    }
}
