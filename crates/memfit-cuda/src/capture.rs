//! Stream capture, and launches of what was captured.

use std::sync::atomic::Ordering::Relaxed;

use crate::{
    graphs::{self, CaptureStatus},
    status::{Outcome, Status},
    streams::{self, Event, StreamRef},
};

/// `cudaStreamBeginCapture`, into a new graph or a given one.
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
    let id = graphs::open(stream, mode, into)?;
    made.capture.store(id, Relaxed);
    StreamRef::Made(made).begin_capture();
    Ok(())
}

/// `cudaStreamEndCapture`: the graph; none if the capture became invalid.
pub(crate) fn end(stream: u64) -> Outcome<u64> {
    let id = streams::resolve(stream)?.capture();
    let graph = graphs::close(id, stream)?;
    streams::end_capture(id);
    graph
}

/// A stream waits for an event: if the event was recorded in a capture, the stream takes part in it.
pub(crate) fn join(stream: &StreamRef, event: &Event) -> Outcome {
    let (of_event, of_stream) = (event.capture.load(Relaxed), stream.capture());
    if of_event == 0 && of_stream == 0 {
        return Ok(());
    }
    if of_event == of_stream {
        return Ok(());
    }
    if of_event == 0 {
        // What was recorded outside cannot be waited for inside, unless it is over, as all work is here.
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

/// A stream's capture: its status, its number and its graph.
pub(crate) fn of_stream(stream: &StreamRef) -> (CaptureStatus, u64, u64) {
    let id = stream.capture();
    if id == 0 {
        return (CaptureStatus::None, 0, 0);
    }
    match graphs::status(id) {
        (CaptureStatus::None, _) => (CaptureStatus::None, 0, 0),
        (status, graph) => (status, id, graph),
    }
}

/// `cudaGraphLaunch`.
pub(crate) fn launch(executable: u64, stream: u64) -> Outcome {
    let (work, acts) = graphs::launched(executable)?;
    streams::launch_graph(stream, work.length.max(work.demand), work.demand, &work.parts)?;
    match streams::resolve(stream)?.capture() {
        0 => acts.iter().for_each(graphs::Act::run),
        capture => acts.iter().for_each(|act| graphs::add_act(capture, act.clone())),
    }
    Ok(())
}
