//! The end of a script's output, and the exception that is printed there.
//!
//! Not every exception that ends a script is uncaught: a framework may print it and exit with its own status,
//! a decorator may log it and return, and a process that the script started may end with it unnoticed.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use memfit_channel::RunDir;
use memfit_report::wire::Exception;

use crate::stage::Stage;
use crate::traceback::{self, DIRECT_CAUSE, DURING, TRACEBACK};
use crate::watch::Ended;

/// Maximum bytes of a script's output that are kept, counted from its end.
const TAIL_BYTES: u64 = 64 << 10;
/// Maximum lines after the exception that ended a script: the rest of its message, advice of a framework, the
/// end of a progress bar. If more lines follow, the script continued after the exception.
const MAX_LINES_AFTER_EXCEPTION: usize = 6;

/// Returns the end of the script's standard error, or of its standard output if that is empty.
pub(crate) fn output_tail(stage: &Stage) -> String {
    let stderr = file_tail(&stage.run_dir().stderr());
    if stderr.trim().is_empty() { file_tail(&stage.run_dir().stdout()) } else { stderr }
}

fn file_tail(path: &Path) -> String {
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

/// Returns the exception that ended a script without being uncaught, from its output: only if the script
/// exited with an error status or trained no step.
pub(crate) fn printed_exception(ended: Ended, steps: u64, output: &str) -> Option<Exception> {
    let failed = match ended {
        Ended::Exited(0) => steps == 0,
        Ended::Exited(_) => true,
        _ => false,
    };
    failed.then(|| trailing_exception(output)).flatten()
}

/// Parses the exception at the end of an output, with the tracebacks of those that it was raised from; `None`
/// if more than [`MAX_LINES_AFTER_EXCEPTION`] lines follow it.
pub(crate) fn trailing_exception(output: &str) -> Option<Exception> {
    let last = output.rfind(TRACEBACK)?;
    let (kind, first_line, following) = traceback::parse_exception(&output[last..])?;
    if following.lines().filter(|line| !line.trim().is_empty()).nth(MAX_LINES_AFTER_EXCEPTION).is_some() {
        return None;
    }
    let rest = following.lines().take_while(|line| !line.trim().is_empty());
    let message = std::iter::once(first_line).chain(rest).collect::<Vec<_>>().join("\n");
    let traceback = output[chain_start(output, last)..].to_owned();
    Some(Exception { r#type: kind.to_owned(), message, traceback })
}

/// Returns the last line of a script's output before the launcher's own traceback, which says only that a
/// process failed.
pub(crate) fn line_before_launcher(output: &str) -> Option<&str> {
    let (before, _) = output.rsplit_once(TRACEBACK)?;
    before.lines().map(str::trim).rfind(|line| !line.is_empty() && !is_launcher_log(line))
}

/// Messages of Python libraries about a host that cannot be reached.
pub(crate) const UNREACHABLE_HOST: &[&str] = &[
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
    "locate the file on the Hub",
    "couldn't connect to 'http",
];

/// Messages of `wget`, and of `curl` and `git`, about a host that cannot be reached.
const UNREACHABLE_HOST_IN_PROGRAMS: &[&str] = &["unable to resolve host address", "Could not resolve host"];

/// Returns the last line of a script's output about a host that cannot be reached, before the traceback at
/// its end if there is one.
pub(crate) fn network_failure(output: &str) -> Option<&str> {
    let is_about = |line: &&str| {
        UNREACHABLE_HOST_IN_PROGRAMS.iter().chain(UNREACHABLE_HOST).any(|text| line.contains(text))
    };
    let before = output.rfind(TRACEBACK).map_or(output, |last| &output[..chain_start(output, last)]);
    before.lines().map(str::trim).rfind(is_about)
}

/// Returns `true` for a line of a launcher's log: `E1126 19:11:22.604000 1429 torch/distributed/…`.
fn is_launcher_log(line: &str) -> bool {
    let date = line.strip_prefix(['E', 'W', 'I']).and_then(|rest| rest.get(..5));
    date.is_some_and(|date| date.ends_with(' ') && date.trim_end().chars().all(|each| each.is_ascii_digit()))
}

/// Returns the line of Python code at which a run was stopped: the innermost of the user's own, or else the
/// innermost. Ranks come first. A launcher, which waits for a process that it started, comes last.
pub(crate) fn stopped_at(
    run_dir: &RunDir,
    ranks: &BTreeSet<u32>,
    launchers: &BTreeSet<u32>,
) -> Option<String> {
    let mut pids = run_dir.crash_pids().ok()?;
    // A rank may have started processes, too, such as those that compile kernels.
    pids.sort_by_key(|pid| (!ranks.contains(pid), launchers.contains(pid), *pid));
    let read = |pid| interrupted_line(&std::fs::read_to_string(run_dir.crash(pid)).ok()?);
    let places: Vec<(bool, String)> = pids.into_iter().filter_map(read).collect();
    let own = places.iter().find(|(own, _)| *own);
    own.or(places.first()).map(|(_, place)| place.clone())
}

/// Parses the text of `faulthandler`, whose innermost frame comes first. Returns the line, and `true` if it
/// is the user's own.
fn interrupted_line(text: &str) -> Option<(bool, String)> {
    let frames: Vec<(&str, String)> = text
        .lines()
        .filter_map(|line| {
            let (file, rest) = line.trim_start().strip_prefix("File \"")?.split_once("\", line ")?;
            let (number, function) = rest.split_once(" in ")?;
            let is_reported = !file.starts_with('<') && !file.contains(traceback::PROBE);
            is_reported.then(|| (file, format!("{file}:{number} in {function}")))
        })
        .collect();
    let own = frames.iter().find(|(file, _)| memfit_vocabulary::is_user_file(file));
    own.or(frames.first()).map(|(_, place)| (own.is_some(), place.clone()))
}

/// Returns the start of the first traceback in the chain that ends with the one at `last`.
fn chain_start(output: &str, last: usize) -> usize {
    let before = output[..last].trim_end();
    let linked = [DIRECT_CAUSE, DURING].iter().any(|line| before.ends_with(line));
    match before.rfind(TRACEBACK).filter(|_| linked) {
        Some(earlier) => chain_start(output, earlier),
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
        assert_eq!(interrupted_line(text).unwrap(), (true, "/me/train.py:3 in main".to_owned()));
        let (library, _) = text.split_once("  File \"/me").unwrap();
        let (own, place) = interrupted_line(library).unwrap();
        assert!(!own && place.ends_with("triton/knobs.py:15 in <module>"), "{place}");
        assert_eq!(interrupted_line(""), None);
    }

    #[test]
    fn a_ranks_line_is_reported_before_its_launchers() {
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
        let stopped = |ranks| stopped_at(&run_dir, &ranks, &launchers).unwrap();
        assert_eq!(stopped(BTreeSet::from([8])), "/me/train.py:9 in f");
        assert_eq!(stopped(BTreeSet::new()), "/me/compile.py:9 in f");
    }

    const FRAME: &str =
        "  File \"/home/me/train.py\", line 30, in main\n    cls = get_class(name)\n          ^^^^^^\n";

    fn trailing_error(output: &str) -> Option<String> {
        let exception = trailing_exception(output)?;
        let original = traceback::original(&exception);
        Some(format!("{}: {}", original.r#type, original.message))
    }

    #[test]
    fn an_error_before_the_advice_of_a_framework_is_found() {
        let missing = "ModuleNotFoundError: No module named 'einops'";
        let output = format!(
            "Error executing job\n{TRACEBACK}\n{FRAME}{missing}\n\n{DIRECT_CAUSE}\n\n{TRACEBACK}\n{FRAME}ImportError: \
             Error loading 'a.B':\n{missing}\nIs it importable?\n\nSet the environment variable FULL_ERROR=1.\n"
        );
        assert_eq!(trailing_error(&output).as_deref(), Some(missing));
        let output =
            format!("{TRACEBACK}\n{FRAME}{missing}\n\n{DURING}\n\n{TRACEBACK}\n{FRAME}ValueError: no\n");
        assert_eq!(trailing_error(&output).as_deref(), Some("ValueError: no"));
        assert!(trailing_exception(&output).is_some_and(|found| found.traceback.contains(missing)));
    }

    #[test]
    fn an_error_that_a_logger_shows_with_values_is_found() {
        let output = format!(
            "12:30 | ERROR | launch:98 - An error has been caught\n{TRACEBACK}\n\n  File \"<frozen runpy>\", line 198, in \
             run\n> File \"/home/me/train.py\", line 132, in <module>\n    launch(\n    └ <function launch at 0x7f>\n\n\
             FileNotFoundError: [Errno 2] No such file or directory: 'a.json'\n"
        );
        let expected = "FileNotFoundError: [Errno 2] No such file or directory: 'a.json'";
        assert_eq!(trailing_error(&output).as_deref(), Some(expected));
        let found = trailing_exception(&output).unwrap();
        assert_eq!(
            traceback::user_line(&found.traceback).as_deref(),
            Some("/home/me/train.py:132 in <module>")
        );
    }

    #[test]
    fn a_download_that_failed_before_the_error_is_found() {
        let wget = "wget: unable to resolve host address 'shapenet.cs.stanford.edu'";
        let output = format!("{wget}\nunzip: cannot find x.zip\n{TRACEBACK}\n{FRAME}ValueError: no arrays\n");
        assert_eq!(network_failure(&output), Some(wget));
        let raised = format!("{TRACEBACK}\n{FRAME}OSError: Temporary failure in name resolution\n");
        assert_eq!(network_failure(&raised), None, "the exception itself says it");
    }

    #[test]
    fn last_lines_of_a_launched_process_are_reported() {
        let usage = "train.py: error: unrecognized arguments: --local-rank=0";
        let log = "E1126 19:11:22.604000 1429 torch/distributed/api.py:1002] failed (exitcode: 2)";
        let output =
            format!("usage: train.py\n{usage}\n{log}\n{TRACEBACK}\n{FRAME}a.ChildFailedError: \n====\n");
        assert_eq!(line_before_launcher(&output), Some(usage));
        assert_eq!(line_before_launcher(&format!("{log}\n{TRACEBACK}\n{FRAME}")), None);
        assert!(!is_launcher_log("Epoch 1") && !is_launcher_log("E1126") && !is_launcher_log("Élan"));
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
            assert_eq!(printed_exception(ended, steps, &output).is_some(), expected, "{ended:?}");
        }
    }

    #[test]
    fn an_error_after_which_the_script_continued_is_ignored() {
        for between in ["\n", ""] {
            let after = "training …\n".repeat(7);
            let output = format!("{TRACEBACK}\n{FRAME}ImportError: no apex\n{between}{after}");
            assert_eq!(trailing_error(&output), None);
        }
        assert_eq!(trailing_error("nothing\n"), None);
        assert_eq!(trailing_error(TRACEBACK), None);
    }
}
