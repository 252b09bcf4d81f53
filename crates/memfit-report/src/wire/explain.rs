//! `memfit.explain/1`: the cause of an out-of-memory error, and remedies.

use std::fmt::Write as _;

use memfit_explain::{Apply, Explanation};
use memfit_vocabulary::{Category, Cause, Label, Lever, Phase, Proof};
use serde::{Deserialize, Serialize};

use super::run::{Peak, Verdict};

/// The cause of an out-of-memory error on one device, and remedies.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExplainReport {
    /// [`schema::EXPLAIN`](super::schema::EXPLAIN).
    pub schema: String,
    /// The file.
    pub file: String,
    /// The device.
    pub device: u32,
    /// The cause; `none` if memory did not run out and does not grow.
    pub cause: Cause,
    /// Evidence for the cause, strongest first.
    pub evidence: Vec<Evidence>,
    /// The explained moment: the out-of-memory error, otherwise the peak.
    pub peak: ExplainPeak,
    /// Memory at that moment by category, module and line. The branches sum to `peak.reserved`.
    pub holders: Vec<Holder>,
    /// Remedies, best first.
    pub fixes: Vec<Fix>,
    /// Memory that grows with each step.
    pub leaks: Vec<Leak>,
    /// Reserved memory that could not be used.
    pub fragmentation: Fragmentation,
    /// The causes that were considered.
    pub considered: Vec<Considered>,
    /// Open questions, as sentences.
    pub unknown: Vec<String>,
    /// Parts of the file that could not be read.
    pub problems: Vec<String>,
}

/// Evidence for a cause.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    /// A sentence.
    pub text: String,
    /// Bytes concerned.
    pub bytes: u64,
    /// The lines of the user's code concerned, innermost first.
    pub stack: Vec<CodeLine>,
}

/// A line of the user's code.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CodeLine {
    /// The file path, as recorded.
    pub file: String,
    /// The line, from 1.
    pub line: u32,
    /// The function.
    pub function: String,
    /// The source line, if the file is available.
    pub text: Option<String>,
}

/// The explained moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExplainPeak {
    /// Bytes in blocks.
    pub allocated: u64,
    /// Bytes in segments.
    pub reserved: u64,
    /// Size of the tensor whose request failed, in bytes; absent if memory did not run out. If only PyTorch's
    /// message is known: size of the segment.
    pub requested: Option<u64>,
    /// Size of the segment that the request needed, as in PyTorch's message; absent if only the message is
    /// known.
    #[serde(default)]
    pub segment: Option<u64>,
    /// Bytes available to the allocator.
    pub limit: Option<u64>,
    /// Bytes that were missing.
    pub missing: Option<u64>,
    /// The step in progress, counted from 1; 0 if the file does not say.
    pub step: u64,
    /// The phase in progress.
    pub phase: Option<Phase>,
}

/// Node of the tree of memory holders.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// The category, the module or the line.
    pub name: String,
    /// Bytes.
    pub bytes: u64,
    /// Number of blocks.
    pub blocks: u64,
    /// Parts.
    pub children: Vec<Self>,
}

/// A remedy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fix {
    /// The lever.
    pub lever: Lever,
    /// Bytes that it would have saved.
    pub saves: u64,
    /// Effect on the training results.
    pub label: Label,
    /// Instructions.
    pub how: String,
    /// Evidence for the savings.
    pub evidence: Proof,
    /// `true` if the failed request would have succeeded, after which the run may still fail; with `evidence`
    /// `run`, `true` if a whole run fits. Absent if unknown.
    pub enough: Option<bool>,
    /// Environment variable to set; an empty value unsets it.
    pub environment: Option<Environment>,
    /// Edit of a source file.
    pub edit: Option<Edit>,
    /// A GPU on which the allocator can get this many bytes.
    pub card: Option<u64>,
    /// Result of a run with it, if there was one.
    #[serde(default)]
    pub proof: Option<FixProof>,
}

/// Result of a run with a remedy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FixProof {
    /// Verdict.
    pub verdict: Verdict,
    /// Completed steps.
    pub steps: u64,
    /// Peaks.
    pub peak: Peak,
}

/// An environment variable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Environment {
    /// Name.
    pub name: String,
    /// Value.
    pub value: String,
}

/// Edit of a source file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Edit {
    /// The file.
    pub file: String,
    /// The first changed line.
    pub line: u32,
    /// The edit as a unified diff for `patch`.
    pub diff: String,
}

/// Memory that grows with each step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leak {
    /// The line that allocated it.
    pub line: Option<CodeLine>,
    /// The module in whose call it was allocated.
    pub module: Option<String>,
    /// Category.
    pub category: Category,
    /// Bytes left behind by each step.
    pub per_step: u64,
    /// Bytes at the explained moment.
    pub bytes: u64,
    /// Number of steps concerned.
    pub steps: u64,
    /// The step in which memory runs out.
    pub dies_at_step: Option<u64>,
}

/// Reserved memory that could not be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Fragmentation {
    /// Reserved bytes that are in no used block.
    pub unused: u64,
    /// Share of the reserved bytes.
    pub share: f64,
    /// The largest free block.
    pub largest_free: Option<u64>,
    /// Number of free blocks.
    pub free_blocks: Option<u64>,
    /// Free bytes in private pools.
    pub in_private_pools: u64,
}

/// A cause that was considered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Considered {
    /// The cause.
    pub cause: Cause,
    /// The bytes that it accounts for.
    pub bytes: u64,
    /// `true` if the request would have succeeded without them.
    pub enough: bool,
}

impl From<memfit_explain::Line> for CodeLine {
    fn from(line: memfit_explain::Line) -> Self {
        Self { file: line.file, line: line.line, function: line.function, text: line.text }
    }
}

impl From<memfit_explain::Holder> for Holder {
    fn from(holder: memfit_explain::Holder) -> Self {
        let children = holder.children.into_iter().map(Self::from).collect();
        Self { name: holder.name, bytes: holder.bytes, blocks: holder.blocks, children }
    }
}

impl From<memfit_explain::Fix> for Fix {
    fn from(fix: memfit_explain::Fix) -> Self {
        let mut report = Self {
            lever: fix.lever,
            saves: fix.saves,
            label: fix.label(),
            how: fix.how,
            evidence: fix.proof,
            enough: fix.fits,
            environment: None,
            edit: None,
            card: None,
            proof: None,
        };
        match fix.apply {
            Apply::ByHand(None) => {}
            Apply::ByHand(Some(why)) => {
                let _ = write!(report.how, "; no change of the source is shown: {why}");
            }
            Apply::Environment(name, value) => {
                report.environment = Some(Environment { name: name.to_owned(), value });
            }
            Apply::Edit(change) => {
                report.edit = Some(Edit { file: change.file, line: change.line, diff: change.diff });
            }
            Apply::Card(bytes) => report.card = Some(bytes),
        }
        report
    }
}

impl ExplainReport {
    /// Converts an explanation to its wire form.
    pub fn new(file: String, explanation: Explanation, problems: Vec<String>) -> Self {
        let moment = explanation.moment;
        let evidence = explanation.evidence.into_iter().map(|fact| Evidence {
            text: fact.text,
            bytes: fact.bytes,
            stack: fact.lines.into_iter().map(CodeLine::from).collect(),
        });
        let leaks = explanation.leaks.into_iter().map(|leak| Leak {
            line: leak.line.map(CodeLine::from),
            module: leak.module,
            category: leak.category,
            per_step: leak.per_step,
            bytes: leak.bytes,
            steps: leak.steps,
            dies_at_step: leak.dies_at,
        });
        let considered = explanation.considered.into_iter();
        let figures = explanation.fragmentation;
        Self {
            schema: super::schema::EXPLAIN.to_owned(),
            file,
            device: u32::from(explanation.device),
            cause: explanation.cause,
            evidence: evidence.collect(),
            peak: ExplainPeak {
                allocated: moment.allocated,
                reserved: moment.reserved,
                requested: moment.requested,
                segment: moment.segment,
                limit: moment.limit,
                missing: moment.missing,
                step: moment.step,
                phase: moment.phase,
            },
            holders: explanation.holders.into_iter().map(Holder::from).collect(),
            fixes: explanation.fixes.into_iter().map(Fix::from).collect(),
            leaks: leaks.collect(),
            fragmentation: Fragmentation {
                unused: figures.unused,
                share: figures.share,
                largest_free: figures.largest_free,
                free_blocks: figures.free_blocks,
                in_private_pools: figures.in_private_pools,
            },
            considered: considered
                .map(|one| Considered { cause: one.cause, bytes: one.bytes, enough: one.enough })
                .collect(),
            unknown: explanation.unknown,
            problems,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fix(lever: Lever, apply: Apply) -> Fix {
        let how = "do it".to_owned();
        Fix::from(memfit_explain::Fix { lever, saves: 1, how, proof: Proof::Modelled, fits: None, apply })
    }

    /// The lever alone determines the label, and splitting a batch without verification counts as changing
    /// training results.
    #[test]
    fn the_label_of_a_remedy_is_its_levers() {
        for lever in Lever::ALL {
            for apply in [Apply::ByHand(None), Apply::Environment("A", "b".to_owned()), Apply::Card(1)] {
                assert_eq!(fix(*lever, apply).label, lever.label_unverified(), "{lever}");
            }
        }
        assert_eq!(fix(Lever::MicroBatch, Apply::ByHand(None)).label, Label::ChangesTraining);
        assert_eq!(fix(Lever::Checkpointing, Apply::ByHand(None)).label, Label::Exact);
        assert_eq!(fix(Lever::ResizeBeforeUpload, Apply::ByHand(None)).label, Label::ChangesTraining);
    }

    #[test]
    fn a_change_that_was_refused_is_advice_with_a_reason() {
        let refused = fix(Lever::ReleaseGraph, Apply::ByHand(Some("it is trained on".to_owned())));
        assert_eq!(
            (refused.edit, refused.how.as_str()),
            (None, "do it; no change of the source is shown: it is trained on")
        );
        assert_eq!(fix(Lever::ReleaseGraph, Apply::ByHand(None)).how, "do it");
    }
}
