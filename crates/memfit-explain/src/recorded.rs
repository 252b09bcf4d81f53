//! Explanation of recordings: builds the case from the file's or the run's facts about the GPU.

use memfit_allocator::{Release, ReplayConditions, RestoreError, recording, round_size, segment_size};
use memfit_recording::{MomentKind, Recording, Snapshot, Source, Track};

use crate::case::{Card, Case, OtherProcess};
use crate::conditions::Conditions;
use crate::explanation::Explanation;
use crate::from_text::explain_texts;
use crate::others::other_process;
use crate::timeline::MAX_BYTES;

/// Facts given by the user, which override those of the file.
#[derive(Clone, Copy, Debug, Default)]
pub struct ExplainOverrides {
    /// Bytes that the allocator could use.
    pub limit: Option<u64>,
    /// Device index.
    pub device: Option<u32>,
    /// PyTorch release.
    pub torch: Option<Release>,
}

/// Error while a recording is explained.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExplainError {
    /// The recording has no events of this device.
    #[error("the recording has no data of device {device}")]
    NoSuchDevice {
        /// Requested device.
        device: u32,
        /// Devices in the recording.
        devices: Vec<u32>,
    },
    /// The recording's first state is not a valid allocator state.
    #[error("the recording cannot be replayed: {0}")]
    Replay(#[from] RestoreError),
}

/// Returns the text of a source file, if it is available.
type ReadSource<'given> = &'given dyn Fn(&str) -> Option<String>;

/// Explains the content of a file.
pub fn explain_source(
    asked: &ExplainOverrides,
    input: &Source,
    source: ReadSource<'_>,
) -> Result<Explanation, ExplainError> {
    match input {
        Source::Snapshot(snapshot) => explain_snapshot(asked, snapshot, source),
        Source::Recording(recording) => explain_recording(asked, recording, source),
        Source::Texts(texts) => Ok(explain_texts(texts)),
    }
}

fn explain_snapshot(
    asked: &ExplainOverrides,
    snapshot: &Snapshot,
    source: ReadSource<'_>,
) -> Result<Explanation, ExplainError> {
    let given = ReplayConditions::from_snapshot_of(snapshot, asked.torch);
    let recorded = recording(snapshot, &given)?;
    let tracks: Vec<(&Track, u8)> = recorded
        .recording
        .tracks
        .iter()
        .zip(snapshot.devices())
        .map(|(track, device)| (track, device as u8))
        .collect();
    if tracks.is_empty() {
        return Ok(Explanation::without_events(0));
    }
    let (track, device) = select_track(asked, &tracks)?;
    let withheld = withheld_at_oom(track, device, &given);
    let limit = track.limit_at_oom(device).map(|limit| limit - withheld);
    let card = Card { limit: asked.limit.or(limit), withheld, ..Card::default() };
    let alloc_conf = snapshot.settings.as_ref().map(|settings| settings.text.clone()).unwrap_or_default();
    Ok(judged(&Case { track, device, card, given, alloc_conf, source }))
}

/// Explains a recording.
pub fn explain_recording(
    asked: &ExplainOverrides,
    recording: &Recording,
    source: ReadSource<'_>,
) -> Result<Explanation, ExplainError> {
    let tracks: Vec<(&Track, u8)> = recording
        .tracks
        .iter()
        .flat_map(|track| track.devices().into_iter().map(move |device| (track, device)))
        .collect();
    if tracks.is_empty() {
        return Ok(Explanation::without_events(0));
    }
    let (track, device) = select_track(asked, &tracks)?;
    let origin = &recording.origin;
    let Conditions { given, alloc_conf, card: named } = Conditions::from_track(origin, track, asked.torch);
    // A message has the limit; without one, a refused request shows it.
    let withheld =
        if named.limit.is_none() { withheld_at_oom(track, device, &given) } else { named.withheld };
    let seen = track.limit_at_oom(device).map(|limit| limit.saturating_sub(withheld));
    let limit = asked.limit.or(named.limit).or(seen);
    let others = if named.refused.as_ref().is_some_and(|refused| refused.trains) {
        // The message has no figures, so the recorded totals are used.
        let recorded =
            tracks.iter().filter(|(track, of)| Some(track.pid) != origin.oom_process && *of == device);
        recorded.map(|(track, _)| other_process(track, device)).collect()
    } else {
        merge_other_processes(track, device, &tracks, named.others)
    };
    let name = origin.device.clone();
    let card = Card { name, capacity: origin.capacity, limit, withheld, others, ..named };
    Ok(judged(&Case { track, device, card, given, alloc_conf, source }))
}

/// Margin of free memory: other processes may take and return some between a request and its report.
const WITHHELD_MARGIN: u64 = 128 << 20;

/// Free memory that the process was not allowed to use when its last request failed.
///
/// Snapshots do not have the memory fraction that a program sets; but a request that fails although the GPU
/// has room for its segment was refused by PyTorch itself.
fn withheld_at_oom(track: &Track, device: u8, given: &ReplayConditions) -> u64 {
    let Some((requested, _, refusal)) = track.last_refusal(device) else { return 0 };
    let segment = segment_size(round_size(requested.min(MAX_BYTES), &given.settings), &given.settings);
    if refusal.left >= segment.saturating_add(WITHHELD_MARGIN) { refusal.left } else { 0 }
}

/// Adds recorded processes to those that the message names.
fn merge_other_processes(
    own: &Track,
    device: u8,
    tracks: &[(&Track, u8)],
    named: Vec<OtherProcess>,
) -> Vec<OtherProcess> {
    named
        .into_iter()
        .filter(|other| other.pid != own.pid)
        .map(|other| {
            let track = tracks.iter().find(|(track, of)| track.pid == other.pid && *of == device);
            let moments = track.map(|(track, _)| track.moments().iter());
            let reserved = moments.and_then(|moments| moments.map(|moment| moment.reserved).max());
            let known = track.map(|(track, _)| other_process(track, device)).unwrap_or_default();
            OtherProcess {
                reserved: reserved.unwrap_or(0).min(other.bytes),
                kin: known.kin,
                lines: known.lines,
                ..other
            }
        })
        .collect()
}

fn judged(case: &Case<'_>) -> Explanation {
    crate::explain::explain(case).unwrap_or_else(|| Explanation::without_events(case.device))
}

/// Selects the requested device, or else the one that ran out of memory, or else the fullest one.
fn select_track<'track>(
    asked: &ExplainOverrides,
    tracks: &[(&'track Track, u8)],
) -> Result<(&'track Track, u8), ExplainError> {
    if let Some(device) = asked.device {
        let devices = || tracks.iter().map(|(_, device)| u32::from(*device)).collect();
        let found = tracks.iter().find(|(_, known)| u32::from(*known) == device);
        return found.copied().ok_or_else(|| ExplainError::NoSuchDevice { device, devices: devices() });
    }
    let trouble = |(track, device): &&(&Track, u8)| {
        let own = || track.moments().iter().filter(|moment| moment.device == *device);
        let failed = own().any(|moment| matches!(moment.kind, MomentKind::Oom(_)));
        (failed, own().map(|moment| moment.reserved).max())
    };
    let most = tracks.iter().rev().max_by_key(trouble);
    most.copied().ok_or_else(|| ExplainError::NoSuchDevice { device: 0, devices: Vec::new() })
}

#[cfg(test)]
mod tests {
    use memfit_channel::events::{Event, EventContext, EventLog};
    use memfit_recording::Origin;
    use memfit_vocabulary::{Cause, Phase};

    use super::*;

    fn explained(recording: &Recording) -> Explanation {
        explain_recording(&ExplainOverrides::default(), recording, &|_| None).expect("it is explained")
    }

    /// A process that allocates one block and keeps it.
    fn holder(pid: u32, bytes: u64) -> Track {
        let place = EventContext { device: 0, phase: Phase::Other.code(), thread: 1, module: 0, step: 0 };
        let got = Event::Alloc { place, address: 1 << 32, bytes, allocated: bytes, reserved: bytes };
        Track::from_log(&EventLog { pid, truncated: false, events: vec![got] }, None)
    }

    #[test]
    fn a_training_without_a_track_was_kept_off_the_card_by_those_that_have_one() {
        // PyTorch's message for a failure of the CUDA runtime itself: without figures, since its allocator
        // was not involved.
        let message = "Traceback (most recent call last):\n  File \"/me/train.py\", line 5, in main\n    net.cuda()\n\
                       RuntimeError: CUDA error: out of memory\n";
        let origin = Origin { oom: Some(message.to_owned()), oom_process: Some(1), ..Origin::default() };
        let mut recording = Recording { origin, tracks: vec![holder(7, 1 << 30), holder(9, 2 << 30)] };
        let explanation = explained(&recording);
        assert_eq!(explanation.cause, Cause::OtherProcesses);
        assert!(explanation.evidence[0].text.contains("process 9 of the same script held 2.00 GiB"));
        assert_eq!(explanation.fixes[0].saves, 3 << 30);
        // Failures of the process itself and of an unknown one do not count.
        for process in [None, Some(9)] {
            recording.origin.oom_process = process;
            let explanation = explained(&recording);
            assert_ne!(explanation.cause, Cause::OtherProcesses);
        }
    }

    #[test]
    fn a_process_that_the_message_names_has_the_lines_of_its_own_track() {
        let named = |pid, bytes| OtherProcess { pid, reserved: bytes, bytes, ..OtherProcess::default() };
        let (own, other) = (holder(1, 1 << 30), holder(9, 2 << 30));
        let tracks = [(&own, 0), (&other, 0)];
        let merged =
            merge_other_processes(&own, 0, &tracks, vec![named(1, 5), named(9, 3 << 30), named(4, 7)]);
        let figures: Vec<(u32, u64, u64)> =
            merged.iter().map(|other| (other.pid, other.reserved, other.bytes)).collect();
        // The process itself is no other one; of one without a track, nothing is known to be reserved.
        assert_eq!(figures, [(9, 2 << 30, 3 << 30), (4, 0, 7)]);
        // On another device, its track says nothing of this one.
        let merged = merge_other_processes(&own, 0, &[(&own, 0), (&other, 1)], vec![named(9, 3 << 30)]);
        assert_eq!((merged[0].reserved, merged[0].bytes), (0, 3 << 30));
    }

    #[test]
    fn a_recording_without_a_message_shows_the_limit_of_its_process() {
        let mut track = holder(7, 1 << 30);
        let held = memfit_recording::Totals { allocated: 1 << 30, reserved: 1 << 30, ..Default::default() };
        let moment = track.add_moment(MomentKind::Oom(1 << 29), 0, memfit_recording::StackId::NONE, held);
        let refusal = memfit_recording::Refusal { left: 100 << 30, ..Default::default() };
        track.refusals.insert(moment, refusal);
        let found = explained(&Recording { tracks: vec![track], ..Recording::default() });
        assert_eq!(found.moment.limit, Some(1 << 30));
        assert!(found.fixes.iter().any(|fix| fix.lever == memfit_vocabulary::Lever::DropSetting));
    }

    #[test]
    fn a_request_that_fails_beside_enough_free_memory_was_not_allowed() {
        let given = ReplayConditions {
            settings: memfit_allocator::Settings::default(),
            release: "2.9".parse().unwrap(),
            capacity: 1 << 34,
        };
        for (requested, left, expected) in [
            (1_u64 << 30, 2_u64 << 30, 2_u64 << 30),
            // The GPU has no room for the segment.
            (1 << 30, 1 << 30, 0),
            // Another process may have returned so little since.
            (1 << 30, (1 << 30) + (64 << 20), 0),
            // A small request takes a segment of 20 MiB.
            (2 << 20, 147 << 20, 0),
            (2 << 20, 148 << 20, 148 << 20),
            (u64::MAX, u64::MAX - 1, u64::MAX - 1),
        ] {
            let mut track = Track::default();
            let oom = MomentKind::Oom(requested);
            let moment = track.add_moment(
                oom,
                0,
                memfit_recording::StackId::NONE,
                memfit_recording::Totals::default(),
            );
            let refusal = memfit_recording::Refusal { left, ..Default::default() };
            track.refusals.insert(moment, refusal);
            assert_eq!(withheld_at_oom(&track, 0, &given), expected, "{requested} of {left}");
            assert_eq!(withheld_at_oom(&track, 1, &given), 0);
        }
    }
}
