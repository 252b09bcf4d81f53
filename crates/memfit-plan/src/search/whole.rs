//! The model compiled as a whole, where the search so far compiled its blocks: what lies between them is fused too, and with a budget for
//! activations it is the compiler that decides what is computed again.
//!
//! What a block of such a model keeps and takes cannot be measured, and each run takes as long as compiling the model does. So it is tried
//! where the best plan stands, and then with twice the samples together and a share of the activations that should make room for them, as
//! long as that is faster.

use memfit_levers::Lever;

use super::divide::sizes;
use super::help::fixed;
use super::{Search, milliseconds};
use crate::answer::Tried;
use crate::levers::{Asked, Sense, entry, may_be_divided};
use crate::setting::Value;
use crate::trial::{Candidate, Outcome, Room, Training, Trial};

/// What it is called where it is not in the plan, and its blocks may be.
const NAME: &str = "compile (the model as a whole)";
/// So many shares are tried, at most.
const MOST: u32 = 4;
/// So often the batch is divided further, where what memory says was not enough.
const GUESSES: u32 = 3;
/// Shares are hundredths in such steps: a compiler that is told to keep so much keeps a little more or less.
const STEP: u64 = 5;
/// Less than this is computing nearly everything again, which checkpointing does.
const LEAST: u64 = 10;
/// Where a share was not small enough, the next is smaller by so many hundredths.
const LESS: u64 = 20;

impl<T: Trial> Search<'_, T> {
    /// The faster of the best plan so far and the model compiled as a whole.
    pub(super) fn as_a_whole(&mut self, best: Tried, training: &Training) -> Result<Tried, T::Error> {
        if self.interrupted || !(training.compiled || self.may(Lever::Compile, training, &best.outcome)) {
            return Ok(best);
        }
        let base = compiled(&best.candidate, training);
        let was_best = base == best.candidate;
        let Some(whole) = self.run(&base, Room::Budget)? else { return Ok(best) };
        if let Some(why) = failed(&whole) {
            self.reject(NAME, why);
            return Ok(best);
        }
        let known = if whole.fits { Some(whole.clone()) } else { self.run(&base, Room::Boundless)? };
        let Some(known) = known.filter(|known| known.fits) else { return Ok(best) };
        let line = Line::of(&base, &known, training);
        let mut fastest = faster(best.clone(), &base, &whole);
        // Where all that is kept stays and that is no faster, nothing will be that is divided further or computes again.
        if milliseconds(&known) <= milliseconds(&best.outcome) {
            if !whole.fits {
                fastest = self.in_more_pieces(fastest, &base, &line, training)?;
            }
            fastest = self.with_shares(fastest, &base, &whole, &line, training)?;
        }
        if !was_best && fastest.candidate == best.candidate {
            self.tell_of_whole(&best);
        }
        Ok(fastest)
    }

    /// All that is kept stays, and the batch is divided until that fits.
    fn in_more_pieces(
        &mut self,
        mut best: Tried,
        base: &Candidate,
        line: &Line,
        training: &Training,
    ) -> Result<Tried, T::Error> {
        if may_be_divided(base).is_err() || !self.may_divide(training) {
            return Ok(best);
        }
        let samples = line.samples(self.limits.budget).clamp(1, training.batch.max(1));
        let mut pieces = training.batch.div_ceil(samples).max(base.pieces + 1);
        for _ in 0..GUESSES {
            let Some(candidate) = divided(base, training, pieces) else { break };
            let Some(outcome) = self.run(&candidate, Room::Budget)? else { break };
            best = faster(best, &candidate, &outcome);
            if outcome.fits {
                break;
            }
            pieces = candidate.pieces + 1;
        }
        Ok(best)
    }

    /// Whether a lever makes sense, and is allowed.
    fn may(&self, lever: Lever, training: &Training, outcome: &Outcome) -> bool {
        let asked = Asked { training, peak: &outcome.peak, limits: self.limits };
        entry(lever).is_some_and(|entry| {
            matches!((entry.sense)(asked), Sense::Try(_)) && self.limits.forbid_entry(entry).is_none()
        })
    }

    /// Twice the samples together, or as many where these do not fit, with the share of the activations that there is room for; again
    /// and again as long as that is faster.
    fn with_shares(
        &mut self,
        mut best: Tried,
        base: &Candidate,
        whole: &Outcome,
        line: &Line,
        training: &Training,
    ) -> Result<Tried, T::Error> {
        if (whole.fits && base.pieces == 1) || !self.may(Lever::ActivationBudget, training, whole) {
            return Ok(best);
        }
        let mut pieces = if whole.fits { base.pieces.div_ceil(2) } else { base.pieces };
        let mut left = MOST;
        while let Some(found) = self.share_that_fits(base, line, training, pieces, &mut left)? {
            if milliseconds(&found.outcome) >= milliseconds(&best.outcome) {
                break;
            }
            best = found;
            if pieces == 1 {
                break;
            }
            pieces = pieces.div_ceil(2);
        }
        Ok(best)
    }

    /// The batch in so many pieces, with the largest share that fits of those that are tried.
    fn share_that_fits(
        &mut self,
        base: &Candidate,
        line: &Line,
        training: &Training,
        pieces: u64,
        left: &mut u32,
    ) -> Result<Option<Tried>, T::Error> {
        let Some(divided) = divided(base, training, pieces) else { return Ok(None) };
        let samples = divided.micro_batch.unwrap_or(training.batch);
        let Some(mut share) = line.share(samples, self.limits.budget) else { return Ok(None) };
        while share >= LEAST && *left > 0 {
            *left -= 1;
            let candidate = divided.with(Lever::ActivationBudget, Value::Count(share));
            let Some(outcome) = self.run(&candidate, Room::Budget)? else { break };
            if let Some(why) = failed(&outcome) {
                self.reject(Lever::ActivationBudget.name(), why);
                break;
            }
            if outcome.fits {
                return Ok(Some(Tried { candidate, outcome, on_card: true }));
            }
            share = share.saturating_sub(LESS);
        }
        Ok(None)
    }

    /// What the model compiled as a whole came to, where the plan is without it.
    fn tell_of_whole(&mut self, best: &Tried) {
        let is_whole = |tried: &&Tried| {
            tried.outcome.fits && tried.candidate.value(Lever::Compile) == Some(&Value::default())
        };
        let on_the_card = |tried: &Tried| (!tried.fits(), milliseconds(&tried.outcome));
        let nearest = self.tried.iter().filter(is_whole).min_by(|a, b| {
            let (a, b) = (on_the_card(a), on_the_card(b));
            a.0.cmp(&b.0).then(a.1.total_cmp(&b.1))
        });
        let Some(nearest) = nearest else { return };
        let too_big = if nearest.fits() { "" } else { "it does not fit where the plan does, and " };
        let why = format!(
            "{too_big}a step takes {:.1} ms with {}, {:.1} with the plan",
            milliseconds(&nearest.outcome),
            nearest.candidate.told(),
            milliseconds(&best.outcome)
        );
        self.reject(NAME, why);
    }
}

/// A plan with its model compiled as a whole, by the script where it does so, and nothing else said of what becomes of activations.
fn compiled(plan: &Candidate, training: &Training) -> Candidate {
    let mut base = plan.clone();
    let of_activations = [Lever::Checkpointing, Lever::ActivationOffload, Lever::ActivationBudget];
    base.settings.retain(|setting| !of_activations.contains(&setting.lever));
    // Where it stood, so that what was run already is known again.
    match base.settings.iter_mut().find(|setting| setting.lever == Lever::Compile) {
        Some(setting) => {
            setting.value = Value::default();
            base
        }
        None if training.compiled => base,
        None => base.with(Lever::Compile, Value::default()),
    }
}

fn faster(best: Tried, candidate: &Candidate, outcome: &Outcome) -> Tried {
    if outcome.fits && milliseconds(outcome) < milliseconds(&best.outcome) {
        Tried { candidate: candidate.clone(), outcome: outcome.clone(), on_card: true }
    } else {
        best
    }
}

/// Why a run came to nothing, where that is not for want of memory.
fn failed(outcome: &Outcome) -> Option<String> {
    let refused = outcome.refused.first().map(|(_, why)| why.clone());
    refused.or_else(|| outcome.problem.as_ref().map(|_| outcome.failure()))
}

/// A plan with its batch in so many pieces, or the next more into which it can be cut.
fn divided(base: &Candidate, training: &Training, pieces: u64) -> Option<Candidate> {
    let batch = training.batch.max(1);
    // A script that makes its own batches makes them all of one size.
    let may_be = |samples: u64| training.names.is_empty() || batch.is_multiple_of(samples);
    let mut sizes = sizes(batch).into_iter().filter(|(samples, _)| may_be(*samples));
    let (samples, pieces) = sizes.find(|(_, of)| *of >= pieces)?;
    Some(Candidate { micro_batch: (samples < batch).then_some(samples), pieces, ..base.clone() })
}

/// How the peak rises with the samples and with the share of activations, as far as one run tells: what is neither parameter, gradient,
/// state nor the context is in proportion to both.
struct Line {
    fixed: f64,
    each: f64,
}

impl Line {
    fn of(base: &Candidate, known: &Outcome, training: &Training) -> Self {
        let samples = base.micro_batch.unwrap_or(training.batch).max(1) as f64;
        let fixed = fixed(known, training).min(known.peak.device_upper) as f64;
        Self { fixed, each: (known.peak.device_upper as f64 - fixed) / samples }
    }

    /// The samples that fit with all that they keep.
    fn samples(&self, budget: u64) -> u64 {
        let room = (budget as f64 - self.fixed).max(0.0);
        if self.each > 0.0 { (room / self.each) as u64 } else { u64::MAX }
    }

    /// The hundredths of the activations that fit beside the rest; nothing where so few do that the compiler has no choice.
    fn share(&self, samples: u64, budget: u64) -> Option<u64> {
        let all = self.each * samples as f64;
        let room = budget as f64 - self.fixed;
        if all <= 0.0 || room <= 0.0 {
            return None;
        }
        let hundredths = ((room / all * 100.0) as u64).min(100 - STEP);
        Some(hundredths / STEP * STEP).filter(|share| *share >= LEAST)
    }
}
