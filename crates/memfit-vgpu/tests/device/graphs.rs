//! Stream capture and graphs.

use std::{
    ffi::c_void,
    ptr,
    sync::atomic::{AtomicU32, Ordering::Relaxed},
};

use crate::{
    cuda::*,
    machine::{MIB, alone},
};

/// `cudaStreamCaptureModeRelaxed`, which does not affect the other tests' threads.
const RELAXED: i32 = 2;
const GLOBAL: i32 = 0;

fn stream() -> u64 {
    out(cudaStreamCreate)
}

fn status(stream: u64) -> i32 {
    out(|status| cudaStreamIsCapturing(stream, status))
}

#[test]
fn a_capture_becomes_a_graph_that_can_be_launched() {
    let _alone = alone();
    let (main, side) = (stream(), stream());
    let (fork, join) =
        (out(|event| cudaEventCreateWithFlags(event, 2)), out(|event| cudaEventCreateWithFlags(event, 2)));
    let device = malloc(MIB);
    assert_eq!(status(main), 0);
    assert_eq!(cudaStreamBeginCapture(main, RELAXED), 0);
    assert_eq!(cudaStreamBeginCapture(main, RELAXED), ILLEGAL_STATE, "it is being captured");
    assert_eq!(status(main), 1);
    assert_eq!(status(side), 0);
    // Another stream takes part once it waits for an event of the capture.
    assert_eq!(cudaEventRecord(fork, main), 0);
    assert_eq!(cudaStreamWaitEvent(side, fork, 0), 0);
    assert_eq!(status(side), 1);
    assert_eq!(cudaMemcpyAsync(device, device + 4096, 16, DEVICE_TO_DEVICE, side), 0);
    assert_eq!(cudaMemcpyAsync(device, device + 4096, 16, DEVICE_TO_DEVICE, main), 0);
    assert_eq!(cudaEventRecord(join, side), 0);
    assert_eq!(cudaStreamWaitEvent(main, join, 0), 0);
    let (mut state, mut id, mut graph, mut nodes, mut count) = (9, 0, 0, 9, 9);
    let info = cudaStreamGetCaptureInfo_v2(
        side,
        &raw mut state,
        &raw mut id,
        &raw mut graph,
        &raw mut nodes,
        &raw mut count,
    );
    assert_eq!((info, state), (0, 1));
    assert_ne!(id, 0);
    let mut ended = 0;
    assert_eq!(cudaStreamEndCapture(side, &raw mut ended), CAPTURE_UNMATCHED, "it began elsewhere");
    assert_eq!(cudaStreamEndCapture(main, &raw mut ended), 0);
    assert_eq!(ended, graph);
    assert_eq!((status(main), status(side)), (0, 0));
    assert_eq!(cudaStreamEndCapture(main, &raw mut ended), ILLEGAL_STATE);

    let mut count = 0;
    assert_eq!(cudaGraphGetNodes(graph, ptr::null_mut(), &raw mut count), 0);
    assert_eq!(count, 2);
    let mut handles = [0; 2];
    assert_eq!(cudaGraphGetNodes(graph, handles.as_mut_ptr(), &raw mut count), 0);
    assert!(handles[0] != 0 && handles[1] != 0 && handles[0] != handles[1]);

    let executable = out(|executable| cudaGraphInstantiateWithFlags(executable, graph, 0));
    assert_eq!(cudaGraphDestroy(graph), 0, "what was made from it stays");
    assert_eq!(cudaGraphLaunch(executable, main), 0);
    assert_eq!(cudaGraphExecDestroy(executable), 0);
    assert_eq!(cudaGraphLaunch(executable, main), INVALID_VALUE);
    assert_eq!(cudaGraphDestroy(graph), INVALID_VALUE);
    assert_eq!(cudaFree(device), 0);
    cudaGetLastError();
}

#[test]
fn waiting_for_a_captured_stream_spoils_the_capture() {
    let _alone = alone();
    for wait in [cudaStreamSynchronize, cudaStreamQuery] {
        let main = stream();
        assert_eq!(cudaStreamBeginCapture(main, RELAXED), 0);
        assert_eq!(wait(main), CAPTURE_UNSUPPORTED);
        assert_eq!(status(main), 2);
        let mut graph = 9;
        assert_eq!(cudaStreamEndCapture(main, &raw mut graph), CAPTURE_INVALIDATED);
        assert_eq!(graph, 0);
        assert_eq!(status(main), 0);
        assert_eq!(cudaStreamSynchronize(main), 0);
    }
    let main = stream();
    assert_eq!(cudaStreamBeginCapture(main, GLOBAL), 0);
    assert_eq!(cudaDeviceSynchronize(), CAPTURE_UNSUPPORTED);
    let mut graph = 0;
    cudaStreamEndCapture(main, &raw mut graph);
    assert_eq!(cudaDeviceSynchronize(), 0);
    assert_eq!(
        cudaStreamBeginCapture(0, RELAXED),
        CAPTURE_UNSUPPORTED,
        "the default stream cannot be captured"
    );
    assert_eq!(cudaStreamBeginCapture(main, 7), INVALID_VALUE);
    cudaGetLastError();
}

#[test]
fn the_capture_mode_is_exchanged() {
    let mut mode = 2;
    assert_eq!(cudaThreadExchangeStreamCaptureMode(&raw mut mode), 0);
    assert_eq!(mode, 0);
    assert_eq!(cudaThreadExchangeStreamCaptureMode(&raw mut mode), 0);
    assert_eq!(mode, 2);
    mode = 5;
    assert_eq!(cudaThreadExchangeStreamCaptureMode(&raw mut mode), INVALID_VALUE);
    cudaGetLastError();
}

#[test]
fn an_object_lives_as_long_as_a_graph_needs_it() {
    static DESTROYED: AtomicU32 = AtomicU32::new(0);
    extern "C" fn destroy(_: *mut c_void) {
        DESTROYED.fetch_add(1, Relaxed);
    }
    let _alone = alone();
    let main = stream();
    assert_eq!(cudaStreamBeginCapture(main, RELAXED), 0);
    let graph = out(|graph| cudaStreamEndCapture(main, graph));
    let object = out(|object| cudaUserObjectCreate(object, ptr::null_mut(), Some(destroy), 1, 1));
    const MOVE: u32 = 1;
    assert_eq!(cudaGraphRetainUserObject(graph, object, 1, MOVE), 0);
    let executable = out(|executable| cudaGraphInstantiateWithFlags(executable, graph, 0));
    assert_eq!(cudaGraphDestroy(graph), 0);
    assert_eq!(DESTROYED.load(Relaxed), 0, "the executable graph still has it");
    assert_eq!(cudaGraphExecDestroy(executable), 0);
    assert_eq!(DESTROYED.load(Relaxed), 1);
    assert_eq!(cudaUserObjectRelease(object, 1), INVALID_VALUE);
    cudaGetLastError();
}
