//! Sample explanations, one for each cause.

use memfit_report::wire::{
    CodeLine, Considered, Evidence, ExplainEdit, ExplainEnvironment, ExplainFix, ExplainHolder, ExplainLeak,
    ExplainPeak, ExplainReport, Fragmentation, schema,
};
use memfit_vocabulary::{Category, Cause, Lever, Phase, Proof};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn line(number: u32, text: &str) -> CodeLine {
    CodeLine {
        file: "train.py".to_owned(),
        line: number,
        function: "main".to_owned(),
        text: Some(text.to_owned()),
    }
}

fn fix(lever: Lever, saves: u64, how: &str) -> ExplainFix {
    ExplainFix {
        lever,
        saves,
        label: lever.label(),
        how: how.to_owned(),
        evidence: Proof::Modelled,
        enough: Some(true),
        environment: None,
        edit: None,
        card: None,
        proof: None,
    }
}

fn holder(name: &str, bytes: u64, children: Vec<ExplainHolder>) -> ExplainHolder {
    ExplainHolder { name: name.to_owned(), bytes, blocks: 3, children }
}

/// The remedy that asks for the cause, as the explanation has it.
fn first(cause: Cause) -> Option<ExplainFix> {
    let by = |lever, how| Some(fix(lever, 2 * GIB, how));
    match cause {
        Cause::None => None,
        Cause::Fragmented => Some(ExplainFix {
            evidence: Proof::Replayed,
            environment: Some(ExplainEnvironment {
                name: "PYTORCH_ALLOC_CONF".to_owned(),
                value: "expandable_segments:True".to_owned(),
            }),
            ..fix(Lever::ExpandableSegments, 3 * GIB, "set PYTORCH_ALLOC_CONF=expandable_segments:True: the same calls reserve 18.20 GiB instead of 21.30 GiB")
        }),
        Cause::Leaking => Some(ExplainFix {
            evidence: Proof::Replayed,
            edit: Some(ExplainEdit {
                file: "train.py".to_owned(),
                line: 31,
                diff: "--- train.py\n+++ train.py\n@@ -31,1 +31,1 @@\n-        kept.append(out)\n+        kept.append(out.detach().cpu())\n".to_owned(),
            }),
            ..fix(Lever::KeepOnCpu, 4 * GIB, "keep what is collected off the card")
        }),
        Cause::TooBig => by(Lever::Checkpointing, "`checkpoint` around each repeated block"),
        Cause::RetainedGraph => by(Lever::ReleaseGraph, "keep no tensor with a graph"),
        Cause::GrowingCache => by(Lever::Preallocate, "make it once, as large as it will be"),
        Cause::TwoBatchesAlive => by(Lever::DropVariables, "`del` what a step made at its end"),
        Cause::EvaluationWithGradients => by(Lever::NoGrad, "evaluate under `torch.no_grad()`"),
        Cause::FirstStepSurprise => by(Lever::ForeachOff, "`foreach=False`"),
        Cause::GiantRequest => by(Lever::Sdpa, "`F.scaled_dot_product_attention(q, k, v)`"),
        Cause::HostMemory => by(Lever::MoreHostMemory, "raise the memory limit of the container or job"),
        Cause::OtherProcesses => by(Lever::EndOtherProcess, "end the other processes first"),
        Cause::Outside => by(Lever::CpuOnlyWorkers, "keep CUDA out of helper processes"),
        Cause::PrivatePools => by(Lever::SharePool, "let graphs share one pool"),
        Cause::SettingThatHurts => by(Lever::DropSetting, "leave `max_split_size_mb` out"),
        Cause::DoesNotFit => {
            let card = fix(Lever::LargerGpu, GIB, "a card with 80 GiB or more");
            Some(ExplainFix { card: Some(80 * GIB), ..card })
        }
    }
}

pub(crate) fn explained(cause: Cause) -> ExplainReport {
    let failed = cause != Cause::None;
    let grows = matches!(cause, Cause::Leaking | Cause::RetainedGraph | Cause::GrowingCache);
    let activations =
        vec![holder("model.layers", 18 * GIB, vec![holder("train.py:31", 18 * GIB, Vec::new())])];
    ExplainReport {
        schema: schema::EXPLAIN.to_owned(),
        file: "snapshot.pickle".to_owned(),
        device: 0,
        cause,
        evidence: failed
            .then(|| Evidence {
                text: "the evidence, in one sentence with 18.00 GiB in it".to_owned(),
                bytes: 18 * GIB,
                stack: vec![line(31, "out = model(batch)"), line(60, "main()")],
            })
            .into_iter()
            .collect(),
        peak: ExplainPeak {
            allocated: 20 * GIB,
            reserved: 21 * GIB,
            // A tensor that the allocator rounds up.
            requested: failed.then_some(if cause == Cause::TooBig { 15 * MIB / 2 } else { 2 * GIB }),
            segment: failed.then_some(if cause == Cause::TooBig { 20 * MIB } else { 2 * GIB }),
            limit: failed.then_some(22 * GIB),
            missing: matches!(cause, Cause::TooBig | Cause::DoesNotFit).then_some(512 * MIB),
            step: 3,
            phase: Some(Phase::Forward),
        },
        holders: vec![
            holder("activations", 18 * GIB, activations),
            holder(
                "parameters",
                2 * GIB,
                vec![holder("model", 2 * GIB, vec![holder("(not known)", 2 * GIB, Vec::new())])],
            ),
            holder("fragmentation", GIB, Vec::new()),
        ],
        fixes: first(cause)
            .into_iter()
            .chain(failed.then(|| ExplainFix {
                enough: Some(false),
                ..fix(Lever::SmallerBatch, GIB, "half the batch")
            }))
            .collect(),
        leaks: grows
            .then(|| ExplainLeak {
                line: Some(line(31, "out = model(batch)")),
                module: None,
                category: Category::Activations,
                per_step: 600 * MIB,
                bytes: 18 * GIB,
                steps: 30,
                dies_at_step: Some(36),
            })
            .into_iter()
            .collect(),
        fragmentation: Fragmentation {
            unused: GIB,
            share: 0.05,
            largest_free: Some(300 * MIB),
            free_blocks: Some(12),
            in_private_pools: 0,
        },
        considered: failed
            .then_some(Considered { cause, bytes: 18 * GIB, enough: true })
            .into_iter()
            .collect(),
        unknown: if failed {
            Vec::new()
        } else {
            vec!["earlier allocations are not in the recording".to_owned()]
        },
        problems: Vec::new(),
    }
}

/// One of each.
pub(crate) fn each() -> impl Iterator<Item = ExplainReport> {
    Cause::ALL.iter().map(|cause| explained(*cause))
}
