//! Python source, turned into facts about training: once, so that rules only query.
//!
//! Owns all use of the Python parser, what the parts of a program do to gradients, graphs and memory
//! ([`Facts`]), how Python stands in notebooks and in Markdown ([`document`]), and every change of it
//! ([`edit`]). Unknown is a value here: a
//! fact is there because something in the text says so, and nothing is concluded from what is not there.
//! It must not know rules, files, or how findings are shown. No Python is ever run.

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
pub use expression::{Expression, ExpressionKind, Operator, Passed};
pub use facts::*;
pub use limits::{STACK, TooMuch};
pub use parse::{Dialect, Module, facts, is_relevant, is_valid};
pub use position::{LineColumn, LineIndex, Span};
pub use project::{Alone, ImportedClass, ImportedFunction, Index, Modules};
pub use statements::{Statement, StatementKind, is_deep, statements};
