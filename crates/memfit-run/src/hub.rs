//! `torch.hub.load` without the repository that it loads: what to clone, and where `torch.hub` looks for it.

use memfit_report::wire::{Exception, Problem, ProblemKind};

use crate::stand_ins::Given;
use crate::traceback;

/// PyTorch's message if it can neither reach GitHub nor find the repository in its cache.
const NOT_CACHED: &str = "the repo could not be found in the cache (";
/// File of a repository that tells `torch.hub` what it has.
const ENTRY_POINTS: &str = "hubconf.py";
/// Function of `torch.hub` that takes a string apart as `owner/name`.
const PARSER: &str = "in _parse_repo_info";

/// Problem behind an exception of `torch.hub`; `None` for any other exception.
pub(crate) fn problem(given: Given<'_>, exception: &Exception) -> Option<Problem> {
    let said = traceback::summary(&exception.message);
    let place =
        traceback::user_line(&exception.traceback).map(|place| format!(" at {place}")).unwrap_or_default();
    let (kind, message, hint) = if let Some((_, rest)) = said.split_once(NOT_CACHED) {
        let folder = rest.split(')').next().unwrap_or_default();
        let replaced = if given.weights { "" } else { ", which `--synthetic-weights` replaces" };
        (
            ProblemKind::NoNetwork,
            format!(
                "`torch.hub.load`{place} downloads a repository from GitHub, which this machine cannot reach, and `{folder}` does not have it."
            ),
            format!(
                "on a machine with a network, clone the repository; then copy the clone to `{folder}/OWNER_NAME_main`, or pass its path with `source=\"local\"`. Weights that it loads with `torch.hub.load_state_dict_from_url` are a separate download{replaced}"
            ),
        )
    } else if exception.r#type == "FileNotFoundError" && said.ends_with(&format!("/{ENTRY_POINTS}'")) {
        let path = said.split('\'').nth(1)?;
        let folder = path.strip_suffix(ENTRY_POINTS)?.trim_end_matches('/');
        (
            ProblemKind::Exception,
            format!(
                "`torch.hub.load`{place} looks for `{ENTRY_POINTS}` in `{folder}`, which does not have it."
            ),
            format!(
                "`{folder}` must be the top-level folder of a clone of the repository: an empty git submodule is filled by `git submodule update --init`"
            ),
        )
    } else if exception.r#type == "ValueError" && last_frame(&exception.traceback).contains(PARSER) {
        (
            ProblemKind::Exception,
            format!(
                "`torch.hub.load`{place} takes its first argument for `owner/name` on GitHub: ValueError: {said}"
            ),
            "for a folder on this machine, pass `source=\"local\"` as well".to_owned(),
        )
    } else {
        return None;
    };
    Some(Problem { kind, message, hint: Some(hint) })
}

/// Line of the innermost frame of a traceback.
fn last_frame(traceback: &str) -> &str {
    traceback.lines().rfind(|line| line.trim_start().starts_with("File \"")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(kind: &str, message: &str, frame: &str) -> Option<Problem> {
        let traceback = format!(
            "Traceback (most recent call last):\n  File \"/x/train.py\", line 2, in <module>\n    torch.hub.load(x)\n  \
             File \"/v/site-packages/torch/hub.py\", line 9, in {frame}\n    raise\n{kind}: {message}\n"
        );
        let exception = Exception { r#type: kind.to_owned(), message: message.to_owned(), traceback };
        problem(Given::default(), &exception)
    }

    #[test]
    fn a_repository_that_is_not_here_is_to_be_cloned() {
        let message = "It looks like there is no internet connection and the repo could not be found in the cache \
                       (/root/.cache/torch/hub) (raised from urllib.error.URLError: <urlopen error x>)";
        let problem = found("RuntimeError", message, "_parse_repo_info").unwrap();
        assert_eq!(problem.kind, ProblemKind::NoNetwork);
        assert!(problem.message.contains("/x/train.py:2 in <module>"), "{}", problem.message);
        let hint = problem.hint.unwrap();
        assert!(hint.contains("`/root/.cache/torch/hub/OWNER_NAME_main`"), "{hint}");
        assert!(!hint.contains("--synthetic-data"), "{hint}");
    }

    #[test]
    fn a_folder_without_entry_points_is_named() {
        let message = "[Errno 2] No such file or directory: '/home/me/dinov2/hubconf.py'";
        let problem = found("FileNotFoundError", message, "_import_module").unwrap();
        assert!(problem.message.contains("`/home/me/dinov2`"), "{}", problem.message);
        assert_eq!(found("FileNotFoundError", "No such file or directory: '/x/a.py'", "load"), None);
    }

    #[test]
    fn a_path_needs_to_be_called_local() {
        let message = "too many values to unpack (expected 2)";
        let problem = found("ValueError", message, "_parse_repo_info").unwrap();
        assert!(problem.hint.unwrap().contains("source=\"local\""));
        assert_eq!(found("ValueError", message, "load"), None);
    }
}
