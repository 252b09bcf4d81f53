//! Memory need of an optimizer step: states created by its first step, and temporaries.
//!
//! Computed from the bytes of the updated parameters, as in PyTorch's own optimizers: over all parameters
//! together (`foreach`), the temporaries are lists as large as the parameters; one by one, they are as large
//! as the largest.

/// Settings of an optimizer step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of torch's own optimizers")]
pub struct Update<'a> {
    /// Class of the optimizer.
    pub kind: &'a str,
    /// `true` if it updates all parameters together (`foreach`).
    pub together: bool,
    /// `true` for a fused kernel.
    pub fused: bool,
    /// `true` if it keeps a momentum, for optimizers with that option.
    pub momentum: bool,
    /// `true` if it keeps one more moment: `amsgrad` or `centered`.
    pub extra: bool,
    /// `true` if it adds weight decay to the gradients, which allocates new ones.
    pub decays: bool,
    /// Bytes of the parameters that have a gradient.
    pub moved: u64,
    /// Bytes of the largest of them.
    pub largest: u64,
    /// Bytes of those without optimizer state.
    pub new: u64,
}

/// Memory need of a step in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UpdateNeed {
    /// States that it creates, which stay.
    pub states: u64,
    /// Temporaries, which are freed after it.
    pub temporaries: u64,
}

impl Update<'_> {
    /// Computes the need of this step.
    pub fn need(&self) -> UpdateNeed {
        let states = self.moments() * self.new;
        let at_once = if self.together { self.moved } else { self.largest };
        let temporaries = if self.fused { 0 } else { self.copies() * at_once };
        UpdateNeed { states, temporaries }
    }

    /// Number of moments for each parameter.
    fn moments(&self) -> u64 {
        let (momentum, extra) = (u64::from(self.momentum), u64::from(self.extra));
        match self.kind {
            "SGD" | "Muon" => momentum,
            "RMSprop" => 1 + momentum + extra,
            "Adafactor" => 0,
            "Adagrad" | "ASGD" => 1,
            // Adam and similar optimizers, and unknown ones, most of which keep two.
            _ => 2 + extra,
        }
    }

    /// Number of temporary lists that exist at the same time.
    fn copies(&self) -> u64 {
        let decayed = u64::from(self.decays);
        match self.kind {
            "SGD" => decayed,
            "AdamW" | "Adagrad" | "Adafactor" => 1,
            "Adam" | "Adamax" | "RMSprop" => 1 + decayed,
            _ => 2 + decayed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn needs_follow_from_the_way_it_steps() {
        let adamw =
            Update { kind: "AdamW", together: true, moved: 100, largest: 30, new: 100, ..Update::default() };
        for (name, update, states, temporaries) in [
            ("the first step", adamw, 200, 100),
            ("a later one", Update { new: 0, ..adamw }, 0, 100),
            ("one by one", Update { together: false, ..adamw }, 200, 30),
            ("fused", Update { fused: true, ..adamw }, 200, 0),
            ("with amsgrad", Update { extra: true, ..adamw }, 300, 100),
            ("plain descent", Update { kind: "SGD", ..adamw }, 0, 0),
            (
                "with momentum and decay",
                Update { kind: "SGD", momentum: true, decays: true, ..adamw },
                100,
                100,
            ),
            ("unknown", Update { kind: "Lion", ..adamw }, 200, 200),
        ] {
            assert_eq!(update.need(), UpdateNeed { states, temporaries }, "{name}");
        }
    }

    /// Moments and temporaries of a first step over all parameters: as it is, with weight decay, and with
    /// momentum and one more moment.
    #[test]
    fn each_optimizer_keeps_its_own_moments() {
        for (kind, plain, decayed, more) in [
            ("SGD", (0, 0), (0, 1), (1, 0)),
            ("Muon", (0, 2), (0, 3), (1, 2)),
            ("Adam", (2, 1), (2, 2), (3, 1)),
            ("AdamW", (2, 1), (2, 1), (3, 1)),
            ("Adamax", (2, 1), (2, 2), (3, 1)),
            ("RMSprop", (1, 1), (1, 2), (3, 1)),
            ("Adagrad", (1, 1), (1, 1), (1, 1)),
            ("ASGD", (1, 2), (1, 3), (1, 2)),
            ("Adafactor", (0, 1), (0, 1), (0, 1)),
        ] {
            let update = Update { kind, together: true, moved: 1, largest: 1, new: 1, ..Update::default() };
            let need = |update: Update| (update.need().states, update.need().temporaries);
            assert_eq!(need(update), plain, "{kind}");
            assert_eq!(need(Update { decays: true, ..update }), decayed, "{kind} with weight decay");
            assert_eq!(
                need(Update { momentum: true, extra: true, ..update }),
                more,
                "{kind} with more moments"
            );
        }
    }
}
