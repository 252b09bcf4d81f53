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
}
