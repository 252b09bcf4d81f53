//! Reason why a script failed with a lever, in one line: the error's type and message, and the line of the
//! script.

use memfit_report::wire::{Exception, Problem};
use memfit_run::Facts;
use memfit_vocabulary::is_user_file;

/// Longer messages are truncated.
const MAX_CHARS: usize = 200;

/// The reason of a failure; `None` if unknown.
pub(crate) fn failure_reason(facts: &Facts, problem: Option<&Problem>) -> Option<String> {
    match (&facts.exception, problem) {
        (Some(exception), _) => Some(describe(exception)),
        (None, Some(problem)) => Some(problem.message.trim_end_matches('.').to_owned()),
        (None, None) => None,
    }
}

fn describe(exception: &Exception) -> String {
    let kind = exception.r#type.trim_start_matches("builtins.");
    let message = exception.message.lines().find(|line| !line.trim().is_empty()).unwrap_or_default().trim();
    let mut text = if message.is_empty() { kind.to_owned() } else { format!("{kind}: {message}") };
    if let Some((end, _)) = text.char_indices().nth(MAX_CHARS) {
        text.truncate(end);
        text.push('…');
    }
    match line(&exception.traceback) {
        Some(line) => format!("{text} ({line})"),
        None => text,
    }
}

/// The innermost line of user code in a traceback, otherwise the innermost line.
fn line(traceback: &str) -> Option<String> {
    let frames = || traceback.lines().rev().filter_map(frame);
    let own = frames().find(|(file, _)| is_user_file(file));
    let (file, number) = own.or_else(|| frames().next())?;
    let name = file.rsplit('/').next().unwrap_or(file);
    Some(format!("{name}, line {number}"))
}

/// Parses `File "train.py", line 7, in main` into file and line.
fn frame(line: &str) -> Option<(&str, u64)> {
    let (file, rest) = line.trim_start().strip_prefix("File \"")?.split_once("\", line ")?;
    let number = rest.split(|letter: char| !letter.is_ascii_digit()).next()?;
    Some((file, number.parse().ok()?)).filter(|(file, _)| !file.starts_with('<'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(kind: &str, message: &str, traceback: &str, expected: &str) {
        let exception =
            Exception { r#type: kind.into(), message: message.into(), traceback: traceback.into() };
        assert_eq!(describe(&exception), expected);
    }

    #[test]
    fn an_error_names_the_scripts_own_line() {
        let deep = "Traceback (most recent call last):\n  File \"/home/me/train.py\", line 31, in <module>\n    main()\n  \
                    File \"/home/me/train.py\", line 12, in main\n    model(x)\n  \
                    File \"/usr/lib/python3.13/site-packages/torch/nn/modules/module.py\", line 1775, in _call\n    f()\n\
                    RuntimeError: no\n";
        check("RuntimeError", "no\nmore of it", deep, "RuntimeError: no (train.py, line 12)");
        check(
            "builtins.KeyError",
            "'x'",
            "  File \"a.py\", line 1\n    x[\n",
            "KeyError: 'x' (a.py, line 1)",
        );
        let none_of_its_own = "  File \"/v/site-packages/torch/a.py\", line 5, in f\n";
        check("mine.Strange", "", none_of_its_own, "mine.Strange (a.py, line 5)");
        check("ValueError", "well", "", "ValueError: well");
        check("ValueError", "well", "File \"<string>\", line 3\nFile \"x\", line \n", "ValueError: well");
        let long = "ä".repeat(500);
        let expected = describe(&Exception { r#type: "E".into(), message: long, traceback: String::new() });
        assert_eq!(expected.chars().count(), MAX_CHARS + 1);
    }
}
