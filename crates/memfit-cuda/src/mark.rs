//! The clock as the probe reads it, at the end of each step.

#![allow(unsafe_code, reason = "pointers of C callers are followed here")]

use crate::{beside, clock, machine, streams};
use memfit_abi::Out;

/// Writes when all work that is queued now will be done, and how much of each kind was queued until now, in
/// nanoseconds; behind these when the cards that are timed beside it would be done. As many numbers as
/// there is room for. Gives how many there are: none where there is no
/// device.
#[unsafe(no_mangle)]
extern "C" fn memfit_vgpu_clock(target: Out<u64>, room: usize) -> usize {
    if machine::peek().is_none() || target.is_null() {
        return 0;
    }
    // A step that ends while the host is ahead of the device ends when the device does, and the other way
    // round.
    let end = streams::all_end().max(clock::now());
    let numbers = std::iter::once(end).chain(clock::busy()).chain(beside::ends());
    let mut written = 0;
    for (index, number) in numbers.take(room).enumerate() {
        target.put_at(index, number);
        written = index + 1;
    }
    written
}
