//! Prediction of a candidate's memory and time from runs: memory is nearly linear in the micro-batch size,
//! and time is interpolated between the measured numbers of micro-batches.

use std::collections::BTreeMap;

use memfit_vocabulary::{Measured, Training};

use crate::choose::{Block, Choice, Fate, Offload, choose};
use crate::trial::Outcome;

/// Run of the whole model without recomputation.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    /// Micro-batch size.
    pub(crate) micro_batch: u64,
    /// Micro-batches in a step.
    pub(crate) pieces: u64,
    /// Outcome.
    pub(crate) outcome: Outcome,
    /// Blocks of the model.
    pub(crate) training: Training,
}

/// Share of the transfer time that never overlaps with computation.
const UNHIDDEN_SHARE: f64 = 0.02;

/// Prediction for a candidate.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Prediction {
    /// Micro-batch size.
    pub(crate) micro_batch: u64,
    /// Micro-batches in a step.
    pub(crate) pieces: u64,
    /// Treatment of the blocks.
    pub(crate) choice: Choice,
    /// Milliseconds of a step.
    pub(crate) step_ms: f64,
    /// Lower bound in milliseconds: more micro-batches of one batch never take less time than fewer.
    pub(crate) least_ms: f64,
}

/// Allowed treatments of blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Ways {
    /// `true` if they may be recomputed.
    pub(crate) recompute: bool,
    /// Bandwidth to the host in bytes a second, if they may be offloaded.
    pub(crate) link: Option<f64>,
}

/// Nanoseconds of a block's transfers that do not overlap with computation: to the host during the next
/// block's forward pass, and back during its backward pass, which takes twice as long.
pub(crate) fn exposed_ns(bytes: u64, link: f64, beside_ns: u64) -> u64 {
    let way = (bytes as f64 / link * 1e9) as u64;
    way.saturating_sub(beside_ns).saturating_add(way.saturating_sub(beside_ns.saturating_mul(2)))
}

/// Cost of offloading even if it overlaps: copies must be launched, and they share the memory bandwidth. A
/// block that fits is therefore kept.
fn unhidden_ns(bytes: u64, link: f64) -> u64 {
    ((bytes as f64 / link * 1e9 * UNHIDDEN_SHARE) as u64).max(1)
}

/// Model from two runs, corrected by later ones.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    large: Sample,
    small: Option<Sample>,
    /// Correction of the prediction in bytes, by measured micro-batch size.
    corrections: BTreeMap<u64, i64>,
    /// Milliseconds of a step without recomputation, by number of micro-batches.
    step_times: BTreeMap<u64, f64>,
    /// Ratio of recomputation time to the blocks' forward time.
    recompute_ratio: f64,
}

/// Plausible range of that ratio.
const RECOMPUTE_RATIO: std::ops::RangeInclusive<f64> = 0.8..=2.0;

impl Model {
    pub(crate) fn new(large: Sample, small: Option<Sample>) -> Self {
        // Two runs of one size determine no slope.
        let small = small.filter(|small| {
            small.micro_batch < large.micro_batch
                && small.training.blocks.len() == large.training.blocks.len()
        });
        // A run that ended before its time was measured says nothing about it.
        let time = |sample: &Sample| Some((sample.pieces, sample.outcome.peak.step_ms?));
        let step_times = small.iter().chain(std::iter::once(&large)).filter_map(time).collect();
        // The line is exact at its own two sizes, whatever is learned at others.
        let corrections =
            small.iter().chain(std::iter::once(&large)).map(|sample| (sample.micro_batch, 0)).collect();
        Self { large, small, corrections, step_times, recompute_ratio: 1.0 }
    }

    /// Value at a micro-batch size on the line through the two runs.
    fn line(&self, micro_batch: u64, of: impl Fn(&Sample) -> f64) -> f64 {
        let (at, large) = (self.large.micro_batch as f64, of(&self.large));
        let Some(small) = &self.small else {
            return large;
        };
        let slope = (large - of(small)) / (at - small.micro_batch as f64);
        (large + slope * (micro_batch as f64 - at)).max(0.0)
    }

    /// Blocks for a micro-batch size, with their allowed treatments.
    fn blocks(&self, micro_batch: u64, ways: Ways) -> Vec<Block> {
        let measured: Vec<(u64, u64, u64)> = (0..self.large.training.blocks.len())
            .map(|index| {
                let at = |of: fn(&Measured) -> u64| {
                    self.line(micro_batch, |sample| of(&sample.training.blocks[index]) as f64) as u64
                };
                (at(|block| block.kept), at(|block| block.output), at(|block| block.busy_ns))
            })
            .collect();
        let mut blocks = Vec::with_capacity(measured.len());
        for (index, (keep, output, busy)) in measured.iter().copied().enumerate() {
            let residue = if ways.recompute { output.min(keep) } else { keep };
            let beside = measured.get(index + 1).map_or(0, |(.., next)| *next);
            let offload = ways.link.map(|link| Offload {
                residue: output.min(keep),
                exposed_ns: exposed_ns(keep, link, beside).saturating_add(unhidden_ns(keep, link)),
            });
            blocks.push(Block { keep, residue, recompute_ns: busy, offload });
        }
        blocks
    }

    /// Bytes outside of the blocks: parameters, the loss, fragmentation, the context.
    fn outside_blocks(&self, micro_batch: u64) -> u64 {
        let outside = |sample: &Sample| {
            let kept: u64 = sample.training.blocks.iter().map(|block| block.kept).sum();
            sample.outcome.peak.device_upper.saturating_sub(kept) as f64
        };
        (self.line(micro_batch, outside) as i64 + self.correction(micro_batch)).max(0) as u64
    }

    /// Correction of the prediction in bytes, interpolated between the nearest measured sizes.
    fn correction(&self, micro_batch: u64) -> i64 {
        let below = self.corrections.range(..=micro_batch).next_back();
        let above = self.corrections.range(micro_batch..).next();
        match (below, above) {
            (Some((low, at_low)), Some((high, at_high))) if high > low => {
                let share = (micro_batch - low) as f64 / (high - low) as f64;
                at_low + ((at_high - at_low) as f64 * share) as i64
            }
            (Some((_, more)), _) | (None, Some((_, more))) => *more,
            (None, None) => 0,
        }
    }

    /// Milliseconds of a step without recomputation: interpolated between measured numbers of micro-batches,
    /// or extrapolated from the last two.
    fn step_ms(&self, pieces: u64) -> f64 {
        let below = self.step_times.range(..=pieces).next_back();
        let above = self.step_times.range(pieces..).next();
        let (from, to) = match (below, above) {
            (Some(low), Some(high)) if high.0 > low.0 => (low, high),
            (Some((_, exact)), Some(_)) => return *exact,
            (Some(last), None) => match self.step_times.range(..last.0).next_back() {
                Some(before) => (before, last),
                None => return *last.1,
            },
            (None, Some((_, first))) => return *first,
            (None, None) => return 0.0,
        };
        let each = ((to.1 - from.1) / (to.0 - from.0) as f64).max(0.0);
        if pieces > *to.0 {
            to.1 + each * (pieces - to.0) as f64
        } else {
            from.1 + each * (pieces - from.0) as f64
        }
    }

    /// Lower bound in milliseconds: the time with fewer micro-batches.
    fn least_ms(&self, pieces: u64) -> f64 {
        self.step_times.range(..=pieces).map(|(_, time)| *time).fold(0.0, f64::max).min(self.step_ms(pieces))
    }

    /// Prediction for a micro-batch size, if a treatment of the blocks fits.
    pub(crate) fn predict(
        &self,
        micro_batch: u64,
        pieces: u64,
        ways: Ways,
        budget: u64,
    ) -> Option<Prediction> {
        let blocks = self.blocks(micro_batch, ways);
        let choice = choose(&blocks, self.outside_blocks(micro_batch), budget)?;
        Some(self.prediction(micro_batch, pieces, choice))
    }

    /// Prediction of the minimum memory for a micro-batch size, whether or not it fits.
    pub(crate) fn smallest(&self, micro_batch: u64, pieces: u64, ways: Ways) -> Prediction {
        let blocks = self.blocks(micro_batch, ways);
        let fates: Vec<Fate> = blocks
            .iter()
            .map(|block| if block.residue < block.keep { Fate::Recompute } else { Fate::Keep })
            .collect();
        let again = blocks.iter().zip(&fates).filter(|(_, fate)| **fate == Fate::Recompute);
        let extra_ns = again.map(|(block, _)| block.recompute_ns).sum();
        let peak = crate::choose::peak(&blocks, &fates, self.outside_blocks(micro_batch));
        self.prediction(micro_batch, pieces, Choice { fates, extra_ns, peak })
    }

    fn prediction(&self, micro_batch: u64, pieces: u64, choice: Choice) -> Prediction {
        let extra_ms = choice.extra_ns as f64 * pieces as f64 / 1e6;
        let step_ms = self.step_ms(pieces) + extra_ms * self.recompute_ratio;
        let least_ms = self.least_ms(pieces) + extra_ms * self.recompute_ratio.min(1.0);
        Prediction { micro_batch, pieces, choice, step_ms, least_ms }
    }

    /// Returns `true` if a step with this number of micro-batches was measured.
    pub(crate) fn was_timed(&self, pieces: u64) -> bool {
        self.step_times.contains_key(&pieces)
    }

    /// Records the time of a step without recomputation.
    pub(crate) fn record_time(&mut self, pieces: u64, step_ms: f64) {
        self.step_times.insert(pieces, step_ms);
    }

    /// Corrects the model by a run's result.
    pub(crate) fn learn(&mut self, prediction: &Prediction, device_upper: u64, step_ms: Option<f64>) {
        let before = self.correction(prediction.micro_batch);
        self.corrections
            .insert(prediction.micro_batch, before + device_upper as i64 - prediction.choice.peak as i64);
        let Some(step_ms) = step_ms else { return };
        let pieces = prediction.pieces;
        let extra_ms = prediction.choice.extra_ns as f64 * pieces as f64 / 1e6;
        match self.step_times.get(&pieces) {
            Some(known) if extra_ms > 0.0 => {
                self.recompute_ratio =
                    ((step_ms - known) / extra_ms).clamp(*RECOMPUTE_RATIO.start(), *RECOMPUTE_RATIO.end());
            }
            Some(_) => {}
            None => {
                self.step_times.insert(pieces, (step_ms - extra_ms * self.recompute_ratio).max(0.0));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Expected;

    fn sample(micro_batch: u64, pieces: u64, device_upper: u64, step_ms: f64, kept: u64) -> Sample {
        let block = Measured { name: "h.0".into(), kept, busy_ns: kept, output: kept / 10 };
        let training = Training { batch: 64, blocks: vec![block; 2], ..Training::default() };
        let peak = Expected { device_upper, step_ms: Some(step_ms), ..Expected::default() };
        Sample { micro_batch, pieces, outcome: Outcome { peak, ..Outcome::default() }, training }
    }

    #[test]
    fn memory_and_time_lie_on_the_line_through_two_runs() {
        // 100 constant bytes, 10 per sample in each of two blocks; 50 ms, and 2 ms for each additional
        // micro-batch.
        let model = Model::new(
            sample(64, 1, 100 + 20 * 64, 50.0, 640),
            Some(sample(16, 4, 100 + 20 * 16, 56.0, 160)),
        );
        let plain = model.predict(32, 2, Ways::default(), 10_000).unwrap();
        assert_eq!((plain.choice.peak, plain.choice.extra_ns), (100 + 20 * 32, 0));
        assert!((plain.step_ms - 52.0).abs() < 1e-9);
        let ways = Ways { recompute: true, link: None };
        let tight = model.predict(32, 2, ways, 100 + 20 * 32 - 1).unwrap();
        assert_eq!(tight.choice.extra_ns, 320);
        assert!(tight.step_ms > plain.step_ms);
        assert_eq!(model.predict(32, 2, ways, 100), None);
    }

    #[test]
    fn the_cost_of_recomputation_is_learnt_from_a_run_with_it() {
        let block_ms = 4.0;
        let sample = |micro_batch: u64, pieces: u64, step_ms: f64| {
            let kept = 10 * micro_batch;
            let mut sample = sample(micro_batch, pieces, 100 + 2 * kept, step_ms, kept);
            for block in &mut sample.training.blocks {
                block.busy_ns = (block_ms * 1e6) as u64 * micro_batch / 64;
            }
            sample
        };
        let mut model = Model::new(sample(64, 1, 50.0), Some(sample(16, 4, 56.0)));
        let ways = Ways { recompute: true, link: None };
        let tight = |model: &Model| model.predict(16, 4, ways, 100 + 2 * 160 - 1).unwrap();
        // One of both blocks is recomputed: 1 ms in each of four micro-batches, by its own time.
        let guess = tight(&model);
        assert_eq!(guess.choice.extra_ns, 1_000_000);
        // It takes a half more than that.
        model.learn(&guess, guess.choice.peak, Some(56.0 + 4.0 * 1.5));
        assert!((tight(&model).step_ms - 62.0).abs() < 1e-9, "{}", tight(&model).step_ms);
        // A run of another number of pieces shows their time, less what was recomputed in it.
        let guess = model.predict(8, 8, ways, 100 + 2 * 80 - 1).unwrap();
        assert_eq!(guess.choice.extra_ns, 500_000);
        model.learn(&guess, guess.choice.peak, Some(70.0));
        let plain = model.predict(8, 8, Ways::default(), 10_000).unwrap();
        assert!((plain.step_ms - (70.0 - 8.0 * 0.5 * 1.5)).abs() < 1e-9, "{}", plain.step_ms);
    }

    #[test]
    fn measured_peaks_move_the_prediction() {
        let mut model = Model::new(sample(64, 1, 1380, 50.0, 640), None);
        let before = model.predict(64, 1, Ways::default(), 10_000).unwrap();
        model.learn(&before, 1400, None);
        assert_eq!(model.predict(64, 1, Ways::default(), 10_000).unwrap().choice.peak, 1400);
        assert_eq!(model.predict(64, 1, Ways::default(), 1399), None);
    }

    #[test]
    fn time_lies_between_the_numbers_of_pieces_that_were_run() {
        let mut model = Model::new(sample(64, 1, 1380, 50.0, 640), Some(sample(16, 4, 420, 56.0, 160)));
        let at = |model: &Model, pieces: u64| {
            let found = model.predict(64_u64.div_ceil(pieces), pieces, Ways::default(), 10_000).unwrap();
            (found.least_ms, found.step_ms)
        };
        assert_eq!(at(&model, 2), (50.0, 52.0));
        assert_eq!(at(&model, 16), (56.0, 80.0));
        // More micro-batches turned out to be faster.
        let guess = model.predict(4, 16, Ways::default(), 10_000).unwrap();
        model.learn(&guess, guess.choice.peak, Some(62.0));
        assert_eq!(at(&model, 16), (62.0, 62.0));
        assert_eq!(at(&model, 10), (56.0, 59.0));
        assert_eq!(at(&model, 32), (62.0, 70.0));
    }

    #[test]
    fn a_run_without_a_time_is_not_believed_to_take_none() {
        let mut small = sample(16, 4, 420, 56.0, 160);
        small.outcome.peak.step_ms = None;
        let model = Model::new(sample(64, 1, 1380, 50.0, 640), Some(small));
        for (size, pieces) in [(64, 1), (32, 2), (16, 4)] {
            let found = model.predict(size, pieces, Ways::default(), 10_000).unwrap();
            assert_eq!((found.least_ms, found.step_ms), (50.0, 50.0), "{pieces}");
        }
    }

    #[test]
    fn errors_are_kept_per_batch_size() {
        let mut model = Model::new(sample(64, 1, 1380, 50.0, 640), Some(sample(16, 4, 420, 56.0, 160)));
        let peak = |model: &Model, micro_batch: u64| {
            let pieces = 64_u64.div_ceil(micro_batch);
            model.predict(micro_batch, pieces, Ways::default(), 10_000).unwrap().choice.peak
        };
        for (micro_batch, more) in [(32, 40), (8, 10), (2, 4)] {
            let guess = model.smallest(micro_batch, 64_u64.div_ceil(micro_batch), Ways::default());
            assert_eq!(guess.choice.extra_ns, 0);
            model.learn(&guess, 100 + 20 * micro_batch + more, None);
        }
        // A correction at one size applies to sizes near it, up to the next measured one.
        for (micro_batch, more) in [(64, 0), (48, 20), (32, 40), (24, 20), (16, 0), (8, 10), (5, 7), (1, 4)] {
            assert_eq!(peak(&model, micro_batch), 100 + 20 * micro_batch + more, "{micro_batch}");
        }
    }

    #[test]
    fn a_block_that_has_room_stays() {
        let model = Model::new(sample(64, 1, 1380, 50.0, 640), None);
        let ways = Ways { recompute: true, link: Some(1e12) };
        let roomy = model.predict(64, 1, ways, 10_000).unwrap();
        assert!(roomy.choice.fates.iter().all(|fate| *fate == crate::choose::Fate::Keep));
        let tight = model.predict(64, 1, ways, 1379).unwrap();
        assert!(tight.choice.fates.contains(&crate::choose::Fate::Offload));
    }

    #[test]
    fn a_way_hides_behind_the_neighbour() {
        // At a thousand bytes per second, a byte takes a millisecond.
        for (bytes, beside_ms, exposed_ms) in [(10, 10, 0), (10, 5, 5), (10, 4, 8), (10, 0, 20), (0, 0, 0)] {
            assert_eq!(
                exposed_ns(bytes, 1e3, beside_ms * 1_000_000),
                exposed_ms * 1_000_000,
                "{bytes} {beside_ms}"
            );
        }
    }
}
