//! What an optimizer's step needs beyond what is there: states that its first step makes, and temporaries.
//!
//! Counted in the bytes of the parameters that it moves, as PyTorch's own optimizers do it: over all
//! parameters together, the temporaries are lists as large as the parameters; one by one, they are as large
//! as the largest.

/// How an optimizer steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of torch's own optimizers")]
pub struct Update<'a> {
    /// Its class.
    pub kind: &'a str,
    /// Whether it steps over all parameters together.
    pub together: bool,
    /// Whether one kernel does all of it.
    pub fused: bool,
    /// Whether it keeps a momentum, where that is a choice.
    pub momentum: bool,
    /// Whether it keeps one more moment: `amsgrad`, or `centered`.
    pub extra: bool,
    /// Whether it adds a decay to gradients, which makes new ones.
    pub decays: bool,
    /// Bytes of the parameters that have a gradient.
    pub moved: u64,
    /// Bytes of the largest of them.
    pub largest: u64,
    /// Bytes of those that have no state yet.
    pub new: u64,
}

/// Bytes that a step needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UpdateNeed {
    /// Of states that it makes, and that stay.
    pub states: u64,
    /// Of what is gone after it.
    pub temporaries: u64,
}

impl Update<'_> {
    /// What this step needs.
    pub fn need(&self) -> UpdateNeed {
        let states = self.moments() * self.new;
        let at_once = if self.together { self.moved } else { self.largest };
        let temporaries = if self.fused { 0 } else { self.copies() * at_once };
        UpdateNeed { states, temporaries }
    }

    /// Moments for each parameter.
    fn moments(&self) -> u64 {
        let (momentum, extra) = (u64::from(self.momentum), u64::from(self.extra));
        match self.kind {
            "SGD" | "Muon" => momentum,
            "RMSprop" => 1 + momentum + extra,
            "Adafactor" => 0,
            "Adagrad" | "ASGD" => 1,
            // Adam and its kin, and what nobody has looked at: most keep two.
            _ => 2 + extra,
        }
    }

    /// Lists of temporaries that are there at the same time.
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
