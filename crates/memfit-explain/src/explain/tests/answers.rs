//! Whole explanations of simulated runs: cause, evidence, leaks, remedies and holders.

use std::fmt::Write as _;

use super::*;

fn write_holder(text: &mut String, holder: &Holder, depth: usize) {
    let _ = writeln!(text, "{:depth$}{}: {} in {}", "", holder.name, holder.bytes, holder.blocks);
    for child in &holder.children {
        write_holder(text, child, depth + 2);
    }
}

/// An explanation as text.
fn text(explanation: &Explanation) -> String {
    let mut text = format!("{:?}\n{:?}\n", explanation.cause, explanation.moment);
    for fact in &explanation.evidence {
        let lines: Vec<u32> = fact.lines.iter().map(|line| line.line).collect();
        let _ = writeln!(text, "evidence of {}, lines {lines:?}: {}", fact.bytes, fact.text);
    }
    for one in &explanation.considered {
        let _ = writeln!(text, "considered {:?}: {}, enough: {}", one.cause, one.bytes, one.enough);
    }
    for leak in &explanation.leaks {
        let _ = writeln!(text, "{leak:?}");
    }
    for fix in &explanation.fixes {
        let (lever, saves, proof, fits) = (fix.lever, fix.saves, fix.proof, fix.fits);
        let _ = writeln!(text, "{lever} saves {saves}, {proof:?}, fits: {fits:?}: {}", fix.how);
        match &fix.apply {
            Apply::ByHand(why) => _ = writeln!(text, "  by hand: {why:?}"),
            Apply::Edit(change) => _ = writeln!(text, "{}", change.diff),
            other => _ = writeln!(text, "  {other:?}"),
        }
    }
    let _ = writeln!(text, "{:?}", explanation.fragmentation);
    for holder in &explanation.holders {
        write_holder(&mut text, holder, 2);
    }
    for unknown in &explanation.unknown {
        let _ = writeln!(text, "unknown: {unknown}");
    }
    text
}

fn all(runs: Vec<(&str, Track, u64, &str)>) -> String {
    let mut all = String::new();
    for (name, track, limit, conf) in runs {
        let explained = explained(&track, Some(limit), conf).expect("there is something to explain");
        let _ = writeln!(all, "== {name}\n{}", text(&explained));
    }
    all
}

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

#[test]
fn growth() {
    let mut full = growing(12, 64 * MIB);
    let totals = Totals { allocated: 12 * 64 * MIB, reserved: 12 * 64 * MIB, time_us: None };
    full.add_moment(MomentKind::Oom(64 * MIB), 0, StackId::NONE, totals);
    let told = all(vec![
        ("grows, and there is room", growing(5, 64 * MIB), 12 * 64 * MIB, ""),
        ("grows too briefly", growing(3, 64 * MIB), 12 * 64 * MIB, ""),
        ("has grown until nothing was left", full, 12 * 64 * MIB, ""),
        ("a pool that fills", pooled(10, 64 * MIB, 12), 13 * 64 * MIB, ""),
        ("a pool that is full", pooled(32, 64 * MIB, 12), 13 * 64 * MIB, ""),
        ("is rebuilt with more", collecting(12, 128 * MIB), 2 * GIB, ""),
        ("is rebuilt with more, four times", collecting(5, 128 * MIB), GIB, ""),
    ]);
    insta::assert_snapshot!(told);
}

#[test]
fn simultaneous_need() {
    let told = all(vec![
        ("a forward pass that unwinds", unwound(true), 4 * GIB, ""),
        ("one that stays", unwound(false), 4 * GIB, ""),
        ("with a large limit", unwound(false), 16 * GIB, ""),
        ("with settings", unwound(false), 4 * GIB, "max_split_size_mb:64,expandable_segments:True"),
        ("weights and a product", autocast::multiplying(&[3 << 18], 0), 6 * MIB, ""),
        ("weights, copies and a product", autocast::multiplying(&[1 << 19, 3 << 18], 0), 6 * MIB, ""),
        ("layers one by one", layer_by_layer(), 4 * GIB, ""),
        ("trained in turn", trained_in_turn(4, true), 8 * GIB, ""),
        ("trained in turn, the last stays", trained_in_turn(4, false), 8 * GIB, ""),
    ]);
    insta::assert_snapshot!(told);
}
