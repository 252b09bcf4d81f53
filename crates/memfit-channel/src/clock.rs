//! The clock of a virtual device, as both ends of the channel speak of it: how it is asked to go, what its
//! work is made of, and the marks that a process sets at the end of each step.

use serde::{Deserialize, Serialize};

/// When the device says that work is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ClockMode {
    /// After as long as it is estimated to take on the card.
    #[default]
    Estimate,
    /// At once: memory that another stream uses comes back as early as it can.
    Instant,
    /// Only when the host waits for it: such memory comes back as late as it can.
    Never,
}

/// Whether the host's own computing moves the clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HostTime {
    /// Each call of the device takes the host a fixed time: the same script reads the same clock on any
    /// machine.
    #[default]
    Modelled,
    /// The processor time of the calling thread between its calls counts as well.
    Measured,
}

/// What a piece of work is, as far as the accuracy of its estimate is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WorkKind {
    /// Products of matrices.
    Matmul,
    /// Convolutions.
    Convolution,
    /// Fused attention.
    Attention,
    /// Kernels that are bound by memory, of which the operands are known.
    Memory,
    /// Kernels of which only the memory that they were led to is known.
    Guess,
    /// Copies between the host and a card, and between cards.
    Transfer,
    /// Collective communication.
    Communication,
}

impl WorkKind {
    /// All kinds, in the order in which marks hold them.
    pub const ALL: [Self; 7] = [
        Self::Matmul,
        Self::Convolution,
        Self::Attention,
        Self::Memory,
        Self::Guess,
        Self::Transfer,
        Self::Communication,
    ];

    /// The name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Matmul => "matmul",
            Self::Convolution => "convolution",
            Self::Attention => "attention",
            Self::Memory => "memory",
            Self::Guess => "guess",
            Self::Transfer => "transfer",
            Self::Communication => "communication",
        }
    }

    /// By how much an estimate of such work may be off, beyond what the card's own speed is uncertain by: the
    /// shares by which it may be too long and too short.
    const fn error(self) -> (f64, f64) {
        match self {
            Self::Matmul | Self::Transfer => (0.10, 0.15),
            Self::Attention | Self::Memory => (0.20, 0.25),
            Self::Convolution | Self::Communication => (0.30, 0.40),
            Self::Guess => (0.50, 1.00),
        }
    }
}

/// By how much the time may be off in which the device waits for the host.
const HOST_ERROR: (f64, f64) = (0.60, 1.50);

/// The device's clock at the end of a step.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockMark {
    /// When all work that was queued by then is done, in nanoseconds since the device was made.
    pub end: u64,
    /// How much work was queued until then, by kind, in nanoseconds.
    pub busy: Vec<u64>,
    /// When each of the cards that are timed beside it would be done; empty where that is not known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub beside: Vec<u64>,
}

/// How long a step takes, as an estimate.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepTime {
    /// The best guess, in nanoseconds.
    pub typical: f64,
    /// No shorter than this.
    pub low: f64,
    /// No longer than this.
    pub high: f64,
    /// What the device does in it, in nanoseconds, by kind; streams that run side by side count each.
    pub busy: Vec<(WorkKind, f64)>,
}

/// How far a card's speed is from its typical one: at its best and at its worst, as factors of the time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SpeedRange {
    /// At its best; at most 1.
    pub best: f64,
    /// At its worst; at least 1.
    pub worst: f64,
}

impl Default for SpeedRange {
    fn default() -> Self {
        Self { best: 1.0, worst: 1.0 }
    }
}

impl StepTime {
    /// From the marks at the ends of the steps, in order. The first step, which warms up, is left out, and of
    /// the others the later half is taken: what is compiled or captured along the way is over by then.
    /// Nothing with fewer than two marks, or from a clock that stands still.
    pub fn of(marks: &[ClockMark], compute: SpeedRange, memory: SpeedRange) -> Option<Self> {
        let steps: Vec<(&ClockMark, &ClockMark)> = marks.iter().zip(marks.get(1..)?).collect();
        let mut steady = steps.get(steps.len() / 2..)?.to_vec();
        steady.sort_by_key(|(before, after)| after.end.saturating_sub(before.end));
        let (before, after) = steady.get(steady.len() / 2)?;
        let typical = after.end.checked_sub(before.end).filter(|length| *length > 0)? as f64;
        let at = |mark: &ClockMark, kind: usize| mark.busy.get(kind).copied().unwrap_or(0);
        let busy: Vec<(WorkKind, f64)> = (0..)
            .zip(WorkKind::ALL)
            .map(|(index, kind)| (kind, at(after, index).saturating_sub(at(before, index)) as f64))
            .collect();
        let total: f64 = busy.iter().map(|(_, length)| length).sum();
        // What is neither is the host's: there the device waits to be told what to do.
        let working = total.min(typical);
        let share = if total > 0.0 { working / total } else { 0.0 };
        let (mut low, mut high) =
            ((typical - working) * (1.0 - HOST_ERROR.0), (typical - working) * (1.0 + HOST_ERROR.1));
        for (kind, length) in &busy {
            let range = match kind {
                WorkKind::Matmul | WorkKind::Convolution | WorkKind::Attention => compute,
                WorkKind::Memory | WorkKind::Guess => memory,
                WorkKind::Transfer | WorkKind::Communication => SpeedRange::default(),
            };
            let (less, more) = kind.error();
            low += length * share * range.best * (1.0 - less);
            high += length * share * range.worst * (1.0 + more);
        }
        Some(Self { typical, low, high, busy })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marks(ends: &[u64]) -> Vec<ClockMark> {
        ends.iter()
            .map(|end| ClockMark { end: *end, busy: vec![*end, 0, 0, 0, 0, 0, 0], ..ClockMark::default() })
            .collect()
    }

    fn typical(ends: &[u64]) -> Option<f64> {
        let one = SpeedRange::default();
        StepTime::of(&marks(ends), one, one).map(|time| time.typical)
    }

    #[test]
    fn a_step_is_as_long_as_the_steady_ones() {
        assert_eq!(typical(&[]), None);
        assert_eq!(typical(&[100]), None, "the first step warms up");
        assert_eq!(typical(&[900, 1_000]), Some(100.0));
        assert_eq!(typical(&[900, 1_900, 2_000]), Some(100.0), "a capture in the second is over");
        assert_eq!(typical(&[900, 5_000, 6_000, 6_100, 6_210, 6_310]), Some(100.0));
        assert_eq!(typical(&[5, 5, 5]), None, "a clock that stands still tells nothing");
    }

    #[test]
    fn the_interval_holds_the_estimate_and_grows_with_what_is_guessed() {
        let one = SpeedRange::default();
        let mark = |end: u64, known: u64, guessed: u64| ClockMark {
            end,
            busy: vec![known, 0, 0, 0, guessed],
            ..ClockMark::default()
        };
        let of = |after: ClockMark| StepTime::of(&[mark(0, 0, 0), after], one, one).unwrap();
        let (known, guessed, waiting) = (of(mark(100, 100, 0)), of(mark(100, 0, 100)), of(mark(100, 10, 0)));
        for time in [&known, &guessed, &waiting] {
            assert!(time.low < time.typical && time.typical < time.high, "{time:?}");
        }
        assert!(known.high < guessed.high && guessed.low < known.low);
        assert!(known.high < waiting.high, "the host's time is known less well than the card's");
        let slow =
            StepTime::of(&[mark(0, 0, 0), mark(100, 100, 0)], SpeedRange { best: 0.9, worst: 2.0 }, one);
        assert!(slow.is_some_and(|slow| slow.high > 1.9 * known.high));
    }
}
