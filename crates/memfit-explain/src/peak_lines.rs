//! Lines that hold memory at the peak.

use std::collections::{BTreeMap, BTreeSet};

use memfit_recording::{Recording, TextId, Track};
use memfit_vocabulary::Category;

use crate::origins::{Origins, Site};
use crate::timeline::Timeline;
use crate::{at_peak, peak_moment};

/// Bytes that a line of user code holds at the peak, for one category and module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineBytes {
    /// File, as recorded.
    pub file: String,
    /// Line number, from 1.
    pub line: u32,
    /// Function.
    pub function: String,
    /// Category of the tensors.
    pub category: Category,
    /// Module that owns them, or in whose call they were allocated; empty if unknown.
    pub module: String,
    /// Requested bytes.
    pub bytes: u64,
}

/// Lines that hold memory at a device's peak, largest first. Blocks without a known line are left out.
pub fn lines_at_peak(track: &Track, device: u8) -> Vec<LineBytes> {
    let (Some(moment), Some(timeline)) = (peak_moment(track, device), Timeline::from_track(track, device))
    else {
        return Vec::new();
    };
    let mut sums: BTreeMap<(Site, Category, TextId), u64> = BTreeMap::new();
    for life in timeline.live_at(moment) {
        if let Some(site) = life.site {
            *sums.entry((site, life.category, life.module())).or_default() += life.requested_bytes();
        }
    }
    let text = |id| track.texts.get(id).to_owned();
    let mut lines: Vec<LineBytes> = sums
        .into_iter()
        .map(|((site, category, module), bytes)| LineBytes {
            file: text(site.file),
            line: site.line,
            function: text(site.function),
            category,
            module: text(module),
            bytes,
        })
        .collect();
    lines.sort_by(|one, other| {
        let key = |line: &LineBytes| (std::cmp::Reverse(line.bytes), line.file.clone(), line.line);
        key(one).cmp(&key(other)).then_with(|| one.module.cmp(&other.module))
    });
    lines
}

/// The track and device with the most reserved memory.
pub fn fullest_device(recording: &Recording) -> Option<(&Track, u8)> {
    let mut best: Option<(u64, &Track, u8)> = None;
    for track in &recording.tracks {
        for device in track.devices() {
            let reserved = at_peak(track, device).map_or(0, |found| found.reserved);
            // Of equal ones the first, which is rank 0's.
            if best.is_none_or(|(most, ..)| reserved > most) {
                best = Some((reserved, track, device));
            }
        }
    }
    best.map(|(_, track, device)| (track, device))
}

/// Files of user code in a track's stacks, as recorded.
pub fn user_files(track: &Track) -> BTreeSet<String> {
    let origins = Origins::from_track(track);
    let files: BTreeSet<TextId> =
        origins.all().flat_map(|origin| &origin.user).map(|site| site.file).collect();
    files.into_iter().map(|file| track.texts.get(file).to_owned()).collect()
}
