//! Rules that query the facts of Python source, and the fixes they offer.
//!
//! Owns the rules, one file each ([`rules`](mod@rules)), their selection and suppression, fixes and how they
//! come together, and which files of a project are read.
//! It must not know the parser, the allocator, or how findings are shown.

mod check;
mod config;
mod files;
mod fix;
mod mend;
mod modules;
mod query;
mod rule;
mod rules;
mod suppress;

pub use check::Shown;
pub use check::{Checked, Error, FileFix, FileLabel, Problem, Report, Source, check_paths, check_source};
pub use config::{Config, ConfigError, Level};
pub use fix::{Applied, Refused, apply};
pub use memfit_source::{Edit, LineIndex as Lines, Span, document::Location, edit::unified_diff};
pub use rule::{Finding, Fix, Fixes, Label, Rule, Severity};
pub use rules::{all as rules, find as rule, page};

/// The name of the finding that a suppression had nothing to suppress.
pub use suppress::UNUSED;
