//! `--query-gpu` and `--query-compute-apps`: fields by name, as comma-separated values.

use super::arguments::Style;
use super::now::Now;
use super::{Failure, mebibytes};
use crate::cards::{self, Card};
use crate::status::{Outcome, Status};
use crate::{devices, memory, system};

/// A value, with its unit if it has one.
enum Field {
    Text(String),
    Amount(u64, &'static str),
}

/// Unit in a field's header.
fn unit(name: &str) -> Option<&'static str> {
    let (memory, clock) =
        (name.starts_with("memory.") || name.starts_with("used_"), name.starts_with("clocks."));
    match name {
        _ if memory => Some("MiB"),
        _ if clock => Some("MHz"),
        "utilization.gpu" | "utilization.memory" | "fan.speed" => Some("%"),
        _ if name.starts_with("power.") || name.starts_with("enforced.") => Some("W"),
        _ => None,
    }
}

/// Fields that `nvidia-smi` knows but that have no value on a virtual GPU: shown as `[N/A]`.
const WITHOUT_VALUE: &[&str] = &[
    "serial",
    "gpu_serial",
    "vbios_version",
    "temperature.gpu",
    "temperature.memory",
    "power.draw",
    "power.draw.average",
    "power.draw.instant",
    "power.limit",
    "power.max_limit",
    "power.min_limit",
    "power.default_limit",
    "power.management",
    "enforced.power.limit",
    "fan.speed",
    "pstate",
    "mig.mode.current",
    "mig.mode.pending",
    "ecc.errors.corrected.volatile.total",
    "ecc.errors.uncorrected.volatile.total",
    "clocks_throttle_reasons.active",
    "clocks_event_reasons.active",
    "encoder.stats.sessionCount",
    "inforom.img",
];

/// Value of a device's field such as `memory.total`; `None` for an unknown name.
fn card_field(card: Card, name: &str) -> Outcome<Option<Field>> {
    let text = |text: &str| Ok(Some(Field::Text(text.to_owned())));
    let switch = |on: bool| text(if on { "Enabled" } else { "Disabled" });
    let amount = |amount: u64, unit| Ok(Some(Field::Amount(amount, unit)));
    let clock = |kind| Ok(Some(Field::Amount(u64::from(devices::clock(card, kind)?), "MHz")));
    let device = card.device;
    match name {
        "timestamp" => text(&Now::read().in_numbers()),
        "driver_version" => text(system::DRIVER_VERSION),
        "count" => text(&cards::all_cards()?.count().to_string()),
        "name" | "gpu_name" => text(&device.name),
        "index" => text(&card.index.to_string()),
        "uuid" | "gpu_uuid" => text(&devices::uuid(card)),
        "pci.bus_id" | "gpu_bus_id" => text(&devices::bus_id(card)),
        "pci.domain" => text("0x0000"),
        "pci.device" => text("0x00"),
        "compute_cap" => {
            let capability = device.compute_capability;
            text(&format!("{}.{}", capability.major, capability.minor))
        }
        "compute_mode" => text("Default"),
        "persistence_mode" => switch(true),
        "ecc.mode.current" | "ecc.mode.pending" => switch(device.ecc),
        "display_mode" | "display_active" | "accounting.mode" => switch(false),
        "pcie.link.gen.current"
        | "pcie.link.gen.max"
        | "pcie.link.gen.gpucurrent"
        | "pcie.link.gen.gpumax" => text(&devices::pcie(card)?.0.to_string()),
        "pcie.link.width.current" | "pcie.link.width.max" => text(&devices::pcie(card)?.1.to_string()),
        "memory.total" => amount(mebibytes(memory::memory(card)?.total), "MiB"),
        "memory.used" => amount(mebibytes(memory::memory(card)?.used), "MiB"),
        "memory.free" => amount(mebibytes(memory::memory(card)?.free), "MiB"),
        "memory.reserved" => amount(0, "MiB"),
        "utilization.gpu" | "utilization.memory" => amount(0, "%"),
        "clocks.gr" | "clocks.current.graphics" | "clocks.max.gr" | "clocks.max.graphics" => clock(0),
        "clocks.sm" | "clocks.current.sm" | "clocks.max.sm" => clock(1),
        "clocks.mem" | "clocks.current.memory" | "clocks.max.mem" | "clocks.max.memory" => clock(2),
        _ if WITHOUT_VALUE.contains(&name) => Err(Status::NOT_SUPPORTED),
        _ => Ok(None),
    }
}

/// A process on a device.
#[derive(Clone, Copy)]
struct Process {
    card: Card,
    pid: u32,
    used: u64,
}

fn process_field(process: Process, name: &str) -> Outcome<Option<Field>> {
    match name {
        "pid" => Ok(Some(Field::Text(process.pid.to_string()))),
        "process_name" | "name" => Ok(Some(Field::Text(system::process_name(process.pid)?))),
        "used_memory" | "used_gpu_memory" => Ok(Some(Field::Amount(mebibytes(process.used), "MiB"))),
        "timestamp" | "gpu_name" | "gpu_bus_id" | "gpu_uuid" | "gpu_serial" => card_field(process.card, name),
        _ => Ok(None),
    }
}

/// Formats the fields of each device.
pub(super) fn card_lines(cards: &[Card], fields: &[String], style: Style) -> Result<String, Failure> {
    lines(cards, fields, style, card_field)
}

/// Formats the fields of each process that has memory on one of the devices.
pub(super) fn process_lines(cards: &[Card], fields: &[String], style: Style) -> Result<String, Failure> {
    let mut running = Vec::new();
    for card in cards {
        let each = memory::processes(*card)?.into_iter();
        running.extend(each.map(|(pid, used)| Process { card: *card, pid, used }));
    }
    for name in fields {
        // Without a running process, an unknown name is still an error.
        let first = cards.first().map(|card| Process { card: *card, pid: 0, used: 0 });
        if let Some(Ok(None)) = first.map(|process| process_field(process, name)) {
            return Err(invalid(name));
        }
    }
    lines(&running, fields, style, process_field)
}

fn lines<T: Copy>(
    items: &[T],
    fields: &[String],
    style: Style,
    field: impl Fn(T, &str) -> Outcome<Option<Field>>,
) -> Result<String, Failure> {
    let mut text = String::new();
    if style.header {
        let named = |name: &String| match unit(name) {
            Some(unit) => format!("{name} [{unit}]"),
            None => name.clone(),
        };
        text += &fields.iter().map(named).collect::<Vec<_>>().join(", ");
        text.push('\n');
    }
    for item in items {
        let mut values = Vec::new();
        for name in fields {
            values.push(match field(*item, name) {
                Ok(Some(Field::Text(text))) => text,
                Ok(Some(Field::Amount(amount, unit))) if style.units => format!("{amount} {unit}"),
                Ok(Some(Field::Amount(amount, _))) => amount.to_string(),
                Ok(None) => return Err(invalid(name)),
                Err(_) => "[N/A]".to_owned(),
            });
        }
        text += &values.join(", ");
        text.push('\n');
    }
    Ok(text)
}

fn invalid(name: &str) -> Failure {
    Failure::usage(format!("Field \"{name}\" is not a valid field to query.\n"))
}
