//! What a rule is, and what it says.

pub(crate) use memfit_source::Edit;
use memfit_source::{Facts, OpKind, Span};
use serde::{Deserialize, Serialize};

/// What a finding means. Each means one thing, for every rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Tuning: nothing is wrong.
    Note,
    /// A real cost, and a bounded one.
    Warning,
    /// The result is wrong, or the program dies.
    Error,
}

impl Severity {
    /// As it is written everywhere.
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

/// Whether a rule can mend what it finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fixes {
    /// It cannot.
    Never,
    /// Without a change to what the program computes.
    Safe,
    /// It changes what the program does: someone must look.
    Unsafe,
}

/// A rule.
#[derive(Debug)]
pub struct Rule {
    /// As in `memfit rule NAME`.
    pub name: &'static str,
    /// Unless the settings say otherwise.
    pub severity: Severity,
    /// The best that it can do.
    pub fixes: Fixes,
    /// Whether it runs without being selected.
    pub on: bool,
    pub(crate) check: fn(&Context<'_>, &mut Findings<'_>),
}

/// What a rule may query.
#[derive(Debug)]
pub(crate) struct Context<'a> {
    /// The facts of the text.
    pub(crate) facts: &'a Facts,
    /// What the rest of the project says.
    pub(crate) project: &'a Project,
}

/// What the other files of the project say about this one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Project {
    /// Names of functions that are called somewhere while gradients are off.
    pub(crate) called_without_grad: std::collections::HashSet<String>,
    /// A model of it differentiates in its forward pass, as those do that give forces: it needs gradients to
    /// evaluate too, and what it gives may have no graph any more.
    pub(crate) differentiates: bool,
}

impl Project {
    /// What one file says.
    pub(crate) fn add(&mut self, facts: &Facts) {
        self.called_without_grad.extend(facts.called_without_grad.iter().cloned());
        self.differentiates |= facts.ops.iter().any(|op| {
            let function = facts.function(op.site.function);
            op.kind == OpKind::AutogradGrad
                && function.name.ends_with(".forward")
                && function.class.is_some_and(|class| facts.class(class).is_module)
        });
    }
}

/// How a finding is mended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fix {
    /// It changes nothing that the program computes.
    pub safe: bool,
    /// What it does, as a command.
    pub title: String,
    /// The changes, which belong together.
    pub edits: Vec<Edit>,
}

#[allow(clippy::unnecessary_wraps, reason = "what takes a fix takes none as well")]
impl Fix {
    pub(crate) fn safe(title: impl Into<String>, edits: Vec<Edit>) -> Option<Self> {
        Some(Self { safe: true, title: title.into(), edits })
    }

    pub(crate) fn unsafe_(title: impl Into<String>, edits: Vec<Edit>) -> Option<Self> {
        Some(Self { safe: false, title: title.into(), edits })
    }
}

/// Another place that belongs to a finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// Where.
    pub span: Span,
    /// What is there.
    pub text: String,
}

/// What a rule found, in the text's own bytes.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The rule.
    pub rule: &'static Rule,
    /// Where.
    pub span: Span,
    /// What is wrong and what it does, as a sentence without its end.
    pub message: String,
    /// Other places.
    pub labels: Vec<Label>,
    /// What to do.
    pub help: Option<String>,
    /// How to do it.
    pub fix: Option<Fix>,
}

/// Collects what one rule finds.
#[derive(Debug)]
pub(crate) struct Findings<'a> {
    pub(crate) rule: &'static Rule,
    pub(crate) found: &'a mut Vec<Finding>,
}

impl Findings<'_> {
    /// Notes a finding.
    pub(crate) fn at(&mut self, span: Span, message: impl Into<String>) -> &mut Finding {
        let finding = Finding {
            rule: self.rule,
            span,
            message: message.into(),
            labels: Vec::new(),
            help: None,
            fix: None,
        };
        self.found.push(finding);
        let last = self.found.len() - 1;
        &mut self.found[last]
    }
}

impl Finding {
    pub(crate) fn label(&mut self, span: Span, text: impl Into<String>) -> &mut Self {
        self.labels.push(Label { span, text: text.into() });
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
