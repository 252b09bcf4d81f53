//! Texts for people.
//!
//! Each renderer returns a string with ANSI styles; the code that prints it removes them if they are not
//! wanted.

mod calibrate;
mod canvas;
mod cards;
mod check;
pub(crate) mod ci;
mod data;
mod data_loader;
mod doctor;
mod explain;
mod gpus;
mod plan;
mod replay;
mod rules;
mod run;
mod shrink;
mod watch;

pub use calibrate::calibration;
pub use canvas::{Canvas, paint};
pub use cards::cards;
pub use check::{concise, findings};
pub use ci::ci;
pub use data::data;
pub use data_loader::data_loader;
pub use doctor::doctor;
pub use explain::explain;
pub use gpus::{gpu, gpus};
pub use plan::plan;
pub(crate) use plan::{
    in_short as plan_in_short, in_words as plan_lever_in_words, meaning as plan_lever_meaning,
};
pub use replay::replay;
pub use rules::{rule, rules};
pub use run::run;
pub use shrink::shrink;
pub use watch::watch;

/// Formats a size for people: binary units, with as many decimals as are useful.
pub fn size(bytes: u64) -> String {
    const UNITS: [(u32, &str); 4] = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    for (shift, unit) in UNITS {
        let one = 1_u64 << shift;
        // A size that would round up to a full larger unit is printed in that unit (1023.9 MiB).
        if bytes >= one - one / 64 {
            let count = bytes as f64 / one as f64;
            let decimals = match unit {
                "TiB" | "GiB" => 2,
                "MiB" if count < 99.95 => 1,
                _ => 0,
            };
            return format!("{count:.decimals$} {unit}");
        }
    }
    format!("{bytes} B")
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

/// A size that may be negative.
pub fn signed_size(bytes: i64) -> String {
    let sign = if bytes < 0 { "-" } else { "" };
    format!("{sign}{}", size(bytes.unsigned_abs()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_as_many_decimals_as_matter() {
        let check = |bytes: u64, text: &str| assert_eq!(size(bytes), text, "{bytes}");
        check(0, "0 B");
        check(1000, "1000 B");
        check(1023, "1 KiB");
        check(513 << 10, "513 KiB");
        check(1 << 20, "1.0 MiB");
        check((97 << 20) + (1 << 19), "97.5 MiB");
        check(465 << 20, "465 MiB");
        check((1 << 30) - 1, "1.00 GiB");
        check(25 << 30, "25.00 GiB");
        check(3 << 40, "3.00 TiB");
        check(u64::MAX, "16777216.00 TiB");
        for (number, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(count(number), text);
        }
        assert_eq!(signed_size(-(1 << 20)), "-1.0 MiB");
        assert_eq!(signed_size(1 << 20), "1.0 MiB");
    }
}
