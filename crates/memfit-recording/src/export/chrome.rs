//! Export as JSON in Chrome's trace event format, which `chrome://tracing`, Perfetto and PyTorch's profiler
//! read.

use std::collections::HashSet;
use std::io::{self, Write};

use serde_json::json;

use super::timeline::{Draw, Lane, Mark, draw};
use crate::{Recording, Track};

/// Writes a recording as a trace. Memory events have the form of PyTorch's profiler, so that tools for its
/// traces understand them.
pub fn write(recording: &Recording, to: impl Write) -> io::Result<()> {
    let mut chrome = Chrome { to, any: false, known: HashSet::new() };
    let origin = serde_json::to_value(&recording.origin)?;
    write!(
        chrome.to,
        "{{\"schemaVersion\":1,\"displayTimeUnit\":\"ms\",\"memfit\":{origin},\"traceEvents\":["
    )?;
    draw(recording, &mut chrome)?;
    chrome.to.write_all(b"\n]}\n")?;
    chrome.to.flush()
}

struct Chrome<W> {
    to: W,
    any: bool,
    known: HashSet<(usize, Lane)>,
}

impl<W: Write> Chrome<W> {
    fn event(&mut self, event: &serde_json::Value) -> io::Result<()> {
        self.to.write_all(if self.any { b",\n" } else { b"\n" })?;
        self.any = true;
        serde_json::to_writer(&mut self.to, event)?;
        Ok(())
    }

    fn lane(&mut self, number: usize, lane: Lane) -> io::Result<u64> {
        if self.known.insert((number, lane)) {
            let (pid, tid) = (number, lane.number());
            self.event(&json!({"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": lane.name()}}))?;
        }
        Ok(lane.number())
    }
}

impl<W: Write> Draw for Chrome<W> {
    fn process(&mut self, number: usize, pid: u32, name: &str, _: &Track) -> io::Result<()> {
        let name = format!("{name} (process {pid})");
        self.event(&json!({"ph": "M", "pid": number, "name": "process_name", "args": {"name": name}}))
    }

    fn mark(&mut self, number: usize, ts: u64, mark: &Mark<'_>) -> io::Result<()> {
        let event = match mark {
            Mark::Begin(lane, name) => {
                let tid = self.lane(number, *lane)?;
                json!({"ph": "B", "pid": number, "tid": tid, "ts": ts, "cat": category(*lane), "name": name})
            }
            Mark::End(lane) => json!({"ph": "E", "pid": number, "tid": lane.number(), "ts": ts}),
            Mark::Instant(lane, name) => {
                let tid = self.lane(number, *lane)?;
                json!({"ph": "i", "s": "p", "pid": number, "tid": tid, "ts": ts, "name": name})
            }
            Mark::Memory { device, address, bytes, allocated, reserved } => {
                let totals = json!({"allocated": allocated, "reserved": reserved});
                let name = format!("memory of device {device}");
                self.event(&json!({"ph": "C", "pid": number, "ts": ts, "name": name, "args": totals}))?;
                json!({
                    "ph": "i", "s": "t", "pid": number, "tid": 0, "ts": ts, "cat": "cpu_instant_event", "name": "[memory]",
                    "args": {"Addr": address, "Bytes": bytes, "Device Type": 1, "Device Id": device,
                             "Total Allocated": allocated, "Total Reserved": reserved},
                })
            }
        };
        self.event(&event)
    }
}

const fn category(lane: Lane) -> &'static str {
    match lane {
        Lane::Ranges => "user_annotation",
        Lane::Phases => "phase",
        Lane::Thread(_) => "module",
    }
}
