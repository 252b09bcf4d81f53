//! Advice when a single sample does not fit: levers that would save memory, given what is held.
//!
//! Each lever estimates its savings. Savings of activations depend on the model: the shares are conservative
//! values for typical models, and are reported as approximate.

use std::cmp::Reverse;

use memfit_vocabulary::{Held, Lever};

/// Lever with its savings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remedy {
    /// Lever.
    pub lever: Lever,
    /// Bytes.
    pub saves: u64,
    /// `true` if it alone saves more than was missing at the failure.
    pub suffices: bool,
}

/// Levers that would save memory and are not applied: first those that keep training results, and among
/// equals the largest savings.
pub fn remedies(held: &Held, applied: &[&str]) -> Vec<Remedy> {
    let remedy = |lever: &Lever| {
        let saves = lever.declaration().saves?(held);
        let counts = saves > 0 && !applied.contains(&lever.name());
        counts.then_some(Remedy { lever: *lever, saves, suffices: saves > held.missing })
    };
    let mut found: Vec<Remedy> = Lever::ALL.iter().filter_map(remedy).collect();
    found.sort_by_key(|remedy| (remedy.lever.label(), Reverse(remedy.saves)));
    found
}

/// Requested bytes in an allocator's message.
pub fn requested_bytes(message: &str) -> Option<u64> {
    let rest = message.split_once("Tried to allocate ")?.1;
    let mut words = rest.split_whitespace();
    let number: f64 = words.next()?.parse().ok()?;
    let unit = match words.next()?.trim_end_matches(['.', ',']) {
        "bytes" => 1.0,
        "KiB" => 1024.0,
        "MiB" => 1024.0 * 1024.0,
        "GiB" => 1024.0 * 1024.0 * 1024.0,
        _ => return None,
    };
    let bytes = number * unit;
    (bytes.is_finite() && bytes >= 0.0).then_some(bytes as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requested_bytes_are_read_from_the_message() {
        for (message, expected) in [
            ("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has", Some(2 << 30)),
            ("CUDA out of memory. Tried to allocate 20.50 MiB.", Some(41 << 19)),
            ("Tried to allocate 512 bytes", Some(512)),
            ("Tried to allocate many GiB", None),
            ("Tried to allocate NaN GiB", None),
            ("Tried to allocate 3 parsecs", None),
            ("CUBLAS_STATUS_ALLOC_FAILED", None),
        ] {
            assert_eq!(requested_bytes(message), expected, "{message}");
        }
    }

    #[test]
    fn exact_levers_come_first_and_what_is_applied_is_left_out() {
        let held = Held { parameters: 4_000, trained: 4_000, states: 8_000, sample: 1_000, missing: 700 };
        let names = |applied: &[&str]| -> Vec<(&str, bool)> {
            remedies(&held, applied).iter().map(|each| (each.lever.name(), each.suffices)).collect()
        };
        assert_eq!(
            names(&[]),
            [
                ("host-optimizer-state", true),
                ("activation-offload", false),
                ("checkpointing", false),
                ("autocast-bf16", false),
                ("lora", true),
                ("pure-bf16", true),
                ("8-bit-optimizer", true),
            ]
        );
        assert_eq!(names(&["host-optimizer-state", "lora"])[0], ("activation-offload", false));
        assert_eq!(remedies(&Held::default(), &[]), []);
    }
}
