//! Texts for people.
//!
//! Each renderer returns a string with ANSI styles; the code that prints it removes them if they are not
//! wanted.

use std::sync::LazyLock;

mod assumed;
mod calibrate;
mod canvas;
mod cards;
mod check;
pub(crate) mod ci;
mod coverage;
mod data;
mod data_loader;
mod doctor;
mod explain;
mod gpus;
mod growth;
mod modules;
mod moment;
mod plan;
mod replay;
mod rules;
mod run;
mod several;
mod shrink;
mod watch;

pub use calibrate::calibration;
pub use canvas::{Canvas, paint};
pub use cards::cards;
pub use check::{concise, findings};
pub use ci::ci;
pub(crate) use coverage::not_covered;
pub use data::data;
pub use data_loader::data_loader;
pub use doctor::doctor;
pub use explain::explain;
pub use gpus::{gpu, gpus};
pub use growth::Growth;
pub use plan::plan;
pub(crate) use plan::{
    in_short as plan_in_short, in_words as plan_lever_in_words, meaning as plan_lever_meaning,
};
pub use replay::replay;
pub use rules::{rule, rules};
pub use run::run;
pub use shrink::shrink;
pub use watch::watch;

pub use memfit_vocabulary::{format_milliseconds as milliseconds, format_size as size};

/// Name of a module in a text.
fn module_name(name: &str) -> String {
    match name.as_bytes() {
        [] => "(the model itself)".to_owned(),
        // A child of an `nn.Sequential`: a bare number would not be recognised as a module.
        [b'0'..=b'9', ..] => format!("model.{name}"),
        _ => name.to_owned(),
    }
}

/// A place or a frame without the current folder, in which most scripts are.
fn from_here(place: &str) -> &str {
    static HERE: LazyLock<Option<String>> = LazyLock::new(|| {
        let folder = std::env::current_dir().ok()?.to_str()?.to_owned();
        (folder.len() > 1).then(|| format!("{folder}/"))
    });
    HERE.as_deref().and_then(|folder| place.strip_prefix(folder)).unwrap_or(place)
}

/// Formats a number for people, with commas between thousands.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `once`, `3 times`.
pub fn times(count: u64) -> String {
    if count == 1 { "once".to_owned() } else { format!("{count} times") }
}

/// A size that may be negative.
pub fn signed_size(bytes: i64) -> String {
    let sign = if bytes < 0 { "-" } else { "" };
    format!("{sign}{}", size(bytes.unsigned_abs()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_commas_and_differences_a_sign() {
        for (number, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(count(number), text);
        }
        assert_eq!(signed_size(-(1 << 20)), "-1.0 MiB");
        assert_eq!(signed_size(1 << 20), "1.0 MiB");
    }
}
