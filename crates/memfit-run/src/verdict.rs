//! The verdict: what the facts of a run mean.
//!
//! The rules, the first that applies:
//!
//! 1. An out-of-memory error that ended the script is `oom`; so is one that it caught, unless the steps that
//!    were asked for were completed afterwards.
//! 2. A run that was stopped by the user, by the clock, by an exception, a signal or an exit status of its
//!    own, or that never touched the GPU, has no answer: `error`.
//! 3. Anything else `fits`, for what ran.
//!
//! Where something that is not modelled could turn the verdict, it becomes `unknown`:
//!
//! * `oom`, after a size that a kernel would have computed was answered by its upper bound, unless a second
//!   run with such sizes at their lower bound runs out of memory as well;
//! * `fits`, after a size was answered for which the arguments give no bound;
//! * `fits`, after numbers were answered zero that only a GPU computes, if a second run with another number
//!   in their place allocates anything else;
//! * `fits`, with less than [`DOUBT`] of the card left, after such a size was read back (its bound may not
//!   bound what the script does with it), or after a call was refused that may have to do with memory.
//!
//! * `fits`, where the run was stopped after a single step, and what that step has made (optimizer state,
//!   gradients) together with the peak before it would not fit;
//! * `fits`, where a rank that stood still had not completed a step.
//!
//! Where the user said at which part of their bounds sizes lie, the verdict is about that, and such sizes
//! raise no doubt.

use std::time::Duration;

use memfit_report::remarks::Stake;
use memfit_report::text::size;
use memfit_report::wire::{Problem, Verdict};

use crate::blame;
use crate::facts::{Facts, OomFacts, matters};
use crate::known_failures;
use crate::process::signal_name;
use crate::request::Request;
use crate::sizes::Sizes;
use crate::watch::Ended;

/// The part of a card that must be left for a doubt not to matter: one in so many.
const DOUBT: u64 = 10;
/// Another run may take so many times as long as the first, and this longer.
const PATIENCE: u32 = 5;
const LEAST: Duration = Duration::from_mins(1);

/// What the facts say, apart from how they were come by.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
struct Evidence {
    ended: Ended,
    steps_asked: u64,
    oom: Option<Oom>,
    exception: bool,
    used_gpu: bool,
    watched: bool,
    sizes: SizesRead,
    /// Whether the user said where sizes lie: then the verdict is about that.
    told: bool,
    refused: Option<String>,
    capacity: u64,
    device_upper: u64,
    /// Bytes that the only step has made, and that were not there at the peak.
    unmet: u64,
    /// Whether a rank was ended before it had completed a step.
    stepless: bool,
    /// Whether a run with such sizes at their lower bound ran out of memory as well; nothing if there was
    /// none.
    lower_fails: Option<bool>,
    numbers: Numbers,
}

/// Whether anything depends on numbers that were answered zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Numbers {
    /// There were none, or no second run.
    #[default]
    Untried,
    /// A second run with another number in their place allocated the same.
    Harmless,
    /// It did not.
    Decisive,
    /// It could not be completed, though the first was.
    Fatal,
}

impl Numbers {
    /// By the facts of the two runs.
    pub(crate) fn compare(zeros: &Facts, others: &Facts) -> Self {
        let peaks = |facts: &Facts| -> Vec<_> { facts.ranks.iter().map(|rank| rank.peak).collect() };
        if others.exception.is_some() && zeros.exception.is_none() {
            return Self::Fatal;
        }
        let same = others.ended == zeros.ended
            && others.steps() == zeros.steps()
            && others.handed_out == zeros.handed_out
            && peaks(others) == peaks(zeros);
        if same { Self::Harmless } else { Self::Decisive }
    }
}

/// Sizes that a kernel would have computed, and that the script read back.
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
    /// What of the facts matters for the verdict.
    fn of(facts: &Facts, capacity: u64, lower: Option<&Facts>, told: bool, numbers: Numbers) -> Self {
        let oom = |oom: &OomFacts| Oom { uncaught: oom.uncaught, steps_after: oom.steps_after };
        Self {
            ended: facts.ended,
            steps_asked: facts.setup.steps,
            oom: facts.oom.as_ref().map(oom),
            exception: facts.exception.is_some(),
            used_gpu: facts.used_gpu(),
            watched: facts.watched,
            sizes: SizesRead {
                bounded: facts.has_read(&[Stake::Size]),
                unbounded: facts.has_read(&[Stake::Unbounded]),
            },
            told,
            refused: facts.tally.unmodelled.iter().map(|call| call.call.clone()).find(|call| matters(call)),
            capacity,
            device_upper: facts.fullest().map_or(0, |rank| rank.peak.device_upper),
            unmet: facts.ranks.iter().filter_map(|rank| Some(rank.done.as_ref()?.unmet)).max().unwrap_or(0),
            stepless: facts.ended == Ended::Stalled && facts.steps() == 0,
            lower_fails: lower.map(|facts| facts.oom.is_some()),
            numbers,
        }
    }

    /// Whether the script survived its out-of-memory errors and then did what was asked.
    fn recovered(&self, oom: Oom) -> bool {
        let finished = match self.ended {
            Ended::Complete => true,
            Ended::Exited(0) => self.steps_asked == 0,
            _ => false,
        };
        !oom.uncaught && oom.steps_after > 0 && finished
    }

    fn is_tight(&self) -> bool {
        self.capacity > 0 && self.capacity.saturating_sub(self.device_upper) < self.capacity / DOUBT
    }
}

/// Whether a size that a kernel would have computed was read back.
pub(crate) fn has_size_read_back(facts: &Facts) -> bool {
    facts.has_read(&[Stake::Size, Stake::Unbounded])
}

/// The request for another run of a script of which one run is over. It saves nothing, and has so much longer
/// than the first: it gets further where that one failed, and what is changed about it can make a script wait
/// for ever.
pub(crate) fn again(request: &Request, first: &Facts) -> Request {
    let patience = first.wall * PATIENCE + LEAST;
    let timeout = Some(request.timeout.map_or(patience, |own| own.min(patience)));
    Request { output: None, timeout, ..request.clone() }
}

/// Whether the verdict would be `fits`, but for numbers that were answered zero.
pub(crate) fn hangs_on_numbers(request: &Request, facts: &Facts) -> bool {
    facts.has_read(&[Stake::Number])
        && !request.card.is_local()
        && of(request, facts, None, Numbers::Untried).0 == Verdict::Fits
        && !matches!(request.sizes, Sizes::At(_))
}

/// The verdict on a run, with the reason where it is not a plain one. `lower` are the facts of a second run
/// with sizes at their lower bounds.
pub(crate) fn of(
    request: &Request,
    facts: &Facts,
    lower: Option<&Facts>,
    numbers: Numbers,
) -> (Verdict, Option<Problem>) {
    let told = matches!(request.sizes, Sizes::At(_));
    let evidence = Evidence::of(facts, facts.device(request).capacity, lower, told, numbers);
    let (verdict, mut problem) = judge(&evidence);
    if let (Some(problem), Some(exception)) = (&mut problem, &facts.exception)
        && problem.kind == "exception"
    {
        if let Some(known) = known_failures::known(&request.card, facts.torch.as_deref(), exception) {
            return (verdict, Some(known));
        }
        let (message, caused) = blame::sentence(request, facts, exception);
        problem.message = message;
        if caused {
            "exception-after-change".clone_into(&mut problem.kind);
            problem.hint = Some(
                "on a real GPU the script may continue: `--gpu local` runs it on one; fewer `--steps` may end before that line".to_owned(),
            );
        }
    }
    if let Some(problem) = &mut problem {
        let read = match problem.kind.as_str() {
            "number-read-back" => facts.lines_read().map(|lines| format!("They are read at {lines}.")),
            "size-read-back" | "size-unbounded" => {
                facts.sizes_read().map(|sizes| format!("What it read: {sizes}."))
            }
            _ => None,
        };
        problem.message.extend(read.into_iter().flat_map(|read| [" ".to_owned(), read]));
    }
    (verdict, problem)
}

/// The rules.
fn judge(evidence: &Evidence) -> (Verdict, Option<Problem>) {
    if let Some(oom) = evidence.oom.filter(|oom| !evidence.recovered(*oom)) {
        let stopped = matches!(evidence.ended, Ended::Interrupted | Ended::TimedOut) && !oom.uncaught;
        if !stopped {
            return out_of_memory(evidence);
        }
    }
    match no_answer(evidence) {
        Some(problem) => (Verdict::Error, Some(problem)),
        None => fits(evidence),
    }
}

fn out_of_memory(evidence: &Evidence) -> (Verdict, Option<Problem>) {
    let SizesRead { bounded, unbounded } = evidence.sizes;
    if !(bounded || unbounded) || evidence.told || evidence.lower_fails == Some(true) {
        return (Verdict::Oom, None);
    }
    let message = "It ran out of memory, but some tensor sizes depend on values that only a GPU can compute. With these sizes at their upper bound it does not fit; with the real ones it may.";
    let hint = "`--sizes 0.3` asks about sizes at 0.3 of their bound; `--gpu local` measures on the card";
    (Verdict::Unknown, problem("size-read-back", message, Some(hint)))
}

fn fits(evidence: &Evidence) -> (Verdict, Option<Problem>) {
    if evidence.stepless {
        let message = "It ended before every rank had completed a step, so gradients and optimizer state were not all allocated.";
        let hint = "allow more time with `--timeout`; `--show-output` shows what it does";
        return (Verdict::Unknown, problem("no-step", message, Some(hint)));
    }
    if evidence.unmet > 0 {
        // The allocator rounds sizes up, and leaves gaps.
        let unmet = evidence.unmet + evidence.unmet / DOUBT;
        if evidence.device_upper.saturating_add(unmet) > evidence.capacity {
            let message = format!(
                "A single step fits, but it was the first one: it allocated {} of optimizer state and gradients, which the next step needs in addition to its activations.",
                size(evidence.unmet)
            );
            let hint = "`--steps 2` or more decides";
            return (Verdict::Unknown, problem("single-step", &message, Some(hint)));
        }
    }
    if evidence.sizes.unbounded && !evidence.told {
        let message = "It fits with what was assumed, but some tensor sizes depend on values that only a GPU can compute, and have no known bound: see `assumed`.";
        let hint =
            "with `--sizes 1` the verdict is about what was assumed; `--gpu local` measures on the card";
        return (Verdict::Unknown, problem("size-unbounded", message, Some(hint)));
    }
    let depends = match evidence.numbers {
        Numbers::Decisive => Some("but what it allocates depends on them."),
        Numbers::Fatal => Some("but with another number it fails, so its memory then is unknown."),
        Numbers::Untried | Numbers::Harmless => None,
    };
    if let Some(depends) = depends.filter(|_| !evidence.told) {
        let message =
            format!("It fits with what was assumed for values that only a GPU can compute, {depends}");
        let hint =
            "with `--sizes 1` the verdict is about what was assumed; `--gpu local` measures on the card";
        return (Verdict::Unknown, problem("number-read-back", &message, Some(hint)));
    }
    if evidence.is_tight() && evidence.sizes.bounded && !evidence.told {
        let message = "It fits with little to spare, but the script reads values that only a GPU can compute, and may need more with the real ones.";
        let hint = "with a tenth of the GPU's memory left the verdict would be certain";
        return (Verdict::Unknown, problem("size-read-back", message, Some(hint)));
    }
    if let Some(call) = evidence.refused.as_ref().filter(|_| evidence.is_tight()) {
        let message = format!(
            "It fits with little to spare, but the script called `{call}`, which the virtual device does not model."
        );
        let hint = "with a tenth of the GPU's memory left the verdict would be certain";
        return (Verdict::Unknown, problem("unmodelled-call", &message, Some(hint)));
    }
    (Verdict::Fits, None)
}

/// Why a run has no answer, if it has none.
fn no_answer(evidence: &Evidence) -> Option<Problem> {
    match evidence.ended {
        Ended::Interrupted => problem("interrupted", "The run was interrupted.", None),
        Ended::TimedOut => problem(
            "timeout",
            "The script did not complete its steps in time.",
            Some(
                "allow more time with `--timeout`, or fewer steps with `--steps`; `--show-output` shows what it does",
            ),
        ),
        Ended::Signalled(signal) => {
            problem("signal", &format!("The script was killed by {}.", signal_name(signal)), None)
        }
        _ if evidence.exception => problem("exception", "The script failed by itself.", None),
        Ended::Exited(code) if code != 0 => {
            problem("exit", &format!("The script ended with status {code}."), None)
        }
        Ended::Exited(_) if !evidence.watched && !evidence.used_gpu => problem(
            "not-watched",
            "The script ran but could not be watched: none of its Python processes loaded memfit's probe.",
            Some(
                "`python -I`, `-E` and `-S` ignore the environment variables that load the probe: run it without them",
            ),
        ),
        Ended::Exited(_) | Ended::Complete | Ended::Stalled if !evidence.used_gpu => problem(
            "no-gpu-use",
            "The script ran but never used the GPU.",
            Some(
                "does it move its model there, and does it ask `torch.cuda.is_available()` in the process that trains?",
            ),
        ),
        Ended::Exited(_) | Ended::Complete | Ended::Stalled => None,
    }
}

#[allow(clippy::unnecessary_wraps, reason = "every caller wants an option")]
fn problem(kind: &str, message: &str, hint: Option<&str>) -> Option<Problem> {
    Some(Problem { kind: kind.to_owned(), message: message.to_owned(), hint: hint.map(str::to_owned) })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn plain(ended: Ended) -> Evidence {
        Evidence {
            ended,
            steps_asked: 3,
            oom: None,
            exception: false,
            used_gpu: true,
            watched: true,
            sizes: SizesRead::default(),
            told: false,
            refused: None,
            capacity: 24 * GIB,
            device_upper: 12 * GIB,
            unmet: 0,
            stepless: false,
            lower_fails: None,
            numbers: Numbers::Untried,
        }
    }

    fn check(evidence: &Evidence, verdict: Verdict, kind: Option<&str>) {
        let (found, problem) = judge(evidence);
        assert_eq!(
            (found, problem.as_ref().map(|problem| problem.kind.as_str())),
            (verdict, kind),
            "{evidence:?}"
        );
    }

    const UNCAUGHT: Option<Oom> = Some(Oom { uncaught: true, steps_after: 0 });
    const CAUGHT: Option<Oom> = Some(Oom { uncaught: false, steps_after: 0 });
    const RECOVERED: Option<Oom> = Some(Oom { uncaught: false, steps_after: 3 });

    #[test]
    fn how_it_ended_decides() {
        use Verdict::{Error, Fits};
        for (ended, verdict, kind) in [
            (Ended::Complete, Fits, None),
            (Ended::Stalled, Fits, None),
            (Ended::Exited(0), Fits, None),
            (Ended::Exited(1), Error, Some("exit")),
            (Ended::Signalled(libc::SIGSEGV), Error, Some("signal")),
            (Ended::Interrupted, Error, Some("interrupted")),
            (Ended::TimedOut, Error, Some("timeout")),
        ] {
            check(&plain(ended), verdict, kind);
        }
        check(&Evidence { exception: true, ..plain(Ended::Exited(1)) }, Error, Some("exception"));
        check(&Evidence { exception: true, ..plain(Ended::Stalled) }, Error, Some("exception"));
        check(&Evidence { used_gpu: false, ..plain(Ended::Exited(0)) }, Error, Some("no-gpu-use"));
        check(&Evidence { used_gpu: false, ..plain(Ended::Exited(3)) }, Error, Some("exit"));
        let unwatched = Evidence { used_gpu: false, watched: false, ..plain(Ended::Exited(0)) };
        check(&unwatched, Error, Some("not-watched"));
    }

    #[test]
    fn an_out_of_memory_error_is_bad_news_unless_the_steps_came_after_it() {
        use Verdict::{Error, Fits, Oom};
        for (oom, ended, steps_asked, verdict, kind) in [
            (UNCAUGHT, Ended::Exited(1), 3, Oom, None),
            (UNCAUGHT, Ended::Signalled(libc::SIGABRT), 3, Oom, None),
            (UNCAUGHT, Ended::TimedOut, 3, Oom, None),
            (CAUGHT, Ended::Exited(0), 3, Oom, None),
            (CAUGHT, Ended::Exited(1), 3, Oom, None),
            (CAUGHT, Ended::TimedOut, 3, Error, Some("timeout")),
            (RECOVERED, Ended::Complete, 3, Fits, None),
            (RECOVERED, Ended::Exited(0), 3, Oom, None),
            (RECOVERED, Ended::Exited(0), 0, Fits, None),
            (RECOVERED, Ended::Exited(1), 0, Oom, None),
        ] {
            check(&Evidence { steps_asked, oom, ..plain(ended) }, verdict, kind);
        }
    }

    #[test]
    fn doubt_counts_only_where_it_could_turn_the_verdict() {
        use Verdict::{Fits, Oom, Unknown};
        let tight = 24 * GIB - GIB;
        let none = SizesRead::default();
        let bounded = SizesRead { bounded: true, ..none };
        let unbounded = SizesRead { unbounded: true, ..none };
        for (sizes, told, device_upper, verdict, kind) in [
            (bounded, false, 12 * GIB, Fits, None),
            (bounded, false, tight, Unknown, Some("size-read-back")),
            (bounded, true, tight, Fits, None),
            (unbounded, false, GIB, Unknown, Some("size-unbounded")),
            (unbounded, true, GIB, Fits, None),
            (none, false, tight, Fits, None),
        ] {
            check(&Evidence { sizes, told, device_upper, ..plain(Ended::Complete) }, verdict, kind);
        }
        for (numbers, told, verdict, kind) in [
            (Numbers::Untried, false, Fits, None),
            (Numbers::Harmless, false, Fits, None),
            (Numbers::Decisive, false, Unknown, Some("number-read-back")),
            (Numbers::Fatal, false, Unknown, Some("number-read-back")),
            (Numbers::Decisive, true, Fits, None),
        ] {
            check(&Evidence { told, numbers, ..plain(Ended::Complete) }, verdict, kind);
        }
        for (refused, device_upper, verdict, kind) in [
            ("cudaGraphicsMapResources", tight, Unknown, Some("unmodelled-call")),
            ("cudaGraphicsMapResources", GIB, Fits, None),
        ] {
            let refused = Some(refused.to_owned());
            check(&Evidence { refused, device_upper, ..plain(Ended::Complete) }, verdict, kind);
        }
        for (lower_fails, told, verdict) in [
            (None, false, Unknown),
            (Some(false), false, Unknown),
            (Some(true), false, Oom),
            (None, true, Oom),
        ] {
            let evidence =
                Evidence { oom: UNCAUGHT, sizes: bounded, told, lower_fails, ..plain(Ended::Exited(1)) };
            check(&evidence, verdict, (verdict == Unknown).then_some("size-read-back"));
        }
    }

    #[test]
    fn a_first_step_decides_only_where_what_it_made_fits_as_well() {
        use Verdict::{Fits, Unknown};
        for (unmet, verdict, kind) in [
            (0, Fits, None),
            (10 * GIB, Fits, None),
            (11 * GIB, Unknown, Some("single-step")),
            (20 * GIB, Unknown, Some("single-step")),
        ] {
            check(&Evidence { unmet, ..plain(Ended::Complete) }, verdict, kind);
        }
        check(&Evidence { stepless: true, ..plain(Ended::Stalled) }, Unknown, Some("no-step"));
    }
}
