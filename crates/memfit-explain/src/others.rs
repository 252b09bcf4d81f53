//! Description of a recorded process as another process on the same GPU.

use memfit_recording::{NEVER, Track};

use crate::case::{Kin, OtherProcess};
use crate::explanation::Line;
use crate::from_text::WORKER_LOOP;
use crate::origins::Origins;

/// Memory that a track's process held on a device at its end, and the lines that allocated most of it.
pub(crate) fn other_process(track: &Track, device: u8) -> OtherProcess {
    let last = track.moments().iter().rev().find(|moment| moment.device == device);
    let reserved = last.map_or(0, |moment| moment.reserved);
    let held = track.blocks().iter().filter(|block| block.device == device && block.freed == NEVER);
    let lines = held.max_by_key(|block| block.bytes).map_or_else(Vec::new, |largest| {
        let site = |site: &crate::origins::Site| Line {
            file: track.texts.get(site.file).to_owned(),
            line: site.line,
            function: track.texts.get(site.function).to_owned(),
            text: None,
        };
        Origins::from_track(track).get(largest.stack).user.iter().map(site).collect()
    });
    let loops = track.stacks.frames().iter().any(|frame| track.texts.get(frame.file).ends_with(WORKER_LOOP));
    let kin = if loops { Kin::LoaderWorker } else { Kin::OfScript };
    OtherProcess { pid: track.pid, kin, lines, reserved, bytes: reserved }
}
