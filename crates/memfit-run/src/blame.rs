//! Explains whether memfit may have caused a failure of the script, by listing the changes that it made to
//! what the script saw.

use std::ffi::OsStr;

use memfit_channel::Planned;
use memfit_report::remarks::{Note, Stake};
use memfit_report::text::times;
use memfit_report::wire::Exception;
use memfit_vocabulary::Remark;

use crate::facts::{Facts, may_affect_memory};
use crate::older;
use crate::overlaid::MAX_NAMES;
use crate::request::Request;
use crate::started;
use crate::traceback::{MESSAGE_PREFIX, handled_error, raising_source, summary, user_line};

/// Maximum changes that are listed.
const MAX_CHANGES: usize = 3;

/// Remarks on things that the script would have seen differently without memfit.
const CHANGES: &[Remark] = &[
    Remark::SyntheticData,
    Remark::SyntheticWeights,
    Remark::LoneRank,
    Remark::RanksFull,
    Remark::RankSilent,
    Remark::PlanFailed,
    Remark::TrainerSettings,
    Remark::ProbeFailed,
    Remark::Checkpoints,
    Remark::FilesKept,
];

/// Returns `true` if one of memfit's replacements raised the error because it lacks something. No other cause
/// and no other replacement need be named.
pub(crate) fn is_refusal(exception: &Exception) -> bool {
    exception.message.starts_with(MESSAGE_PREFIX)
}

/// Sentence that says whether memfit may have caused a failure.
pub(crate) fn sentence(request: &Request, facts: &Facts, exception: &Exception) -> (String, bool) {
    let said = Some(summary(&exception.message)).filter(|said| !said.is_empty());
    let place = user_line(&exception.traceback);
    // If the source of a line is quoted, its place follows it.
    let at =
        place.as_ref().filter(|_| said.is_some()).map(|place| format!(" at {place}")).unwrap_or_default();
    let failed = match (said, raising_source(&exception.traceback)) {
        (Some(said), _) => format!("{}: {said}", exception.r#type),
        (None, Some((place, source))) => format!("{} at `{source}` ({place})", exception.r#type),
        (None, None) => exception.r#type.clone(),
    };
    let failed = match handled_error(&exception.traceback) {
        Some(first) => format!("{failed} (raised while the script handled {first})"),
        None => failed,
    };
    if let Some(lacks) = exception.message.strip_prefix(MESSAGE_PREFIX) {
        return (format!("The script needs something that memfit does not provide: {lacks}"), true);
    }
    let certain = facts.cause.program || older::is_certain(exception) || started::hint(exception).is_some();
    let changes = if certain { Vec::new() } else { changes(request, facts, exception) };
    if changes.is_empty() {
        return (format!("The script itself failed{at}: {failed}"), false);
    }
    let place = place.map(|place| format!(", at {place}")).unwrap_or_default();
    let listed_changes = changes.iter().take(MAX_CHANGES).map(String::as_str).collect::<Vec<_>>().join("; ");
    let more = match changes.len().saturating_sub(MAX_CHANGES) {
        0 => String::new(),
        more => format!("; and {more} more"),
    };
    (
        format!(
            "memfit may have caused this failure. Before it: {listed_changes}{more}. Then{place}: {failed}"
        ),
        true,
    )
}

/// Changes by memfit to what the script saw, the most likely to matter first.
fn changes(request: &Request, facts: &Facts, exception: &Exception) -> Vec<String> {
    let mut changes = Vec::new();
    if let Some(samples) = micro_batch(&exception.traceback) {
        changes.push(format!("`memfit.Step` ran a part of a batch by itself ({samples})"));
    }
    // Tensors with such a size are not followed through the program.
    let reached = facts.cause.reached;
    let read: &[Stake] = match (reached, is_of_type(exception)) {
        (true, _) => &[Stake::Number, Stake::Unbounded],
        (false, false) => &[Stake::Unbounded],
        (false, true) => &[],
    };
    if facts.has_read(read) {
        let place = facts.lines_read().map(|lines| format!(" (at {lines})")).unwrap_or_default();
        changes.push(format!("the script had read values that only a GPU can compute, taken as 0{place}"));
    }
    let refused = facts.tally.unmodelled.iter().filter(|call| may_affect_memory(&call.call));
    changes.extend(refused.map(|call| format!("`{}` was refused ({})", call.call, times(call.count))));
    // Numbers that affect the outcome are listed above, with their lines.
    let assumed = facts.tally.values.iter().filter(|(_, stake)| match stake {
        Stake::Number => false,
        Stake::Value | Stake::Condition | Stake::Count => reached,
        Stake::Size | Stake::Unbounded => !is_of_type(exception),
    });
    changes.extend(assumed.map(|(value, _)| format!("{} ({})", value.call, times(value.count))));
    if request.planned.as_ref().is_some_and(Planned::changes_training) {
        changes.push("a plan was applied".to_owned());
    }
    if facts.setup.cover_full && facts.steps() >= facts.setup.steps {
        changes.push(
            "for `--cover full` the loader gave a batch of its largest items and ended early".to_owned(),
        );
    }
    let changed = |note: &&Note| {
        let remark = note.remark().filter(|remark| CHANGES.contains(remark));
        remark.is_some_and(|remark| match remark {
            Remark::FilesKept | Remark::Checkpoints if is_file_error(exception) => {
                may_be_overlaid(facts, &exception.message)
            }
            Remark::FilesKept => false,
            Remark::Checkpoints => facts.read_back,
            // Of what is made up, only the name of a class may be part of a path.
            Remark::SyntheticData if is_file_error(exception) => {
                facts.cause.sampled && exception.message.contains(MADE_UP_CLASS)
            }
            Remark::SyntheticData => facts.cause.sampled,
            // A worker loads data, without the model.
            Remark::SyntheticWeights if exception.message.contains(IN_WORKER) => false,
            Remark::SyntheticWeights if is_file_error(exception) => {
                names_file(&note.text(), &exception.message)
            }
            Remark::SyntheticWeights => facts.cause.loaded,
            _ => true,
        })
    };
    changes.extend(facts.notes.iter().chain(&facts.tally.notes).filter(changed).map(Note::text));
    changes
}

/// Samples of the micro-batch in which `memfit.Step` says that an error occurred.
fn micro_batch(traceback: &str) -> Option<&str> {
    let note = traceback.lines().find_map(|line| line.trim_start().strip_prefix(IN_MICRO_BATCH))?;
    Some(note.split_once(": ").map_or(note, |(samples, _)| samples))
}

/// Start of the note that `memfit.Step` adds to an error of the user's code in a micro-batch.
const IN_MICRO_BATCH: &str = "this error occurred in a micro-batch, ";

/// Returns `true` if an object is of a type that lacks an attribute: no other size of a tensor changes that.
fn is_of_type(exception: &Exception) -> bool {
    exception.r#type == "AttributeError" && exception.message.contains("' object has no attribute '")
}

/// Part of the message of an exception that a loader's worker raised.
const IN_WORKER: &str = "(in DataLoader worker process";

/// Beginning of the names of classes in a made-up data set.
const MADE_UP_CLASS: &str = "class ";

/// Exceptions of file operations. A script finds its own files where it wrote them, so the overlay can cause
/// no other exceptions.
const FILE_ERRORS: &[&str] = &[
    "OSError",
    "FileNotFoundError",
    "FileExistsError",
    "PermissionError",
    "IsADirectoryError",
    "NotADirectoryError",
    "shutil.Error",
    "subprocess.CalledProcessError",
];

fn is_file_error(exception: &Exception) -> bool {
    FILE_ERRORS.contains(&exception.r#type.as_str())
}

/// Returns `false` if a file error quotes a path that has no component in the overlay: without memfit, the
/// script would have got the same error.
fn may_be_overlaid(facts: &Facts, message: &str) -> bool {
    let is_there = |path: &str| path.split('/').any(|part| facts.overlaid.contains(OsStr::new(part)));
    !message.contains('\'') || facts.overlaid.len() >= MAX_NAMES || message.split('\'').any(is_there)
}

/// Returns `false` if a file error has a path whose last part the text does not name.
fn names_file(text: &str, message: &str) -> bool {
    let quoted = message.split('\'').nth(1);
    // `Dataset directory does not exist: data/VOC2007`.
    let path = quoted.or_else(|| message.split_whitespace().find(|word| word.contains('/')));
    let name = path.and_then(|path| path.trim_end_matches(['/', '.', ',', ':', ')']).rsplit('/').next());
    name.is_none_or(|name| text.contains(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_note_on_a_micro_batch_names_its_samples() {
        let raised = "Traceback (most recent call last):\nValueError: one sample\n";
        assert_eq!(micro_batch(raised), None);
        for (note, samples) in [
            ("samples 0 to 1 of 8", "samples 0 to 1 of 8"),
            ("samples 4 to 5 of 5: splitting the batch changes training results", "samples 4 to 5 of 5"),
        ] {
            assert_eq!(micro_batch(&format!("{raised}{IN_MICRO_BATCH}{note}\n")), Some(samples));
        }
    }

    #[test]
    fn a_file_error_is_about_the_file_that_it_quotes() {
        let note = "synthetic weights: `models/vgg.pth` does not exist: what loads it keeps its own values";
        let missing = |path: &str| format!("[Errno 2] No such file or directory: '{path}'");
        assert!(names_file(note, &missing("/home/me/models/vgg.pth")));
        assert!(names_file(note, &missing("models/")));
        assert!(!names_file(note, &missing("data/labels.csv")));
        assert!(names_file(note, "no weights in this folder"), "there is no path");
        assert!(names_file(note, "cannot find models/vgg.pth."));
        assert!(!names_file(note, "Dataset directory does not exist: VOCdevkit/VOC2007"));
    }
}
