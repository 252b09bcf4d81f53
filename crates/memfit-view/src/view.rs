//! Data for the page: a JSON manifest that is loaded at once, and sections that are loaded on demand.

use std::collections::HashMap;

use memfit_recording::Origin;
use memfit_vocabulary::Category;
use serde::Serialize;
use serde_json::Value;

use crate::chunks::{self, Chunk, blocks_in_chunks};
use crate::columns::Columns;
use crate::envelope::{FANOUT, FINEST, series};
use crate::redact::{redact, redact_explanation};
use crate::{FIRST_LEVEL_MAX_LIFE, Lane};

/// Version of the interface between the page and this crate.
const SCHEMA: &str = "memfit.view/1";
/// Number of lines in the summary's list of holders.
const MAX_HOLDERS: usize = 12;

/// Recording to be packed.
#[derive(Debug)]
pub struct ViewedRecording {
    /// Name: that of its file.
    pub name: String,
    /// Origin.
    pub origin: Origin,
    /// Lanes: one for each device of each process.
    pub lanes: Vec<Lane>,
    /// Explanation, as printed by `memfit explain`.
    pub explanation: Option<Value>,
    /// Gaps of the recording, in sentences.
    pub remarks: Vec<String>,
}

/// Data for the page.
#[derive(Debug)]
pub struct View {
    manifest: Manifest,
    sections: Vec<Vec<u8>>,
}

#[derive(Debug, Serialize)]
struct Manifest {
    schema: &'static str,
    memfit: &'static str,
    confidential: bool,
    finest: u32,
    fanout: usize,
    first_level_max_life: u32,
    recordings: Vec<RecordingInfo>,
}

#[derive(Debug, Serialize)]
struct RecordingInfo {
    name: String,
    kind: Value,
    torch: Option<String>,
    device: Option<String>,
    capacity: Option<u64>,
    command: Vec<String>,
    explanation: Option<Value>,
    remarks: Vec<String>,
    lanes: Vec<LaneInfo>,
}

#[derive(Debug, Serialize)]
pub(crate) struct LaneInfo {
    pub(crate) title: String,
    pub(crate) rank: Option<u32>,
    pub(crate) device: u8,
    ticks: u32,
    pub(crate) blocks: usize,
    pub(crate) peak: PeakInfo,
    categories: Vec<Category>,
    pub(crate) holders: Vec<Holder>,
    levels: Vec<Vec<BinsInfo>>,
    chunks: Vec<Chunk>,
    places: usize,
    times: TableInfo,
    changes: TableInfo,
    beyond: TableInfo,
    marks: TableInfo,
    spans: TableInfo,
    pools: Vec<PoolInfo>,
}

/// State at the peak of the allocated bytes.
#[derive(Debug, Default, Serialize)]
pub(crate) struct PeakInfo {
    tick: u32,
    pub(crate) allocated: u64,
    pub(crate) reserved: u64,
    pub(crate) highest_reserved: u64,
    pub(crate) by_category: Vec<(Category, u64)>,
}

/// Line with the bytes of its blocks at the peak.
#[derive(Debug, Serialize)]
pub(crate) struct Holder {
    pub(crate) category: Category,
    pub(crate) place: String,
    pub(crate) bytes: u64,
    pub(crate) blocks: usize,
}

#[derive(Debug, Serialize)]
struct BinsInfo {
    count: usize,
    section: usize,
}

#[derive(Debug, Serialize)]
struct TableInfo {
    count: usize,
    section: usize,
}

#[derive(Debug, Serialize)]
struct PoolInfo {
    owner: [String; 2],
    stream: String,
    small: Option<bool>,
    expandable: bool,
}

impl View {
    /// Packs one recording, or two to be compared.
    pub fn new(mut recordings: Vec<ViewedRecording>, confidential: bool) -> Self {
        if confidential {
            for (recorded, name) in recordings.iter_mut().zip(["recording A", "recording B"]) {
                name.clone_into(&mut recorded.name);
                recorded.origin.command.clear();
                recorded.remarks.clear();
                recorded.lanes.iter_mut().for_each(redact);
                recorded.explanation = recorded.explanation.as_ref().map(redact_explanation);
            }
        }
        let mut sections = Vec::new();
        let recordings = recordings.into_iter().map(|recorded| {
            let several = recorded.lanes.len() > 1;
            RecordingInfo {
                name: recorded.name,
                kind: serde_json::to_value(recorded.origin.kind).unwrap_or_default(),
                torch: recorded.origin.torch,
                device: recorded.origin.device,
                capacity: recorded.origin.capacity,
                command: recorded.origin.command,
                explanation: recorded.explanation,
                remarks: recorded.remarks,
                lanes: recorded.lanes.iter().map(|lane| pack(lane, several, &mut sections)).collect(),
            }
        });
        let recordings = recordings.collect();
        let memfit = env!("CARGO_PKG_VERSION");
        let (finest, fanout, first_level_max_life) = (FINEST, FANOUT, FIRST_LEVEL_MAX_LIFE);
        let manifest = Manifest {
            schema: SCHEMA,
            memfit,
            confidential,
            finest,
            fanout,
            first_level_max_life,
            recordings,
        };
        Self { manifest, sections }
    }

    /// Manifest as JSON.
    pub fn manifest(&self) -> String {
        // Contains only numbers, texts and lists, so that serialisation cannot fail.
        serde_json::to_string(&self.manifest).unwrap_or_default()
    }

    /// Sections, each compressed separately.
    pub fn sections(&self) -> &[Vec<u8>] {
        &self.sections
    }

    /// Title of the page.
    pub(crate) fn title(&self) -> String {
        let names: Vec<&str> = self.manifest.recordings.iter().map(|info| info.name.as_str()).collect();
        names.join(" and ")
    }

    /// Name, cause and lanes of each recording, for the summary without scripts.
    pub(crate) fn summaries(&self) -> impl Iterator<Item = (&str, Option<&Value>, &[LaneInfo])> {
        let infos = self.manifest.recordings.iter();
        infos.map(|info| (info.name.as_str(), info.explanation.as_ref(), &info.lanes[..]))
    }
}

fn pack(lane: &Lane, several: bool, sections: &mut Vec<Vec<u8>>) -> LaneInfo {
    let mut keep = |section: Vec<u8>| {
        sections.push(section);
        sections.len() - 1
    };
    let categories = lane.envelope.categories();
    let levels = (0..lane.envelope.levels().len()).map(|level| {
        let bins = lane.envelope.sections(level, &categories).into_iter();
        bins.map(|(count, section)| BinsInfo { count, section: keep(section) }).collect()
    });
    let levels = levels.collect();
    let (order, chunks) = blocks_in_chunks(&lane.pieces);
    let chunks = chunks
        .into_iter()
        .map(|(chunk, range)| Chunk { section: keep(chunks::section(&lane.pieces, &order[range])), ..chunk });
    let chunks = chunks.collect();
    let mut table = |count: usize, fill: &dyn Fn(&mut Columns)| {
        let mut columns = Columns::default();
        fill(&mut columns);
        TableInfo { count, section: keep(columns.pack()) }
    };
    let pairs = |columns: &mut Columns, pairs: &[(u32, u64)]| {
        columns.deltas(pairs.iter().map(|(tick, _)| u64::from(*tick)));
        columns.deltas(pairs.iter().map(|(_, bytes)| *bytes));
    };
    LaneInfo {
        title: title(lane, several),
        rank: lane.rank,
        device: lane.device,
        ticks: lane.length,
        blocks: lane.pieces.len(),
        peak: peak(lane),
        holders: holders(lane),
        categories,
        levels,
        chunks,
        times: table(lane.times.len(), &|columns| pairs(columns, &lane.times)),
        changes: table(lane.reserved.len(), &|columns| pairs(columns, &lane.reserved)),
        beyond: table(lane.beyond.len(), &|columns| pairs(columns, &lane.beyond)),
        marks: table(lane.marks.len(), &|columns| {
            columns.deltas(lane.marks.iter().map(|mark| u64::from(mark.tick)));
            columns.numbers(lane.marks.iter().map(|mark| mark.kind.code().0));
            columns.numbers(lane.marks.iter().map(|mark| mark.kind.code().1));
            // Zero means that the time is unknown.
            columns.deltas(lane.marks.iter().map(|mark| mark.time.map_or(0, |time| time + 1)));
        }),
        spans: table(lane.spans.len(), &|columns| {
            columns.deltas(lane.spans.iter().map(|span| u64::from(span.born)));
            columns.numbers(lane.spans.iter().map(|span| u64::from(span.freed.saturating_sub(span.born))));
            columns.deltas(lane.spans.iter().map(|span| span.address));
            columns.numbers(lane.spans.iter().map(|span| span.bytes));
            columns.numbers(lane.spans.iter().map(|span| u64::from(span.pool)));
        }),
        pools: lane
            .pools
            .iter()
            .map(|pool| PoolInfo {
                // As texts: numbers are exact only up to 2^53 in JavaScript, and handles may be larger.
                owner: [pool.owner.0.to_string(), pool.owner.1.to_string()],
                stream: pool.stream.to_string(),
                small: pool.small,
                expandable: pool.expandable,
            })
            .collect(),
        places: keep(lane.places.section()),
    }
}

fn title(lane: &Lane, several: bool) -> String {
    match lane.rank {
        Some(rank) => format!("rank {rank} · GPU {}", lane.device),
        None if several && lane.pid != 0 => format!("process {} · GPU {}", lane.pid, lane.device),
        None => format!("GPU {}", lane.device),
    }
}

fn peak(lane: &Lane) -> PeakInfo {
    let Some(whole) = lane.envelope.whole() else { return PeakInfo::default() };
    let by_category = Category::ALL.iter().map(|category| (*category, whole.at_peak[series(*category)]));
    PeakInfo {
        tick: whole.peak,
        allocated: whole.allocated.1,
        reserved: whole.at_peak.iter().sum(),
        highest_reserved: whole.reserved.1,
        by_category: by_category.filter(|(_, bytes)| *bytes > 0).collect(),
    }
}

/// Lines (or modules, if no lines are known) with the most bytes at the peak.
fn holders(lane: &Lane) -> Vec<Holder> {
    let tick = lane.envelope.whole().map_or(0, |whole| whole.peak);
    let mut held: HashMap<(Category, String), (u64, usize)> = HashMap::new();
    let mut names: HashMap<(u32, u32), String> = HashMap::new();
    for piece in lane.pieces.iter().filter(|piece| piece.is_live_at(tick)) {
        let name = names.entry((piece.stack, piece.module)).or_insert_with(|| {
            let line = lane.places.line(piece.stack).map(|(file, line)| format!("{file}:{line}"));
            line.unwrap_or_else(|| lane.places.name(piece.module).to_owned())
        });
        let entry = held.entry((piece.category, name.clone())).or_default();
        entry.0 += piece.asked;
        entry.1 += 1;
    }
    let mut holders: Vec<Holder> = held
        .into_iter()
        .map(|((category, place), (bytes, blocks))| Holder { category, place, bytes, blocks })
        .collect();
    holders.sort_by(|one, other| other.bytes.cmp(&one.bytes).then_with(|| one.place.cmp(&other.place)));
    holders.truncate(MAX_HOLDERS);
    holders
}
