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
//! * `fits`, if a stalled rank had not completed a step;
//! * `fits`, if a run with other numbers failed where this one did not;
//! * `fits`, if a plan held back the first optimizer step;
//! * `fits`, if the script handled an error and ended before the requested steps.
//!
//! If the user chose the position of sizes between their bounds, the verdict refers to that choice, and such
//! sizes raise no doubt.

use std::time::Duration;

use memfit_report::remarks::Stake;
use memfit_report::text::size;
use memfit_report::wire::{Problem, Verdict};

use crate::absent;
use crate::blame;
use crate::facts::{Facts, LAUNCHERS, OomFacts, may_affect_memory};
use crate::known_failures::{self, Ran};
use crate::numbers::Numbers;
use crate::older;
use crate::output;
use crate::request::Request;
use crate::signals::{self, signal_name};
use crate::sizes::Sizes;
use crate::stand_ins::Given;
use crate::tested::{OtherSizes, Tested};
use crate::traceback;
use crate::watch::Ended;

/// Reciprocal of the share of the device that must stay free for a doubt to be ignored.
const DOUBT_DIVISOR: u64 = 10;
/// Time limit of a repeated run: this multiple of the first run's duration, plus [`EXTRA_TIME`].
const TIME_FACTOR: u32 = 5;
const EXTRA_TIME: Duration = Duration::from_mins(1);

/// What to do where other values may change the verdict.
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
    sizes: SizesRead,
    /// `true` if the user chose the position of sizes; the verdict then refers to that choice.
    chosen: bool,
    refused: Option<String>,
    capacity: u64,
    device_upper: u64,
    /// Bytes that the only step created and that were not yet allocated at the peak.
    unmet: u64,
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
        && judge_run(request, facts, tested).1.is_some_and(|problem| problem.kind == "size-read-back")
}

/// Judges a run; gives a reason unless the verdict is obvious.
pub(crate) fn judge_run(request: &Request, facts: &Facts, tested: Tested) -> (Verdict, Option<Problem>) {
    let evidence = Evidence::from_facts(request, facts, tested);
    let (verdict, mut problem) = judge(&evidence);
    let ran = Ran {
        torch: facts.torch.as_deref(),
        interpreter: facts.interpreter.as_deref(),
        given: Given {
            data: request.synthetic.data.is_some(),
            described: request.synthetic.data.as_ref().is_some_and(|data| !data.fields.is_empty()),
            weights: request.synthetic.weights,
            data_set: facts.cause.data_set.as_deref(),
            downloads_weights: facts.cause.weights.is_some(),
        },
    };
    if let (Some(problem), Some(exception)) = (&mut problem, &facts.exception)
        && problem.kind == "exception"
    {
        let exception = traceback::original(exception);
        if let Some(line) = output::line_before_launcher(&facts.last_output)
            && exception.r#type.ends_with(LAUNCHERS)
        {
            let message =
                format!("A process of the launcher ended with an error status. Its last line is: {line}");
            return (verdict, self::problem("exit", &message, older::hint_of_usage(line)));
        }
        if let Some(known) = known_failures::problem(&request.card, ran, &exception) {
            return (verdict, Some(known));
        }
        let (message, caused) = blame::sentence(request, facts, &exception);
        problem.message = message;
        if !caused {
            problem.hint = older::hint(ran.interpreter, &exception)
                .or_else(|| absent::hint(ran.given, &exception))
                .or_else(|| facts.cause.gone.as_ref().map(|gone| older::hint_at_release(gone, &exception)));
            if let (None, Some(line)) = (&problem.hint, output::network_failure(&facts.last_output)) {
                end_sentence(&mut problem.message);
                problem.message += " Before it, a download had failed: ";
                problem.message += line;
                let hint = "download the file on a machine with a network, and copy it to the path that the script reads";
                problem.hint = Some(hint.to_owned());
            } else if let (None, Some(host)) = (&problem.hint, &facts.cause.unreached) {
                end_sentence(&mut problem.message);
                for part in [" Before it, the host `", host, "` could not be reached"] {
                    problem.message.push_str(part);
                }
                let hint = "if that is the cause: download the file on a machine with a network, and copy it to the path that the script reads";
                problem.hint = Some(hint.to_owned());
            } else if problem.hint.is_none() {
                problem.hint = absent::hint_at_file(&exception);
            }
        }
        if facts.ended == Ended::Exited(0) && facts.steps() == 0 {
            end_sentence(&mut problem.message);
            problem.message.push_str(
                " It took no step and ended with status 0: it caught this error, or a process that it had started failed",
            );
        }
        if caused {
            "exception-after-change".clone_into(&mut problem.kind);
            let fewer = if facts.steps() == 0 { "" } else { "; fewer `--steps` may end before that line" };
            let samples = facts.cause.sampled && request.synthetic.data.is_some();
            let real = if samples && !blame::is_refusal(&exception) {
                "put a few real samples where the script looks for them, and leave out `--synthetic-data`; or "
            } else {
                ""
            };
            let mut fetch = "";
            if let Some(host) = &facts.cause.unreached {
                end_sentence(&mut problem.message);
                for part in [" The host `", host, "` could not be reached either"] {
                    problem.message.push_str(part);
                }
                fetch = "download what the script asks that host for on a machine with a network, and copy it to this one; or ";
            }
            problem.hint = Some(format!(
                "{fetch}{real}run the script on a real GPU, where it may continue: `--gpu local`{fewer}"
            ));
        }
    }
    if let Some(problem) = &mut problem {
        let stopped_at = || facts.stopped_at.as_ref().map(|place| format!("It was at {place}."));
        let read = match problem.kind.as_str() {
            "timeout" => waited_for(facts).or_else(stopped_at),
            "signal" | "interrupted" => stopped_at(),
            "exit" => last_line(&facts.last_output).map(|line| format!("Its last line is: {line}")),
            "number-read-back" => {
                let lines = facts.lines_read().map(|lines| format!("They are read at {lines}."));
                lines.or_else(|| what_it_read(facts))
            }
            "size-read-back" | "size-unbounded" => what_it_read(facts),
            _ => None,
        };
        problem.message.extend(read.into_iter().flat_map(|read| [" ".to_owned(), read]));
        if let Ended::Signalled(signal) = facts.ended
            && problem.kind == "signal"
        {
            let on_virtual_gpu = facts.used_gpu() && !request.card.is_local();
            problem.hint = signals::hint(signal, on_virtual_gpu).map(str::to_owned);
        }
        if problem.kind == "timeout" && facts.exception.is_none() && facts.repeated.is_some() {
            let hint = "more time is unlikely to help: let that loop take a fixed number of iterations (as a solver with a fixed step size does), or `--gpu local`, which computes these values";
            problem.hint = Some(hint.to_owned());
        }
        if let Some(exception) = facts.exception.as_ref().filter(|_| problem.kind == "timeout") {
            // More time would not help.
            let exception = traceback::original(exception);
            let known = known_failures::problem(&request.card, ran, &exception).and_then(|known| known.hint);
            let first = "fix that error first; `--show-output` shows what the script does";
            problem.hint =
                known.or_else(|| older::hint(ran.interpreter, &exception)).or_else(|| Some(first.to_owned()));
        }
    }
    (verdict, problem)
}

/// Ends a message as a sentence, so that another can follow it.
fn end_sentence(message: &mut String) {
    if !message.ends_with(['.', '!', '?', ':']) {
        message.push('.');
    }
}

/// Sizes that the script read back, with their lines.
fn what_it_read(facts: &Facts) -> Option<String> {
    facts.sizes_read().map(|sizes| format!("What it read: {sizes}."))
}

/// Likely reason why a run reached its time limit.
fn waited_for(facts: &Facts) -> Option<String> {
    if let Some(exception) = &facts.exception {
        let exception = traceback::original(exception);
        let said = traceback::summary(&exception.message);
        let place = traceback::user_line(&exception.traceback)
            .map(|place| format!(" at {place}"))
            .unwrap_or_default();
        return Some(format!(
            "One of its processes had failed{place}, and the script did not end: {}: {said}",
            exception.r#type
        ));
    }
    let (place, count) = facts.repeated.as_ref()?;
    Some(format!(
        "Since its last step, {place} read values that only a GPU can compute {count} times or more; they were assumed, so a loop that waits for one of them may never end."
    ))
}

/// Hydra's last line after an error in its configuration, and words of the line that tells the error.
const HYDRA_ADVICE: &str = "Set the environment variable HYDRA_FULL_ERROR=1";
const HYDRA_ERRORS: &[&str] = &["Could not ", "Error ", "Key '", "Missing ", "You must specify"];

/// Last line of a script's output, or the line of an error that advice follows; `None` if it is empty.
fn last_line(output: &str) -> Option<&str> {
    let mut lines = output.lines().map(str::trim).filter(|line| !line.is_empty());
    let last = lines.next_back()?;
    let told = last
        .starts_with(HYDRA_ADVICE)
        .then(|| lines.rfind(|line| HYDRA_ERRORS.iter().any(|words| line.contains(words))))
        .flatten();
    Some(told.unwrap_or(last))
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
        return (Verdict::Unknown, problem("number-read-back", message, Some(OTHER_VALUES)));
    }
    let message = "It ran out of memory, but some tensor sizes depend on values that only a GPU can compute. It does not fit with these sizes at their upper bound, but may fit with the real ones.";
    let hint = "`--sizes 0.3` assumes sizes at 0.3 of the way from their lower to their upper bound; `--gpu local` measures on a real GPU";
    (Verdict::Unknown, problem("size-read-back", message, Some(hint)))
}

fn fits(evidence: &Evidence) -> (Verdict, Option<Problem>) {
    if evidence.stepless {
        let message = "It ended before every rank had completed a step, so gradients and optimizer state were not all allocated.";
        let hint = "allow more time with `--timeout`; `--show-output` shows what it does";
        return (Verdict::Unknown, problem("no-step", message, Some(hint)));
    }
    if evidence.held {
        let message = "It ended before an optimizer step under the plan was complete: the plan makes the script's batches smaller, and its loop ran too few of them for one step. Optimizer state was not allocated.";
        let hint = "give the script more batches in an epoch or more epochs, or take a plan with fewer micro-batches in a step";
        return (Verdict::Unknown, problem("no-step", message, Some(hint)));
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
            return (Verdict::Unknown, problem("single-step", &message, Some(hint)));
        }
    }
    if evidence.sizes.unbounded && !evidence.chosen {
        let message = "It fits with the assumed sizes, but some tensor sizes depend on values that only a GPU can compute, and have no known bound: see `assumed`.";
        return (Verdict::Unknown, problem("size-unbounded", message, Some(OTHER_VALUES)));
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
        return (Verdict::Unknown, problem("number-read-back", &message, Some(hint)));
    }
    let reads_sizes = evidence.sizes.bounded && evidence.tested.sizes != OtherSizes::Inert;
    if evidence.is_tight() && reads_sizes && !evidence.chosen {
        let message = if evidence.tested.sizes == OtherSizes::Decisive {
            "It fits with little to spare, but the script reads values that only a GPU can compute, with other values it allocates differently, and with the real ones it may need more memory."
        } else {
            "It fits with little to spare, but the script reads values that only a GPU can compute and may need more memory with the real ones."
        };
        let hint = "a smaller batch, or a GPU with more memory, makes the verdict certain; `--sizes 1` gives it for the assumed sizes";
        return (Verdict::Unknown, problem("size-read-back", message, Some(hint)));
    }
    if let Some(call) = evidence.refused.as_ref().filter(|_| evidence.is_tight()) {
        let message = format!(
            "It fits with little to spare, but the script called `{call}`, which the virtual device does not model."
        );
        let hint = "a smaller batch, or a GPU with more memory, makes the verdict certain";
        return (Verdict::Unknown, problem("unmodelled-call", &message, Some(hint)));
    }
    (Verdict::Fits, None)
}

/// Reason why a run has no answer; `None` if it has one.
fn no_answer(evidence: &Evidence) -> Option<Problem> {
    match evidence.ended {
        Ended::Interrupted => problem("interrupted", "The run was interrupted.", None),
        Ended::TimedOut => problem(
            "timeout",
            "The script did not complete its steps in time.",
            Some(if evidence.steps_done == 0 {
                "allow more time with `--timeout`; `--show-output` shows what it does"
            } else {
                "allow more time with `--timeout`, or fewer steps with `--steps`; `--show-output` shows what it does"
            }),
        ),
        Ended::Signalled(signal) => {
            problem("signal", &format!("The script was killed by {}.", signal_name(signal)), None)
        }
        _ if evidence.exception => problem("exception", "The script itself failed.", None),
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
                "move the model to `cuda`; if the script chooses the device itself, let it ask `torch.cuda.is_available()` in the process that trains",
            ),
        ),
        Ended::Exited(_) | Ended::Complete | Ended::Stalled => None,
    }
}

#[allow(clippy::unnecessary_wraps, reason = "every caller needs an `Option`")]
fn problem(kind: &str, message: &str, hint: Option<&str>) -> Option<Problem> {
    Some(Problem { kind: kind.to_owned(), message: message.to_owned(), hint: hint.map(str::to_owned) })
}

#[cfg(test)]
mod tests;
