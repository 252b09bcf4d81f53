//! The out-of-memory error and the exception to report, among those of a run's processes.

use memfit_channel::message::{Cause, Oom};
use memfit_report::wire::Exception;

use super::OomFacts;
use crate::inbox::{Inbox, Speaker};
use crate::watch::Ended;

/// The out-of-memory error to report: the one that ended the script, otherwise the first that it caught.
pub(super) fn out_of_memory(inbox: &Inbox) -> Option<OomFacts> {
    let (process, speaker) = inbox
        .processes
        .iter()
        .find(|(_, speaker)| !speaker.ooms.is_empty() || !speaker.oom_texts.is_empty())?;
    // For an error before the probe could attach to the allocator, the circumstances are unknown.
    let unseen = || Oom {
        requested: 0,
        device: 0,
        step: speaker.steps + 1,
        phase: "other".to_owned(),
        module: None,
        evaluation: false,
        stack: Vec::new(),
    };
    let uncaught = speaker.exception.as_ref().is_some_and(|(_, oom)| *oom);
    let which = if uncaught { speaker.ooms.last() } else { speaker.ooms.first() };
    let text = if uncaught { speaker.oom_texts.last() } else { speaker.oom_texts.first() };
    let last = speaker.ooms.last().map_or(speaker.steps, |(_, steps)| *steps);
    Some(OomFacts {
        oom: which.map_or_else(unseen, |(oom, _)| oom.clone()),
        text: text.cloned(),
        process: *process,
        uncaught,
        steps_after: speaker.all_steps().saturating_sub(last),
    })
}

/// Exceptions that a launcher raises if a process that it started has failed.
const LAUNCHER_EXCEPTIONS: &[&str] = &["CalledProcessError", LAUNCHERS];
/// Exception of PyTorch's launchers. Its message is a table of exit statuses.
pub(crate) const LAUNCHERS: &str = "ChildFailedError";

/// The exception to report, and its possible causes. A launcher's own exception only says that a process
/// that it started has failed.
pub(super) fn uncaught(inbox: &Inbox, ended: Ended) -> Option<(&Exception, Cause)> {
    let failed: Vec<(u32, &Speaker)> = inbox
        .processes
        .iter()
        .filter(|(_, speaker)| speaker.exception.is_some())
        .map(|(pid, speaker)| (*pid, speaker))
        .collect();
    let started = |launcher: u32, speaker: &Speaker| {
        let mut parent = speaker.parent;
        // Process ids may be reused, so the walk is bounded by the number of processes.
        for _ in 0..inbox.processes.len() {
            match parent {
                Some(pid) if pid == launcher => return true,
                Some(pid) => parent = inbox.processes.get(&pid).and_then(|speaker| speaker.parent),
                None => return false,
            }
        }
        false
    };
    // A helper that never imported torch may fail without consequences: its failure counts only if nothing
    // else can have ended the run.
    let harmless = |speaker: &Speaker| {
        let above = failed.iter().filter(|(other, _)| started(*other, speaker));
        let mut reasons = above.filter_map(|(_, above)| above.exception.as_ref());
        let others =
            reasons.any(|(reason, _)| !LAUNCHER_EXCEPTIONS.iter().any(|name| reason.r#type.ends_with(name)));
        speaker.torch.is_none()
            && (others || matches!(ended, Ended::Exited(0) | Ended::Complete | Ended::Stalled))
    };
    let is_launcher = |pid: u32| failed.iter().any(|(other, speaker)| *other != pid && started(pid, speaker));
    failed
        .iter()
        .filter_map(|(pid, speaker)| {
            let (exception, oom) = speaker.exception.as_ref().filter(|_| !harmless(speaker))?;
            // The first one is the reason of others; a later process may have a smaller id.
            let order = (is_launcher(*pid), speaker.rank.is_none(), speaker.failed);
            (!oom).then_some((order, (exception, speaker.cause.clone())))
        })
        .min_by_key(|(order, _)| *order)
        .map(|(_, uncaught)| uncaught)
}
