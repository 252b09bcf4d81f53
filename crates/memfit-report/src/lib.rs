//! All renderers, and the wire types with their schema versions.
//!
//! Owns the format of memfit's JSON ([`wire`]), which other software relies on, and the text output
//! ([`text`]). A renderer only converts a wire type to a string. Text and JSON agree because they are made
//! from the same value. The crate knows neither how results are computed nor where the text goes: it uses no
//! terminal, file or clock.

mod cards_page;
mod ci_comment;
pub mod findings;
mod html;
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
