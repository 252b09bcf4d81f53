//! `memfit replay FILE`.

use memfit_allocator::{
    BlockState, Edit, Given, Program, Settings as AllocatorSettings, Stats, Tally, Tracked, Verification,
    rewind, track,
};
use memfit_recording::{Moment, MomentKind, Snapshot, Source, TraceAction, Track};
use memfit_report::text;
use memfit_report::wire::{Circumstances, Predicted, Recorded, ReplayOom, ReplayPeak, ReplayReport, schema};

use super::answer;
use crate::args::ReplayArgs;
use crate::input;
use crate::settings::Settings;
use crate::{CliError, Exit, Printer};

/// Repeats what an allocator did, and what it would have done under other circumstances.
pub(crate) fn replay(args: &ReplayArgs, settings: &Settings, printer: &Printer) -> Result<Exit, CliError> {
    let (input, problems) = input::read(&args.file)?;
    let report = match input {
        Source::Snapshot(snapshot) => of_snapshot(args, &snapshot, problems)?,
        Source::Recording(_) | Source::Texts(_) => {
            return Err(CliError::NothingToReplay { path: args.file.clone() });
        }
    };
    let canvas = printer.canvas();
    answer(&report, || text::replay(&report, canvas), &args.out, settings, printer)?;
    let asked = report.recorded.is_some();
    Ok(if asked && report.oom.is_some() { Exit::BadNews } else { Exit::Good })
}

fn of_snapshot(
    args: &ReplayArgs,
    snapshot: &Snapshot,
    problems: Vec<String>,
) -> Result<ReplayReport, CliError> {
    let devices: Vec<u32> = snapshot.devices().into_iter().map(|device| device as u32).collect();
    let busiest = devices
        .iter()
        .copied()
        .max_by_key(|device| (snapshot.trace(*device as usize).len(), std::cmp::Reverse(*device)));
    let device = args.device.or(busiest).unwrap_or(0);
    if args.device.is_some() && !devices.contains(&device) {
        return Err(CliError::NoSuchDevice { device, devices });
    }
    let mut recorded = Given::from_snapshot(snapshot);
    if let Some(release) = args.torch {
        recorded.release = release;
    }
    let Tracked { track, verification } = track(snapshot, device as usize, &recorded)?;
    let failures = Failures { snapshot, device: device as usize };
    let own_conf = snapshot.settings.as_ref().map(|settings| settings.text.clone()).unwrap_or_default();
    let torch = recorded.release.to_string();
    let mut report = report(args, device, devices, &verification, problems);
    report.peak = peak(&track);
    report.oom = failures.last(&track);
    report.under = Circumstances { alloc_conf: own_conf, capacity: failures.limit(&track), torch };
    report.before = before(snapshot, device, &recorded);
    if args.alloc_conf.is_some() || args.capacity.is_some() {
        other_circumstances(args, &track, &recorded, &mut report)?;
    }
    Ok(report)
}

/// What holds of the recording whatever is asked.
fn report(
    args: &ReplayArgs,
    device: u32,
    devices: Vec<u32>,
    found: &Verification,
    problems: Vec<String>,
) -> ReplayReport {
    let mismatches = found.mismatches.iter().map(|mismatch| {
        let (address, size) = mismatch.recorded;
        let instead = mismatch.replayed.map_or_else(
            || "nothing".to_owned(),
            |(action, address, size)| format!("{action:?} of {size} bytes at {address:#x}"),
        );
        format!(
            "at event {}: {:?} of {size} bytes at {address:#x} was recorded, and the replay did {instead}",
            mismatch.event, mismatch.action
        )
    });
    ReplayReport {
        schema: schema::REPLAY.to_owned(),
        file: args.file.display().to_string(),
        device,
        devices,
        events: found.events,
        addresses: predicted(found.addresses),
        segments: predicted(found.segments),
        blocks: predicted(found.blocks),
        peak: ReplayPeak::default(),
        oom: None,
        under: Circumstances { alloc_conf: String::new(), capacity: None, torch: String::new() },
        recorded: None,
        statistics: found.stats.named().into_iter().collect(),
        before: 0,
        uncertain: found.uncertain,
        resumed: found.resumed,
        mismatches: mismatches.collect(),
        problems,
    }
}

const fn predicted(tally: Tally) -> Predicted {
    Predicted { predicted: tally.predicted, matching: tally.matching }
}

/// Makes the calls once more, under what was asked for.
fn other_circumstances(
    args: &ReplayArgs,
    track: &Track,
    recorded: &Given,
    report: &mut ReplayReport,
) -> Result<(), CliError> {
    let mut given = *recorded;
    if let Some(conf) = &args.alloc_conf {
        given.settings = AllocatorSettings::parse(conf, given.release)?;
    }
    let asked = args.capacity.map(memfit_devices::Bytes::get);
    let capacity = asked.or(report.under.capacity);
    if let Some(capacity) = capacity {
        given.capacity = capacity;
    }
    let then = Program::of(track, report.device as u8).run(&given, |_| Edit::Keep);
    let own = Circumstances {
        alloc_conf: args.alloc_conf.clone().unwrap_or_else(|| report.under.alloc_conf.clone()),
        capacity,
        torch: given.release.to_string(),
    };
    report.recorded = Some(Recorded {
        peak: report.peak,
        oom: report.oom,
        under: std::mem::replace(&mut report.under, own),
    });
    report.peak = peak_of(&then.stats);
    report.statistics = then.stats.named().into_iter().collect();
    report.oom = then.died.map(|(moment, oom)| ReplayOom {
        event: event_at(track, moment, report.events),
        requested: oom.requested,
        allocated: oom.allocated,
        reserved: oom.reserved,
        device_free: Some(oom.device_free),
    });
    Ok(())
}

/// The place of a moment among the events of the trace: those that stand for what was there before are not counted.
fn event_at(track: &Track, moment: u32, events: u64) -> u64 {
    let traced = |moment: &Moment| moment.kind.has_totals();
    let all = track.moments().iter().filter(traced).count() as u64;
    let passed = track.moments().iter().take(moment as usize).filter(traced).count() as u64;
    passed.saturating_sub(all.saturating_sub(events))
}

const fn peak_of(stats: &Stats) -> ReplayPeak {
    ReplayPeak {
        allocated: stats.allocated_bytes.all.peak as u64,
        reserved: stats.reserved_bytes.all.peak as u64,
    }
}

fn peak(track: &Track) -> ReplayPeak {
    let most = |figure: fn(&memfit_recording::Moment) -> u64| {
        track.moments().iter().map(|moment| figure(&moment)).max()
    };
    ReplayPeak {
        allocated: most(|moment| moment.allocated).unwrap_or(0),
        reserved: most(|moment| moment.reserved).unwrap_or(0),
    }
}

/// Bytes of blocks that were there before the first event.
fn before(snapshot: &Snapshot, device: u32, recorded: &Given) -> u64 {
    let segments = rewind(snapshot, device as usize, recorded, 0).segments;
    let blocks = segments.iter().flat_map(|segment| &segment.blocks);
    blocks.filter(|block| block.state != BlockState::Free).map(|block| block.size).sum()
}

/// Requests that failed.
struct Failures<'snapshot> {
    snapshot: &'snapshot Snapshot,
    device: usize,
}

impl Failures<'_> {
    fn last(&self, track: &Track) -> Option<ReplayOom> {
        let trace = self.snapshot.trace(self.device);
        let (event, failed) =
            trace.iter().enumerate().rfind(|(_, event)| event.action == TraceAction::Oom)?;
        let totals = track.moments().iter().rfind(|moment| matches!(moment.kind, MomentKind::Oom(_)));
        Some(ReplayOom {
            event: event as u64,
            requested: failed.size,
            allocated: totals.map_or(0, |moment| moment.allocated),
            reserved: totals.map_or(0, |moment| moment.reserved),
            device_free: Some(failed.address),
        })
    }

    /// What the allocator could get: where it failed, all that it held and all that was left.
    fn limit(&self, track: &Track) -> Option<u64> {
        let oom = self.last(track)?;
        Some(oom.reserved + oom.device_free?)
    }
}
