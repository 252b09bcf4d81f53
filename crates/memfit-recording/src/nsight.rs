//! Reader of SQLite exports of Nsight Systems: CUDA memory events and NVTX ranges of a process.
//!
//! The file is parsed as pages, trees and records. No SQL is executed and nothing is written. Sizes and
//! offsets in the file are checked against its length.

mod sqlite;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::io::Read;

use memfit_vocabulary::Phase;

use self::sqlite::{Cell, Database, SqliteError};
use crate::error::OpenError;
use crate::snapshot::Problem;
use crate::{Block, MomentKind, Origin, OriginKind, RangeSource, Recording, StackId, Totals, Track, Unknown};

/// Largest file that is read. It is held in memory, since its pages refer to one another.
const MAX_FILE_BYTES: u64 = 4 << 30;
/// Maximum number of rows of all tables together.
const MAX_ROWS: usize = 100_000_000;

/// Values of `memKind` in `CUDA_GPU_MEMORY_USAGE_EVENTS` for device memory: plain memory, arrays, module
/// globals.
const DEVICE_MEMORY: [i64; 3] = [2, 3, 5];
/// Values of `memoryOperationType`.
const ALLOCATION: i64 = 0;
const DEALLOCATION: i64 = 1;
/// Values of `eventType` for NVTX ranges: push/pop of a thread and start/end of a process, and both with
/// registered strings.
const NVTX_RANGES: [i64; 4] = [59, 60, 70, 71];

#[derive(Clone, Copy)]
struct Usage {
    time_ns: i64,
    process: i64,
    device: u8,
    address: u64,
    bytes: u64,
    is_free: bool,
}

struct Range {
    begin_ns: i64,
    end_ns: i64,
    thread: i64,
    name: String,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum EventKind {
    End(usize),
    Begin(usize),
    Memory(usize),
}

/// Reads an export. Damaged parts are skipped and reported among the problems.
pub(crate) fn read(file: impl Read) -> Result<(Recording, Vec<Problem>), OpenError> {
    let broken = |why: String| OpenError::Broken { format: "SQLite file", why };
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(broken(format!("it is larger than {} GiB", MAX_FILE_BYTES >> 30)));
    }
    let database = Database::open(&bytes).map_err(|error| broken(error.to_string()))?;
    let mut errors = Vec::new();
    let mut malformed = 0;
    let usage = usages(&database, &mut malformed, &mut errors);
    let Some(usage) = usage else {
        let error = errors.into_iter().next();
        let why = error.map_or_else(
            || "it has no table `CUDA_GPU_MEMORY_USAGE_EVENTS`: record with `nsys profile --cuda-memory-usage=true`".to_owned(),
            |error: SqliteError| error.to_string(),
        );
        return Err(broken(why));
    };
    let ranges = nvtx(&database, &mut errors);
    let origin = origin(&database, &mut errors);
    let mut problems: Vec<Problem> =
        errors.iter().map(|error| Problem::Database(error.to_string())).collect();
    if malformed > 0 {
        problems.push(Problem::Malformed(malformed));
    }
    Ok((recording(origin, usage, &ranges), problems))
}

fn usages(database: &Database<'_>, malformed: &mut u64, errors: &mut Vec<SqliteError>) -> Option<Vec<Usage>> {
    let columns = ["start", "globalPid", "deviceId", "address", "bytes", "memKind", "memoryOperationType"];
    let mut usages = Vec::new();
    let found = database.rows("CUDA_GPU_MEMORY_USAGE_EVENTS", &columns, MAX_ROWS, |row| {
        let number = |column: usize| row[column].as_i64();
        if number(5).is_some_and(|kind| !DEVICE_MEMORY.contains(&kind)) {
            return;
        }
        let is_free = match number(6) {
            Some(ALLOCATION) => false,
            Some(DEALLOCATION) => true,
            _ => {
                *malformed += 1;
                return;
            }
        };
        let (Some(time_ns), Some(address), Some(bytes)) = (number(0), number(3), number(4)) else {
            *malformed += 1;
            return;
        };
        usages.push(Usage {
            time_ns,
            process: number(1).unwrap_or(0),
            device: number(2).and_then(|device| u8::try_from(device).ok()).unwrap_or(0),
            address: address.cast_unsigned(),
            bytes: bytes.unsigned_abs(),
            is_free,
        });
    });
    match found {
        Ok(true) => Some(usages),
        Ok(false) => None,
        Err(error) => {
            errors.push(error);
            (!usages.is_empty()).then_some(usages)
        }
    }
}

fn nvtx(database: &Database<'_>, errors: &mut Vec<SqliteError>) -> Vec<Range> {
    let mut texts: HashMap<i64, String> = HashMap::new();
    let strings = database.rows("StringIds", &["id", "value"], MAX_ROWS, |row| {
        if let (Some(id), Cell::Text(value)) = (row[0].as_i64(), &row[1]) {
            texts.insert(id, String::from_utf8_lossy(value).into_owned());
        }
    });
    errors.extend(strings.err());
    let columns = ["start", "end", "eventType", "text", "textId", "globalTid"];
    let mut ranges = Vec::new();
    let events = database.rows("NVTX_EVENTS", &columns, MAX_ROWS, |row| {
        let number = |column: usize| row[column].as_i64();
        if !number(2).is_some_and(|kind| NVTX_RANGES.contains(&kind)) {
            return;
        }
        let name = match &row[3] {
            Cell::Text(text) => Some(String::from_utf8_lossy(text).into_owned()),
            _ => number(4).and_then(|id| texts.get(&id).cloned()),
        };
        if let (Some(begin_ns), Some(name)) = (number(0), name) {
            let end_ns = number(1).unwrap_or(i64::MAX).max(begin_ns);
            ranges.push(Range { begin_ns, end_ns, thread: number(5).unwrap_or(0), name });
        }
    });
    errors.extend(events.err());
    ranges
}

fn origin(database: &Database<'_>, errors: &mut Vec<SqliteError>) -> Origin {
    let mut origin = Origin { kind: OriginKind::NsightSystems, ..Origin::default() };
    let gpus = database.rows("TARGET_INFO_GPU", &["name", "totalMemory"], 64, |row| {
        if let (None, Cell::Text(name)) = (&origin.device, &row[0]) {
            origin.device = Some(String::from_utf8_lossy(name).into_owned());
            origin.capacity = row[1].as_i64().and_then(|memory| u64::try_from(memory).ok());
        }
    });
    errors.extend(gpus.err());
    origin
}

/// Builds a track for each process. Each CUDA allocation becomes a block that fills its segment, since the
/// export does not contain the caching allocator's blocks.
fn recording(origin: Origin, mut usages: Vec<Usage>, ranges: &[Range]) -> Recording {
    usages.sort_by_key(|usage| usage.time_ns);
    let mut processes: Vec<i64> = usages.iter().map(|usage| usage.process).collect();
    processes.sort_unstable();
    processes.dedup();
    processes.truncate(256);
    let tracks = processes.iter().map(|process| track(*process, &usages, ranges)).collect();
    Recording { origin, tracks }
}

/// Extracts the process id: Nsight Systems stores machine and session in the higher bits.
const fn pid(global: i64) -> u32 {
    ((global >> 24) & 0xff_ffff) as u32
}

fn track(process: i64, usages: &[Usage], ranges: &[Range]) -> Track {
    let mut track = Track { pid: pid(process), ..Track::default() };
    let mut order: Vec<(i64, EventKind)> = Vec::new();
    for (index, _) in usages.iter().enumerate().filter(|(_, usage)| usage.process == process) {
        order.push((usages[index].time_ns, EventKind::Memory(index)));
    }
    for (index, range) in ranges.iter().enumerate().filter(|(_, range)| pid(range.thread) == pid(process)) {
        order.push((range.begin_ns, EventKind::Begin(index)));
        order.push((range.end_ns, EventKind::End(index)));
    }
    order.sort_unstable();
    let mut live: HashMap<(u8, u64), u32> = HashMap::new();
    let mut held: HashMap<u8, u64> = HashMap::new();
    let mut open: HashMap<usize, u32> = HashMap::new();
    let (mut lost, mut lost_bytes, mut steps) = (0, 0_u64, 0);
    for (time, what) in order {
        let time_us =
            u64::try_from(time / 1000).ok().filter(|time| *time != 0 && *time < i64::MAX as u64 / 1000);
        match what {
            EventKind::Begin(index) => {
                let name = track.texts.intern(&ranges[index].name);
                let thread = (ranges[index].thread & 0xff_ffff) as u32;
                open.insert(index, track.begin_range(name, RangeSource::Nvtx, thread, time_us));
            }
            EventKind::End(index) => {
                let Some(range) = open.remove(&index).filter(|_| ranges[index].end_ns != i64::MAX) else {
                    continue;
                };
                track.end_range(range, time_us);
                if ranges[index].name.starts_with("Optimizer.step") {
                    steps += 1;
                    let at = Totals { time_us, ..Totals::default() };
                    track.add_moment(MomentKind::Step(steps), 0, StackId::NONE, at);
                }
            }
            EventKind::Memory(index) => {
                let Usage { device, address, bytes, is_free, .. } = usages[index];
                let total = held.entry(device).or_default();
                if !is_free {
                    *total = total.saturating_add(bytes);
                    let totals = Totals { allocated: *total, reserved: *total, time_us };
                    if let Some(before) = live.remove(&(device, address)) {
                        track.lose(before);
                    }
                    let block = Block { address, bytes, device, phase: Phase::Other, ..Block::default() };
                    live.insert((device, address), track.alloc(&block, totals));
                } else if let Some(block) = live.remove(&(device, address)) {
                    let bytes = track.block(block).map_or(0, |block| block.bytes);
                    *total = total.saturating_sub(bytes);
                    let totals = Totals { allocated: *total, reserved: *total, time_us };
                    track.free(block, device, StackId::NONE, totals);
                } else {
                    (lost, lost_bytes) = (lost + 1, lost_bytes.saturating_add(bytes));
                }
            }
        }
    }
    track.unknown.extend([Unknown::Segments, Unknown::Stacks, Unknown::Modules, Unknown::Blocks]);
    if lost > 0 {
        track.unknown.push(Unknown::Before { blocks: lost, bytes: lost_bytes });
    }
    if steps == 0 {
        track.unknown.push(Unknown::Steps);
    }
    track.shrink();
    track
}
