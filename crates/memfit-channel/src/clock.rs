//! Clock settings and readings of a virtual device: its modes, the kinds of its work, and the marks that a
//! process writes at the end of each step.

use serde::{Deserialize, Serialize};

/// Policy for the completion time of device work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ClockMode {
    /// After its estimated duration on the device.
    #[default]
    Estimate,
    /// Immediately: memory that another stream uses is reusable as early as possible.
    Instant,
    /// Only when the host waits for it: such memory is reusable as late as possible.
    Never,
}

/// Source of host time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HostTime {
    /// Each device call takes a fixed host time: the same script reads the same clock on any machine.
    #[default]
    Modelled,
    /// The CPU time of the calling thread between its calls counts as well.
    Measured,
}

/// Kind of a piece of work; the accuracy of its estimate depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WorkKind {
    /// Matrix products.
    Matmul,
    /// Convolutions.
    Convolution,
    /// Fused attention.
    Attention,
    /// Memory-bound kernels with known operands.
    Memory,
    /// Kernels for which only the reachable memory is known.
    Guess,
    /// Copies between host and device, and between devices.
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

    /// Name in reports.
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

    /// Relative error of an estimate beyond the uncertainty of the device's speed: how much it may be too
    /// long and too short.
    const fn error(self) -> (f64, f64) {
        match self {
            Self::Matmul | Self::Transfer => LEAST_ERROR,
            Self::Attention | Self::Memory => SHARE_ERROR,
            Self::Convolution | Self::Communication => CHOICE_ERROR,
            Self::Guess => GUESS_ERROR,
        }
    }
}

/// Relative error where sizes, types and rates are known.
/// Fitted: to the published steps (docs/time.md), of which nine in ten lie inside. Of single products
/// on a V100 and a T4 (DeepBench), half do.
const LEAST_ERROR: (f64, f64) = (0.10, 0.15);
/// Relative error where the share of the bandwidth or the rate is an estimate.
/// Fitted: as above. Of the 26 kernels of `measured.rs` in memfit-kernels, 19 lie inside.
const SHARE_ERROR: (f64, f64) = (0.20, 0.25);
/// Relative error where a library chooses an algorithm by its own measurements.
/// Fitted: as above. Of single convolutions on a V100 and a T4 (DeepBench), two thirds lie inside.
const CHOICE_ERROR: (f64, f64) = (0.30, 0.40);
/// Relative error where only the operands are known.
/// Fitted: as above; the three rows with weights of eight bits in measurements/datacenter-speed.md are mostly
/// such kernels, and lie inside.
const GUESS_ERROR: (f64, f64) = (0.50, 1.00);
/// Relative error of the time in which the device waits for the host.
/// Fitted: as above; the rows of BERT in measurements/datacenter-speed.md that wait for the host lie inside.
const HOST_ERROR: (f64, f64) = (0.60, 1.50);

/// Reading of the device's clock at the end of a step.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockMark {
    /// Completion time of all work queued so far, in nanoseconds since the device was created.
    pub end: u64,
    /// Nanoseconds of work queued so far, by kind.
    pub busy: Vec<u64>,
    /// Completion times on the GPUs with auxiliary clocks; empty if unknown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub beside: Vec<u64>,
}

/// Estimated duration of a step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepTime {
    /// Typical duration in nanoseconds.
    pub typical: f64,
    /// Lower bound.
    pub low: f64,
    /// Upper bound.
    pub high: f64,
    /// Device work in nanoseconds, by kind; concurrent streams each count.
    pub busy: Vec<(WorkKind, f64)>,
}

/// Range of a device's speed around its typical one, as factors of the duration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SpeedRange {
    /// Best case; at most 1.
    pub best: f64,
    /// Worst case; at least 1.
    pub worst: f64,
}

impl Default for SpeedRange {
    fn default() -> Self {
        Self { best: 1.0, worst: 1.0 }
    }
}

impl StepTime {
    /// Estimates the step time from the marks at the ends of the steps, in order. The first step is a warm-up
    /// and is left out; of the others, the later half is used, since compilation and capture are complete by
    /// then. `None` with fewer than two marks, or if the clock does not advance.
    pub fn from_marks(marks: &[ClockMark], compute: SpeedRange, memory: SpeedRange) -> Option<Self> {
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
        // The remaining time belongs to the host: the device waits for it.
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
        StepTime::from_marks(&marks(ends), one, one).map(|time| time.typical)
    }

    #[test]
    fn step_time_is_taken_from_steady_steps() {
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
        let of = |after: ClockMark| StepTime::from_marks(&[mark(0, 0, 0), after], one, one).unwrap();
        let (known, guessed, waiting) = (of(mark(100, 100, 0)), of(mark(100, 0, 100)), of(mark(100, 10, 0)));
        for time in [&known, &guessed, &waiting] {
            assert!(time.low < time.typical && time.typical < time.high, "{time:?}");
        }
        assert!(known.high < guessed.high && guessed.low < known.low);
        assert!(known.high < waiting.high, "the host's time is known less well than the card's");
        let slow = StepTime::from_marks(
            &[mark(0, 0, 0), mark(100, 100, 0)],
            SpeedRange { best: 0.9, worst: 2.0 },
            one,
        );
        assert!(slow.is_some_and(|slow| slow.high > 1.9 * known.high));
    }
}
