//! Sample comparisons of commits.

use std::collections::BTreeMap;

use memfit_report::wire::{
    CiCommit, CiLine, CiModule, CiReport, CiRow, CiSide, CiVerdict, Peak, Problem, ProblemKind, schema,
};

const MIB: u64 = 1 << 20;

fn side(mib: u64) -> CiSide {
    let peak = Peak {
        allocated: mib * MIB / 2,
        reserved: mib * MIB * 3 / 4,
        device: mib * MIB,
        device_upper: mib * MIB * 2,
    };
    CiSide { peak, fits: true, step_ms_estimate: Some(12.5), memfit: "0.1.0".to_owned(), ..CiSide::default() }
}

fn row(script: &str, base: u64, head: u64, verdict: CiVerdict) -> CiRow {
    CiRow {
        script: script.to_owned(),
        gpu: "t4".to_owned(),
        command: vec!["python".to_owned(), format!("{script}.py")],
        base: Some(side(base)),
        head: Some(side(head)),
        growth: Some((head * MIB) as i64 - (base * MIB) as i64),
        permitted: Some(base * MIB / 100),
        max_growth: "1 %".to_owned(),
        lines: Vec::new(),
        modules: Vec::new(),
        categories: BTreeMap::new(),
        verdict,
        notes: Vec::new(),
        problem: None,
    }
}

fn line(file: &str, number: u32, mib: i64, module: Option<&str>, category: &str) -> CiLine {
    CiLine {
        file: file.to_owned(),
        line: number,
        function: "forward".to_owned(),
        text: Some("x = torch.cat([x, self.cache | mask])  # `both`".to_owned()),
        module: module.map(str::to_owned),
        category: category.to_owned(),
        base: 0,
        head: mib.unsigned_abs() * MIB,
        growth: mib * MIB as i64,
    }
}

fn report(rows: Vec<CiRow>) -> CiReport {
    CiReport {
        schema: schema::CI.to_owned(),
        rows,
        base: None,
        peak: "device".to_owned(),
        accepted: Vec::new(),
        memfit: "0.1.0".to_owned(),
        wall_s: 12.25,
        notes: Vec::new(),
        problem: None,
    }
}

/// One with growth and every other verdict; one that is quiet; one that shrank; a new one; an accepted one;
/// one with a failure; and one without an answer.
pub(crate) fn each() -> Vec<(&'static str, CiReport)> {
    let problem = |message: &str| Problem {
        kind: ProblemKind::Exception,
        message: message.to_owned(),
        hint: Some("the traceback is above".to_owned()),
    };
    let failed = || CiRow {
        base: None,
        head: None,
        growth: None,
        permitted: None,
        problem: Some(problem("the script failed: KeyError: '<b>'")),
        ..row("broken", 1, 1, CiVerdict::Failed)
    };
    let new = || CiRow { base: None, growth: None, permitted: None, ..row("fresh", 1, 700, CiVerdict::New) };
    let mut grew = row("train_model", 1200, 1500, CiVerdict::Grew);
    grew.lines = vec![
        line("src/model.py", 41, 280, Some("encoder.layers.3"), "activations"),
        line("src/model.py", 57, -40, None, "activations"),
        line("src/model.py", 60, 20, None, "unknown"),
        line("src/model.py", 61, 1, None, "unknown"),
    ];
    let module = |name: &str, mib: i64| CiModule {
        name: name.to_owned(),
        base: 50 * MIB,
        head: (50 + mib).unsigned_abs() * MIB,
        growth: mib * MIB as i64,
    };
    grew.modules = vec![module("encoder.layers.3", 280), module("head", -40)];
    grew.notes = vec!["the base used torch 2.8 and the new measurement 2.9".to_owned()];
    if let (Some(base), Some(head)) = (&mut grew.base, &mut grew.head) {
        (base.largest_batch, head.largest_batch) = (Some(64), Some(48));
        head.step_ms_estimate = Some(14.0);
    }
    let mut shrank = row("train", 1200, 900, CiVerdict::Shrank);
    shrank.lines =
        vec![line("train.py", 9, -300, None, "temporary"), line("train.py", 8, 20, None, "inputs")];
    let same = || row("eval", 800, 800, CiVerdict::Same);
    let base = CiCommit { reference: "origin/main".to_owned(), commit: "0123456789abcdef".to_owned() };
    vec![
        ("grew", CiReport { base: Some(base), ..report(vec![grew, same(), failed(), new()]) }),
        ("same", report(vec![same(), row("other", 800, 804, CiVerdict::Same)])),
        ("shrank", report(vec![shrank, same()])),
        ("new", report(vec![new()])),
        (
            "accepted",
            CiReport {
                accepted: vec![".memfit/baselines/fresh.t4.toml".to_owned()],
                notes: vec!["the settings list no script for the baseline old.t4.toml".to_owned()],
                ..report(vec![new()])
            },
        ),
        ("failed", report(vec![failed(), same()])),
        (
            "none",
            CiReport { problem: Some(problem("the repository has no commit `x`")), ..report(Vec::new()) },
        ),
    ]
}
