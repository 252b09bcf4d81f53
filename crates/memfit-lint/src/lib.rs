//! Lint rules for PyTorch training code, and their fixes.
//!
//! The crate contains the rules, one file each ([`rules`](mod@rules)), their selection and suppression, the
//! combination of fixes, and the selection of a project's files. It does not know the parser, the allocator,
//! or the presentation of findings.

mod averages;
mod callers;
mod calls;
mod check;
mod config;
mod data;
mod divisors;
mod evaluation;
mod fakes;
mod files;
mod fix;
mod mend;
mod meters;
mod modules;
mod passes;
mod project;
mod query;
mod requirements;
mod rule;
mod rules;
mod samples;
mod suppress;
mod tree;
mod untrained;

pub use check::Shown;
pub use check::{Checked, Error, FileFix, FileLabel, Problem, Report, Source, check_paths, check_source};
pub use config::{Config, ConfigError, Level};
pub use fix::{Applied, Refused, apply};
pub use memfit_source::{Edit, LineIndex as Lines, Span, document::Location, edit::unified_diff};
pub use rule::{Finding, Fix, Fixes, Label, Rule, Severity};
pub use rules::{all as rules, find as rule, page};

/// Rule name of findings about unnecessary suppressions.
pub use suppress::UNUSED;
