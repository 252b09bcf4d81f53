//! The event logs of a run as a Recording, and what filled a card when it was fullest.

use std::fs::File;
use std::io::BufWriter;
use std::path::Path;

use memfit_channel::{RunDir, events};
use memfit_explain::{Composition, at_peak};
use memfit_recording::{MomentKind, Origin, OriginKind, Recording, Track};
use memfit_report::wire::{AtPeak, CategoryBytes, ModuleBytes};

use crate::inbox::Inbox;
use crate::{Facts, Request, RunError};

/// How many modules a report names.
const MODULES: usize = 20;

/// What a process's log says about the device that it used most.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fullest {
    /// The device, as the process numbers it.
    pub(crate) device: u32,
    /// The most bytes in blocks.
    pub(crate) allocated: u64,
    /// The most bytes in segments.
    pub(crate) reserved: u64,
    /// What filled it when it was fullest.
    pub(crate) at_peak: Option<AtPeak>,
}

/// The tracks of the processes that left a log.
pub(crate) fn tracks(run_dir: &RunDir, inbox: &Inbox) -> Vec<Track> {
    let pids = run_dir.event_pids().unwrap_or_default();
    pids.into_iter()
        .filter_map(|pid| {
            // A log that is not whole still tells what it holds; one that cannot be read tells nothing.
            let (log, _problems) = events::read(&run_dir.events(pid)).ok()?;
            let rank = inbox.processes.get(&pid).and_then(|speaker| speaker.rank);
            Some(Track::from_log(&log, rank)).filter(|track| !track.blocks().is_empty())
        })
        .collect()
}

/// What a track says about the device that it used most.
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
    fullest.at_peak = u8::try_from(fullest.device).ok().and_then(|device| at_peak(track, device)).map(wire);
    Some(fullest)
}

fn wire(composition: Composition) -> AtPeak {
    let module = |module: memfit_explain::ModuleBytes| ModuleBytes { name: module.name, bytes: module.bytes };
    AtPeak {
        step: composition.step,
        phase: composition.phase,
        allocated: composition.allocated,
        reserved: composition.reserved,
        by_category: composition.by_category.into_iter().collect::<CategoryBytes>(),
        modules: composition.modules.into_iter().take(MODULES).map(module).collect(),
    }
}

/// The allocator's settings, as the environment gives them to the script: the newer name wins.
pub(crate) fn alloc_conf() -> Option<String> {
    let set = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    set("PYTORCH_ALLOC_CONF").or_else(|| set("PYTORCH_CUDA_ALLOC_CONF"))
}

/// The recording of a run.
pub(crate) fn whole(request: &Request, facts: &Facts, tracks: Vec<Track>) -> Recording {
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
        },
        tracks,
    }
}

/// Saves a recording.
pub(crate) fn save(path: &Path, recording: &Recording) -> Result<(), RunError> {
    let file = File::create(path).map_err(RunError::io("write", path))?;
    recording
        .write(BufWriter::new(file))
        .map_err(|source| RunError::Recording { path: path.to_owned(), source: Box::new(source) })
}
