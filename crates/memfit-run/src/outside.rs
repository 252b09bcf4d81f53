//! Memory outside PyTorch's allocator: each part with its interval and its source.

use memfit_channel::ledger::OutsideView;
use memfit_devices::{Device, Interval, Origin, Overhead};
use memfit_report::remarks::Note;
use memfit_report::wire::{Outside, OutsidePart, Peak};
use memfit_vocabulary::Remark;

use crate::facts::Facts;
use crate::{Card, Request};

/// Memory outside the allocator at the device's peak.
pub(crate) fn at_peak(facts: &Facts, seen: OutsideView, peak: &Peak) -> Outside {
    let outside = Outside {
        context: seen.context,
        libraries: seen.libraries,
        communication: seen.communication,
        other_processes: 0,
    };
    let other_processes = match &facts.real {
        Some(real) => real.others(),
        // Memory on the device that is not in this rank's segments: other processes, direct `cudaMalloc`
        // calls, or an expandable segment that could not grow as much as was asked for. PyTorch maps its
        // pages one by one, and gives back those that it got.
        None => peak.device.saturating_sub(peak.reserved + outside.total()),
    };
    Outside { other_processes, ..outside }
}

/// Parts that are present.
pub(crate) fn parts(request: &Request, facts: &Facts, outside: &Outside) -> Vec<OutsidePart> {
    if facts.real.is_some() {
        return vec![
            exact("context", outside.context, Origin::Counted, "the GPU's use beyond PyTorch's segments"),
            exact(
                "other_processes",
                outside.other_processes,
                Origin::Counted,
                "the GPU's use by other programs",
            ),
        ];
    }
    let Some(overhead) = &facts.overhead else { return Vec::new() };
    let [context, libraries, communication] = &overhead.sources;
    let mut parts = vec![
        scaled_part("context", outside.context, overhead.context, context),
        scaled_part("libraries", outside.libraries, overhead.libraries, libraries),
        scaled_part("communication", outside.communication, overhead.per_communicator, communication),
        others(request, outside.other_processes),
    ];
    parts.retain(|part| part.high > 0);
    parts
}

/// Scales the interval of one item to the booked total, which may contain several items of a kind (processes,
/// communicators).
fn scaled_part(name: &str, booked: u64, one: Interval, source: &str) -> OutsidePart {
    let scaled = |end: u64| match one.typical.get() {
        0 => end,
        typical => (u128::from(booked) * u128::from(end) / u128::from(typical)) as u64,
    };
    OutsidePart {
        name: name.to_owned(),
        low: scaled(one.low.get()).min(booked),
        typical: booked,
        high: if booked == 0 { 0 } else { scaled(one.high.get()).max(booked) },
        origin: Origin::from_source(source),
        source: source.to_owned(),
    }
}

fn others(request: &Request, bytes: u64) -> OutsidePart {
    const NAME: &str = "other_processes";
    let calibrated = match &request.card {
        Card::Virtual(device, _) => device.calibrated_by(),
        Card::Local(_) => None,
    };
    match calibrated {
        _ if request.other_processes == 0 => exact(
            NAME,
            bytes,
            Origin::Counted,
            match &request.card {
                Card::Virtual(device, _) if device.shares_host_memory() => {
                    "host memory of the run's processes, which the GPU shares"
                }
                _ => {
                    "what else the run held at that moment: other processes, direct CUDA allocations, and segments that PyTorch began to grow and gave up when memory ran short"
                }
            },
        ),
        Some(source) if request.other_processes_origin == Origin::Calibrated => {
            exact(NAME, bytes, Origin::Calibrated, source)
        }
        _ => exact(NAME, bytes, Origin::Stated, "`--other-processes`"),
    }
}

fn exact(name: &str, bytes: u64, origin: Origin, source: &str) -> OutsidePart {
    OutsidePart {
        name: name.to_owned(),
        low: bytes,
        typical: bytes,
        high: bytes,
        origin,
        source: source.to_owned(),
    }
}

/// Notes on these figures.
pub(crate) fn notes(device: &Device, facts: &Facts) -> Vec<Note> {
    let mut notes = facts.overhead.as_ref().map(stack_notes).unwrap_or_default();
    notes.extend(
        device.calibrated_by().map(|source| Note::new(Remark::Calibrated).with_value("source", source)),
    );
    notes
}

/// Note that names the releases with which the intervals were observed.
fn stack_notes(overhead: &Overhead) -> Vec<Note> {
    let [from, to] = overhead.seen_with;
    let seen = if from == to { from.to_string() } else { format!("{from} to {to}") };
    let mut notes = vec![Note::new(Remark::Outside).with_value("cuda", &seen)];
    if overhead.is_of_another_stack() {
        let asked = overhead.asked_for.to_string();
        notes.push(Note::new(Remark::OutsideStack).with_value("seen", seen).with_value("cuda", asked));
    }
    notes
}

#[cfg(test)]
mod tests {
    use memfit_devices::Bytes;

    use super::*;

    #[test]
    fn figures_are_said_to_be_for_the_stacks_with_which_they_were_seen() {
        let notes_with = |asked_for| {
            let notes = stack_notes(&Overhead { seen_with: [12, 13], asked_for, ..Overhead::default() });
            notes.iter().map(Note::text).collect::<Vec<_>>()
        };
        let [plain] = notes_with(13).try_into().unwrap();
        assert!(plain.contains("with torch for CUDA 12 to 13:"), "{plain}");
        let [same, other] = notes_with(14).try_into().unwrap();
        assert_eq!(same, plain);
        assert!(other.contains("CUDA 12 to 13, and this torch is for CUDA 14:"), "{other}");
    }

    #[test]
    fn several_of_a_kind_have_an_interval_of_several() {
        let mib = Bytes::from_mib;
        let one = Interval { low: mib(10), typical: mib(20), high: mib(50) };
        let two = scaled_part("communication", 40 << 20, one, "modelled: as on Turing");
        assert_eq!((two.low, two.typical, two.high), (20 << 20, 40 << 20, 100 << 20));
        assert_eq!(two.origin, Origin::Modelled);
        let none = scaled_part("communication", 0, one, "NCCL issues 864");
        assert_eq!((none.low, none.typical, none.high), (0, 0, 0));
        // Less than one item, as when a process is about to end.
        let less = scaled_part("context", 5 << 20, one, "seen");
        assert!(less.low <= less.typical && less.typical <= less.high);
    }
}
