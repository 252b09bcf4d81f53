//! Explains whether memfit may have caused a failure of the script: the changes that a run made to what the
//! script saw.

use memfit_channel::Planned;
use memfit_report::remarks::{Note, Stake};
use memfit_report::wire::{CallCount, Exception};
use memfit_vocabulary::Remark;

use crate::facts::{Facts, may_affect_memory};
use crate::request::Request;

/// Beginning of the messages that memfit's own stand-ins raise in the script.
const MESSAGE_PREFIX: &str = "memfit: ";

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

/// Sentence on a failure, and whether memfit may have caused it.
pub(crate) fn sentence(request: &Request, facts: &Facts, exception: &Exception) -> (String, bool) {
    let said = exception.message.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    let failed = format!("{}: {said}", exception.r#type);
    if let Some(lacks) = exception.message.strip_prefix(MESSAGE_PREFIX) {
        return (format!("the script needs something that memfit does not provide: {lacks}"), true);
    }
    let changes = if facts.mistake { Vec::new() } else { changes(request, facts, exception) };
    if changes.is_empty() {
        return (format!("The script failed by itself: {failed}"), false);
    }
    let place = user_line(&exception.traceback).map(|place| format!(", at {place}")).unwrap_or_default();
    let told = changes.iter().take(MAX_CHANGES).map(String::as_str).collect::<Vec<_>>().join("; ");
    let more = match changes.len().saturating_sub(MAX_CHANGES) {
        0 => String::new(),
        more => format!("; and {more} more"),
    };
    (format!("memfit may have caused this failure. Before it: {told}{more}. Then{place}: {failed}"), true)
}

/// Changes by memfit to what the script saw, the most likely to matter first.
fn changes(request: &Request, facts: &Facts, exception: &Exception) -> Vec<String> {
    let count = |call: &CallCount| match call.count {
        1 => "once".to_owned(),
        count => format!("{count} times"),
    };
    let mut changes = Vec::new();
    if facts.has_read(&[Stake::Number, Stake::Unbounded]) {
        let place = facts.lines_read().map(|lines| format!(" (at {lines})")).unwrap_or_default();
        changes.push(format!("the script had read values that only a GPU can compute, taken as 0{place}"));
    }
    let refused = facts.tally.unmodelled.iter().filter(|call| may_affect_memory(&call.call));
    changes.extend(refused.map(|call| format!("`{}` was refused ({})", call.call, count(call))));
    // Numbers that decide something are listed above, with their lines.
    let assumed =
        facts.tally.values.iter().zip(&facts.tally.stakes).filter(|(_, stake)| **stake != Stake::Number);
    changes.extend(assumed.map(|(value, _)| format!("{} ({})", value.call, count(value))));
    if request.planned.as_ref().is_some_and(Planned::changes_training) {
        changes.push("a plan was applied".to_owned());
    }
    if facts.setup.cover_full && facts.steps() >= facts.setup.steps {
        changes.push("for `--cover full` the loader gave its largest batch and ended early".to_owned());
    }
    let changed = |note: &&Note| {
        let remark = note.remark().filter(|remark| CHANGES.contains(remark));
        remark.is_some_and(|remark| remark != Remark::FilesKept || is_file_error(exception))
    };
    changes.extend(facts.notes.iter().chain(&facts.tally.notes).filter(changed).map(Note::text));
    changes
}

/// Exceptions of file operations. A script finds its own files where it wrote them, so the overlay cannot
/// cause others.
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

/// Innermost line of the user's code in a traceback, as `train.py:12 in main`.
fn user_line(traceback: &str) -> Option<String> {
    let frame = |line: &str| {
        let (file, rest) = line.trim_start().strip_prefix("File \"")?.split_once("\", line ")?;
        let library =
            file.starts_with('<') || file.contains("/site-packages/") || file.contains("/lib/python");
        let (number, function) = rest.split_once(", in ").unwrap_or((rest, "<module>"));
        (!library).then(|| format!("{file}:{number} in {function}"))
    };
    traceback.lines().filter_map(frame).next_back()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_users_own_line_is_found() {
        let traceback = "Traceback (most recent call last):\n  File \"/home/me/train.py\", line 7, in main\n    x()\n  \
             File \"/v/lib/python3.11/site-packages/torch/x.py\", line 9, in f\nValueError: no";
        assert_eq!(user_line(traceback).as_deref(), Some("/home/me/train.py:7 in main"));
        assert_eq!(user_line("ValueError: no"), None);
    }
}
