//! `memfit replay FILE`.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::path::Path;

use memfit_allocator::{
    BlockState, Edit, Program, ReplayConditions, Settings as AllocatorSettings, Stats, Tally, Verification,
    VerifiedTrack, rewind, track,
};
use memfit_explain::{Change, Changes, Conditions, Effect, ExplainError};
use memfit_recording::{Moment, MomentKind, Recording, Snapshot, Source, TraceAction, Track};
use memfit_report::text;
use memfit_report::wire::{
    BlockChange, Circumstances, Predicted, Recorded, ReplayOom, ReplayPeak, ReplayReport, schema,
};

use super::answer;
use crate::args::ReplayArgs;
use crate::input;
use crate::settings::Settings;
use crate::{CliError, Exit, Printer};

/// Replays an allocator's calls, as recorded or under other conditions.
pub(crate) fn replay(args: &ReplayArgs, settings: &Settings, printer: &Printer) -> Result<Exit, CliError> {
    let (input, problems) = input::read(&args.file)?;
    let report = match &input {
        Source::Snapshot(snapshot) => report(args, &Subject::of_snapshot(args, snapshot)?, problems)?,
        Source::Recording(recording) => report(args, &Subject::of_recording(args, recording)?, problems)?,
        Source::Texts(_) => return Err(nothing(&args.file)),
    };
    let canvas = printer.canvas();
    answer(&report, || text::replay(&report, canvas), &args.out, settings, printer)?;
    let asked = report.recorded.is_some();
    Ok(if asked && report.oom.is_some() { Exit::BadNews } else { Exit::Good })
}

fn nothing(path: &Path) -> CliError {
    CliError::NothingToReplay { path: path.to_owned() }
}

/// Events of one process on one device, with the known conditions.
struct Subject<'input> {
    track: Cow<'input, Track>,
    rank: Option<u32>,
    ranks: Vec<u32>,
    device: u8,
    devices: Vec<u32>,
    given: ReplayConditions,
    alloc_conf: String,
    /// Result of the replay against the recorded addresses.
    found: Verification,
    /// The last request that failed.
    oom: Option<ReplayOom>,
    /// Bytes available to the allocator: if a request failed, its reserved memory plus the free memory at
    /// that time.
    limit: Option<u64>,
    /// Bytes of blocks from before the recording.
    before: u64,
}

impl<'input> Subject<'input> {
    fn of_snapshot(args: &ReplayArgs, snapshot: &Snapshot) -> Result<Self, CliError> {
        if let Some(rank) = args.rank {
            return Err(CliError::NoRankThere { rank, ranks: Vec::new() });
        }
        let devices: Vec<u32> = snapshot.devices().into_iter().map(|device| device as u32).collect();
        let events = |device: &u32| (snapshot.trace(*device as usize).len(), Reverse(*device));
        let busiest = devices.iter().copied().max_by_key(events);
        let device = args.device.or(busiest).unwrap_or(0);
        if args.device.is_some() && !devices.contains(&device) {
            return Err(ExplainError::NoSuchDevice { device, devices }.into());
        }
        let mut given = ReplayConditions::from_snapshot_of(snapshot, args.torch);
        given.capacity = args.card_memory.map_or(given.capacity, memfit_devices::Bytes::get);
        let VerifiedTrack { track, verification } = track(snapshot, device as usize, &given)?;
        let trace = snapshot.trace(device as usize);
        let failed = trace.iter().enumerate().rfind(|(_, event)| event.action == TraceAction::Oom);
        let totals = last_failure(&track, device as u8).map(|(_, moment)| moment);
        let oom = failed.map(|(event, failed)| ReplayOom {
            event: event as u64,
            requested: failed.size,
            allocated: totals.map_or(0, |moment| moment.allocated),
            reserved: totals.map_or(0, |moment| moment.reserved),
            device_free: Some(failed.address),
        });
        let limit = oom.and_then(|oom| oom.reserved.checked_add(oom.device_free?));
        let segments = rewind(snapshot, device as usize, &given, 0).segments;
        let blocks = segments.iter().flat_map(|segment| &segment.blocks);
        let before = blocks.filter(|block| block.state != BlockState::Free).map(|block| block.size).sum();
        let alloc_conf = snapshot.settings.as_ref().map(|settings| settings.text.clone()).unwrap_or_default();
        Ok(Self {
            track: Cow::Owned(track),
            rank: None,
            ranks: Vec::new(),
            device: device as u8,
            devices,
            given,
            alloc_conf,
            found: verification,
            oom,
            limit,
            before,
        })
    }

    fn of_recording(args: &ReplayArgs, recording: &'input Recording) -> Result<Self, CliError> {
        let (track, device) = chosen(args, recording)?;
        let mut conditions = Conditions::from_track(&recording.origin, track, args.torch);
        let given = &mut conditions.given;
        given.capacity = args.card_memory.map_or(given.capacity, memfit_devices::Bytes::get);
        // With recorded segments, the addresses can be verified by a replay; the calls can be repeated in any
        // case.
        let found = if track.spans.iter().any(|span| span.device == device) {
            let snapshot = Snapshot::from_track(track);
            memfit_allocator::verify(&snapshot, usize::from(device), &conditions.given)?
        } else {
            Verification::default()
        };
        let events = own(track, device).count() as u64;
        let limit = conditions.card.limit.or_else(|| track.limit_at_oom(device));
        let oom = last_failure(track, device).map(|(place, moment)| ReplayOom {
            event: own(track, device).take_while(|(at, _)| *at < place).count() as u64,
            requested: if let MomentKind::Oom(bytes) = moment.kind { bytes } else { 0 },
            allocated: moment.allocated,
            reserved: moment.reserved,
            device_free: limit.and_then(|limit| limit.checked_sub(moment.reserved)),
        });
        let mut ranks: Vec<u32> = recording.tracks.iter().filter_map(|track| track.rank).collect();
        ranks.sort_unstable();
        Ok(Self {
            rank: track.rank,
            ranks,
            devices: track.devices().into_iter().map(u32::from).collect(),
            track: Cow::Borrowed(track),
            device,
            limit: limit.filter(|_| oom.is_some()),
            given: conditions.given,
            alloc_conf: conditions.alloc_conf,
            found: Verification { events, ..found },
            oom,
            before: 0,
        })
    }
}

/// A device's moments, with their indices.
fn own(track: &Track, device: u8) -> impl Iterator<Item = (u32, Moment)> + '_ {
    let of_device = move |(_, moment): &(u32, Moment)| moment.device == device && moment.kind.has_totals();
    (0..).zip(track.moments()).filter(of_device)
}

fn last_failure(track: &Track, device: u8) -> Option<(u32, Moment)> {
    own(track, device).filter(|(_, moment)| matches!(moment.kind, MomentKind::Oom(_))).last()
}

/// The requested process and device; otherwise those that ran out of memory, otherwise the fullest ones.
fn chosen<'input>(args: &ReplayArgs, recording: &'input Recording) -> Result<(&'input Track, u8), CliError> {
    let of_rank = |track: &&Track| args.rank.is_none() || track.rank == args.rank;
    let tracks: Vec<&Track> = recording.tracks.iter().filter(of_rank).collect();
    if let (Some(rank), true) = (args.rank, tracks.is_empty()) {
        let ranks = recording.tracks.iter().filter_map(|track| track.rank).collect();
        return Err(CliError::NoRankThere { rank, ranks });
    }
    let mut found: Vec<(&Track, u8)> = Vec::new();
    for track in tracks {
        found.extend(track.devices().into_iter().map(|device| (track, device)));
    }
    if let Some(device) = args.device {
        let devices = found.iter().map(|(_, known)| u32::from(*known)).collect();
        found.retain(|(_, known)| u32::from(*known) == device);
        if found.is_empty() {
            return Err(ExplainError::NoSuchDevice { device, devices }.into());
        }
    }
    let trouble = |(track, device): &(&Track, u8)| {
        let most = own(track, *device).map(|(_, moment)| moment.reserved).max();
        (last_failure(track, *device).is_some(), most)
    };
    found.into_iter().rev().max_by_key(trouble).ok_or_else(|| nothing(&args.file))
}

/// Event of an allocator in words.
fn event_in_words(action: TraceAction, address: u64, size: u64) -> String {
    if action == TraceAction::Oom {
        return format!("a request of {size} bytes finds no memory");
    }
    let what = match action {
        TraceAction::Alloc => "allocates a block",
        TraceAction::FreeRequested => "asks to free a block",
        TraceAction::FreeCompleted => "frees a block",
        TraceAction::SegmentAlloc => "allocates a segment",
        TraceAction::SegmentFree => "frees a segment",
        TraceAction::SegmentMap => "maps memory",
        TraceAction::SegmentUnmap => "unmaps memory",
        other => return format!("`{}` of {size} bytes follows", other.name()),
    };
    format!("the allocator {what} of {size} bytes at {address:#x}")
}

fn report(args: &ReplayArgs, subject: &Subject<'_>, problems: Vec<String>) -> Result<ReplayReport, CliError> {
    let found = &subject.found;
    let mismatches = found.mismatches.iter().map(|mismatch| {
        let (address, size) = mismatch.recorded;
        let recorded = event_in_words(mismatch.action, address, size);
        let replayed = mismatch.replayed.map_or_else(
            || "nothing happens".to_owned(),
            |(action, address, size)| event_in_words(action.into(), address, size),
        );
        format!("at event {}: in the recording, {recorded}; in the replay, {replayed}", mismatch.event)
    });
    let mut report = ReplayReport {
        schema: schema::REPLAY.to_owned(),
        file: args.file.display().to_string(),
        rank: subject.rank,
        ranks: subject.ranks.clone(),
        device: u32::from(subject.device),
        devices: subject.devices.clone(),
        events: found.events,
        addresses: predicted(found.addresses),
        segments: predicted(found.segments),
        blocks: predicted(found.blocks),
        peak: peak(&subject.track, subject.device),
        oom: subject.oom,
        under: Circumstances {
            alloc_conf: subject.alloc_conf.clone(),
            capacity: subject.limit,
            torch: subject.given.release.to_string(),
        },
        changes: Vec::new(),
        recorded: None,
        statistics: found.stats.entries().into_iter().collect(),
        before: subject.before,
        uncertain: found.uncertain,
        told: found.told,
        resumed: found.resumed,
        mismatches: mismatches.collect(),
        problems,
    };
    if args.asks_what_if() {
        what_if(args, subject, &mut report)?;
    }
    Ok(report)
}

const fn predicted(tally: Tally) -> Predicted {
    Predicted { predicted: tally.predicted, matching: tally.matching }
}

/// Remark on a setting without effect.
const IDLE_THRESHOLD: &str = "`garbage_collection_threshold` does nothing here: PyTorch collects garbage only in a process with a memory fraction. If yours has one (`torch.cuda.set_per_process_memory_fraction(0.9)`), add it: `--alloc-conf garbage_collection_threshold:0.8,per_process_memory_fraction:0.9`";

/// Repeats the calls under the requested conditions.
fn what_if(args: &ReplayArgs, subject: &Subject<'_>, report: &mut ReplayReport) -> Result<(), CliError> {
    let wanted = args.changes();
    let changes = Changes::resolve(&subject.track, subject.device, &wanted)?;
    let mut given = subject.given;
    if let Some(conf) = &args.alloc_conf {
        given.settings = AllocatorSettings::parse(conf, given.release)?;
    }
    if given.settings.garbage_collection_threshold > 0.0 && !given.settings.arms_collection(given.release) {
        report.problems.push(IDLE_THRESHOLD.to_owned());
    }
    let capacity = args.capacity.map(memfit_devices::Bytes::get).or(subject.limit);
    let program = Program::from_track(&subject.track, subject.device);
    let within = |given: ReplayConditions, capacity: Option<u64>| ReplayConditions {
        capacity: capacity.unwrap_or(given.capacity),
        ..given
    };
    let again = program.run(&within(subject.given, subject.limit), |_| Edit::Keep);
    let then = program.run(&within(given, capacity), |block| changes.edit(block));
    let own = Circumstances {
        alloc_conf: args.alloc_conf.clone().unwrap_or_else(|| report.under.alloc_conf.clone()),
        capacity,
        torch: given.release.to_string(),
    };
    report.changes =
        wanted.iter().zip(&changes.reach).map(|(change, reach)| block_change(change, reach)).collect();
    report.recorded = Some(Recorded {
        peak: report.peak,
        oom: report.oom,
        under: std::mem::replace(&mut report.under, own),
        again: peak_of(&again.stats),
    });
    report.peak = peak_of(&then.stats);
    report.statistics = then.stats.entries().into_iter().collect();
    report.oom = then.died.map(|(moment, oom)| ReplayOom {
        event: event_at(subject, moment),
        requested: oom.requested,
        allocated: oom.allocated,
        reserved: oom.reserved,
        device_free: Some(oom.device_free),
    });
    Ok(())
}

fn block_change(change: &Change, reach: &memfit_explain::Reach) -> BlockChange {
    let (effect, factor) = match change.effect {
        Effect::Drop => ("drop", None),
        Effect::Scale(factor) => ("scale", Some(factor)),
        Effect::EachStep => ("each-step", None),
    };
    BlockChange {
        of: change.of.to_string(),
        effect: effect.to_owned(),
        factor,
        blocks: reach.blocks,
        at_peak: reach.at_peak,
    }
}

/// Index of a moment among the events, not counting those that represent blocks from before the recording.
fn event_at(subject: &Subject<'_>, moment: u32) -> u64 {
    let all = own(&subject.track, subject.device).count() as u64;
    let passed = own(&subject.track, subject.device).take_while(|(place, _)| *place < moment).count() as u64;
    passed.saturating_sub(all.saturating_sub(subject.found.events))
}

const fn peak_of(stats: &Stats) -> ReplayPeak {
    ReplayPeak {
        allocated: stats.allocated_bytes.all.peak as u64,
        reserved: stats.reserved_bytes.all.peak as u64,
    }
}

fn peak(track: &Track, device: u8) -> ReplayPeak {
    let most = |figure: fn(&Moment) -> u64| own(track, device).map(|(_, moment)| figure(&moment)).max();
    ReplayPeak {
        allocated: most(|moment| moment.allocated).unwrap_or(0),
        reserved: most(|moment| moment.reserved).unwrap_or(0),
    }
}
