//! Arguments of `memfit check`, `memfit rule` and `memfit server`.

use std::path::PathBuf;

use clap::{ValueEnum, ValueHint};
use serde::Deserialize;

#[derive(Debug, clap::Args)]
#[command(
    args_override_self = true,
    after_help = "Examples:
  memfit check .
  memfit check train.py --fix --diff
  memfit check src notebooks README.md --format sarif > memfit.sarif
A comment with a reason suppresses a finding: # memfit: ignore[rule-name] why"
)]
pub(crate) struct CheckArgs {
    /// Python files, notebooks, Markdown, and folders of them; `-` reads Python from standard input.
    #[arg(required = true, value_name = "PATH", value_hint = ValueHint::AnyPath)]
    pub(crate) paths: Vec<PathBuf>,

    /// Apply fixes that do not change what the program computes.
    #[arg(long)]
    pub(crate) fix: bool,

    /// With `--fix` or `--diff`: also apply fixes that need a review.
    #[arg(long)]
    pub(crate) unsafe_fixes: bool,

    /// Show what `--fix` would change, as a patch, and change nothing.
    #[arg(long, conflicts_with_all = ["format", "json"])]
    pub(crate) diff: bool,

    /// Run only these rules; `all` selects every rule.
    #[arg(long, value_name = "RULE", value_delimiter = ',')]
    pub(crate) select: Vec<String>,

    /// Also run these rules.
    #[arg(long, value_name = "RULE", value_delimiter = ',')]
    pub(crate) extend_select: Vec<String>,

    /// Do not run these rules.
    #[arg(long, value_name = "RULE", value_delimiter = ',')]
    pub(crate) ignore: Vec<String>,

    /// Skip files that match, with the syntax of `.gitignore`.
    #[arg(long, value_name = "PATTERN", value_delimiter = ',')]
    pub(crate) exclude: Vec<String>,

    /// The lowest severity with which the exit status is 1 [default: error].
    #[arg(long, value_enum, value_name = "SEVERITY")]
    pub(crate) fail_on: Option<FailOn>,

    /// Output format on standard output.
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub(crate) format: Option<FindingsFormat>,

    /// Also write the answer as JSON to a file.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) json: Option<PathBuf>,
}

/// Output formats for findings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FindingsFormat {
    /// The source with annotations.
    Text,
    /// One line per finding.
    Concise,
    /// For programs.
    Json,
    /// SARIF 2.1.0.
    Sarif,
    /// Annotations of GitHub Actions.
    Github,
    /// GitLab's code quality report.
    Gitlab,
    /// JUnit's XML.
    Junit,
}

/// Findings that make the exit status 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum FailOn {
    /// Errors.
    #[default]
    Error,
    /// Errors and warnings.
    Warning,
    /// Any finding.
    Note,
    /// None.
    Never,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  memfit rule
  memfit rule graph-in-container")]
pub(crate) struct RuleArgs {
    /// Show this rule's page; without it, list all rules.
    pub(crate) name: Option<String>,

    #[command(flatten)]
    pub(crate) out: super::OutputArgs,
}
