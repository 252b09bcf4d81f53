//! Streaming JSON parser of traces: it keeps only the events that are needed and builds no tree.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::io::{self, Read};

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::{Kept, MemoryEvent, RangeEvent, recording};
use crate::Recording;
use crate::error::OpenError;
use crate::snapshot::Problem;

/// Maximum number of events kept, to bound the memory.
const MAX_EVENTS: usize = 100_000_000;

/// Reads a trace. Events before an error are used.
pub(crate) fn read(trace: impl Read) -> Result<(Recording, Vec<Problem>), OpenError> {
    let kept = RefCell::new(Kept::default());
    let passed = Cell::new(0);
    let mut json = serde_json::Deserializer::from_reader(Counted { inner: trace, passed: &passed });
    let result = Top(&kept).deserialize(&mut json);
    let kept = kept.into_inner();
    let broken = |why: String| OpenError::Broken { format: "trace", why };
    let mut problems = Vec::new();
    if let Err(error) = result {
        let why = format!("at byte {}: {error}", passed.get());
        if kept.memory.is_empty() {
            return Err(broken(why));
        }
        problems.push(Problem::Trace(why));
    } else if kept.memory.is_empty() {
        let why = if kept.any {
            "it has no memory events of a CUDA device: record it with `profile(profile_memory=True)`"
        } else {
            "it has no events"
        };
        return Err(broken(why.to_owned()));
    }
    let recording = recording(kept, &mut problems);
    Ok((recording, problems))
}

/// Counts the bytes read; the JSON parser reads byte by byte, and no more than it needs.
struct Counted<'passed, R> {
    inner: R,
    passed: &'passed Cell<u64>,
}

impl<R: Read> Read for Counted<'_, R> {
    #[inline]
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.passed.set(self.passed.get() + count as u64);
        Ok(count)
    }
}

/// An object with `traceEvents`, or the list of events alone.
struct Top<'kept>(&'kept RefCell<Kept>);

impl<'de> DeserializeSeed<'de> for Top<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Top<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a trace: an object with `traceEvents`, or a list of events")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "traceEvents" => map.next_value_seed(Events(self.0))?,
                "deviceProperties" => {
                    let devices: Lenient<Vec<Lenient<Device>>> = map.next_value()?;
                    let first = devices.0.and_then(|devices| devices.into_iter().find_map(|device| device.0));
                    self.0.borrow_mut().device = first.map(|device| (device.name, device.memory));
                }
                "distributedInfo" => {
                    let info: Lenient<Distributed> = map.next_value()?;
                    self.0.borrow_mut().rank = info.0.and_then(|info| info.rank);
                }
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<(), A::Error> {
        Events(self.0).visit_seq(seq)
    }
}

struct Events<'kept>(&'kept RefCell<Kept>);

impl<'de> DeserializeSeed<'de> for Events<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Events<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a list of events")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while let Some(event) = seq.next_element::<Lenient<Event>>()? {
            let mut kept = self.0.borrow_mut();
            kept.any = true;
            if let Some(event) = event.0 {
                keep(&mut kept, event);
            }
        }
        Ok(())
    }
}

/// Value of this type, or `None` if the JSON value has another type.
struct Lenient<T>(Option<T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Lenient<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Either<T> {
            Right(T),
            Wrong(IgnoredAny),
        }
        Ok(match Either::deserialize(deserializer)? {
            Either::Right(value) => Self(Some(value)),
            Either::Wrong(_) => Self(None),
        })
    }
}

#[derive(Deserialize)]
struct Device {
    name: String,
    #[serde(rename = "totalGlobalMem")]
    memory: Option<u64>,
}

#[derive(Deserialize)]
struct Distributed {
    rank: Option<u32>,
}

#[derive(Deserialize)]
struct Event {
    #[serde(default)]
    ph: String,
    #[serde(default)]
    cat: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    ts: f64,
    #[serde(default)]
    dur: f64,
    #[serde(default)]
    pid: Id,
    #[serde(default)]
    tid: Id,
    #[serde(default)]
    args: Args,
}

/// Processes and threads have numbers or names.
#[derive(Default, Deserialize)]
#[serde(untagged)]
enum Id {
    Number(u64),
    Name(String),
    #[default]
    Other,
}

impl Id {
    fn number(&self) -> u64 {
        match self {
            Self::Number(number) => *number,
            Self::Name(name) => name.parse().unwrap_or(0),
            Self::Other => 0,
        }
    }
}

#[derive(Default, Deserialize)]
struct Args {
    #[serde(rename = "Addr", default)]
    address: Option<u64>,
    #[serde(rename = "Bytes", default)]
    bytes: Option<i64>,
    #[serde(rename = "Device Type", default)]
    kind: Option<i64>,
    #[serde(rename = "Device Id", default)]
    device: Option<i64>,
    #[serde(rename = "Total Allocated", default)]
    allocated: Option<i64>,
    #[serde(rename = "Total Reserved", default)]
    reserved: Option<i64>,
}

/// `c10::DeviceType::CUDA`.
const CUDA: i64 = 1;

fn keep(kept: &mut Kept, event: Event) {
    let time_ns = (event.ts * 1000.0) as i64;
    if kept.memory.len() + kept.ranges.len() >= MAX_EVENTS {
        return;
    }
    if event.name == "[memory]" {
        let args = event.args;
        if args.kind.is_some_and(|kind| kind != CUDA) {
            return;
        }
        let device = args.device.and_then(|device| u8::try_from(device).ok());
        let (Some(address), Some(bytes), Some(device)) = (args.address, args.bytes, device) else {
            kept.malformed += 1;
            return;
        };
        let total = |total: Option<i64>| total.and_then(|total| u64::try_from(total).ok()).unwrap_or(0);
        kept.memory.push(MemoryEvent {
            time_ns,
            process: event.pid.number(),
            device,
            address,
            bytes,
            allocated: total(args.allocated),
            reserved: total(args.reserved),
        });
    } else if event.ph == "X" && event.cat == "user_annotation" {
        kept.ranges.push(RangeEvent {
            time_ns,
            length_ns: (event.dur.max(0.0) * 1000.0) as i64,
            process: event.pid.number(),
            thread: event.tid.number(),
            name: event.name,
        });
    }
}
