//! Judges a run by its facts.
//!
//! Rules; the first one that applies decides:
//!
//! 1. An out-of-memory error that ended the script is `oom`. So is one that the script caught, unless the
//!    requested steps were completed afterwards.
//! 2. A run has no answer (`error`) if it was stopped by the user, by the time limit, by an exception, by a
//!    signal or by its own exit status, or if it never used the GPU.
//! 3. Everything else `fits`, for what ran.
//!
//! The verdict becomes `unknown` if something that is not modelled could change it:
//!
//! * `oom`, after a size that only a GPU can compute was read as its upper bound, unless a second run with
//!   lower bounds runs out of memory as well;
//! * `oom`, after other values that only a GPU can compute, if a run with others of them does not run out of
//!   memory: a loop may have waited for one;
//! * `fits`, after a size was read for which the arguments give no bound;
//! * `fits`, after numbers that only a GPU can compute were read as zero, if a second run with another number
//!   allocates differently, or was stopped before its end;
//! * `fits`, after conditions on such numbers, if a run in which they are inverted needs more than the GPU
//!   has, or needs more and ends early;
//! * `fits`, with less than 1/[`DOUBT_DIVISOR`] of the device left, after such a size was read back (its
//!   bound may not bound what the script does with it), unless runs with smaller sizes make the same
//!   allocations; or after a refused call that may affect memory;
//! * `fits`, if the run was stopped after a single step, and the memory that this step created (optimizer
//!   state, gradients) would not fit on top of the peak before it;
//! * `fits`, if the run was stopped after a few steps, and an early one did work that no later one did, and
//!   that would not fit together with the optimizer state and the other lasting tensors of the last one;
//! * `fits`, if a stalled rank had not completed a step;
//! * `fits`, if a run with other numbers failed where this one did not;
//! * `fits`, if a plan held back the first optimizer step;
//! * `fits`, if the script handled an error and ended before the requested steps.
//!
//! If the user chose the position of sizes between their bounds, the verdict refers to that choice, and such
//! sizes raise no doubt.

use std::time::Duration;

use memfit_explain::RepeatedWork;
use memfit_report::remarks::Stake;
use memfit_report::text::size;
use memfit_report::wire::{Problem, ProblemKind, Verdict};

use crate::facts::{Facts, OomFacts, may_affect_memory};
use crate::numbers::Numbers;
use crate::problem;
use crate::request::Request;
use crate::signals::signal_name;
use crate::sizes::Sizes;
use crate::tested::{OtherSizes, Tested};
use crate::watch::Ended;

/// Reciprocal of the share of the device that must stay free for a doubt to be ignored.
const DOUBT_DIVISOR: u64 = 10;
/// Time limit of a repeated run: this multiple of the first run's duration, plus [`EXTRA_TIME`].
const TIME_FACTOR: u32 = 5;
const EXTRA_TIME: Duration = Duration::from_mins(1);

/// Hint if other values may change the verdict.
const OTHER_VALUES: &str =
    "`--sizes 1` gives the verdict for the assumed values; `--gpu local` measures on a real GPU";

/// Facts that the verdict depends on.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is an independent fact")]
struct Evidence {
    ended: Ended,
    steps_asked: u64,
    /// Steps that every rank completed.
    steps_done: u64,
    /// `true` if a longer `--timeout` gives another run more time.
    more_time_helps: bool,
    oom: Option<Oom>,
    exception: bool,
    survived: bool,
    used_gpu: bool,
    watched: bool,
    /// `true` if compiled code crashed after every rank had come to the script's end.
    crashed_at_end: bool,
    sizes: SizesRead,
    /// `true` if the user chose the position of sizes; the verdict then refers to that choice.
    chosen: bool,
    refused: Option<String>,
    capacity: u64,
    device_upper: u64,
    /// Bytes that the only step created and that were not yet allocated at the peak.
    unmet: u64,
    /// Work of an early step of a run that was stopped, if a later step with it needs more than was seen.
    repeated: Option<RepeatedWork>,
    /// `true` if a rank was ended before it had completed a step.
    stepless: bool,
    /// `true` if the script ended while a plan held back a rank's first step.
    held: bool,
    tested: Tested,
}

/// Kinds of sizes that the script read back but only a GPU can compute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct SizesRead {
    bounded: bool,
    unbounded: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Oom {
    uncaught: bool,
    steps_after: u64,
}

impl Evidence {
    /// Extracts the facts that matter for the verdict.
    fn from_facts(request: &Request, facts: &Facts, tested: Tested) -> Self {
        let oom = |oom: &OomFacts| Oom { uncaught: oom.uncaught, steps_after: oom.steps_after };
        Self {
            ended: facts.ended,
            steps_asked: facts.setup.steps,
            steps_done: facts.steps(),
            more_time_helps: request.timeout.is_some_and(|own| own < repeat_limit(facts)),
            oom: facts.oom.as_ref().map(oom),
            exception: facts.exception.is_some(),
            survived: facts.survived,
            used_gpu: facts.used_gpu(),
            watched: facts.watched,
            crashed_at_end: facts.crashed_at_end().is_some(),
            sizes: SizesRead {
                bounded: facts.has_read(&[Stake::Size]),
                unbounded: facts.has_read(&[Stake::Unbounded]),
            },
            chosen: matches!(request.sizes, Sizes::At(_)),
            refused: facts
                .tally
                .unmodelled
                .iter()
                .map(|call| call.call.clone())
                .find(|call| may_affect_memory(call)),
            capacity: facts.device(request).capacity,
            device_upper: facts.fullest().map_or(0, |rank| rank.peak.device_upper),
            unmet: facts.ranks.iter().filter_map(|rank| Some(rank.done.as_ref()?.unmet)).max().unwrap_or(0),
            // A script that reached its own end has repeated all that it repeats.
            repeated: facts
                .ranks
                .iter()
                .filter(|_| !matches!(facts.ended, Ended::Exited(_)))
                .filter_map(|rank| rank.repeated.clone())
                .max_by_key(|work| work.excess),
            stepless: facts.ended == Ended::Stalled && facts.steps() == 0,
            held: facts.ranks.iter().any(|rank| rank.done.as_ref().is_some_and(|done| done.held)),
            tested,
        }
    }

    /// Returns `true` if the script survived its out-of-memory errors and then completed the requested steps.
    fn recovered(&self, oom: Oom) -> bool {
        let finished = match self.ended {
            Ended::Complete => true,
            Ended::Exited(0) => self.steps_asked == 0,
            _ => false,
        };
        !oom.uncaught && oom.steps_after > 0 && finished
    }

    fn is_tight(&self) -> bool {
        self.capacity > 0 && self.capacity.saturating_sub(self.device_upper) < self.capacity / DOUBT_DIVISOR
    }
}

/// Returns `true` if a size that only a GPU can compute was read back.
pub(crate) fn has_size_read_back(facts: &Facts) -> bool {
    facts.has_read(&[Stake::Size, Stake::Unbounded])
}

/// Request for another run of the script. It saves nothing. Its time limit is longer than the first run took,
/// since it gets further if that one failed; there is a limit because a changed script may wait for ever.
pub(crate) fn repeat_request(request: &Request, first: &Facts) -> Request {
    let time_limit = repeat_limit(first);
    let timeout = Some(request.timeout.map_or(time_limit, |own| own.min(time_limit)));
    Request { output: None, timeout, ..request.clone() }
}

/// Time limit of a repeated run, if the user sets no shorter one.
fn repeat_limit(first: &Facts) -> Duration {
    first.wall * TIME_FACTOR + EXTRA_TIME
}

/// Returns `true` if the verdict is `fits`, and values that were assumed may change it.
pub(crate) fn depends_on_numbers(request: &Request, facts: &Facts, tested: Tested) -> bool {
    may_depend_on_numbers(request, facts, tested, Verdict::Fits)
}

/// Returns `true` if the verdict is `oom`, and values that were assumed may change it.
pub(crate) fn lacks_by_numbers(request: &Request, facts: &Facts, tested: Tested) -> bool {
    may_depend_on_numbers(request, facts, tested, Verdict::Oom)
}

fn may_depend_on_numbers(request: &Request, facts: &Facts, tested: Tested, verdict: Verdict) -> bool {
    tested.numbers == Numbers::Untried
        && facts.has_read(&[Stake::Number, Stake::Condition, Stake::Count, Stake::Size])
        && !request.card.is_local()
        && judge_run(request, facts, tested).0 == verdict
        && !matches!(request.sizes, Sizes::At(_))
}

/// Returns `true` if the verdict is unknown only because sizes were read back at their upper bounds.
pub(crate) fn depends_on_sizes(request: &Request, facts: &Facts, tested: Tested) -> bool {
    tested.sizes == OtherSizes::Untried
        && has_size_read_back(facts)
        && !request.card.is_local()
        && judge_run(request, facts, tested)
            .1
            .is_some_and(|problem| problem.kind == ProblemKind::SizeReadBack)
}

/// Judges a run; gives a reason unless the verdict is obvious.
pub(crate) fn judge_run(request: &Request, facts: &Facts, tested: Tested) -> (Verdict, Option<Problem>) {
    let (verdict, problem) = judge(&Evidence::from_facts(request, facts, tested));
    (verdict, problem.map(|problem| problem::with_details(request, facts, problem)))
}

/// Applies the rules.
fn judge(evidence: &Evidence) -> (Verdict, Option<Problem>) {
    if let Some(oom) = evidence.oom.filter(|oom| !evidence.recovered(*oom)) {
        let stopped = matches!(evidence.ended, Ended::Interrupted | Ended::TimedOut) && !oom.uncaught;
        if !stopped {
            return out_of_memory(evidence);
        }
    }
    match no_answer(evidence) {
        // It may have handled the error and done what it should.
        Some(problem) if evidence.survived && evidence.used_gpu => (Verdict::Unknown, Some(problem)),
        Some(problem) => (Verdict::Error, Some(problem)),
        None => fits(evidence),
    }
}

fn out_of_memory(evidence: &Evidence) -> (Verdict, Option<Problem>) {
    let SizesRead { bounded, unbounded } = evidence.sizes;
    let settled = matches!(evidence.tested.sizes, OtherSizes::Inert | OtherSizes::OutOfMemory);
    if !(bounded || unbounded) || evidence.chosen || settled {
        if evidence.tested.numbers != Numbers::Decisive || evidence.chosen {
            return (Verdict::Oom, None);
        }
        let message = "It ran out of memory with the values that were assumed for numbers that only a GPU can compute, but not with other values.";
        return (Verdict::Unknown, problem(ProblemKind::NumberReadBack, message, Some(OTHER_VALUES)));
    }
    let message = "It ran out of memory, but some tensor sizes depend on values that only a GPU can compute. It does not fit with these sizes at their upper bound, but may fit with the real ones.";
    let hint = "`--sizes 0.3` assumes sizes at 0.3 of the way from their lower to their upper bound; `--gpu local` measures on a real GPU";
    (Verdict::Unknown, problem(ProblemKind::SizeReadBack, message, Some(hint)))
}

fn fits(evidence: &Evidence) -> (Verdict, Option<Problem>) {
    if evidence.stepless {
        let message = "It ended before every rank had completed a step, so gradients and optimizer state were not all allocated.";
        let hint = "allow more time with `--timeout`; `--show-output` shows what it does";
        return (Verdict::Unknown, problem(ProblemKind::NoStep, message, Some(hint)));
    }
    if evidence.held {
        let message = "It ended before an optimizer step under the plan was complete: the plan makes the script's batches smaller, and its loop ran too few of them for one step. Optimizer state was not allocated.";
        let hint = "give the script more batches in an epoch or more epochs, or take a plan with fewer micro-batches in a step";
        return (Verdict::Unknown, problem(ProblemKind::NoStep, message, Some(hint)));
    }
    if evidence.unmet > 0 {
        // The allocator rounds sizes up and leaves gaps.
        let unmet = evidence.unmet + evidence.unmet / DOUBT_DIVISOR;
        if evidence.device_upper.saturating_add(unmet) > evidence.capacity {
            let message = format!(
                "A single step fits, but it was the first one: it allocated {} of optimizer state and gradients, which the next step needs in addition to its activations.",
                size(evidence.unmet)
            );
            let hint = "`--steps 2` or more decides";
            return (Verdict::Unknown, problem(ProblemKind::SingleStep, &message, Some(hint)));
        }
    }
    if let Some(work) = &evidence.repeated {
        let needed = evidence.device_upper.saturating_add(work.excess);
        if needed > evidence.capacity {
            return (Verdict::Unknown, early_step(work, needed, evidence));
        }
    }
    if evidence.sizes.unbounded && !evidence.chosen {
        let message = "It fits with the assumed sizes, but some tensor sizes depend on values that only a GPU can compute, and have no known bound: see `assumed`.";
        return (Verdict::Unknown, problem(ProblemKind::SizeUnbounded, message, Some(OTHER_VALUES)));
    }
    let depends = match evidence.tested.numbers {
        Numbers::Decisive => Some("but with other values it allocates different amounts."),
        Numbers::Fatal => {
            Some("but with other values the script fails, so its memory use with them is unknown.")
        }
        Numbers::Unfinished => Some(
            "but the run that tries other values was stopped before its end, so whether memory depends on them is unknown.",
        ),
        Numbers::NeedsMore(more) if evidence.device_upper + more > evidence.capacity => {
            Some("but with other values it needs more than the GPU has.")
        }
        Numbers::Untried | Numbers::Harmless | Numbers::NeedsMore(_) => None,
    };
    if let Some(depends) = depends.filter(|_| !evidence.chosen) {
        let message = format!(
            "It fits with the values that were assumed for numbers that only a GPU can compute, {depends}"
        );
        let hint = match evidence.tested.numbers {
            Numbers::Unfinished if evidence.more_time_helps => {
                "allow more time with `--timeout`; `--sizes 1` gives the verdict for the assumed values"
            }
            _ => OTHER_VALUES,
        };
        return (Verdict::Unknown, problem(ProblemKind::NumberReadBack, &message, Some(hint)));
    }
    let reads_sizes = evidence.sizes.bounded && evidence.tested.sizes != OtherSizes::Inert;
    if evidence.is_tight() && reads_sizes && !evidence.chosen {
        let message = if evidence.tested.sizes == OtherSizes::Decisive {
            "It fits with little to spare, but the script reads values that only a GPU can compute, with other values it allocates differently, and with the real ones it may need more memory."
        } else {
            "It fits with little to spare, but the script reads values that only a GPU can compute and may need more memory with the real ones."
        };
        let hint = "a smaller batch, or a GPU with more memory, makes the verdict certain; `--sizes 1` gives it for the assumed sizes";
        return (Verdict::Unknown, problem(ProblemKind::SizeReadBack, message, Some(hint)));
    }
    if let Some(call) = evidence.refused.as_ref().filter(|_| evidence.is_tight()) {
        let message = format!(
            "It fits with little to spare, but the script called `{call}`, which the virtual device does not model."
        );
        let hint = "a smaller batch, or a GPU with more memory, makes the verdict certain";
        return (Verdict::Unknown, problem(ProblemKind::UnmodelledCall, &message, Some(hint)));
    }
    (Verdict::Fits, None)
}

/// The problem of a run of which an early step did work that a later one may repeat.
fn early_step(work: &RepeatedWork, needed: u64, evidence: &Evidence) -> Option<Problem> {
    let at_line = work.line.as_ref().map(|line| format!(" at {line}")).unwrap_or_default();
    let message = format!(
        "The {} steps that ran fit, but only step {} did some of its work{at_line}. It had {} allocated then, and {} of optimizer state and other lasting tensors came later. If that work recurs, as it does in every n-th step, in an evaluation or with batches of other lengths, a step needs about {}, and the GPU has {}.",
        evidence.steps_done,
        work.step,
        size(work.allocated),
        size(work.later),
        size(needed),
        size(evidence.capacity),
    );
    let hint =
        "`--steps` with a number at which that work has run again decides; `--steps 0` runs to the end";
    problem(ProblemKind::EarlyStep, &message, Some(hint))
}

/// Reason why a run has no answer; `None` if it has one.
fn no_answer(evidence: &Evidence) -> Option<Problem> {
    match evidence.ended {
        Ended::Interrupted => problem(ProblemKind::Interrupted, "The run was interrupted.", None),
        Ended::TimedOut => problem(
            ProblemKind::Timeout,
            "The script did not complete its steps in time.",
            Some(if evidence.steps_done == 0 {
                "allow more time with `--timeout`; `--show-output` shows what it does"
            } else {
                "allow more time with `--timeout`, or fewer steps with `--steps`; `--show-output` shows what it does"
            }),
        ),
        // A process that an exception ends may crash while it shuts down: the exception is the reason.
        _ if evidence.exception => problem(ProblemKind::Exception, "The script itself failed.", None),
        Ended::Signalled(signal) if !evidence.crashed_at_end => {
            problem(ProblemKind::Signal, &format!("The script was killed by {}.", signal_name(signal)), None)
        }
        Ended::Exited(code) if code != 0 => {
            problem(ProblemKind::Exit, &format!("The script ended with status {code}."), None)
        }
        Ended::Exited(_) if !evidence.watched && !evidence.used_gpu => problem(
            ProblemKind::NotWatched,
            "The script ran but could not be watched: none of its Python processes loaded memfit's probe.",
            Some(
                "`python -I`, `-E` and `-S` ignore the environment variables that load the probe: run it without them",
            ),
        ),
        Ended::Exited(_) | Ended::Signalled(_) | Ended::Complete | Ended::Stalled if !evidence.used_gpu => {
            problem(
                ProblemKind::NoGpuUse,
                "The script ran but never used the GPU.",
                Some(
                    "move the model to `cuda`; if the script chooses the device itself, let it ask `torch.cuda.is_available()` in the process that trains",
                ),
            )
        }
        Ended::Exited(_) | Ended::Signalled(_) | Ended::Complete | Ended::Stalled => None,
    }
}

#[allow(clippy::unnecessary_wraps, reason = "every caller needs an `Option`")]
fn problem(kind: ProblemKind, message: &str, hint: Option<&str>) -> Option<Problem> {
    Some(Problem { kind, message: message.to_owned(), hint: hint.map(str::to_owned) })
}

#[cfg(test)]
mod tests;
