//! The end of a script's output, and the error that it shows there.
//!
//! Not every error that ends a script is uncaught: a framework may print it and exit with a status of its
//! own, a decorator may log it and return, and a process that the script started may die of it unnoticed.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use memfit_channel::RunDir;
use memfit_report::wire::Exception;

use crate::stage::Stage;
use crate::traceback::{self, DIRECT_CAUSE, DURING, TRACEBACK};
use crate::watch::Ended;

/// Bytes that are kept of the end of a script's output.
const TAIL_BYTES: u64 = 64 << 10;
/// Maximum lines after the error that ended a script: the rest of its message, advice of a framework, the end
/// of a progress bar. After more, the script went on.
const MAX_AFTER: usize = 6;

/// End of the script's standard error, or of its standard output if that is empty.
pub(crate) fn last(stage: &Stage) -> String {
    let stderr = tail(&stage.run_dir().stderr());
    if stderr.trim().is_empty() { tail(&stage.run_dir().stdout()) } else { stderr }
}

fn tail(path: &Path) -> String {
    let read = || -> std::io::Result<Vec<u8>> {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
        let mut bytes = Vec::new();
        file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    String::from_utf8_lossy(&read().unwrap_or_default()).into_owned()
}

/// The error that ended a script and was not raised out of it: one that ended with a status, or without a
/// step.
pub(crate) fn ended_by(ended: Ended, steps: u64, output: &str) -> Option<Exception> {
    let failed = match ended {
        Ended::Exited(0) => steps == 0,
        Ended::Exited(_) => true,
        _ => false,
    };
    failed.then(|| shown(output)).flatten()
}

/// The exception whose traceback ends an output, with those that it was raised from; `None` if more than
/// [`MAX_AFTER`] lines follow it.
pub(crate) fn shown(output: &str) -> Option<Exception> {
    let last = output.rfind(TRACEBACK)?;
    let (kind, said, more) = traceback::raised(&output[last..])?;
    if more.lines().filter(|line| !line.trim().is_empty()).nth(MAX_AFTER).is_some() {
        return None;
    }
    let rest = more.lines().take_while(|line| !line.trim().is_empty());
    let message = std::iter::once(said).chain(rest).collect::<Vec<_>>().join("\n");
    let traceback = output[chain(output, last)..].to_owned();
    Some(Exception { r#type: kind.to_owned(), message, traceback })
}

/// Last line of a script's output before its launcher's own report, which says only that a process has
/// failed.
pub(crate) fn before_launcher(output: &str) -> Option<&str> {
    let (before, _) = output.rsplit_once(TRACEBACK)?;
    before.lines().map(str::trim).rfind(|line| !line.is_empty() && !is_log(line))
}

/// Messages about a host that cannot be reached.
pub(crate) const UNREACHED: &[&str] = &[
    "Name or service not known",
    "Temporary failure in name resolution",
    "nodename nor servname provided",
    "No address associated with hostname",
    "Failed to resolve",
    "Network is unreachable",
    "No route to host",
    // The Hugging Face libraries do not pass the reason on.
    "Couldn't reach '",
    "OfflineModeIsEnabled",
    "couldn't connect to 'http",
];

/// Messages of programs that download: `wget`, and `curl` and `git`.
const PROGRAMS_UNREACHED: &[&str] = &["unable to resolve host address", "Could not resolve host"];

/// Last line of a script's output about a host that cannot be reached, if the script went on after it.
pub(crate) fn unreached(output: &str) -> Option<&str> {
    let is_about = |line: &&str| PROGRAMS_UNREACHED.iter().chain(UNREACHED).any(|text| line.contains(text));
    let before = output.rfind(TRACEBACK).map_or(output, |last| &output[..chain(output, last)]);
    before.lines().map(str::trim).rfind(is_about)
}

/// Returns `true` for a line of a launcher's log: `E1126 19:11:22.604000 1429 torch/distributed/…`.
fn is_log(line: &str) -> bool {
    let date = line.strip_prefix(['E', 'W', 'I']).and_then(|rest| rest.get(..5));
    date.is_some_and(|date| date.ends_with(' ') && date.trim_end().chars().all(|each| each.is_ascii_digit()))
}

/// Line of Python code at which a run was stopped: the user's own, or else the innermost. Ranks come first. A
/// launcher, which waits for a process that it started, comes last.
pub(crate) fn stopped_at(
    run_dir: &RunDir,
    ranks: &BTreeSet<u32>,
    launchers: &BTreeSet<u32>,
) -> Option<String> {
    let mut pids = run_dir.crash_pids().ok()?;
    // A rank may have started processes, too, such as those that compile kernels.
    pids.sort_by_key(|pid| (!ranks.contains(pid), launchers.contains(pid), *pid));
    let read = |pid| interrupted(&std::fs::read_to_string(run_dir.crash(pid)).ok()?);
    let places: Vec<(bool, String)> = pids.into_iter().filter_map(read).collect();
    let own = places.iter().find(|(own, _)| *own);
    own.or(places.first()).map(|(_, place)| place.clone())
}

/// The line in the text of `faulthandler`, whose innermost frame comes first, and if it is the user's own.
fn interrupted(text: &str) -> Option<(bool, String)> {
    let frames: Vec<(&str, String)> = text
        .lines()
        .filter_map(|line| {
            let (file, rest) = line.trim_start().strip_prefix("File \"")?.split_once("\", line ")?;
            let (number, function) = rest.split_once(" in ")?;
            let told = !file.starts_with('<') && !file.contains(traceback::PROBE);
            told.then(|| (file, format!("{file}:{number} in {function}")))
        })
        .collect();
    let own = frames.iter().find(|(file, _)| traceback::is_user_file(file));
    own.or(frames.first()).map(|(_, place)| (own.is_some(), place.clone()))
}

/// Start of the first traceback that leads to the one at `last`.
fn chain(output: &str, last: usize) -> usize {
    let before = output[..last].trim_end();
    let linked = [DIRECT_CAUSE, DURING].iter().any(|line| before.ends_with(line));
    match before.rfind(TRACEBACK).filter(|_| linked) {
        Some(earlier) => chain(output, earlier),
        None => last,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_that_a_signal_interrupted_is_found() {
        let text = "Fatal Python error: Segmentation fault\n\nCurrent thread 0x01 (most recent call first):\n  \
                    File \"<frozen importlib._bootstrap>\", line 241 in _call\n  \
                    File \"/tmp/memfit-1/probe/memfit_probe/extensions.py\", line 40 in create_module\n  \
                    File \"/v/lib/python3.11/site-packages/triton/knobs.py\", line 15 in <module>\n  \
                    File \"/me/train.py\", line 3 in main\n";
        assert_eq!(interrupted(text).unwrap(), (true, "/me/train.py:3 in main".to_owned()));
        let (library, _) = text.split_once("  File \"/me").unwrap();
        let (own, place) = interrupted(library).unwrap();
        assert!(!own && place.ends_with("triton/knobs.py:15 in <module>"), "{place}");
        assert_eq!(interrupted(""), None);
    }

    #[test]
    fn a_ranks_line_is_told_before_its_launchers() {
        let scratch = tempfile::tempdir().unwrap();
        let run_dir = RunDir::new(scratch.path());
        let at = |pid: u32, place: &str| {
            let text =
                format!("Current thread 0x01 (most recent call first):\n  File \"{place}\", line 9 in f\n");
            std::fs::write(run_dir.crash(pid), text).unwrap();
        };
        at(7, "/v/bin/torchrun");
        at(8, "/me/train.py");
        at(9, "/me/compile.py");
        // The rank has started a process, too.
        let launchers = BTreeSet::from([7, 8]);
        let told = |ranks| stopped_at(&run_dir, &ranks, &launchers).unwrap();
        assert_eq!(told(BTreeSet::from([8])), "/me/train.py:9 in f");
        assert_eq!(told(BTreeSet::new()), "/me/compile.py:9 in f");
    }

    const FRAME: &str =
        "  File \"/home/me/train.py\", line 30, in main\n    cls = get_class(name)\n          ^^^^^^\n";

    fn told(output: &str) -> Option<String> {
        let exception = shown(output)?;
        let original = traceback::original(&exception);
        Some(format!("{}: {}", original.r#type, original.message))
    }

    #[test]
    fn an_error_before_the_advice_of_a_framework_is_told() {
        let missing = "ModuleNotFoundError: No module named 'einops'";
        let output = format!(
            "Error executing job\n{TRACEBACK}\n{FRAME}{missing}\n\n{DIRECT_CAUSE}\n\n{TRACEBACK}\n{FRAME}ImportError: \
             Error loading 'a.B':\n{missing}\nIs it importable?\n\nSet the environment variable FULL_ERROR=1.\n"
        );
        assert_eq!(told(&output).as_deref(), Some(missing));
        let output =
            format!("{TRACEBACK}\n{FRAME}{missing}\n\n{DURING}\n\n{TRACEBACK}\n{FRAME}ValueError: no\n");
        assert_eq!(told(&output).as_deref(), Some("ValueError: no"));
        assert!(shown(&output).is_some_and(|found| found.traceback.contains(missing)));
    }

    #[test]
    fn an_error_that_a_logger_shows_with_values_is_told() {
        let output = format!(
            "12:30 | ERROR | launch:98 - An error has been caught\n{TRACEBACK}\n\n  File \"<frozen runpy>\", line 198, in \
             run\n> File \"/home/me/train.py\", line 132, in <module>\n    launch(\n    └ <function launch at 0x7f>\n\n\
             FileNotFoundError: [Errno 2] No such file or directory: 'a.json'\n"
        );
        let expected = "FileNotFoundError: [Errno 2] No such file or directory: 'a.json'";
        assert_eq!(told(&output).as_deref(), Some(expected));
        let found = shown(&output).unwrap();
        assert_eq!(
            traceback::user_line(&found.traceback).as_deref(),
            Some("/home/me/train.py:132 in <module>")
        );
    }

    #[test]
    fn a_download_that_failed_before_the_error_is_found() {
        let wget = "wget: unable to resolve host address 'shapenet.cs.stanford.edu'";
        let output = format!("{wget}\nunzip: cannot find x.zip\n{TRACEBACK}\n{FRAME}ValueError: no arrays\n");
        assert_eq!(unreached(&output), Some(wget));
        let raised = format!("{TRACEBACK}\n{FRAME}OSError: Temporary failure in name resolution\n");
        assert_eq!(unreached(&raised), None, "the error itself tells it");
    }

    #[test]
    fn last_lines_of_a_launched_process_are_reported() {
        let usage = "train.py: error: unrecognized arguments: --local-rank=0";
        let log = "E1126 19:11:22.604000 1429 torch/distributed/api.py:1002] failed (exitcode: 2)";
        let output =
            format!("usage: train.py\n{usage}\n{log}\n{TRACEBACK}\n{FRAME}a.ChildFailedError: \n====\n");
        assert_eq!(before_launcher(&output), Some(usage));
        assert_eq!(before_launcher(&format!("{log}\n{TRACEBACK}\n{FRAME}")), None);
        assert!(!is_log("Epoch 1") && !is_log("E1126") && !is_log("Élan"));
    }

    #[test]
    fn an_error_ends_a_script_without_a_step_or_with_a_status() {
        let output = format!("{TRACEBACK}\n{FRAME}KeyError: 'image'\n");
        for (ended, steps, expected) in [
            (Ended::Exited(0), 0, true),
            (Ended::Exited(0), 2, false),
            (Ended::Exited(1), 2, true),
            (Ended::Complete, 3, false),
            (Ended::TimedOut, 0, false),
        ] {
            assert_eq!(ended_by(ended, steps, &output).is_some(), expected, "{ended:?}");
        }
    }

    #[test]
    fn an_error_that_a_script_went_on_after_is_not_told() {
        for between in ["\n", ""] {
            let after = "training …\n".repeat(7);
            let output = format!("{TRACEBACK}\n{FRAME}ImportError: no apex\n{between}{after}");
            assert_eq!(told(&output), None);
        }
        assert_eq!(told("nothing\n"), None);
        assert_eq!(told(TRACEBACK), None);
    }
}
