//! Techniques that make a model or its training smaller, and the savings of each.
//!
//! Owns the list of techniques, each with its levers and their settings ([`TECHNIQUES`]), the choice of
//! measurements for each, and the resulting rows ([`table`]). The measurements come from a [`Bench`].
//!
//! It does not know how a script is run, how a lever changes a model, or how a table is rendered.

mod rows;
mod technique;

pub use rows::{Bench, Measured, Pass, Table, table};
pub use technique::{Affects, Given, TECHNIQUES, Technique, find};
