//! Export to Perfetto: a hand-written encoder for the few protocol buffer messages that counters and slices
//! need.

use std::collections::HashSet;
use std::io::{self, Write};

use super::timeline::{Draw, Lane, Mark, draw};
use crate::{Recording, Track};

/// Field numbers from Perfetto's `.proto` files.
mod field {
    pub(super) const TRACE_PACKET: u32 = 1;
    pub(super) const PACKET_TIMESTAMP: u32 = 8;
    pub(super) const PACKET_SEQUENCE: u32 = 10;
    pub(super) const PACKET_EVENT: u32 = 11;
    pub(super) const PACKET_DESCRIPTOR: u32 = 60;
    pub(super) const DESCRIPTOR_UUID: u32 = 1;
    pub(super) const DESCRIPTOR_NAME: u32 = 2;
    pub(super) const DESCRIPTOR_PROCESS: u32 = 3;
    pub(super) const DESCRIPTOR_PARENT: u32 = 5;
    pub(super) const DESCRIPTOR_COUNTER: u32 = 8;
    pub(super) const PROCESS_PID: u32 = 1;
    pub(super) const PROCESS_NAME: u32 = 6;
    pub(super) const COUNTER_UNIT: u32 = 3;
    pub(super) const EVENT_TYPE: u32 = 9;
    pub(super) const EVENT_TRACK: u32 = 11;
    pub(super) const EVENT_NAME: u32 = 23;
    pub(super) const EVENT_COUNTER: u32 = 30;
}

const BEGIN: u64 = 1;
const END: u64 = 2;
const INSTANT: u64 = 3;
const COUNTER: u64 = 4;
const UNIT_BYTES: u64 = 3;

/// Writes a recording as a trace.
pub fn write(recording: &Recording, to: impl Write) -> io::Result<()> {
    let mut perfetto = Perfetto { to, known: HashSet::new() };
    draw(recording, &mut perfetto)?;
    perfetto.to.flush()
}

/// Protocol buffer message under construction.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn number(mut self, field: u32, value: u64) -> Self {
        self.varint(u64::from(field) << 3);
        self.varint(value);
        self
    }

    fn bytes(mut self, field: u32, value: &[u8]) -> Self {
        self.varint(u64::from(field) << 3 | 2);
        self.varint(value.len() as u64);
        self.0.extend_from_slice(value);
        self
    }

    fn message(self, field: u32, value: &Self) -> Self {
        self.bytes(field, &value.0)
    }
}

struct Perfetto<W> {
    to: W,
    known: HashSet<u64>,
}

impl<W: Write> Perfetto<W> {
    fn packet(&mut self, packet: Message) -> io::Result<()> {
        let packet = packet.number(field::PACKET_SEQUENCE, 1);
        self.to.write_all(&Message::default().message(field::TRACE_PACKET, &packet).0)
    }

    fn descriptor(&mut self, descriptor: &Message) -> io::Result<()> {
        self.packet(Message::default().message(field::PACKET_DESCRIPTOR, descriptor))
    }

    /// Returns a lane's track uuid, and writes the track's descriptor at its first use.
    fn lane(&mut self, number: usize, lane: Lane) -> io::Result<u64> {
        let uuid = uuid(number, lane.number());
        if self.known.insert(uuid) {
            let descriptor = Message::default()
                .number(field::DESCRIPTOR_UUID, uuid)
                .bytes(field::DESCRIPTOR_NAME, lane.name().as_bytes())
                .number(field::DESCRIPTOR_PARENT, self::uuid(number, 0));
            self.descriptor(&descriptor)?;
        }
        Ok(uuid)
    }

    fn counter(&mut self, number: usize, device: u8, what: u64, name: &str) -> io::Result<u64> {
        let uuid = uuid(number, (1 << 40) + u64::from(device) * 2 + what);
        if self.known.insert(uuid) {
            let counter = Message::default().number(field::COUNTER_UNIT, UNIT_BYTES);
            let descriptor = Message::default()
                .number(field::DESCRIPTOR_UUID, uuid)
                .bytes(field::DESCRIPTOR_NAME, format!("{name} on device {device}").as_bytes())
                .number(field::DESCRIPTOR_PARENT, self::uuid(number, 0))
                .message(field::DESCRIPTOR_COUNTER, &counter);
            self.descriptor(&descriptor)?;
        }
        Ok(uuid)
    }

    fn event(&mut self, time_us: u64, event: &Message) -> io::Result<()> {
        let packet = Message::default()
            .number(field::PACKET_TIMESTAMP, time_us.saturating_mul(1000))
            .message(field::PACKET_EVENT, event);
        self.packet(packet)
    }
}

/// Uuid of a lane of a process.
const fn uuid(number: usize, lane: u64) -> u64 {
    ((number as u64 + 1) << 44) + lane
}

fn event(kind: u64, track: u64) -> Message {
    Message::default().number(field::EVENT_TYPE, kind).number(field::EVENT_TRACK, track)
}

impl<W: Write> Draw for Perfetto<W> {
    fn process(&mut self, number: usize, pid: u32, name: &str, _: &Track) -> io::Result<()> {
        // Perfetto reserves process id 0 for the idle process, and snapshots do not name their process.
        let pid = if pid == 0 { number as u64 + 1 } else { u64::from(pid) };
        let process =
            Message::default().number(field::PROCESS_PID, pid).bytes(field::PROCESS_NAME, name.as_bytes());
        let descriptor = Message::default()
            .number(field::DESCRIPTOR_UUID, uuid(number, 0))
            .message(field::DESCRIPTOR_PROCESS, &process);
        self.descriptor(&descriptor)
    }

    fn mark(&mut self, number: usize, time_us: u64, mark: &Mark<'_>) -> io::Result<()> {
        match mark {
            Mark::Begin(lane, name) => {
                let lane = self.lane(number, *lane)?;
                self.event(time_us, &event(BEGIN, lane).bytes(field::EVENT_NAME, name.as_bytes()))
            }
            Mark::End(lane) => self.event(time_us, &event(END, uuid(number, lane.number()))),
            Mark::Instant(lane, name) => {
                let lane = self.lane(number, *lane)?;
                self.event(time_us, &event(INSTANT, lane).bytes(field::EVENT_NAME, name.as_bytes()))
            }
            Mark::Memory { device, allocated, reserved, .. } => {
                let track = self.counter(number, *device, 0, "allocated")?;
                self.event(time_us, &event(COUNTER, track).number(field::EVENT_COUNTER, *allocated))?;
                let track = self.counter(number, *device, 1, "reserved")?;
                self.event(time_us, &event(COUNTER, track).number(field::EVENT_COUNTER, *reserved))
            }
        }
    }
}
