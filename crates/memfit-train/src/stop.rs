//! What to say when even one sample does not fit: which levers would make room for it, by what is held.
//!
//! What a lever saves follows from what it acts on: moments that leave the device are gone from it whole,
//! moments in eight bits keep a quarter and their scales. What one saves of a sample's activations depends on
//! the model; the shares here are what is left to hope for with an ordinary one, from below, and are said to
//! be about so much.

/// What is on the device when a sample did not fit, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Of parameters.
    pub parameters: u64,
    /// Of parameters that are trained.
    pub trained: u64,
    /// Of the optimizer's states.
    pub states: u64,
    /// Of what the sample had by then.
    pub sample: u64,
    /// What was asked for then, and was not there.
    pub missing: u64,
}

/// A lever, and what it would save.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remedy {
    /// Its name.
    pub lever: &'static str,
    /// Bytes.
    pub saves: u64,
    /// Whether this alone is more than what was missing at the place where it failed.
    pub suffices: bool,
}

impl Held {
    /// The levers that would save something, beside those that are applied: the exact ones first, and among
    /// those of a label the one that saves most.
    pub fn remedies(&self, applied: &[&str]) -> Vec<Remedy> {
        // Gradients are as large as what is trained, and are there at the backward's end.
        let gradients = self.trained;
        let labels = [
            [
                ("host-optimizer-state", self.states),
                ("activation-offload", self.sample / 10 * 6),
                ("checkpointing", self.sample / 10 * 5),
            ],
            [("autocast-bf16", self.sample / 10 * 3), ("", 0), ("", 0)],
            [
                ("lora", (self.states + gradients) / 10 * 9),
                ("pure-bf16", (self.parameters + self.states + gradients) / 2),
                ("8-bit-optimizer", self.states / 100 * 74),
            ],
        ];
        let mut found = Vec::new();
        for mut label in labels {
            label.sort_by_key(|&(_, saves)| std::cmp::Reverse(saves));
            found.extend(
                label
                    .into_iter()
                    .filter(|(lever, saves)| *saves > 0 && !applied.contains(lever))
                    .map(|(lever, saves)| Remedy { lever, saves, suffices: saves > self.missing }),
            );
        }
        found
    }
}

/// The bytes that an allocator's message says it was asked for.
pub fn asked_for(message: &str) -> Option<u64> {
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
    fn what_was_asked_for_is_read() {
        for (message, expected) in [
            ("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has", Some(2 << 30)),
            ("CUDA out of memory. Tried to allocate 20.50 MiB.", Some(41 << 19)),
            ("Tried to allocate 512 bytes", Some(512)),
            ("Tried to allocate many GiB", None),
            ("Tried to allocate NaN GiB", None),
            ("Tried to allocate 3 parsecs", None),
            ("CUBLAS_STATUS_ALLOC_FAILED", None),
        ] {
            assert_eq!(asked_for(message), expected, "{message}");
        }
    }

    #[test]
    fn exact_levers_come_first_and_what_is_applied_is_left_out() {
        let held = Held { parameters: 4_000, trained: 4_000, states: 8_000, sample: 1_000, missing: 700 };
        let names = |applied: &[&str]| -> Vec<(&str, bool)> {
            held.remedies(applied).iter().map(|each| (each.lever, each.suffices)).collect()
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
        assert_eq!(Held::default().remedies(&[]), []);
    }
}
