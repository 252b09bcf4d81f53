//! Explanations and advice for a plan: why the batch is not divided or nothing is offloaded, the limit of the
//! micro-batch, and what to do or to allow if nothing fits.

use memfit_vocabulary::{Lever, Sense, Training, Turn, Value, format_milliseconds, format_size};

use super::Search;
use super::rise::Rise;
use crate::answer::{Limit, Tried};
use crate::levers::{Entry, entries, may_be_divided};
use crate::predict::exposed_ns;
use crate::trial::{Candidate, Room, Trial};

/// Maximum number of suggestions if nothing fits.
const MAX_SUGGESTIONS: usize = 2;
/// Maximum number of runs to find the largest batch.
const MAX_BATCH_RUNS: u32 = 10;
/// Maximum number of runs that follow the memory model, before the search bisects the remaining interval.
const MAX_GUESSES: u32 = 6;

impl<T: Trial> Search<'_, T> {
    /// Returns `true` if micro-batches are possible and allowed; otherwise records the reason.
    pub(super) fn may_divide(&mut self, training: &Training) -> bool {
        let name = Lever::MicroBatch.name();
        if training.batch == 0 {
            self.reject(name, "the script uses no `torch.utils.data.DataLoader`, and no variable or argument of its own was found that sets the batch size: assign it to a variable, such as `batch_size`, and make each batch from that");
            return false;
        }
        if training.batch == 1 {
            self.reject(name, "the batch has only one sample");
            return false;
        }
        if training.alternates {
            self.reject(name, "its optimizers take turns within a batch: one steps before the other's backward pass, so every micro-batch would have to run once for each of them");
            return false;
        }
        let label = training.label_of_dividing();
        let Some(why) = self.limits.forbid(Lever::MicroBatch, label) else { return true };
        let of_its_own = match training {
            _ if self.limits.excludes(Lever::MicroBatch) => None,
            _ if training.couples_samples => Some(
                "batch normalisation would see fewer samples, which changes the training: `--allow changes-training` permits it"
                    .to_owned(),
            ),
            _ => training.unverified().map(|unverified| {
                format!("{unverified}; `--allow changes-training` permits it without that check")
            }),
        };
        self.reject(name, of_its_own.unwrap_or(why));
        false
    }

    /// Returns `true` if activation checkpointing is possible and allowed; otherwise records the reason.
    pub(super) fn may_recompute(&mut self, training: &Training) -> bool {
        if training.blocks.is_empty() {
            let why = if training.optimizes && training.compiled {
                "the script compiles its model: what blocks save within a compiled graph cannot be measured"
            } else if training.optimizes {
                "no repeated blocks were found in the model's structure"
            } else {
                "without a backward pass, no activations are saved"
            };
            self.reject(Lever::Checkpointing.name(), why);
            return false;
        }
        match self.limits.forbid(Lever::Checkpointing, Lever::Checkpointing.label()) {
            Some(why) => {
                self.reject(Lever::Checkpointing.name(), why);
                false
            }
            None => true,
        }
    }

    /// Explains why nothing is offloaded, if a plan recomputes blocks.
    pub(super) fn report_offload(&mut self, best: &Tried) {
        let Some(training) = self.training_of(best) else { return };
        let name = Lever::ActivationOffload.name();
        let settings = &best.candidate.settings;
        let moves = |lever: Lever| settings.iter().any(|setting| setting.lever == lever);
        let (Some(link), Some(block)) =
            (self.limits.way_to_host(), training.blocks.iter().max_by_key(|block| block.kept))
        else {
            return;
        };
        if moves(Lever::ActivationOffload) || !moves(Lever::Checkpointing) {
            return;
        }
        let way = block.kept as f64 / link * 1e3;
        let exposed = exposed_ns(block.kept, link, block.busy_ns) as f64 / 1e6;
        let busy = format_milliseconds(block.busy_ns as f64 / 1e6);
        self.reject(
            name,
            format!(
                "slower than recomputing: copying the {} of `{}` takes {} each way; {} of both ways would not overlap with computing, and recomputing takes {busy}",
                format_size(block.kept),
                block.name,
                format_milliseconds(way),
                format_milliseconds(exposed),
            ),
        );
    }

    /// Facts about the training with a plan's levers, without micro-batches and recomputation.
    fn training_of(&self, best: &Tried) -> Option<Training> {
        let whole = |candidate: &Candidate| {
            let mut whole = Candidate { micro_batch: None, pieces: 1, ..candidate.clone() };
            whole
                .settings
                .retain(|setting| !matches!(setting.lever, Lever::Checkpointing | Lever::ActivationOffload));
            whole
        };
        let wanted = whole(&best.candidate);
        let found =
            self.tried.iter().find(|tried| tried.candidate == wanted && tried.outcome.training.is_some())?;
        found.outcome.training.clone()
    }

    /// Finds the largest micro-batch that fits and the smallest that does not, upwards from the plan's.
    /// Returns `None` after an interrupt.
    pub(super) fn limit(&mut self, best: &Tried, training: &Training) -> Result<Option<Limit>, T::Error> {
        let Some(mut largest) = best.candidate.micro_batch else { return Ok(None) };
        let batch = training.batch;
        let mut rise = Rise::from_outcome(&best.candidate, &best.outcome, training);
        let mut refuted: Option<u64> = None;
        // `true` if the last run corrected the model of the peak.
        let mut learnt = true;
        for run in 0.. {
            let end = refuted.unwrap_or(batch + 1);
            if largest + 1 >= end {
                break;
            }
            // Follows the model as long as it is corrected, and bisects otherwise.
            let guess = if learnt && run < MAX_GUESSES {
                rise.reaches(self.limits.budget)
            } else {
                largest.midpoint(end)
            };
            let next = guess.clamp(largest + 1, end - 1);
            let candidate = Candidate {
                micro_batch: (next < batch).then_some(next),
                pieces: batch.div_ceil(next),
                ..best.candidate.clone()
            };
            let Some(outcome) = self.run(&candidate, Room::Budget)? else { return Ok(None) };
            // The first prediction may be wrong by one.
            learnt = outcome.fits || run == 0;
            if outcome.fits {
                largest = next;
                rise.learn(next, outcome.peak.device_upper);
            } else {
                refuted = Some(next);
            }
        }
        Ok(Some(Limit { largest, refuted }))
    }

    /// If no allowed plan fits: suggests what would, with the smallest effect on training results first.
    pub(super) fn what_would_help(
        &mut self,
        training: &Training,
        advice: &mut Vec<String>,
    ) -> Result<(), T::Error> {
        let half = if self.limits.has_bf16 { Lever::AutocastBf16 } else { Lever::AutocastFp16 };
        let mut plain = Candidate::as_is();
        let unwanted = |lever: Lever| self.limits.excludes(lever);
        if !training.reduced && !unwanted(half) {
            plain = plain.with_lever(half, Value::default());
        }
        if !training.blocks.is_empty() && !unwanted(Lever::Checkpointing) {
            let names = training.blocks.iter().map(|block| block.name.clone()).collect();
            plain = plain.with_lever(Lever::Checkpointing, Value::Names(names));
        }
        let kernel = if training.fusible { Lever::FusedOptimizer } else { Lever::ForeachOff };
        let mut rows = vec![if unwanted(kernel) || !training.optimizes {
            plain.clone()
        } else {
            plain.with_lever(kernel, Value::default())
        }];
        let whole = self.tried.iter().find(|tried| !tried.on_card).map(|tried| tried.outcome.peak);
        let peak = whole.unwrap_or_default();
        let situation = self.limits.situation(training, &peak);
        let acts =
            |entry: &&Entry| entry.search.turn == Turn::IfMemoryShort && entry.acts_on(&plain, training);
        for entry in entries().iter().filter(acts) {
            if let Sense::Try(value) = entry.sense(&situation) {
                rows.extend(entry.add_to(&plain, value));
            }
        }
        rows.retain(|row| !row.settings.iter().any(|setting| unwanted(setting.lever)));
        rows.sort_by_key(|row| (row.label(), row.harm()));
        let divides = training.batch > 1 && !training.alternates && !unwanted(Lever::MicroBatch);
        let mut suggested = 0;
        for mut candidate in rows {
            let mut label = candidate.label();
            if divides && may_be_divided(&candidate).is_ok() {
                candidate.micro_batch = Some(1);
                candidate.pieces = training.batch;
                label = label.max(training.label_of_dividing());
            }
            let Some(outcome) = self.run(&candidate, Room::Budget)? else { return Ok(()) };
            if outcome.fits && outcome.refused.is_empty() {
                advice.push(format!(
                    "with {} (`--allow {label}`) it fits, at {}",
                    candidate.describe(),
                    format_size(outcome.peak.device_upper)
                ));
                suggested += 1;
                if suggested == MAX_SUGGESTIONS {
                    break;
                }
            }
        }
        Ok(())
    }

    /// If no plan keeps the global batch: suggests the largest batch that fits.
    pub(super) fn largest_batch(
        &mut self,
        base: &Candidate,
        training: &Training,
        advice: &mut Vec<String>,
    ) -> Result<(), T::Error> {
        let batch = training.batch;
        let divides = !training.alternates
            && self.limits.forbid(Lever::MicroBatch, training.label_of_dividing()).is_none();
        // If the batch can be divided, a smaller one would not help.
        if batch < 2 || (divides && may_be_divided(base).is_ok()) {
            return Ok(());
        }
        let mut base = base.clone();
        if !training.blocks.is_empty() && !self.limits.excludes(Lever::Checkpointing) {
            let names = training.blocks.iter().map(|block| block.name.clone()).collect();
            base = base.with_lever(Lever::Checkpointing, Value::Names(names));
        }
        base.settings.retain(|setting| setting.lever.excludes(Lever::MicroBatch).is_none());
        let (mut fits, mut refuted) = (0, batch);
        for _ in 0..MAX_BATCH_RUNS {
            if refuted - fits <= 1 {
                break;
            }
            let size = u64::midpoint(fits, refuted);
            let candidate =
                Candidate { micro_batch: Some(size), pieces: batch.div_ceil(size), ..base.clone() };
            let Some(outcome) = self.run(&candidate, Room::Budget)? else { return Ok(()) };
            // Alternating optimizers refuse micro-batches, but here the batch itself becomes smaller.
            let refuses =
                |(lever, _): &(String, String)| lever != Lever::MicroBatch.name() || !training.alternates;
            if outcome.refused.iter().any(refuses) {
                return Ok(());
            }
            if outcome.fits {
                fits = size;
            } else {
                refuted = size;
            }
        }
        if fits > 0 {
            let with =
                if base.settings.is_empty() { String::new() } else { format!(" with {}", base.describe()) };
            let rate = fits as f64 / batch as f64;
            advice.push(format!(
                "no allowed plan fits the batch of {batch}: {fits} samples fit{with}, and {refuted} do not. A smaller batch changes the training: gradients are noisier, and the learning rate is often lowered with it, to {rate:.2} times its value (SGD, linear scaling) or {:.2} times (Adam, square root). memfit changes neither",
                rate.sqrt()
            ));
        }
        Ok(())
    }
}
