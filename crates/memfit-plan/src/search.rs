//! Search for the fastest plan that fits, with few runs.
//!
//! The script is run unchanged. If it does not fit, it is run without a memory limit to measure its needs.
//! Levers without cost are tried one after another, and kept if they save memory without costing time. Then
//! the batch is split and blocks are recomputed as predicted by a model of memory and time from two runs. The
//! best candidate is run on the GPU and its result corrects the model, until no candidate is expected to beat
//! the best plan. A model compiled block by block is then also tried compiled as a whole. Finally, the plan's
//! micro-batch is increased until one more sample does not fit.

mod carried;
mod combine;
mod divide;
mod even;
mod help;
mod rise;
mod simplify;
mod spread;
mod variants;
mod whole;

use memfit_vocabulary::{Harm, Label, Lever, Parts, Training, Turn, format_milliseconds, format_size};

pub use self::carried::search_carried;
pub use self::spread::{Machines, search_spread};

use self::combine::Paying;
use self::divide::{Divided, MIN_REL_GAIN};

use crate::answer::{Answer, Limit, Rejected, Tried, Verdict};
use crate::levers::Entry;
use crate::limits::Limits;
use crate::trial::{Candidate, Outcome, Room, Trial};

impl Limits {
    /// Reason why a lever with this effect on training results is not allowed; `None` if it is.
    pub(crate) fn forbid(&self, lever: Lever, label: Label) -> Option<String> {
        self.why_excluded(lever).or_else(|| forbidden(label, self.allow))
    }

    /// Reason why a lever is excluded, whatever its effect; `None` if it is not.
    fn why_excluded(&self, lever: Lever) -> Option<String> {
        if self.without.contains(&lever) {
            return Some(format!("excluded by `--without {lever}`"));
        }
        if let Some((_, why)) = self.unsuited.iter().find(|(unsuited, _)| *unsuited == lever) {
            return Some(format!("it cannot be combined with the parallelism: {why}"));
        }
        let unwritable = self.unwritable.iter().find(|(unwritable, _)| *unwritable == lever)?;
        Some(format!("it cannot be written as a change of the script: {}", unwritable.1))
    }

    /// Returns `true` if a lever is excluded, whatever its effect.
    pub(crate) fn excludes(&self, lever: Lever) -> bool {
        self.why_excluded(lever).is_some()
    }

    /// [`Limits::forbid`] for a lever and the levers that come with it.
    pub(crate) fn forbid_entry(&self, entry: &Entry) -> Option<String> {
        let mut levers =
            std::iter::once(entry.lever).chain(entry.search.with.iter().map(|(lever, _)| *lever));
        levers.find_map(|lever| self.forbid(lever, lever.label()))
    }

    /// Bandwidth to the host in bytes a second, if activations may be offloaded.
    pub(crate) fn way_to_host(&self) -> Option<f64> {
        self.link.filter(|_| !self.excludes(Lever::ActivationOffload))
    }
}

/// Reason why a label is not allowed; `None` if it is.
fn forbidden(label: Label, allow: Label) -> Option<String> {
    (label > allow).then(|| format!("not allowed: it is `{label}`, and the limit is `--allow {allow}`"))
}

/// Searches for the fastest plan.
pub fn search<T: Trial>(trial: &mut T, limits: &Limits) -> Result<Option<Answer>, T::Error> {
    let mut search = Search::new(trial, limits);
    let as_is = Candidate::as_is();
    let Some(own) = search.run(&as_is, Room::Budget)? else { return Ok(None) };
    let wants_more = |training: &Training| {
        limits.global_batch.is_some_and(|wanted| wanted != training.batch * training.own_accumulation.max(1))
    };
    let suits = own.fits && !own.training.as_ref().is_some_and(wants_more);
    if suits && !own.recovered {
        return search.fits_as_is(own).map(Some);
    }
    let Some(full) = search.run(&as_is, Room::Boundless)? else { return Ok(None) };
    if !full.fits {
        return Ok(Some(search.answer(full, None, None, Vec::new())));
    }
    // A script that recovers from running out of memory fits, but another plan may be faster.
    let own = suits.then_some(own);
    search.plan(full, own).map(Some)
}

struct Search<'a, T: Trial> {
    trial: &'a mut T,
    limits: &'a Limits,
    tried: Vec<Tried>,
    rejected: Vec<Rejected>,
    /// Memory-saving levers with their results, which are reported if the plan does not contain them.
    considered: Vec<(Lever, String)>,
    /// The candidate that they were tried on, and the result of each alone.
    paying: Option<Paying>,
    /// Degree of harm to the training results accepted so far.
    harm: Harm,
    /// Models of the variants that were divided.
    divided: Vec<(Candidate, Divided)>,
    runs: u64,
    interrupted: bool,
    /// Evidence from the unchanged script about dividing its batch.
    parts: Parts,
}

impl<'a, T: Trial> Search<'a, T> {
    const fn new(trial: &'a mut T, limits: &'a Limits) -> Self {
        Self {
            trial,
            limits,
            tried: Vec::new(),
            rejected: Vec::new(),
            considered: Vec::new(),
            paying: None,
            harm: Harm::Digits,
            divided: Vec::new(),
            runs: 0,
            interrupted: false,
            parts: Parts::Unseen,
        }
    }

    /// Runs a candidate once for each memory limit. Returns `None` after an interrupt.
    fn run(&mut self, candidate: &Candidate, room: Room) -> Result<Option<Outcome>, T::Error> {
        let on_card = room == Room::Budget;
        let known = self.tried.iter().find(|tried| tried.on_card == on_card && tried.candidate == *candidate);
        if let Some(known) = known {
            return Ok(Some(known.outcome.clone()));
        }
        if self.interrupted || self.limits.reached(self.runs).is_some() {
            self.interrupted = true;
            return Ok(None);
        }
        let Some(mut outcome) = self.trial.run(candidate, room)? else {
            self.interrupted = true;
            return Ok(None);
        };
        // The unchanged script is examined once, and the result holds for every candidate.
        if let Some(training) = &mut outcome.training {
            if self.parts == Parts::Unseen {
                self.parts = training.parts.clone();
            }
            training.parts = self.parts.clone();
        }
        self.runs += 1;
        self.tried.push(Tried { candidate: candidate.clone(), outcome: outcome.clone(), on_card });
        Ok(Some(outcome))
    }

    fn reject(&mut self, lever: impl Into<String>, why: impl Into<String>) {
        let (lever, why) = (lever.into(), why.into());
        // A later reason has precedence: it was found with more of the plan's levers.
        match self.rejected.iter_mut().find(|rejected| rejected.lever == lever) {
            Some(rejected) => rejected.why = why,
            None => self.rejected.push(Rejected { lever, why }),
        }
    }

    fn is_rejected(&self, lever: Lever) -> bool {
        self.rejected.iter().any(|rejected| rejected.lever == lever.name())
    }

    fn fits_as_is(mut self, own: Outcome) -> Result<Answer, T::Error> {
        let training = own.training.clone().unwrap_or_default();
        // Faster or smaller plans are reported but not used, since no change is needed.
        let mut candidate = Candidate::as_is();
        for (entry, value) in self.levers(Turn::Always, Harm::Digits, &training, &own.peak) {
            let Ok(with) = entry.add_to(&candidate, value) else { continue };
            if let Some(outcome) = self.run(&with, Room::Budget)?
                && outcome.fits
                && outcome.refused.is_empty()
            {
                candidate = with;
            }
        }
        let tried = self.tried.first().cloned();
        let advice = self.faster_still(&own).into_iter().collect();
        Ok(self.answer(own, tried, None, advice))
    }

    /// Describes a plan that is noticeably faster than a script that fits unchanged.
    fn faster_still(&self, own: &Outcome) -> Option<String> {
        let fits = |tried: &&Tried| tried.fits() && tried.outcome.refused.is_empty();
        let fastest = fastest(self.tried.iter().filter(fits))?;
        let (ms, own_ms) = (milliseconds(&fastest.outcome), milliseconds(own));
        let framework = own.training.as_ref().and_then(|training| training.framework);
        let place = match framework {
            Some(framework) => format!("in `{}(…)`, where it has a setting for it", framework.taker()),
            None => "in the script or with `memfit.Step(…, levers=…)`".to_owned(),
        };
        (ms < own_ms * (1.0 - MIN_REL_GAIN)).then(|| {
            format!(
                "a faster step ({} instead of {}, with {}): {}, {place}. The script fits as is, so no plan is written",
                format_milliseconds(ms),
                format_milliseconds(own_ms),
                format_size(fastest.outcome.peak.device_upper),
                fastest.candidate.describe()
            )
        })
    }

    /// Runs the whole search, for a script that does not fit unchanged, or only by its own recovery.
    fn plan(mut self, full: Outcome, own: Option<Outcome>) -> Result<Answer, T::Error> {
        let training = full.training.clone().unwrap_or_default();
        let mut advice = Vec::new();
        let accumulate = self.accumulation(&training, &mut advice);
        let start = Candidate { accumulate, ..Candidate::as_is() };
        let first = if accumulate > 1 {
            let Some(outcome) = self.run(&start, Room::Boundless)? else {
                return Ok(self.answer(full, None, None, advice));
            };
            outcome
        } else {
            full.clone()
        };
        let mut variants = self.variants(start, first, &training)?;
        let smallest = variants.iter().min_by_key(|(_, outcome)| outcome.peak.device_upper).cloned();
        let mut best = own.map(|outcome| Tried { candidate: Candidate::as_is(), outcome, on_card: true });
        for harm in Harm::ALL {
            if harm > Harm::Digits {
                // Levers with more harm to the training results are used only if nothing milder fits, however
                // fast they are.
                if best.is_some() || self.interrupted {
                    break;
                }
                self.harm = harm;
                variants = self.harmed(harm, &training)?;
            }
            // The fastest variant first: its result bounds the others.
            variants.sort_by(|a, b| milliseconds(&a.1).total_cmp(&milliseconds(&b.1)));
            for (candidate, outcome) in std::mem::take(&mut variants) {
                if let Some(found) = self.divide(&candidate, &outcome, best.as_ref())? {
                    best = Some(found);
                }
            }
            best = self.combine(best)?;
        }
        best = match best {
            Some(best) if best.candidate != Candidate::as_is() => {
                let best = self.as_a_whole(best, &training)?;
                Some(self.simplest(best, &training)?)
            }
            other => other,
        };
        if let Some(best) = &best {
            self.report_offload(&best.clone());
            self.report_harmful(&training)?;
            advice.extend(harm_advice(&best.candidate));
        }
        self.report_considered(best.as_ref());
        let limit = match &best {
            Some(best) => self.limit(&best.clone(), &training)?,
            None => None,
        };
        best = match best {
            Some(best) => {
                let best = self.with_more_samples(best);
                Some(self.divide_evenly(best, training.batch)?)
            }
            None => None,
        };
        if best.is_none() && !self.interrupted {
            self.what_would_help(&training, &mut advice)?;
            if let Some((candidate, _)) = smallest {
                self.largest_batch(&candidate, &training, &mut advice)?;
            }
        }
        Ok(self.answer(full, best, limit, advice))
    }

    /// Returns the plan with a larger micro-batch if that turned out to be noticeably faster during the
    /// search for the limit.
    fn with_more_samples(&self, best: Tried) -> Tried {
        let Some(micro_batch) = best.candidate.micro_batch else { return best };
        let alike = |tried: &&Tried| {
            tried.fits()
                && tried.outcome.refused.is_empty()
                && tried.candidate.settings == best.candidate.settings
                && tried.candidate.accumulate == best.candidate.accumulate
                && tried.candidate.micro_batch.is_none_or(|samples| samples > micro_batch)
        };
        let fastest = fastest(self.tried.iter().filter(alike));
        let enough = milliseconds(&best.outcome) * (1.0 - MIN_REL_GAIN);
        fastest.filter(|tried| milliseconds(&tried.outcome) < enough).cloned().unwrap_or(best)
    }

    /// Loader batches in one step, for the requested number of samples.
    fn accumulation(&mut self, training: &Training, advice: &mut Vec<String>) -> u64 {
        let own = training.batch * training.own_accumulation.max(1);
        let Some(wanted) = self.limits.global_batch.filter(|wanted| *wanted != own) else { return 1 };
        if own > 0 && wanted.is_multiple_of(own) {
            return wanted / own;
        }
        advice.push(format!(
            "a global batch of {wanted} is not a multiple of the script's own {own}: set the loader's batch size in the script"
        ));
        1
    }

    /// The fastest candidate that ran on the GPU and fits, whatever the search was after; after an interrupt,
    /// also one whose measured peak fits.
    fn best_so_far(&self, training: &Training) -> Option<Tried> {
        let allowed = |tried: &&Tried| {
            let divided = tried.candidate.micro_batch.map_or(Label::Exact, |_| training.label_of_dividing());
            // Smaller batches are tried, too, where the batch cannot be divided.
            let is_whole = tried.candidate.micro_batch.is_none() || !self.is_rejected(Lever::MicroBatch);
            is_whole && tried.candidate.label().max(divided) <= self.limits.allow
        };
        let fitting = self
            .tried
            .iter()
            .filter(|tried| tried.outcome.fits && tried.outcome.refused.is_empty())
            .filter(|tried| tried.on_card || self.interrupted)
            .filter(|tried| tried.outcome.peak.device_upper <= self.limits.budget)
            .filter(allowed);
        fastest(fitting).cloned()
    }

    fn answer(
        mut self,
        full: Outcome,
        chosen: Option<Tried>,
        limit: Option<Limit>,
        mut advice: Vec<String>,
    ) -> Answer {
        let training = full.training.clone().unwrap_or_default();
        let best_so_far = self.best_so_far(&training).filter(|_| chosen.is_none());
        if let Some(best) = best_so_far.as_ref().filter(|best| !best.on_card) {
            advice.push(format!(
                "this ran only with unlimited memory, and took {}: run it again on the GPU to confirm",
                format_size(best.outcome.peak.device_upper)
            ));
        }
        let chosen = chosen.or(best_so_far);
        if let Some(chosen) = &chosen {
            // A lever that was rejected for some variants may be in the plan.
            let divided = chosen.candidate.micro_batch.map(|_| Lever::MicroBatch);
            let levers = chosen.candidate.settings.iter().map(|setting| setting.lever).chain(divided);
            let taken: Vec<&str> = levers.map(Lever::name).collect();
            self.rejected.retain(|rejected| !taken.contains(&rejected.lever.as_str()));
        }
        let verdict = match &chosen {
            Some(chosen) if chosen.candidate == Candidate::as_is() => Verdict::FitsAsIs,
            Some(_) => Verdict::FitsWithPlan,
            None => Verdict::DoesNotFit,
        };
        // An unchanged script is reported as it ran on the GPU.
        let as_it_is = chosen.clone().filter(|_| verdict == Verdict::FitsAsIs);
        let boundless = Tried { candidate: Candidate::as_is(), outcome: full, on_card: false };
        Answer {
            verdict,
            baseline: as_it_is.unwrap_or(boundless),
            chosen,
            tried: self.tried,
            rejected: self.rejected,
            limit,
            advice,
            training,
            ranks: Vec::new(),
            fewest: None,
            evaluations: self.runs,
            interrupted: self.interrupted,
            run_limit: self.limits.reached(self.runs).filter(|_| self.interrupted),
        }
    }
}

/// Describes levers that do more harm to the training results than others.
fn harm_advice(plan: &Candidate) -> Option<String> {
    let harmful = |lever: &Lever| lever.harm() > Harm::Digits;
    let levers: Vec<Lever> = plan.settings.iter().map(|setting| setting.lever).filter(harmful).collect();
    let worst = levers.iter().map(|lever| lever.harm()).max()?;
    let names: Vec<String> = levers.iter().map(|lever| format!("`{lever}`")).collect();
    Some(format!(
        "the plan {} ({}): no plan that changes the training less fits",
        worst.what(),
        names.join(", ")
    ))
}

/// Candidate with the smallest step time.
fn fastest<'t>(tried: impl Iterator<Item = &'t Tried>) -> Option<&'t Tried> {
    tried.min_by(|a, b| milliseconds(&a.outcome).total_cmp(&milliseconds(&b.outcome)))
}

fn milliseconds(outcome: &Outcome) -> f64 {
    outcome.peak.step_ms.unwrap_or(f64::INFINITY)
}

fn describe_change(without: &Outcome, with: &Outcome) -> String {
    let of = |outcome: &Outcome| match outcome.peak.step_ms {
        Some(ms) => {
            format!("{} and {}", format_size(outcome.peak.device_upper), format_milliseconds(ms))
        }
        None => format_size(outcome.peak.device_upper),
    };
    format!("{} with it, {} without", of(with), of(without))
}

#[cfg(test)]
mod tests;
