//! Stream capture, and launches of captured graphs.

use std::sync::atomic::Ordering::Relaxed;

use crate::{
    graphs::{self, CaptureStatus},
    status::{Outcome, Status},
    streams::{self, Event, StreamRef},
};

/// Starts a capture (`cudaStreamBeginCapture`), into a new graph or a given one.
pub(crate) fn begin(stream: u64, mode: i32, into: Option<u64>) -> Outcome {
    let StreamRef::Made(made) = streams::resolve(stream)? else {
        return Err(Status::STREAM_CAPTURE_UNSUPPORTED);
    };
    if !(0..=2).contains(&mode) {
        return Err(Status::INVALID_VALUE);
    }
    if made.capture.load(Relaxed) != 0 {
        return Err(Status::ILLEGAL_STATE);
    }
    let id = graphs::open_capture(stream, mode, into)?;
    made.capture.store(id, Relaxed);
    StreamRef::Made(made).begin_capture();
    Ok(())
}

/// Ends a capture (`cudaStreamEndCapture`) and returns its graph; 0 if the capture was invalidated.
pub(crate) fn end(stream: u64) -> Outcome<u64> {
    let id = streams::resolve(stream)?.capture();
    let graph = graphs::close_capture(id, stream)?;
    streams::end_capture(id);
    graph
}

/// Makes a stream wait for an event. If the event was recorded in a capture, the stream joins that capture.
pub(crate) fn join(stream: &StreamRef, event: &Event) -> Outcome {
    let (of_event, of_stream) = (event.capture.load(Relaxed), stream.capture());
    if of_event == 0 && of_stream == 0 {
        return Ok(());
    }
    if of_event == of_stream {
        return Ok(());
    }
    if of_event == 0 {
        // A capture cannot wait for an event from outside unless its work is complete. Work here always is.
        return Ok(());
    }
    match stream {
        StreamRef::Made(made) if of_stream == 0 => {
            if graphs::is_open(of_event) {
                made.capture.store(of_event, Relaxed);
                stream.begin_capture();
                stream.wait_for(event);
            }
            Ok(())
        }
        StreamRef::Made(_) => Err(Status(902)), // cudaErrorStreamCaptureMerge
        StreamRef::Default(_) => Err(Status(906)), // cudaErrorStreamCaptureImplicit
    }
}

/// Returns the status, the id and the graph of a stream's capture.
pub(crate) fn stream_status(stream: &StreamRef) -> (CaptureStatus, u64, u64) {
    let id = stream.capture();
    if id == 0 {
        return (CaptureStatus::None, 0, 0);
    }
    match graphs::status(id) {
        (CaptureStatus::None, _) => (CaptureStatus::None, 0, 0),
        (status, graph) => (status, id, graph),
    }
}

/// Launches a graph (`cudaGraphLaunch`).
pub(crate) fn launch(executable: u64, stream: u64) -> Outcome {
    let (work, effects) = graphs::work_and_effects(executable)?;
    streams::launch_graph(stream, work.length.max(work.demand), work.demand, &work.parts)?;
    match streams::resolve(stream)?.capture() {
        0 => effects.iter().for_each(graphs::Effect::apply),
        capture => effects.iter().for_each(|effect| graphs::add_effect(capture, effect.clone())),
    }
    Ok(())
}
