//! Text output of `memfit replay`.

use std::fmt::Write as _;

use anstyle::Style;

use super::canvas::{ADVICE, BAD, BOLD, Canvas, DIM, DOUBT, GOOD, paint};
use super::{count, signed_size, size};
use crate::wire::{BlockChange, Circumstances, Predicted, Recorded, ReplayOom, ReplayPeak, ReplayReport};

const LABEL: usize = 14;
const SIZE: usize = 12;

/// The result of a replay.
pub fn replay(report: &ReplayReport, canvas: Canvas) -> String {
    let mut out = String::new();
    headline(&mut out, report, canvas);
    out.push('\n');
    let mut fact = |label: &str, text: &str| {
        out.push_str(&canvas.wrapped(&format!("  {label:<LABEL$}"), DIM, text));
    };
    fact("addresses", &predicted(report.addresses));
    fact("segments", &predicted(report.segments));
    if report.blocks.predicted > 0 {
        fact("blocks at end", &predicted(report.blocks));
    }
    if report.recorded.is_none() {
        fact("peaks", &peaks(&report.peak, canvas));
        fact("OOM", &ran_out(report.oom.as_ref()));
        fact("under", &circumstances(&report.under, canvas));
    }
    if report.before > 0 {
        fact(
            "pre-existing",
            &format!("{} in blocks that existed when the recording began", size(report.before)),
        );
    }
    if report.uncertain > 0 {
        let blocks = if report.uncertain == 1 { "block" } else { "blocks" };
        fact(
            "unknown",
            &format!("the exact size of {} {blocks} from before the recording", count(report.uncertain)),
        );
    }
    if report.told > 0 {
        let events = if report.told == 1 { "event" } else { "events" };
        let told = count(report.told);
        fact("not tried", &format!("{told} {events} that depend on allocations before the recording"));
    }
    if report.ranks.len() > 1 {
        let all: Vec<String> = report.ranks.iter().map(u32::to_string).collect();
        let own = report.rank.map_or_else(|| "one".to_owned(), |rank| rank.to_string());
        fact("ranks", &format!("{}; `--rank N` replays another rank than {own}", all.join(", ")));
    }
    if report.devices.len() > 1 {
        let all: Vec<String> = report.devices.iter().map(u32::to_string).collect();
        fact(
            "devices",
            &format!("{}; `--device N` replays another device than {}", all.join(", "), report.device),
        );
    }
    for mismatch in report.mismatches.iter().take(3) {
        fact("diverged", mismatch);
    }
    for problem in &report.problems {
        fact("problem", problem);
    }
    if let Some(recorded) = &report.recorded {
        out.push('\n');
        comparison(&mut out, report, recorded, canvas);
    }
    out
}

fn headline(out: &mut String, report: &ReplayReport, canvas: Canvas) {
    let of_rank = report.rank.map(|rank| format!(" of rank {rank}")).unwrap_or_default();
    let events = format!("{} events{of_rank} on device {}", count(report.events), report.device);
    let right = report.addresses.all() && report.segments.all();
    let none = report.addresses.predicted + report.segments.predicted == 0;
    let (style, badge, sentence) = if none && report.peak.allocated > 0 {
        (
            DOUBT,
            "NOTHING TO PREDICT",
            format!(
                "in {events}: its segments were not recorded, so no address can be predicted; the calls can be replayed"
            ),
        )
    } else if none {
        (
            DOUBT,
            "NOTHING TO PREDICT",
            format!("in {events}: it holds a state, but no trace of the calls that led to it"),
        )
    } else if right {
        (GOOD, "AS RECORDED", format!("{events}: every address and every segment equals PyTorch's"))
    } else {
        (DOUBT, "NOT ALL AS RECORDED", format!("{events}; the replay continued from the recorded state"))
    };
    out.push_str(&canvas.wrapped(&format!("{badge}  "), style, &sentence));
}

fn predicted(tally: Predicted) -> String {
    let Predicted { predicted, matching } = tally;
    if predicted == 0 {
        "none to compare".to_owned()
    } else {
        format!("{} of {} right", count(matching), count(predicted))
    }
}

fn peaks(peak: &ReplayPeak, canvas: Canvas) -> String {
    format!("allocated {}{}reserved {}", size(peak.allocated), canvas.dot(), size(peak.reserved))
}

fn ran_out(oom: Option<&ReplayOom>) -> String {
    oom.map_or_else(
        || "never".to_owned(),
        |oom| {
            let left = oom.device_free.map(|free| {
                let why = if free >= oom.requested {
                    ": memory is reserved in whole segments or pages, which take more"
                } else {
                    ""
                };
                format!(", {} left on the device{why}", size(free))
            });
            format!(
                "at event {}, asking for {} with {} allocated and {} reserved{}",
                count(oom.event),
                size(oom.requested),
                size(oom.allocated),
                size(oom.reserved),
                left.unwrap_or_default()
            )
        },
    )
}

fn circumstances(under: &Circumstances, canvas: Canvas) -> String {
    let settings = if under.alloc_conf.is_empty() { "default settings" } else { &under.alloc_conf };
    let capacity = under.capacity.map(|bytes| format!("{} for the allocator{}", size(bytes), canvas.dot()));
    format!("{settings}{}{}torch {}", canvas.dot(), capacity.unwrap_or_default(), under.torch)
}

const fn change_name(change: &BlockChange) -> &'static str {
    match change.factor {
        Some(_) => "scaled",
        None => "changed",
    }
}

fn changed(change: &BlockChange) -> String {
    let blocks = if change.blocks == 1 { "block" } else { "blocks" };
    let effect = match (change.effect.as_str(), change.factor) {
        (_, Some(factor)) => format!("{factor} times as large"),
        ("drop", _) => "not allocated".to_owned(),
        _ => "freed at the end of their step".to_owned(),
    };
    let at_peak = size(change.at_peak);
    format!("{} {blocks} of {} ({at_peak} at the peak): {effect}", count(change.blocks), change.of)
}

/// The recorded figures next to the replayed ones.
fn comparison(out: &mut String, report: &ReplayReport, recorded: &Recorded, canvas: Canvas) {
    let _ = writeln!(out, "  {}", paint(BOLD, "The same calls under other conditions"));
    out.push_str(&canvas.wrapped(
        &format!("  {:<LABEL$}", "recorded"),
        DIM,
        &circumstances(&recorded.under, canvas),
    ));
    out.push_str(&canvas.wrapped(
        &format!("  {:<LABEL$}", "replayed"),
        DIM,
        &circumstances(&report.under, canvas),
    ));
    for change in &report.changes {
        out.push_str(&canvas.wrapped(&format!("  {:<LABEL$}", change_name(change)), DIM, &changed(change)));
    }
    let head = format!("{:<LABEL$}{:>SIZE$}{:>SIZE$}{:>SIZE$}", "", "recorded", "replayed", "change");
    let _ = writeln!(out, "  {}", paint(DIM, &head));
    let mut row = |name: &str, was: u64, is: u64| {
        let change = is as i64 - was as i64;
        let style = match change {
            0 => Style::new(),
            ..0 => GOOD,
            1.. => BAD,
        };
        let change = format!("{:>SIZE$}", if change == 0 { "none".to_owned() } else { signed_size(change) });
        let _ =
            writeln!(out, "  {name:<LABEL$}{:>SIZE$}{:>SIZE$}{}", size(was), size(is), paint(style, &change));
    };
    row("allocated", recorded.peak.allocated, report.peak.allocated);
    row("reserved", recorded.peak.reserved, report.peak.reserved);
    let off = recorded.again.reserved as i64 - recorded.peak.reserved as i64;
    if off != 0 {
        let off = format!(
            "without changes, the replay reserves {}, {} {} than recorded, since it chooses the addresses itself: compare the column `replayed` with that",
            size(recorded.again.reserved),
            size(off.unsigned_abs()),
            if off > 0 { "more" } else { "less" },
        );
        out.push_str(&canvas.wrapped(&format!("  {:<LABEL$}", "unchanged"), DIM, &off));
    }
    let was = ran_out(recorded.oom.as_ref());
    let is = match (&report.oom, &recorded.oom) {
        (None, Some(_)) => {
            "not at that request; the recording ends there, so a later request may still fail".to_owned()
        }
        (oom, _) => ran_out(oom.as_ref()),
    };
    out.push_str(&canvas.wrapped(&format!("  {:<LABEL$}", "recorded OOM"), DIM, &was));
    let style = if report.oom.is_some() { BAD } else { GOOD };
    out.push_str(&canvas.wrapped(&format!("  {:<LABEL$}", "replayed OOM"), style, &is));
    if report.oom.is_some() {
        let hint = "the replay ends where memory ran out: the peaks are those up to then";
        out.push_str(&canvas.wrapped("note: ", ADVICE, hint));
    }
}
