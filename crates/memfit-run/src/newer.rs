//! Syntax of a newer Python than the one that runs the script.

/// Remedy for a syntax error that a newer release of Python does not have.
pub(crate) fn hint(message: &str, traceback: &str) -> Option<String> {
    let release = release(message, line(traceback)?)?;
    Some(format!(
        "the script was written for Python {release} or newer: give memfit the interpreter of an environment with such a Python and the script's packages (`uv venv --python {release}`)"
    ))
}

/// The first release of Python that takes a line.
fn release(message: &str, line: &str) -> Option<&'static str> {
    if message.contains("multiple exception types must be parenthesized") {
        // `except KeyError, error:` is of Python 2, and names what was raised.
        let (_, second) = line.split_once(',')?;
        let last = second.split('.').next_back()?.trim();
        return last.starts_with(|first: char| first.is_uppercase()).then_some("3.14");
    }
    if message.contains("f-string") {
        let nested = ["unmatched", "cannot include a backslash", "expecting '}'", "unterminated string"];
        return nested.iter().any(|words| message.contains(words)).then_some("3.12");
    }
    if !["expected '('", "invalid syntax"].iter().any(|words| message.contains(words)) {
        return None;
    }
    let after = |keyword: &str| line.strip_prefix(keyword).map(str::trim_start);
    let name_end = |rest: &str| rest.find(|each: char| !each.is_alphanumeric() && each != '_');
    for keyword in ["async def ", "def ", "class "] {
        if let Some(rest) = after(keyword)
            && let Some(end) = name_end(rest)
        {
            return rest[end..].starts_with('[').then_some("3.12");
        }
    }
    if let Some(rest) = after("type ") {
        let end = name_end(rest)?;
        return rest[end..].trim_start().starts_with(['=', '[']).then_some("3.12");
    }
    after("except*").map(|_| "3.11")
}

/// The line of source below the last location of a traceback.
fn line(traceback: &str) -> Option<&str> {
    let mut lines = traceback.lines().rev().map(str::trim).peekable();
    while let Some(line) = lines.next() {
        if lines.peek().is_some_and(|above| above.starts_with("File \"")) {
            return Some(line);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_release_that_takes_a_line_is_told() {
        let parentheses = "multiple exception types must be parenthesized (utils.py, line 7)";
        for (message, line, release) in [
            (parentheses, "except requests.ConnectionError, requests.Timeout:", Some("3.14")),
            (parentheses, "except KeyError, error:", None),
            ("expected '(' (a.py, line 7)", "def first[T](values: list[T]) -> T:", Some("3.12")),
            ("expected '(' (a.py, line 7)", "def first:", None),
            ("invalid syntax (a.py, line 7)", "class Stack[T]:", Some("3.12")),
            ("invalid syntax (a.py, line 7)", "type Pair = tuple[int, int]", Some("3.12")),
            ("invalid syntax (a.py, line 7)", "except* ValueError:", Some("3.11")),
            ("invalid syntax (a.py, line 7)", "type (x) y", None),
            ("f-string: unmatched '[' (a.py, line 7)", "x = f\"{d[\"a\"]}\"", Some("3.12")),
            ("invalid syntax (a.py, line 7)", "def f(x) x", None),
        ] {
            let traceback =
                format!("  File \"/me/a.py\", line 7\n    {line}\n      ^^^^\nSyntaxError: {message}\n");
            let found = hint(message, &traceback);
            assert_eq!(found.is_some(), release.is_some(), "{line}: {found:?}");
            if let (Some(found), Some(release)) = (found, release) {
                assert!(found.contains(&format!("Python {release} or newer")), "{found}");
            }
        }
    }
}
