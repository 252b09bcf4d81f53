//! Sample reports of every kind.

#![allow(dead_code, reason = "each test program uses a part of it")]

pub(crate) mod compared;
pub(crate) mod explained;
pub(crate) mod replayed;
pub(crate) mod reviewed;

use memfit_devices::Origin;
use memfit_report::remarks::Note;
use memfit_report::wire::{
    AssumedValue, AtPeak, CallCount, CardKind, CategoryBytes, Coverage, DeviceInfo, Exception, ExplainEdit,
    ExplainFix, Fidelity, FixProof, GpuPeak, Host, ModuleBytes, Oom, Outside, OutsideModules, OutsidePart,
    Peak, PeakEnd, PeakInterval, Problem, ProblemKind, Rank, RunReport, Script, Time, Verdict, schema,
};
use memfit_vocabulary::{Category, Cause, Lever, Phase, Proof, Remark};

pub(crate) const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn at_peak() -> AtPeak {
    let parts = [
        (Category::Activations, 9 * GIB + 800 * MIB),
        (Category::Parameters, 98 * MIB),
        (Category::Gradients, 98 * MIB),
        (Category::Optimizer, 196 * MIB),
        (Category::Inputs, 74 * MIB),
        (Category::Buffers, 208 << 10),
        (Category::Workspace, 8 * MIB),
        (Category::Temporary, 392 * MIB),
        (Category::Rounding, 27 * MIB),
        (Category::Fragmentation, 1023 * MIB),
    ];
    let by_category: CategoryBytes = parts.into_iter().collect();
    let reserved = by_category.total();
    let module = |name: &str, bytes| ModuleBytes { name: name.to_owned(), bytes };
    AtPeak {
        step: 2,
        phase: Phase::Backward,
        allocated: reserved - by_category.get(Category::Fragmentation),
        reserved,
        by_category,
        modules: vec![
            module("layer1.0.conv3", 392 * MIB),
            module("layer1.0.downsample.0", 392 * MIB),
            module("", 98 * MIB),
            module(
                "a.very.long.name.of.a.module.that.would.not.fit.on.a.line.of.any.terminal.in.the.world.at.all.conv",
                MIB,
            ),
        ],
        outside_modules: Some(OutsideModules { bytes: 74 * MIB, line: None }),
    }
}

fn part(name: &str, mib: [u64; 3], origin: Origin) -> OutsidePart {
    let [low, typical, high] = mib.map(|mib| mib * MIB);
    OutsidePart { name: name.to_owned(), low, typical, high, origin, source: "made up".to_owned() }
}

pub(crate) fn fits() -> RunReport {
    let capacity = 25_223_888_896;
    let outside = Outside { context: 400 * MIB, libraries: 65 * MIB, communication: 0, other_processes: 0 };
    let at_peak = at_peak();
    let device = at_peak.reserved + outside.total();
    let peak = Peak {
        allocated: at_peak.allocated,
        reserved: at_peak.reserved,
        device,
        device_upper: device + 223 * MIB,
    };
    RunReport {
        schema: schema::RUN.to_owned(),
        verdict: Verdict::Fits,
        device: DeviceInfo {
            name: "NVIDIA GeForce RTX 4090".to_owned(),
            capacity,
            count: 1,
            kind: CardKind::Virtual,
        },
        peak,
        peak_interval: None,
        headroom: capacity as i64 - peak.device_upper as i64,
        steps: 3,
        coverage: Coverage {
            steps: 3,
            epoch_end: true,
            has_loader: true,
            growth_per_step: Some(0),
            ..Coverage::default()
        },
        at_peak: Some(at_peak),
        outside,
        outside_parts: vec![
            part("context", [290, 400, 430], Origin::Calibrated),
            part("libraries", [0, 65, 192], Origin::Published),
        ],
        host: Host { rss: 2 * GIB, pinned: 74 * MIB, shared_memory: 148 * MIB },
        oom: None,
        ranks: vec![Rank { rank: 0, card: 0, peak }],
        gpus: vec![GpuPeak { gpu: 0, device: peak.device, device_upper: peak.device_upper }],
        time: Time {
            wall_s: 4.2,
            step_ms_estimate: Some(142.3),
            step_ms_low: Some(118.0),
            step_ms_high: Some(181.4),
            busy_ms: [("matmul", 84.0), ("convolution", 0.0), ("memory", 41.0), ("guess", 9.0)]
                .map(|(kind, length)| (kind.to_owned(), length))
                .into(),
            clock: Some("estimate".to_owned()),
        },
        fidelity: outside_is_modelled(),
        torch: Some("2.15.0+cu132".to_owned()),
        recording: None,
        script: Script { command: vec!["python".to_owned(), "train.py".to_owned()], ..Script::default() },
        plan: None,
        problem: None,
        cause: None,
        fixes: Vec::new(),
    }
}

pub(crate) fn oom() -> RunReport {
    let mut report = fits();
    report.verdict = Verdict::Oom;
    "NVIDIA GeForce RTX 3060".clone_into(&mut report.device.name);
    report.device.capacity = 12_616_007_680;
    report.headroom = report.device.capacity as i64 - report.peak.device_upper as i64;
    report.steps = 0;
    report.coverage = Coverage::default();
    report.oom = Some(Oom {
        caught: false,
        requested: 392 * MIB,
        step: 1,
        phase: Phase::Forward,
        module: Some("layer3.5.conv2".to_owned()),
        evaluation: false,
        stack: vec![
            "train.py:51 in main".to_owned(),
            "train.py:88 in <module>".to_owned(),
            "/env/lib/python3.11/site-packages/torch/nn/modules/conv.py:560 in Conv2d._conv_forward".to_owned(),
            "/env/lib/python3.11/site-packages/torch/nn/modules/conv.py:565 in Conv2d.forward".to_owned(),
        ],
        message: Some("CUDA out of memory. Tried to allocate 392.00 MiB. GPU 0 has a total capacity of 11.75 GiB of which 210.06 MiB is free. Including non-PyTorch memory, this process has 11.54 GiB memory in use.".to_owned()),
    });
    report.script.exit_status = Some(1);
    report.cause = Some(Cause::TooBig);
    report.fixes = fixes(report.peak);
    report
}

/// Remedies: one proven by a run with a change of a file, one proven by arithmetic, one that is not enough.
fn fixes(peak: Peak) -> Vec<ExplainFix> {
    let fix = |lever: Lever, saves, how: &str, enough| ExplainFix {
        lever,
        saves,
        label: lever.label(),
        how: how.to_owned(),
        evidence: Proof::Modelled,
        enough,
        environment: None,
        edit: None,
        card: None,
        proof: None,
    };
    let mut first = fix(
        Lever::Checkpointing,
        4 * GIB,
        "`torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)` around each repeated block",
        Some(true),
    );
    first.evidence = Proof::Run;
    first.proof = Some(FixProof { verdict: Verdict::Fits, steps: 3, peak });
    first.edit = Some(ExplainEdit {
        file: "train.py".to_owned(),
        line: 31,
        diff: "--- train.py\n+++ train.py\n@@ -31,1 +31,1 @@\n-            x = block(x)\n+            x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)\n".to_owned(),
    });
    let second = fix(Lever::AutocastBf16, 3 * GIB, "the forward under autocast", None);
    let third = fix(Lever::SmallerBatch, GIB, "half the batch", Some(false));
    vec![first, second, third]
}

fn outside_is_modelled() -> Fidelity {
    let mut fidelity = Fidelity::default();
    fidelity.add(&Note::new(Remark::Outside).with_value("cuda", "12 to 13"));
    fidelity
}

pub(crate) fn unknown() -> RunReport {
    let mut report = fits();
    report.verdict = Verdict::Unknown;
    report.fidelity.values = vec![AssumedValue {
        call: "the size of `nonzero` depends on computed values: upper bound used".to_owned(),
        count: 12,
        lines: vec![
            "/home/me/train.py:31 in assign".to_owned(),
            "/home/me/train.py:47 in <module>".to_owned(),
        ],
    }];
    let refused = [("cudaGraphicsMapResources", 1), ("nvmlDeviceGetTemperature", 2)];
    report.fidelity.unmodelled =
        refused.map(|(call, count)| CallCount { call: call.to_owned(), count }).to_vec();
    report.coverage.growth_per_step = Some(8 * MIB as i64);
    let end = |peak, out_of_memory| PeakEnd { peak, out_of_memory, completed: !out_of_memory };
    report.peak_interval =
        Some(PeakInterval { lower: end(report.peak, false), upper: end(report.peak, true) });
    report.problem = Some(Problem {
        kind: ProblemKind::SizeReadBack,
        message: "It ran out of memory, but the script reads back sizes that only a real GPU computes."
            .to_owned(),
        hint: Some("compare with a larger `--memory`".to_owned()),
    });
    report
}

pub(crate) fn two_ranks() -> RunReport {
    let mut report = fits();
    report.device.count = 2;
    report.outside.communication = 130 * MIB;
    report.coverage = Coverage {
        steps: 3,
        forward_only: false,
        evaluation: true,
        largest_batch: true,
        epoch_end: true,
        has_loader: true,
        growth_per_step: Some(8 * MIB as i64),
        not_run: Vec::new(),
    };
    report.ranks =
        vec![Rank { rank: 0, card: 0, peak: report.peak }, Rank { rank: 1, card: 1, peak: report.peak }];
    report.gpus.push(GpuPeak { gpu: 1, ..report.gpus[0] });
    report.coverage.forward_only = true;
    report.recording = Some("run.memfit".to_owned());
    report
}

pub(crate) fn failed() -> RunReport {
    let mut report = fits();
    report.verdict = Verdict::Error;
    report.peak = Peak::default();
    report.at_peak = None;
    report.problem = Some(Problem {
        kind: ProblemKind::Exit,
        message: "The script ended with status 3.".to_owned(),
        hint: None,
    });
    report.script.exit_status = Some(3);
    report.script.exception = Some(Exception {
        r#type: "ValueError".to_owned(),
        message: "no data set here".to_owned(),
        traceback: "Traceback (most recent call last):\n".to_owned(),
    });
    report
}

/// An out-of-memory error that the script caught.
pub(crate) fn recovered() -> RunReport {
    let mut report = fits();
    report.oom = oom().oom.map(|oom| Oom { caught: true, ..oom });
    report
}

/// One of each.
pub(crate) fn all() -> Vec<RunReport> {
    vec![fits(), oom(), unknown(), two_ranks(), failed(), recovered()]
}
