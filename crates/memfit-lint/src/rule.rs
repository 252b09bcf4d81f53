//! Rules and findings.

pub(crate) use memfit_source::Edit;
use std::path::Path;

use memfit_source::{Facts, Span};
use serde::{Deserialize, Serialize};

use crate::requirements::LazyTorch;

/// Severity of a finding, with the same meaning for every rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Tuning advice; the code is correct.
    Note,
    /// A real but bounded cost.
    Warning,
    /// The result is wrong, or the program fails.
    Error,
}

impl Severity {
    /// Name in output and settings.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

impl std::fmt::Display for Severity {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(self.name())
    }
}

/// Availability of fixes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fixes {
    /// No fix.
    Never,
    /// Fixes keep the program's results.
    Safe,
    /// Fixes change the program's behaviour and need a review.
    Unsafe,
}

/// Rule.
#[derive(Debug)]
pub struct Rule {
    /// Name, as in `memfit rule NAME`.
    pub name: &'static str,
    /// Default severity.
    pub severity: Severity,
    /// Best kind of fix.
    pub fixes: Fixes,
    /// `true` if it runs by default.
    pub on: bool,
    pub(crate) check: fn(&Context<'_>, &mut Findings<'_>),
}

/// Input of a rule.
#[derive(Debug)]
pub(crate) struct Context<'a> {
    /// Facts of the text.
    pub(crate) facts: &'a Facts,
    /// Path of the file, as given by the user.
    pub(crate) file: &'a Path,
    /// Facts of the rest of the project.
    pub(crate) project: &'a Project,
    /// PyTorch releases that the project allows, read when a rule first asks.
    pub(crate) torch: &'a LazyTorch<'a>,
}

/// What the functions and methods of a project that share a name do.
#[derive(Clone, Debug, Default)]
pub(crate) struct Namesakes {
    /// One of them calls a model with gradients on.
    pub(crate) passes: bool,
    /// One of them turns gradients off, trains, or calls no model.
    pub(crate) others: bool,
    /// Methods of other objects to which those of them that call no model give one.
    pub(crate) hands_to: Vec<String>,
}

/// Names of the functions and methods of a project.
pub(crate) type Methods = std::collections::HashMap<String, Namesakes>;

/// What a project does with gradient scalers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Scalers {
    /// One is made.
    pub(crate) made: bool,
    /// One is made that is disabled.
    pub(crate) off: bool,
    /// A function that makes none itself updates one.
    pub(crate) updated: bool,
}

/// Classes of a project whose objects sum what they are given.
#[derive(Clone, Debug, Default)]
pub(crate) struct Meters {
    /// Names of classes whose `update` adds its argument, as it is, to a sum of the object.
    pub(crate) sums: std::collections::HashSet<String>,
    /// Classes of which a method adds what another object was made with to the same of its own.
    pub(crate) statistics: std::collections::HashMap<String, Statistics>,
}

/// Class whose objects are added up.
#[derive(Clone, Debug)]
pub(crate) struct Statistics {
    /// Position and name of the constructor's parameter that is summed.
    pub(crate) parameter: (usize, String),
    /// Method that adds another object.
    pub(crate) method: String,
}

/// Facts of the project's other files about this one.
#[expect(clippy::struct_excessive_bools, reason = "they are independent facts of the files")]
#[derive(Clone, Debug, Default)]
pub(crate) struct Project {
    /// Names of functions that are called somewhere while gradients are off.
    pub(crate) called_without_grad: std::collections::HashSet<String>,
    /// `true` if a model of the project differentiates in its forward pass, such as one that predicts forces:
    /// it needs gradients during evaluation too, and its output may have no graph.
    pub(crate) differentiates: bool,
    /// Names of classes of which a model of the project makes a part.
    pub(crate) parts: std::collections::HashSet<String>,
    /// `true` if a loader of the project has workers.
    pub(crate) has_workers: bool,
    /// Functions that loaders with workers of a file get from other files, such as collate functions.
    pub(crate) worker_functions: std::collections::HashSet<String>,
    /// Classes of the data sets of loaders that have workers.
    pub(crate) worker_sets: std::collections::HashSet<String>,
    /// `true` if the project sets how processes are started: spawned workers can read tensors on the GPU.
    pub(crate) spawns: bool,
    /// Words in the names of models whose parameters are set to require no gradients somewhere.
    pub(crate) frozen: std::collections::HashSet<String>,
    /// What the functions and methods of a name do.
    pub(crate) methods: Methods,
    /// Names of attributes of other objects on which `zero_grad()` is called.
    pub(crate) cleared: std::collections::HashSet<String>,
    /// `true` if a file of the project moves something to a GPU.
    pub(crate) on_card: bool,
    /// Names of functions that empty the cache each time they are called.
    pub(crate) empties: std::collections::HashSet<String>,
    /// What the files do with gradient scalers.
    pub(crate) scalers: Scalers,
    /// Calls of functions of other files.
    pub(crate) calls: crate::calls::Calls,
    /// Names by which files that do not train divide.
    pub(crate) divisors: std::collections::HashSet<String>,
    /// `true` if a model of the project cuts values from their graphs.
    pub(crate) detaches: bool,
    /// `true` if a file makes inputs volatile, which turns gradients off before PyTorch 0.4 only.
    pub(crate) volatile: bool,
    /// `true` if a file needs PyTorch 0.4, which brought `item()` and `no_grad`.
    pub(crate) has_no_grad: bool,
    /// Classes whose objects sum what they are given.
    pub(crate) meters: Meters,
    /// Attributes of models that are models.
    pub(crate) layers: std::collections::HashSet<String>,
}

/// Fix of a finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fix {
    /// `true` if the program's results stay the same.
    pub safe: bool,
    /// Description in the imperative.
    pub title: String,
    /// Edits, which must be applied together.
    pub edits: Vec<Edit>,
}

#[allow(clippy::unnecessary_wraps, reason = "callers pass an optional fix")]
impl Fix {
    pub(crate) fn safe(title: impl Into<String>, edits: Vec<Edit>) -> Option<Self> {
        Some(Self { safe: true, title: title.into(), edits })
    }

    pub(crate) fn unsafe_(title: impl Into<String>, edits: Vec<Edit>) -> Option<Self> {
        Some(Self { safe: false, title: title.into(), edits })
    }
}

/// Related position of a finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// Span.
    pub span: Span,
    /// Description.
    pub text: String,
}

/// Finding, with offsets in the snippet.
#[derive(Clone, Debug)]
pub struct Finding {
    /// Rule.
    pub rule: &'static Rule,
    /// Span.
    pub span: Span,
    /// Message: the fault and its effect, as a sentence without a final full stop.
    pub message: String,
    /// Related positions.
    pub labels: Vec<Label>,
    /// Advice.
    pub help: Option<String>,
    /// Fix.
    pub fix: Option<Fix>,
    /// `true` if the facts do not show the harm: it is a note, whatever the rule's severity is.
    pub is_note: bool,
}

/// Collector of a rule's findings.
#[derive(Debug)]
pub(crate) struct Findings<'a> {
    pub(crate) rule: &'static Rule,
    pub(crate) found: &'a mut Vec<Finding>,
}

impl Findings<'_> {
    /// Adds a finding.
    pub(crate) fn report(&mut self, span: Span, message: impl Into<String>) -> &mut Finding {
        let finding = Finding {
            rule: self.rule,
            span,
            message: message.into(),
            labels: Vec::new(),
            help: None,
            fix: None,
            is_note: false,
        };
        self.found.push(finding);
        let last = self.found.len() - 1;
        &mut self.found[last]
    }

    /// Takes back findings of this rule at some spans.
    pub(crate) fn withdraw(&mut self, is_wrong: impl Fn(Span) -> bool) {
        let own = self.rule.name;
        self.found.retain(|found| found.rule.name != own || !is_wrong(found.span));
    }
}

impl Finding {
    pub(crate) fn label(&mut self, span: Span, text: impl Into<String>) -> &mut Self {
        self.labels.push(Label { span, text: text.into() });
        self
    }

    /// Makes it a note unless the facts show the harm.
    pub(crate) fn note_unless(&mut self, shown: bool) -> &mut Self {
        self.is_note |= !shown;
        self
    }

    pub(crate) fn help(&mut self, text: impl Into<String>) -> &mut Self {
        self.help = Some(text.into());
        self
    }

    pub(crate) fn fix(&mut self, fix: Option<Fix>) -> &mut Self {
        self.fix = fix;
        self
    }
}
