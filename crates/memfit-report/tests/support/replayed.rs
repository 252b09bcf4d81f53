//! Sample results of replays.

use std::collections::BTreeMap;

use memfit_report::wire::{
    BlockChange, Circumstances, Predicted, Recorded, ReplayOom, ReplayPeak, ReplayReport, schema,
};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn under(alloc_conf: &str, capacity: Option<u64>) -> Circumstances {
    Circumstances { alloc_conf: alloc_conf.to_owned(), capacity, torch: "2.15".to_owned() }
}

const fn all(predicted: u64) -> Predicted {
    Predicted { predicted, matching: predicted }
}

/// A snapshot for which every prediction was right.
fn snapshot() -> ReplayReport {
    ReplayReport {
        schema: schema::REPLAY.to_owned(),
        file: "snapshot.pickle".to_owned(),
        rank: None,
        ranks: Vec::new(),
        device: 0,
        devices: vec![0],
        events: 81_234,
        addresses: all(40_117),
        segments: all(212),
        blocks: all(1_804),
        peak: ReplayPeak { allocated: 18 * GIB + 200 * MIB, reserved: 21 * GIB + 300 * MIB },
        oom: None,
        under: under("", None),
        changes: Vec::new(),
        recorded: None,
        statistics: BTreeMap::from([("num_ooms".to_owned(), 0), ("active.all.current".to_owned(), 1_804)]),
        before: 0,
        uncertain: 0,
        told: 0,
        resumed: 0,
        mismatches: Vec::new(),
        problems: Vec::new(),
    }
}

/// A recording from the middle of a run that ran out of memory, with a few wrong predictions.
fn parted() -> ReplayReport {
    ReplayReport {
        devices: vec![0, 1],
        addresses: Predicted { predicted: 40_117, matching: 40_110 },
        oom: Some(ReplayOom {
            event: 81_233,
            requested: 2 * GIB,
            allocated: 18 * GIB,
            reserved: 21 * GIB,
            device_free: Some(190 * MIB),
        }),
        before: 3 * GIB,
        uncertain: 1,
        told: 3,
        resumed: 2,
        mismatches: vec!["event 20011: 0x7f0000200000 was predicted, 0x7f0000400000 was recorded".to_owned()],
        problems: vec![
            "the snapshot could not be read to its end: at byte 17: the file is truncated".to_owned(),
        ],
        ..snapshot()
    }
}

/// A recording of one rank of two, replayed with changed blocks on a smaller GPU.
fn changed() -> ReplayReport {
    let change = |of: &str, effect: &str, factor| BlockChange {
        of: of.to_owned(),
        effect: effect.to_owned(),
        factor,
        blocks: 96,
        at_peak: 3 * GIB,
    };
    ReplayReport {
        file: "run.memfit".to_owned(),
        rank: Some(1),
        ranks: vec![0, 1],
        under: under("expandable_segments:True", Some(16 * GIB)),
        peak: ReplayPeak { allocated: 14 * GIB, reserved: 15 * GIB },
        // An expandable segment grows by whole pages.
        oom: Some(ReplayOom {
            event: 503,
            requested: 49 * MIB,
            allocated: 14 * GIB,
            reserved: 15 * GIB,
            device_free: Some(53 * MIB),
        }),
        changes: vec![
            change("train.py:42", "drop", None),
            change("activations", "scale", Some(0.5)),
            change("encoder.0", "each-step", None),
        ],
        recorded: Some(Recorded {
            peak: snapshot().peak,
            oom: parted().oom,
            under: under("", Some(24 * GIB)),
            again: ReplayPeak { allocated: 18 * GIB + 200 * MIB, reserved: 21 * GIB },
        }),
        ..snapshot()
    }
}

/// Each with a name.
pub(crate) fn each() -> Vec<(&'static str, ReplayReport)> {
    vec![("as_recorded", snapshot()), ("parted", parted()), ("what_if", changed())]
}
