//! What the probe is asked to do to a training from outside, beside watching it. The device knows nothing of
//! it.

use std::fs;

use serde::{Deserialize, Serialize};

use crate::{ChannelError, ClockMark, RunDir};

/// What the probe does to a training from outside.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[expect(clippy::struct_excessive_bools, reason = "each says a thing of its own")]
pub struct Planned {
    /// Whether the process stops where it first needs the card, and is forked from there for each run.
    pub serves: bool,
    /// Samples in one forward and backward, at most.
    pub micro_batch: Option<u64>,
    /// Samples in a batch of the script's.
    pub batch: Option<u64>,
    /// Whether the script makes its batches itself, of as many samples as a name of its own says.
    pub by_name: bool,
    /// The loader's batches in one optimizer step.
    pub accumulate: u64,
    /// After so many of the loader's batches the script itself asks its optimizer to step.
    pub own_accumulation: u64,
    /// Of how many pieces a batch is.
    pub pieces: u64,
    /// Of each batch so many pieces are run, in the last step one more; nothing where all are.
    pub most_pieces: Option<u64>,
    /// Whether the script only goes forward: levers are put on its first forward, and its batches come in
    /// pieces, without a step that would hold them together.
    pub infers: bool,
    /// The levers, in order.
    pub levers: Vec<LeverSetup>,
    /// Whether repeated blocks are measured.
    pub measure: bool,
}

/// One lever, and how far it is moved.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeverSetup {
    /// Its name.
    pub name: String,
    /// How far.
    pub value: serde_json::Value,
}

impl Default for Planned {
    fn default() -> Self {
        Self {
            serves: false,
            micro_batch: None,
            batch: None,
            by_name: false,
            accumulate: 1,
            own_accumulation: 1,
            pieces: 1,
            most_pieces: None,
            infers: false,
            levers: Vec::new(),
            measure: false,
        }
    }
}

impl Planned {
    /// Of a batch in many pieces so many are run: the first adds no gradients to others, the second does, and
    /// so do all that follow.
    const ENOUGH: u64 = 2;

    /// The same with no more pieces run than tell what the others would.
    #[must_use]
    pub fn shortened(self) -> Self {
        let most_pieces =
            (self.own_accumulation == 1 && self.pieces > Self::ENOUGH + 1).then_some(Self::ENOUGH);
        Self { most_pieces, ..self }
    }

    /// By how much longer a whole step is than the last two say, of which the last had one piece more;
    /// nothing where all pieces were run, or where that does not follow.
    pub fn stretch(&self, marks: &[ClockMark]) -> Option<f64> {
        let most = self.most_pieces?;
        let [.., first, second, third] = marks else { return None };
        let short = second.end.checked_sub(first.end)? as f64;
        let long = third.end.checked_sub(second.end).filter(|long| *long > 0)? as f64;
        let whole = short + self.pieces.saturating_sub(most) as f64 * (long - short).max(0.0);
        Some(whole / long)
    }

    /// Writes it where the probe looks for it.
    pub fn write(&self, run_dir: &RunDir) -> Result<(), ChannelError> {
        let path = run_dir.plan();
        let text = serde_json::to_vec(self)
            .map_err(|error| ChannelError::Invalid { path: path.clone(), why: error.to_string() })?;
        fs::write(&path, text).map_err(|source| ChannelError::Io { path, source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_whole_step_follows_from_two_short_ones() {
        let marks = |ends: &[u64]| -> Vec<ClockMark> {
            ends.iter().map(|end| ClockMark { end: *end, ..ClockMark::default() }).collect()
        };
        let stretch = |pieces, ends: &[u64]| {
            let planned = Planned { pieces, ..Planned::default() }.shortened();
            planned.stretch(&marks(ends)).map(|stretch| (stretch * 1000.0).round())
        };
        // Two pieces of 10 and a step of 5, then three pieces: 35. Eight pieces are 85.
        assert_eq!(stretch(8, &[100, 125, 160]), Some((85.0_f64 / 35.0 * 1000.0).round()));
        assert_eq!(stretch(3, &[100, 125, 160]), None, "all of them are run");
        assert_eq!(stretch(8, &[100, 125]), None);
    }
}
