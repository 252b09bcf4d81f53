//! Runs the verbs on a recording that was read: replay, explain and view.

use memfit_allocator::{Edit, Program, Release, ReplayConditions, Settings};
use memfit_explain::{Card, Case, explain};
use memfit_recording::Recording;
use memfit_view::{View, ViewedRecording, lane};

/// A small card, and nothing set.
#[allow(dead_code, reason = "snapshots bring their own")]
pub fn plain() -> ReplayConditions {
    ReplayConditions { settings: Settings::default(), release: Release::default(), capacity: 1 << 30 }
}

/// Does it all. Nothing may fall, whatever the recording says.
pub fn judge(recording: Recording, given: &ReplayConditions) {
    let mut lanes = Vec::new();
    for track in &recording.tracks {
        for device in track.devices() {
            let calls = Program::from_track(track, device);
            let _outcome = calls.run(given, |block| if block % 3 == 0 { Edit::Drop } else { Edit::Keep });
            let case = Case {
                track,
                device,
                card: Card::default(),
                given: *given,
                alloc_conf: String::new(),
                source: &|_| None,
            };
            let _explanation = explain(&case);
            lanes.push(lane(track, device));
        }
    }
    let recorded = ViewedRecording {
        name: String::new(),
        origin: recording.origin,
        lanes,
        explanation: None,
        remarks: Vec::new(),
    };
    let _view = View::new(vec![recorded], true);
}
