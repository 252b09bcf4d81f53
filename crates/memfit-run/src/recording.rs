//! Converts the event logs of a run to a recording, and computes the composition of a device's peak.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufReader, BufWriter};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use memfit_channel::{RunDir, events};
use memfit_explain::{Composition, LineBytes, RepeatedWork, at_peak, lines_at_peak, repeated_work};
use memfit_recording::{Limits, MomentKind, NEVER, Origin, OriginKind, Recording, SourceFile, Track, Trial};
use memfit_report::wire::{AtPeak, CategoryBytes, CodeLine, ModuleBytes, OutsideModules};
use memfit_vocabulary::Phase;

use crate::inbox::Inbox;
use crate::{Facts, Request, RunError};

/// Maximum modules that a report names.
const MAX_MODULES: usize = 20;

/// Log summary of the device that a process used most.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fullest {
    /// Device, by the process's own index.
    pub(crate) device: u32,
    /// Peak bytes in blocks.
    pub(crate) allocated: u64,
    /// Peak bytes in segments.
    pub(crate) reserved: u64,
    /// Composition of the peak.
    pub(crate) at_peak: Option<AtPeak>,
    /// Work of an early step that would exceed the peak in a later one.
    pub(crate) repeated: Option<RepeatedWork>,
}

/// Tracks of the processes that left a log.
pub(crate) fn tracks(run_dir: &RunDir, inbox: &Inbox) -> Vec<Track> {
    let pids = run_dir.event_pids().unwrap_or_default();
    pids.into_iter()
        .filter_map(|pid| {
            // An incomplete log is used up to its end; an unreadable one is skipped.
            let (log, _problems) = events::read(&run_dir.events(pid)).ok()?;
            let rank = inbox.processes.get(&pid).and_then(|speaker| speaker.rank);
            Some(Track::from_log(&log, rank)).filter(|track| !track.blocks().is_empty())
        })
        .collect()
}

/// Summary of the device that a track used most.
pub(crate) fn fullest(track: &Track) -> Option<Fullest> {
    let mut devices: Vec<Fullest> = Vec::new();
    for moment in track.moments() {
        if !matches!(moment.kind, MomentKind::Alloc(_) | MomentKind::Free(_) | MomentKind::Oom(_)) {
            continue;
        }
        let device = u32::from(moment.device);
        let at = devices.iter().position(|fullest| fullest.device == device).unwrap_or_else(|| {
            devices.push(Fullest { device, ..Fullest::default() });
            devices.len() - 1
        });
        devices[at].allocated = devices[at].allocated.max(moment.allocated);
        devices[at].reserved = devices[at].reserved.max(moment.reserved);
    }
    let mut fullest = devices.into_iter().max_by_key(|fullest| fullest.reserved)?;
    let device = u8::try_from(fullest.device).ok();
    fullest.repeated = device.and_then(|device| repeated_work(track, device));
    fullest.at_peak = device.and_then(|device| {
        let composition = at_peak(track, device)?;
        let largest = composition.modules.first().map_or(0, |module| module.bytes);
        // The line is only reported where it holds more than any module.
        let line = if composition.outside_modules > largest {
            lines_at_peak(track, device).into_iter().find(|line| line.module.is_empty())
        } else {
            None
        };
        Some(wire(composition, line))
    });
    Some(fullest)
}

/// Number of forward passes of a script that has not trained yet: calls of a whole model, as far as no
/// backward pass has begun.
pub(crate) fn passes_without_training(tracks: &[Track]) -> usize {
    let trains = |track: &Track| track.phases().any(|(_, phase)| phase == Phase::Backward);
    if tracks.iter().any(trains) {
        return 0;
    }
    let of_track = |track: &Track| track.calls.iter().filter(|call| call.parent == NEVER).count();
    tracks.iter().map(of_track).max().unwrap_or(0)
}

/// Builds the wire form. `outside` is the line that allocated most of the memory that belongs to no module.
fn wire(composition: Composition, outside: Option<LineBytes>) -> AtPeak {
    let module = |module: memfit_explain::ModuleBytes| ModuleBytes { name: module.name, bytes: module.bytes };
    AtPeak {
        step: composition.step,
        phase: composition.phase,
        allocated: composition.allocated,
        reserved: composition.reserved,
        by_category: composition.by_category.into_iter().collect::<CategoryBytes>(),
        modules: composition.modules.into_iter().take(MAX_MODULES).map(module).collect(),
        outside_modules: (composition.outside_modules > 0).then(|| OutsideModules {
            bytes: composition.outside_modules,
            line: outside.map(|line| CodeLine {
                file: line.file,
                line: line.line,
                function: line.function,
                text: None,
            }),
        }),
    }
}

/// Allocator settings from the script's environment. The newer variable name takes precedence.
pub(crate) fn alloc_conf() -> Option<String> {
    let set = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    set("PYTORCH_ALLOC_CONF").or_else(|| set("PYTORCH_CUDA_ALLOC_CONF"))
}

/// Builds the recording of a run.
pub(crate) fn build(request: &Request, facts: &Facts, tracks: Vec<Track>) -> Recording {
    let device = request.card.info();
    Recording {
        origin: Origin {
            kind: if request.card.is_local() { OriginKind::RealRun } else { OriginKind::VirtualRun },
            memfit: crate::VERSION.to_owned(),
            torch: facts.torch.clone(),
            device: Some(device.name),
            capacity: Some(device.capacity).filter(|capacity| *capacity > 0),
            oom: facts.oom.as_ref().and_then(|oom| oom.text.clone()),
            oom_process: facts.oom.as_ref().map(|oom| oom.process),
            alloc_conf: facts.alloc_conf.clone(),
            command: facts.command.clone(),
            sources: Vec::new(),
            trials: Vec::new(),
        },
        tracks,
    }
}

/// The user's source files that occur in the tracks' stacks. Files written after the start of the run are
/// left out, since their content may not be what ran.
pub(crate) fn sources(tracks: &[Track], began: SystemTime) -> Vec<SourceFile> {
    let files: BTreeSet<String> = tracks.iter().flat_map(memfit_explain::user_files).collect();
    let source = |file: String| {
        let path = std::fs::canonicalize(&file).ok()?;
        let before = last_change(&path)? < began;
        let text = crate::read_source(path.to_str()?).filter(|_| before)?;
        Some(SourceFile::new(file, path, &text))
    };
    files.into_iter().filter_map(source).collect()
}

/// Time of the last change of a file's content or inode. The inode time also reveals renamed files and copies
/// that keep the original's time.
fn last_change(path: &Path) -> Option<SystemTime> {
    let meta = std::fs::metadata(path).ok()?;
    let inode = u64::try_from(meta.ctime()).ok()?;
    let nanoseconds = u32::try_from(meta.ctime_nsec()).ok()?;
    Some(meta.modified().ok()?.max(SystemTime::UNIX_EPOCH + Duration::new(inode, nanoseconds)))
}

/// Saves a recording.
pub(crate) fn save(path: &Path, recording: &Recording) -> Result<(), RunError> {
    let file = File::create(path).map_err(RunError::io("write", path))?;
    recording
        .write(BufWriter::new(file))
        .map_err(|source| RunError::Recording { path: path.to_owned(), source: Box::new(source) })
}

/// Adds the results of further runs with remedies to a saved recording.
pub(crate) fn add_trials(path: &Path, trials: Vec<Trial>) -> Result<(), RunError> {
    let wrong = |source| RunError::Recording { path: path.to_owned(), source: Box::new(source) };
    let file = File::open(path).map_err(RunError::io("read", path))?;
    let mut recording = Recording::read(BufReader::new(file), Limits::default()).map_err(wrong)?;
    recording.origin.trials = trials;
    // An interrupted write must not damage the recording that is there.
    let mut name = path.as_os_str().to_owned();
    name.push(".part");
    let part = PathBuf::from(name);
    save(&part, &recording)?;
    std::fs::rename(&part, path).map_err(RunError::io("write", path))
}
