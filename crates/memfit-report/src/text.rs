//! Texts for people.
//!
//! Each renderer returns a string with ANSI styles in it; whoever prints it strips them where they are not wanted.

mod canvas;
mod doctor;
mod gpus;
mod run;

pub use canvas::{Canvas, paint};
pub use doctor::doctor;
pub use gpus::{gpu, gpus};
pub use run::run;

/// A size for people: binary units, with the unit.
pub fn size(bytes: u64) -> String {
    memfit_devices::Bytes::new(bytes).to_string()
}

/// A size that may be negative.
pub fn signed_size(bytes: i64) -> String {
    let sign = if bytes < 0 { "-" } else { "" };
    format!("{sign}{}", size(bytes.unsigned_abs()))
}
