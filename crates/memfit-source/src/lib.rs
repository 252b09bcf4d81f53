//! Static analysis of Python training code: one pass collects facts, which lint rules query.
//!
//! The crate contains all use of the Python parser, the effects of a program on gradients, graphs and memory
//! ([`Facts`]), Python in notebooks and Markdown ([`document`]), and all source edits ([`edit`]). The
//! analysis is conservative: a fact needs evidence in the text, and nothing follows from its absence. The
//! crate does not know rules, files, or the presentation of findings. No Python is run.

#![allow(
    clippy::option_option,
    clippy::struct_excessive_bools,
    clippy::match_same_arms,
    clippy::single_match_else,
    reason = "facts are many independent yes-or-no's, known or not; tables of names read best one line a meaning"
)]

pub mod document;
pub mod edit;
mod expression;
mod facts;
mod limits;
mod names;
mod parse;
mod position;
mod project;
mod statements;
mod walk;
mod windows;

pub use edit::{Edit, EditError};
pub use expression::{CallArgument, Expression, ExpressionKind, Operator};
pub use facts::*;
pub use limits::{STACK, TooMuch};
pub use parse::{Dialect, Module, facts, is_relevant, is_valid};
pub use position::{LineColumn, LineIndex, Span};
pub use project::{Elsewhere, GivenValue, ImportedClass, ImportedFunction, Index, Modules, NoModules};
pub use statements::{Statement, StatementKind, is_deep, statements};
