//! Techniques that make a model or its training smaller, and what each of them saves.
//!
//! Owns the list of techniques, each as settings of levers ([`TECHNIQUES`]), the choice of measurements for
//! each, and the rows that follow from them ([`table`]). The measurements come from a [`Bench`].
//!
//! It must not know how a script is run, how a lever changes a model, or how a table looks.

mod rows;
mod technique;

pub use rows::{Bench, Measured, Pass, Table, table};
pub use technique::{Affects, Given, TECHNIQUES, Technique, find};
