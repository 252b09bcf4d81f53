//! Every renderer, and the wire types with their schema versions.
//!
//! Owns the shapes of memfit's JSON ([`wire`]), which are promises to other software, and the texts that
//! people read ([`text`]). A renderer turns a wire type into a string and does no more: both outputs say the
//! same thing because they are made from the same value.
//! It must not know how results are computed, nor where its text goes: no terminal, no file, no clock.

mod cards_page;
mod ci_comment;
pub mod findings;
mod lever_table;
pub mod metrics;
mod plan_page;
pub mod remarks;
pub mod text;
pub mod wire;

pub use cards_page::cards_page;
pub use ci_comment::{CI_MARKER, ci_comment};
pub use lever_table::lever_table;
pub use plan_page::plan_page;
