//! Details of a problem: what the facts of the run say about it, and what to do.

use memfit_report::wire::{Exception, Problem, ProblemKind};

use crate::facts::{Facts, LAUNCHERS};
use crate::known_failures::{self, Ran};
use crate::request::Request;
use crate::signals;
use crate::stand_ins::Given;
use crate::watch::Ended;
use crate::{absent, blame, by_name, older, output, started, traceback};

/// Hint for a file that a script downloads.
const COPY_DOWNLOAD: &str =
    "download the file on a machine with a network, and copy it to the path that the script reads";
/// Hints at a loop that waits for a value, and at an evaluation before the first step.
const FIXED_NUMBER: &str =
    "let that loop take a fixed number of iterations (as a solver with a fixed step size does)";
const SKIP_EVALUATION: &str = "skip or shorten that evaluation with the script's own options, often the number of its batches or iterations";
/// Minimum number of forward passes that are taken for an evaluation.
const MIN_EVALUATION_PASSES: usize = 4;

/// Completes a problem of a run with what is known about it.
pub(crate) fn with_details(request: &Request, facts: &Facts, problem: Problem) -> Problem {
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
    let exception = facts.exception.as_ref().map(traceback::original);
    match (problem.kind, &exception) {
        (ProblemKind::Exception, Some(exception)) => failed(request, facts, ran, exception),
        (ProblemKind::Timeout, _) => timed_out(request, facts, ran, exception.as_deref(), problem),
        _ => stopped(request, facts, problem),
    }
}

/// The problem of a script that an exception ended.
fn failed(request: &Request, facts: &Facts, ran: Ran<'_>, exception: &Exception) -> Problem {
    if let Some(line) = output::line_before_launcher(&facts.last_output)
        && exception.r#type.ends_with(LAUNCHERS)
    {
        return Problem {
            kind: ProblemKind::Exit,
            message: format!(
                "A process of the launcher ended with an error status. Its last line is: {line}"
            ),
            hint: older::hint_of_usage(line).map(str::to_owned),
        };
    }
    if let Some(known) = known_failures::problem(&request.card, ran, exception) {
        return known;
    }
    let (mut message, caused) = blame::sentence(request, facts, exception);
    let (kind, hint) = if caused {
        let hint = hint_after_change(request, facts, exception, &mut message);
        (ProblemKind::ExceptionAfterChange, Some(hint))
    } else {
        (ProblemKind::Exception, hint_at_failure(facts, ran, exception, &mut message))
    };
    if facts.ended == Ended::Exited(0) && facts.steps() == 0 {
        add_sentence(
            &mut message,
            "It took no step and ended with status 0: it caught this error, or a process that it had started failed",
        );
    }
    Problem { kind, message, hint }
}

/// Hint for a failure that memfit did not cause. A download that failed before it is added to the message.
fn hint_at_failure(
    facts: &Facts,
    ran: Ran<'_>,
    exception: &Exception,
    message: &mut String,
) -> Option<String> {
    let known = started::hint(exception)
        .or_else(|| older::hint(ran.interpreter, exception))
        .or_else(|| by_name::hint(exception))
        .or_else(|| absent::hint(ran.given, exception))
        .or_else(|| facts.cause.gone.as_ref().map(|gone| older::hint_at_release(gone, exception)));
    if known.is_some() {
        return known;
    }
    if let Some(line) = output::network_failure(&facts.last_output) {
        add_sentence(message, &format!("Before it, a download had failed: {line}"));
        return Some(COPY_DOWNLOAD.to_owned());
    }
    if let Some(host) = &facts.cause.unreached {
        add_sentence(message, &format!("Before it, the host `{host}` could not be reached"));
        return Some(format!("if that is the cause: {COPY_DOWNLOAD}"));
    }
    absent::hint_at_file(exception).or_else(|| hint_at_folder(facts, message))
}

/// Hint at a folder in which the script found nothing, as it does not exist. Adds it to the message.
fn hint_at_folder(facts: &Facts, message: &mut String) -> Option<String> {
    let folder = facts.cause.folder.as_ref().filter(|_| facts.steps() == 0 && !facts.cause.program)?;
    let looked = format!("Before it, the script had looked for files in `{folder}`, which does not exist");
    add_sentence(message, &looked);
    Some(
        "if that is the cause: put the files there; of a data set, a few samples of the usual size are enough for memfit"
            .to_owned(),
    )
}

/// Hint for a failure that memfit may have caused; adds to the message that a host could not be reached.
fn hint_after_change(
    request: &Request,
    facts: &Facts,
    exception: &Exception,
    message: &mut String,
) -> String {
    let fewer = if facts.steps() == 0 { "" } else { "; fewer `--steps` may end before that line" };
    let samples = facts.cause.sampled && request.synthetic.data.is_some();
    let real = if samples && !blame::is_refusal(exception) {
        "put a few real samples where the script looks for them, and leave out `--synthetic-data`; or "
    } else {
        ""
    };
    let mut fetch = "";
    if let Some(host) = &facts.cause.unreached {
        add_sentence(message, &format!("The host `{host}` could not be reached either"));
        fetch = "download what the script asks that host for on a machine with a network, and copy it to this one; or ";
    }
    format!("{fetch}{real}run the script on a real GPU, where it may continue: `--gpu local`{fewer}")
}

/// Adds the likely reason why a run reached its time limit.
fn timed_out(
    request: &Request,
    facts: &Facts,
    ran: Ran<'_>,
    exception: Option<&Exception>,
    mut problem: Problem,
) -> Problem {
    if let Some(reason) = waited_for(facts, exception).or_else(|| stopped_at(facts)) {
        add_sentence(&mut problem.message, &reason);
    }
    if let Some(exception) = exception {
        // More time would not help.
        let known = known_failures::problem(&request.card, ran, exception).and_then(|known| known.hint);
        let first = "fix that error first; `--show-output` shows what the script does";
        problem.hint =
            known.or_else(|| older::hint(ran.interpreter, exception)).or_else(|| Some(first.to_owned()));
    } else if is_evaluating(facts) {
        let passes = facts.passes_without_training;
        let said = format!(
            "It had run {passes} forward passes without a backward pass, as an evaluation before the first training step does."
        );
        add_sentence(&mut problem.message, &said);
        let fixed = if facts.repeated.is_some() { format!("; {FIXED_NUMBER}") } else { String::new() };
        problem.hint = Some(format!("{SKIP_EVALUATION}, or allow more time with `--timeout`{fixed}"));
    } else if facts.repeated.is_some() {
        let hint = format!(
            "more time is unlikely to help: {FIXED_NUMBER}, or `--gpu local`, which computes these values"
        );
        problem.hint = Some(hint);
    }
    problem
}

/// Returns `true` if a run that reached its time limit was evaluating and had not trained yet.
fn is_evaluating(facts: &Facts) -> bool {
    facts.steps() == 0 && facts.passes_without_training >= MIN_EVALUATION_PASSES
}

/// Adds the lines or the output that show why a run has no answer.
fn stopped(request: &Request, facts: &Facts, mut problem: Problem) -> Problem {
    let more = match problem.kind {
        ProblemKind::Signal | ProblemKind::Interrupted => stopped_at(facts),
        ProblemKind::Exit => last_line(&facts.last_output).map(|line| format!("Its last line is: {line}")),
        ProblemKind::NumberReadBack => {
            let lines = facts.lines_read().map(|lines| format!("They are read at {lines}."));
            lines.or_else(|| sizes_read(facts))
        }
        ProblemKind::SizeReadBack | ProblemKind::SizeUnbounded => sizes_read(facts),
        _ => None,
    };
    if let Some(more) = more {
        add_sentence(&mut problem.message, &more);
    }
    if let (Ended::Signalled(signal), ProblemKind::Signal) = (facts.ended, problem.kind) {
        let on_virtual_gpu = facts.used_gpu() && !request.card.is_local();
        problem.hint = signals::hint(signal, on_virtual_gpu).map(str::to_owned);
    }
    problem
}

/// The line at which the script was stopped.
fn stopped_at(facts: &Facts) -> Option<String> {
    facts.stopped_at.as_ref().map(|place| format!("It was at {place}."))
}

/// Adds a sentence to a message, and ends the one before it.
fn add_sentence(message: &mut String, sentence: &str) {
    if !message.ends_with(['.', '!', '?', ':']) {
        message.push('.');
    }
    message.push(' ');
    message.push_str(sentence);
}

/// Sizes that the script read back, with their lines.
fn sizes_read(facts: &Facts) -> Option<String> {
    facts.sizes_read().map(|sizes| format!("What it read: {sizes}."))
}

/// Likely reason why a run reached its time limit.
fn waited_for(facts: &Facts, exception: Option<&Exception>) -> Option<String> {
    if let Some(exception) = exception {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_of_what_a_script_wrote_is_found() {
        assert_eq!(last_line("usage: a\n a.py: error: no b\n\n"), Some("a.py: error: no b"));
        assert_eq!(last_line(" \n"), None);
        let hydra = "In 'config': Could not find 'launcher/a'\n\nAvailable options:\n\tbasic\n\nSet the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.\n";
        assert_eq!(last_line(hydra), Some("In 'config': Could not find 'launcher/a'"));
    }
}
