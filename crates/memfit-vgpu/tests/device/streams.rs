//! Streams and events.

use std::{
    ffi::c_void,
    sync::atomic::{AtomicU32, Ordering::Relaxed},
    thread,
};

use crate::{cuda::*, machine::enter};

#[test]
fn streams_return_the_flags_and_priority_they_were_created_with() {
    enter();
    for (flags, asked, priority) in [(0, 0, 0), (1, -3, -3), (1, -99, -5), (0, 99, 0)] {
        let stream = out(|stream| cudaStreamCreateWithPriority(stream, flags, asked));
        assert_eq!(out(|priority| cudaStreamGetPriority(stream, priority)), priority);
        assert_eq!(out(|flags| cudaStreamGetFlags(stream, flags)), flags);
        assert_eq!(out(|device| cudaStreamGetDevice(stream, device)), 0);
        assert_eq!(cudaStreamQuery(stream), 0);
        assert_eq!(cudaStreamDestroy(stream), 0);
    }
    let mut stream = 0;
    assert_eq!(cudaStreamCreateWithPriority(&raw mut stream, 2, 0), INVALID_VALUE);
    let (first, second) = (out(cudaStreamCreate), out(cudaStreamCreate));
    let ids: Vec<u64> = [0, first, second].map(|stream| out(|id| cudaStreamGetId(stream, id))).into();
    assert!(ids[0] != ids[1] && ids[1] != ids[2] && ids[0] != ids[2], "{ids:?}");
    cudaGetLastError();
}

#[test]
fn invalid_streams_and_events_are_refused_by_every_call() {
    enter();
    let dead = out(cudaStreamCreate);
    assert_eq!(cudaStreamDestroy(dead), 0);
    let event = out(|event| cudaEventCreateWithFlags(event, 0));
    for stream in [dead, event, 3, 0xdead_beef_0000, u64::MAX, 0x7fff_0000_0000] {
        for (call, status) in [
            ("query", cudaStreamQuery(stream)),
            ("synchronize", cudaStreamSynchronize(stream)),
            ("record", cudaEventRecord(event, stream)),
            ("wait", cudaStreamWaitEvent(stream, event, 0)),
            ("destroy", cudaStreamDestroy(stream)),
            ("capture", cudaStreamBeginCapture(stream, 0)),
        ] {
            assert_eq!(status, INVALID_HANDLE, "{call} {stream:#x}");
        }
    }
    assert_eq!(cudaEventDestroy(event), 0);
    for event in [event, 0, 5, u64::MAX] {
        for status in [
            cudaEventQuery(event),
            cudaEventSynchronize(event),
            cudaEventRecord(event, 0),
            cudaEventDestroy(event),
        ] {
            assert_eq!(status, INVALID_HANDLE, "{event:#x}");
        }
    }
    cudaGetLastError();
}

#[test]
fn events_measure_a_clock_that_moves() {
    enter();
    let (start, end) =
        (out(|event| cudaEventCreateWithFlags(event, 0)), out(|event| cudaEventCreateWithFlags(event, 0)));
    let mut milliseconds = 0.0;
    assert_eq!(cudaEventQuery(start), 0, "what was never recorded is done");
    assert_eq!(cudaEventElapsedTime(&raw mut milliseconds, start, end), INVALID_HANDLE, "but has no time");
    assert_eq!(cudaEventRecord(start, 0), 0);
    let device = malloc(64 << 20);
    let own = vec![0u8; 64 << 20];
    assert_eq!(cudaMemcpy(device, own.as_ptr() as u64, 64 << 20, HOST_TO_DEVICE), 0);
    assert_eq!(cudaEventRecord(end, 0), 0);
    assert_eq!(cudaEventSynchronize(end), 0);
    assert_eq!(cudaEventElapsedTime(&raw mut milliseconds, start, end), 0);
    assert!((1.0..60.0).contains(&milliseconds), "64 MiB over PCIe took {milliseconds} ms");
    assert_eq!(cudaEventElapsedTime(&raw mut milliseconds, end, start), 0);
    assert!(milliseconds < 0.0);

    let untimed = out(|event| cudaEventCreateWithFlags(event, 2));
    assert_eq!(cudaEventRecord(untimed, 0), 0);
    assert_eq!(cudaEventElapsedTime(&raw mut milliseconds, start, untimed), INVALID_HANDLE);
    let mut event = 0;
    assert_eq!(
        cudaEventCreateWithFlags(&raw mut event, 4),
        INVALID_VALUE,
        "interprocess events have no time"
    );
    assert_eq!(cudaEventCreateWithFlags(&raw mut event, 64), INVALID_VALUE);
    assert_eq!(cudaFree(device), 0);
    cudaGetLastError();
}

#[test]
fn an_event_belongs_to_a_card() {
    enter();
    let event = out(|event| cudaEventCreateWithFlags(event, 0));
    assert_eq!(cudaSetDevice(1), 0);
    let stream = out(cudaStreamCreate);
    assert_eq!(cudaEventRecord(event, stream), INVALID_HANDLE);
    assert_eq!(cudaStreamWaitEvent(stream, event, 0), 0, "another card may wait for it");
    assert_eq!(cudaSetDevice(0), 0);
    cudaGetLastError();
}

#[test]
fn host_functions_run_when_the_stream_reaches_them() {
    static RUNS: AtomicU32 = AtomicU32::new(0);
    extern "C" fn function(data: *mut c_void) {
        RUNS.fetch_add(data as usize as u32, Relaxed);
    }
    extern "C" fn callback(_stream: u64, status: i32, data: *mut c_void) {
        assert_eq!(status, 0);
        RUNS.fetch_add(data as usize as u32, Relaxed);
    }
    enter();
    assert_eq!(cudaLaunchHostFunc(0, Some(function), 3 as *mut c_void), 0);
    assert_eq!(cudaStreamAddCallback(0, Some(callback), 40 as *mut c_void, 0), 0);
    assert_eq!(RUNS.load(Relaxed), 43);
    assert_eq!(cudaLaunchHostFunc(0, None, std::ptr::null_mut()), INVALID_VALUE);
    assert_eq!(cudaStreamAddCallback(0, Some(callback), std::ptr::null_mut(), 1), INVALID_VALUE);
    cudaGetLastError();
}

#[test]
fn threads_make_and_destroy_streams_and_events_at_once() {
    enter();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..300 {
                    let stream = out(cudaStreamCreate);
                    let event = out(|event| cudaEventCreateWithFlags(event, 2));
                    assert_eq!(cudaEventRecord(event, stream), 0);
                    assert_eq!(cudaStreamWaitEvent(stream, event, 0), 0);
                    assert_eq!(cudaEventQuery(event), 0);
                    assert_eq!(cudaEventDestroy(event), 0);
                    assert_eq!(cudaStreamDestroy(stream), 0);
                }
            });
        }
    });
}

/// Runs in a separate process: waits of other tests would move the clock.
pub(crate) fn work_is_done_when_the_clock_says_so() {
    const SIZE: u64 = 512 << 20;
    const NON_BLOCKING: u32 = 1;
    let make = || out(|stream| cudaStreamCreateWithPriority(stream, NON_BLOCKING, 0));
    let (busy, idle) = (make(), make());
    let (event, other) =
        (out(|event| cudaEventCreateWithFlags(event, 2)), out(|event| cudaEventCreateWithFlags(event, 2)));
    let pinned = out(|address| cudaHostAlloc(address, SIZE, 0));
    let device = malloc(SIZE);
    let begin = || {
        assert_eq!(cudaMemcpyAsync(device, pinned, SIZE, HOST_TO_DEVICE, busy), 0);
        assert_eq!(cudaEventRecord(event, busy), 0);
        assert_eq!(cudaEventQuery(event), NOT_READY, "half a GiB takes its time");
        assert_eq!(cudaStreamQuery(busy), NOT_READY);
    };
    begin();
    assert_eq!(cudaStreamSynchronize(idle), 0);
    assert_eq!(cudaEventRecord(other, idle), 0);
    assert_eq!(cudaEventSynchronize(other), 0);
    assert_eq!(cudaEventQuery(event), NOT_READY, "waiting for another stream is not waiting for this one");
    assert_eq!(cudaEventSynchronize(event), 0);
    assert_eq!((cudaEventQuery(event), cudaStreamQuery(busy)), (0, 0));

    begin();
    let mut asked = 0;
    while cudaEventQuery(event) == NOT_READY {
        asked += 1;
    }
    assert!((1_000..1_000_000).contains(&asked), "asked {asked} times");

    // A stream that waits for the event does not complete before it.
    begin();
    assert_eq!(cudaStreamQuery(idle), 0);
    assert_eq!(cudaStreamWaitEvent(idle, event, 0), 0);
    assert_eq!(cudaStreamQuery(idle), NOT_READY);
    assert_eq!(cudaStreamSynchronize(idle), 0);
    assert_eq!(cudaEventQuery(event), 0);

    // Synchronising with the device, copying without a stream after a blocking one, and freeing memory all
    // wait.
    begin();
    assert_eq!(cudaDeviceSynchronize(), 0);
    assert_eq!(cudaEventQuery(event), 0);
    begin();
    assert_eq!(cudaFree(malloc(4 << 20)), 0);
    assert_eq!(cudaEventQuery(event), 0);
    let blocking = out(cudaStreamCreate);
    assert_eq!(cudaMemcpyAsync(device, pinned, SIZE, HOST_TO_DEVICE, blocking), 0);
    assert_eq!(cudaStreamQuery(blocking), NOT_READY);
    assert_eq!(cudaMemcpy(device, pinned, 16, HOST_TO_DEVICE), 0);
    assert_eq!(cudaStreamQuery(blocking), 0, "the default stream waits for streams that block");
    begin();
    assert_eq!(cudaMemcpy(device, pinned, 16, HOST_TO_DEVICE), 0);
    assert_eq!(cudaStreamQuery(busy), NOT_READY, "and not for others");

    // A stream in the slot of a destroyed one has none of its work.
    assert_eq!(cudaStreamDestroy(busy), 0);
    let fresh = make();
    assert_eq!(cudaStreamQuery(fresh), 0);
    assert_eq!(cudaEventQuery(event), NOT_READY, "the work goes on");
}
