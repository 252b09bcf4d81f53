//! Reads Python's tracebacks: the user's line, and the error that others were raised from.

use std::borrow::Cow;
use std::path::Path;

use memfit_report::wire::Exception;
use memfit_vocabulary::{installed_path, is_user_file};

/// Prefix of the messages of exceptions that memfit raises in the script.
pub(crate) const MESSAGE_PREFIX: &str = "memfit: ";
/// Part of the paths of memfit's own modules in the script's process.
pub(crate) const PROBE: &str = "/memfit_probe/";

/// Innermost line of the user's code in a traceback, as `train.py:12 in main`.
pub(crate) fn user_line(traceback: &str) -> Option<String> {
    user_frames(traceback).next_back().map(|(_, place)| place)
}

/// File of the innermost line of the user's code in a traceback.
pub(crate) fn user_file(traceback: &str) -> Option<&str> {
    user_frames(traceback).next_back().map(|(file, _)| file)
}

/// Files of the frames below the innermost line of the user's code.
pub(crate) fn below_user(traceback: &str) -> impl Iterator<Item = &str> {
    traceback.lines().rev().filter_map(frame).map(|(file, _)| file).take_while(|file| !is_user_file(file))
}

/// File and function of each frame of a traceback, the innermost last.
pub(crate) fn calls(traceback: &str) -> impl DoubleEndedIterator<Item = (&str, &str)> {
    traceback.lines().filter_map(|line| {
        let (file, rest) = file_and_rest(line)?;
        Some((file, rest.split_once(", in ").map_or("<module>", |(_, function)| function)))
    })
}

/// Folders of the user's files in a traceback.
pub(crate) fn user_folders(traceback: &str) -> impl Iterator<Item = &Path> {
    user_frames(traceback).filter_map(|(file, _)| Path::new(file).parent())
}

fn user_frames(traceback: &str) -> impl DoubleEndedIterator<Item = (&str, String)> {
    traceback.lines().filter_map(frame).filter(|(file, _)| is_user_file(file))
}

/// File, and place as `train.py:12 in main`, of a frame's line in a traceback.
fn frame(line: &str) -> Option<(&str, String)> {
    let (file, rest) = file_and_rest(line)?;
    let (number, function) = rest.split_once(", in ").unwrap_or((rest, "<module>"));
    Some((file, format!("{file}:{number} in {function}")))
}

/// File of a frame's line in a traceback, and what follows `", line "`.
fn file_and_rest(line: &str) -> Option<(&str, &str)> {
    // Some loggers mark the frame that caught the exception.
    let line = line.trim_start().trim_start_matches("> ");
    line.strip_prefix("File \"")?.split_once("\", line ")
}

/// Source of the innermost line of the user's code.
pub(crate) fn user_source(traceback: &str) -> Option<&str> {
    let lines: Vec<_> = traceback.lines().collect();
    let is_users = |line: &&str| frame(line).is_some_and(|(file, _)| is_user_file(file));
    let last = lines.iter().rposition(is_users)?;
    lines.get(last + 1).map(|line| line.trim())
}

/// File of the line that raised, the user's or a library's.
pub(crate) fn raising_file(traceback: &str) -> Option<&str> {
    traceback.lines().rev().find_map(frame).map(|(file, _)| file)
}

/// File of the innermost frame that asks for an attribute. A `__getattr__` raises on behalf of its caller.
pub(crate) fn asking_file(traceback: &str) -> Option<&str> {
    let is_asked = |function: &str| function == "__getattr__" || function.ends_with(".__getattr__");
    calls(traceback).rev().find(|(_, function)| !is_asked(function)).map(|(file, _)| file)
}

/// Returns `true` if a line of the script's own code raised.
pub(crate) fn is_raised_by_script(traceback: &str) -> bool {
    raising_file(traceback).is_some_and(is_user_file)
}

/// The installed package, by the name of its folder, that a file belongs to.
pub(crate) fn package_of(file: &str) -> Option<&str> {
    installed_path(file)?.split(['/', '.']).next()
}

/// Place and source of the line that raised.
pub(crate) fn raising_source(traceback: &str) -> Option<(String, &str)> {
    let mut lines =
        traceback.lines().rev().scan("", |below, line| Some((line, std::mem::replace(below, line))));
    let (place, source) = lines.find_map(|(line, below)| Some((frame(line)?.1, below.trim())))?;
    (!source.is_empty()).then_some((place, source))
}

/// Line in the message of an exception that PyTorch passes on from a worker of a loader, or a replica.
const ORIGINAL: &str = "Original Traceback (most recent call last):";

/// The exception to report: that of a loader's worker or a replica if PyTorch passed one on; the missing
/// module if a library re-raised an import error; the exception whose traceback the message quotes; otherwise
/// the exception itself, with the error that it was raised from.
pub(crate) fn original(exception: &Exception) -> Cow<'_, Exception> {
    let first = worker_exception(&exception.message)
        .or_else(|| missing_module(exception))
        .or_else(|| quoted_exception(&exception.message))
        .or_else(|| with_cause(exception));
    first.map_or(Cow::Borrowed(exception), Cow::Owned)
}

/// Line between an exception and one that was raised from it (`raise … from`).
pub(crate) const DIRECT_CAUSE: &str = "The above exception was the direct cause of the following exception:";

/// Line between an exception and one that was raised while it was handled.
pub(crate) const DURING: &str = "During handling of the above exception, another exception occurred:";

/// The error, and its place, that the script's own code was handling when it raised the last one: often the
/// only reason, where an `except` clause tries something else that fails, too.
pub(crate) fn handled_error(traceback: &str) -> Option<String> {
    let (before, last) = traceback.rsplit_once(DURING)?;
    let first = [DURING, DIRECT_CAUSE]
        .iter()
        .fold(before, |text, line| text.rsplit_once(line).map_or(text, |(_, text)| text));
    // A traceback begins with the frame that caught the exception.
    let (catcher, _) = first.lines().find_map(frame)?;
    if !is_user_file(catcher) {
        return None;
    }
    let (kind, first_line, _) = parse_exception(first)?;
    let place = user_line(first).map(|place| format!(", at {place}")).unwrap_or_default();
    let error = if first_line.is_empty() { kind.to_owned() } else { format!("{kind}: {first_line}") };
    (parse_exception(last).is_none_or(|last| (last.0, last.1) != (kind, first_line)))
        .then(|| format!("{error}{place}"))
}

fn missing_module(exception: &Exception) -> Option<Exception> {
    // An error that says what to install, or that the script itself raised, says more than the module's name.
    let told = exception.message.contains("install") || is_raised_by_script(&exception.traceback);
    if !["ModuleNotFoundError", "ImportError"].contains(&exception.r#type.as_str()) && told {
        return None;
    }
    let (first, _) = exception.traceback.split_once(DIRECT_CAUSE)?;
    let (kind, first_line) = first.trim_end().lines().next_back()?.split_once(": ")?;
    (kind == "ModuleNotFoundError" && first_line.starts_with("No module named ")).then(|| Exception {
        r#type: kind.to_owned(),
        message: first_line.to_owned(),
        traceback: first.to_owned(),
    })
}

/// The exception with its direct cause, which may be the only reason: a lazy import tells the failed name.
fn with_cause(exception: &Exception) -> Option<Exception> {
    // memfit's own refusals say why.
    if exception.message.starts_with(MESSAGE_PREFIX) {
        return None;
    }
    let (first, _) = exception.traceback.split_once(DIRECT_CAUSE)?;
    let (kind, first_line, _) = parse_exception(first)?;
    let cause = if first_line.is_empty() { kind.to_owned() } else { format!("{kind}: {first_line}") };
    (!exception.message.contains(if first_line.is_empty() { kind } else { first_line })).then(|| Exception {
        r#type: exception.r#type.clone(),
        // Only the beginning of a long message is reported.
        message: format!("{} (raised from {cause})\n{}", summary(&exception.message), exception.message),
        traceback: exception.traceback.clone(),
    })
}

/// Maximum lines of a message that a summary joins, and its maximum length in bytes.
const MAX_LINES: usize = 3;
const MAX_LENGTH: usize = 300;

/// First line of a message, with the lines that continue it: indented, beginning with a small letter, or
/// after a colon.
pub(crate) fn summary(message: &str) -> String {
    let mut lines = message.lines().skip_while(|line| line.trim().is_empty());
    let mut text = lines.next().unwrap_or_default().trim().to_owned();
    for line in lines.take(MAX_LINES - 1) {
        let is_over = text.ends_with(['.', '!', '?']) || text.len() > MAX_LENGTH;
        let goes_on = line.starts_with(|first: char| first.is_lowercase() || first.is_whitespace());
        if is_over || line.is_empty() || !(goes_on || text.ends_with(':')) {
            break;
        }
        text.push(' ');
        text.push_str(line.trim());
        if text.len() > MAX_LENGTH {
            let end = (0..=MAX_LENGTH).rev().find(|end| text.is_char_boundary(*end)).unwrap_or_default();
            text.truncate(end);
            text.push('…');
            break;
        }
    }
    text
}

fn worker_exception(message: &str) -> Option<Exception> {
    let (wrapper, traceback) = message.strip_prefix("Caught ")?.split_once(ORIGINAL)?;
    let (_, place) = wrapper.trim().trim_end_matches('.').split_once(" in ")?;
    let (kind, first_line, following) = parse_exception(traceback)?;
    let first_line = if first_line.is_empty() { String::new() } else { format!("{first_line} (in {place})") };
    Some(Exception {
        r#type: kind.to_owned(),
        message: if following.is_empty() { first_line } else { format!("{first_line}\n{following}") },
        traceback: traceback.to_owned(),
    })
}

/// First line of a traceback.
pub(crate) const TRACEBACK: &str = "Traceback (most recent call last):";

/// The original error, if a message quotes the traceback of another process.
fn quoted_exception(message: &str) -> Option<Exception> {
    let (_, traceback) = message.split_once(TRACEBACK)?;
    let first = traceback.split(DIRECT_CAUSE).next()?;
    let (kind, first_line, _) = parse_exception(first)?;
    Some(Exception { r#type: kind.to_owned(), message: first_line.to_owned(), traceback: first.to_owned() })
}

/// Parses the exception at the end of a traceback. Returns its type, the first line of its message, and the
/// lines that follow.
pub(crate) fn parse_exception(traceback: &str) -> Option<(&str, &str, String)> {
    let lines: Vec<&str> = traceback.lines().collect();
    let below = lines.iter().rposition(|line| frame(line).is_some())? + 1;
    let is_within = |line: &&str| line.is_empty() || line.starts_with(' ');
    let raised = below + lines[below..].iter().take_while(|line| is_within(line)).count();
    let raised = (raised < lines.len()).then_some(raised)?;
    let (kind, first_line) = lines[raised].split_once(": ").unwrap_or((lines[raised], ""));
    let is_name = |name: &str| !name.is_empty() && !name.contains(char::is_whitespace);
    is_name(kind).then(|| (kind, first_line, lines[raised + 1..].join("\n")))
}

/// An exception that passed through these frames: the file, the function and the source of each.
#[cfg(test)]
pub(crate) fn raised<'text>(
    kind: &str,
    message: &str,
    frames: impl IntoIterator<Item = (std::borrow::Cow<'text, str>, &'text str, &'text str)>,
) -> Exception {
    let frames = frames
        .into_iter()
        .map(|(file, function, source)| format!("  File \"{file}\", line 7, in {function}\n    {source}\n"));
    let frames: String = frames.collect();
    Exception {
        r#type: kind.to_owned(),
        message: message.to_owned(),
        traceback: format!("Traceback (most recent call last):\n{frames}{kind}: {message}\n"),
    }
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
        let within =
            format!("{traceback}\n  File \"/tmp/memfit-X/probe/memfit_probe/data.py\", line 3, in image");
        assert_eq!(user_line(&within).as_deref(), Some("/home/me/train.py:7 in main"));
    }

    #[test]
    fn a_librarys_compiled_source_is_not_the_users() {
        let traceback = "  File \"/me/data.py\", line 3, in get\n    choice(a)\n  File \"numpy/random/mtrand.pyx\", line 961, in numpy.random.mtrand.RandomState.choice\n";
        assert_eq!(user_line(traceback).as_deref(), Some("/me/data.py:3 in get"));
    }

    #[test]
    fn an_error_that_the_script_was_handling_is_found() {
        let chained = |catcher: &str, second: &str| {
            format!(
                "{TRACEBACK}\n  File \"{catcher}\", line 7, in main\n    train()\n  File \"/x/net.py\", line 12, in \
                 train\n    list(h)\nTypeError: iteration over a 0-d tensor\n\n{DURING}\n\n{TRACEBACK}\n  \
                 File \"/x/train.py\", line 9, in main\n    load()\n{second}\n"
            )
        };
        let file = "FileNotFoundError: model.pt";
        let found = handled_error(&chained("/x/train.py", file));
        let expected = "TypeError: iteration over a 0-d tensor, at /x/net.py:12 in train";
        assert_eq!(found.as_deref(), Some(expected));
        assert_eq!(
            handled_error(&chained("/v/site-packages/lib/a.py", file)),
            None,
            "a library's own detour"
        );
        assert_eq!(handled_error(&chained("/x/train.py", "TypeError: iteration over a 0-d tensor")), None);
        assert_eq!(handled_error("ValueError: no"), None);
    }

    #[test]
    fn the_source_of_the_line_that_raised_is_found() {
        let traceback = "Traceback (most recent call last):\n  File \"/x/a.py\", line 7, in main\n    check()\n  \
             File \"/x/b.py\", line 9, in check\n    assert a == b\n           ^^^^^^\nAssertionError";
        assert_eq!(raising_source(traceback), Some(("/x/b.py:9 in check".to_owned(), "assert a == b")));
        assert_eq!(raising_source("AssertionError"), None);
    }

    #[test]
    fn a_missing_module_behind_an_import_error_is_told() {
        let raised_from = |first: &str| Exception {
            r#type: "ModuleNotFoundError".to_owned(),
            message: "Could not import module 'Trainer'.".to_owned(),
            traceback: format!(
                "Traceback (most recent call last):\n  File \"/x/a.py\", line 2, in <module>\n    import cffi\n{first}\n\n\
                 {DIRECT_CAUSE}\n\nTraceback (most recent call last):\n  File \"/x/b.py\", line 2, in <module>\n    \
                 from lazy import Trainer\nModuleNotFoundError: Could not import module 'Trainer'.\n"
            ),
        };
        let missing = raised_from("ModuleNotFoundError: No module named 'cffi'");
        assert_eq!(original(&missing).message, "No module named 'cffi'");
        let other = raised_from("ValueError: numpy.dtype size changed");
        let expected = format!("{} (raised from ValueError: numpy.dtype size changed)", other.message);
        assert_eq!(summary(&original(&other).message), expected);
        let quoted = Exception { message: "numpy.dtype size changed: reinstall".to_owned(), ..other };
        assert_eq!(original(&quoted).message, quoted.message);
    }

    #[test]
    fn a_missing_module_is_told_unless_the_error_raised_from_it_says_more() {
        const MISSING: &str = "No module named 'tensorguard'";
        for (raiser, message, told) in [
            ("/v/site-packages/hydra/_internal/instantiate.py", "Error locating target 'model.Net'", MISSING),
            ("/v/site-packages/tool/lazy.py", "Please install tool[all]", "Please install tool[all]"),
            ("/me/train.py", "use --backend sdpa", "use --backend sdpa"),
        ] {
            let traceback = format!(
                "{TRACEBACK}\n  File \"/me/model.py\", line 1, in <module>\n    import tensorguard\n\
                 ModuleNotFoundError: {MISSING}\n\n{DIRECT_CAUSE}\n\n{TRACEBACK}\n  File \"{raiser}\", line 9, in locate\n\
                 errors.Instantiation: {message}\n"
            );
            let kind = "errors.Instantiation".to_owned();
            let raised = Exception { r#type: kind, message: message.to_owned(), traceback };
            assert!(original(&raised).message.starts_with(told), "{:?}", original(&raised));
        }
    }

    #[test]
    fn a_refusal_of_memfits_is_told_as_it_is() {
        let traceback = format!(
            "{TRACEBACK}\n  File \"/v/a.py\", line 1, in get\nOSError: no host\n\n{DIRECT_CAUSE}\n\n{TRACEBACK}\n  File \"/me/train.py\", line 3, in main\nOSError: x\n"
        );
        let raised = |message: &str| Exception {
            r#type: "OSError".to_owned(),
            message: message.to_owned(),
            traceback: traceback.clone(),
        };
        assert_eq!(original(&raised("memfit: it needs x")).message, "memfit: it needs x");
        assert!(original(&raised("it needs x")).message.contains("raised from OSError: no host"));
    }

    #[test]
    fn a_message_is_told_with_the_lines_that_continue_its_first() {
        let order = "Cannot create a consistent method resolution\norder (MRO) for bases ABC, Module";
        assert_eq!(summary(order), order.replace('\n', " "));
        let invalid = "1 validation error for Small\narch\n  Field required [type=missing]\n    See also";
        assert_eq!(summary(invalid), "1 validation error for Small arch Field required [type=missing]");
        assert_eq!(summary("\nCUDA error: no kernel\nCUDA errors may"), "CUDA error: no kernel");
        let keys = "Error(s) in loading state_dict for Net:\n\tMissing key(s): \"a\".";
        assert_eq!(summary(keys), keys.replace("\n\t", " "));
        let colon = "Error downloading a.gz:\nTried http://a, got:\n<urlopen error>";
        assert_eq!(summary(colon), colon.replace('\n', " "));
        assert_eq!(summary("Error downloading a.gz:\n\nTried"), "Error downloading a.gz:");
        let long = summary(&format!("a:\n {}\n y", "x".repeat(MAX_LENGTH)));
        assert!(long.starts_with("a: xx") && long.ends_with("x…"), "{long}");
        assert_eq!(summary(""), "");
    }

    #[test]
    fn the_error_that_began_a_quoted_traceback_is_told() {
        let message = format!(
            "We found the following error {TRACEBACK}\n  File \"/home/me/data.py\", line 5, in tokens\n    encode(x)\n    \
             ^^^^^^^\nNotImplementedError: no token: begin\n\n{DIRECT_CAUSE}\n\n{TRACEBACK}\n  File \"/x/run.py\", line 9, \
             in run\n    raise RuntimeError(item) from e\nRuntimeError: Failed processing 0\n."
        );
        let wrapper = Exception {
            r#type: "RuntimeError".to_owned(),
            message,
            traceback: "  File \"/x/data.py\", line 1, in optimize\n    run()".to_owned(),
        };
        let found = original(&wrapper);
        assert_eq!(
            (found.r#type.as_str(), found.message.as_str()),
            ("NotImplementedError", "no token: begin")
        );
        assert_eq!(user_line(&found.traceback).as_deref(), Some("/home/me/data.py:5 in tokens"));
    }

    #[test]
    fn the_exception_of_a_worker_is_told_in_place_of_its_wrapper() {
        let message = "Caught TypeError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n  \
             File \"/v/lib/python3.11/site-packages/torch/utils/data/x.py\", line 3, in loop\n    data = fetch()\n  \
             File \"/home/me/data.py\", line 57, in load\n    mel = f(1, 2)\n          ^^^\n\
             TypeError: f() takes 0 positional arguments\nbut 2 were given\n";
        let wrapper = |message: &str| Exception {
            r#type: "TypeError".to_owned(),
            message: message.to_owned(),
            traceback: "  File \"/home/me/train.py\", line 1, in <module>\n    for x in loader:".to_owned(),
        };
        let passed = wrapper(message);
        let found = original(&passed);
        assert_eq!(found.r#type, "TypeError");
        let expected = "f() takes 0 positional arguments (in DataLoader worker process 0)\nbut 2 were given";
        assert_eq!(found.message, expected);
        assert_eq!(user_line(&found.traceback).as_deref(), Some("/home/me/data.py:57 in load"));
        let own = wrapper("A worker said Traceback (most recent call last): nothing.");
        assert_eq!(original(&own).message, own.message);
        let own = wrapper("Caught a cold in winter.");
        assert_eq!(original(&own).message, own.message);
    }
}
