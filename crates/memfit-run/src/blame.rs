//! Whether a failure of the script may be memfit's doing: what a run changed about what the script saw.

use memfit_report::remarks::{Note, Stake};
use memfit_report::wire::{CallCount, Exception};
use memfit_vocabulary::Remark;

use crate::facts::{Facts, matters};
use crate::request::Request;

/// The beginning of what memfit's own stand-ins raise in the script.
const OWN: &str = "memfit: ";

/// How many of them are told.
const MAX_TOLD: usize = 3;

/// Remarks about something that the script would have met otherwise without memfit.
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

/// The sentence on a failure, and whether memfit may have caused it.
pub(crate) fn sentence(request: &Request, facts: &Facts, exception: &Exception) -> (String, bool) {
    let said = exception.message.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    let failed = format!("{}: {said}", exception.r#type);
    if let Some(lacks) = exception.message.strip_prefix(OWN) {
        return (format!("the script needs something that memfit does not provide: {lacks}"), true);
    }
    let changes = if facts.mistake { Vec::new() } else { changes(request, facts, exception) };
    if changes.is_empty() {
        return (format!("The script failed by itself: {failed}"), false);
    }
    let place = place(&exception.traceback).map(|place| format!(", at {place}")).unwrap_or_default();
    let told = changes.iter().take(MAX_TOLD).map(String::as_str).collect::<Vec<_>>().join("; ");
    let more = match changes.len().saturating_sub(MAX_TOLD) {
        0 => String::new(),
        more => format!("; and {more} more"),
    };
    (format!("memfit may have caused this failure. Before it: {told}{more}. Then{place}: {failed}"), true)
}

/// What memfit changed about what the script saw, the most likely to matter first.
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
    let refused = facts.tally.unmodelled.iter().filter(|call| matters(&call.call));
    changes.extend(refused.map(|call| format!("`{}` was refused ({})", call.call, count(call))));
    // Numbers that decide something are told above, with their lines.
    let assumed =
        facts.tally.values.iter().zip(&facts.tally.stakes).filter(|(_, stake)| **stake != Stake::Number);
    changes.extend(assumed.map(|(value, _)| format!("{} ({})", value.call, count(value))));
    if request.planned.is_some() {
        changes.push("a plan was applied".to_owned());
    }
    if facts.setup.cover_full && facts.steps() >= facts.setup.steps {
        changes.push("for `--cover full` the loader gave its largest batch and ended early".to_owned());
    }
    let changed = |note: &&Note| {
        let remark = note.remark().filter(|remark| CHANGES.contains(remark));
        remark.is_some_and(|remark| remark != Remark::FilesKept || is_of_files(exception))
    };
    changes.extend(facts.notes.iter().chain(&facts.tally.notes).filter(changed).map(Note::text));
    changes
}

/// What calls on files raise. A script finds its own files where it wrote them, so nothing else follows from
/// their being led aside.
const OF_FILES: &[&str] = &[
    "OSError",
    "FileNotFoundError",
    "FileExistsError",
    "PermissionError",
    "IsADirectoryError",
    "NotADirectoryError",
    "shutil.Error",
    "subprocess.CalledProcessError",
];

fn is_of_files(exception: &Exception) -> bool {
    OF_FILES.contains(&exception.r#type.as_str())
}

/// The innermost line of the user's own in a traceback, as `train.py:12 in main`.
fn place(traceback: &str) -> Option<String> {
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
        assert_eq!(place(traceback).as_deref(), Some("/home/me/train.py:7 in main"));
        assert_eq!(place("ValueError: no"), None);
    }
}
