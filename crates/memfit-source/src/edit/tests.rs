//! Tests of the edit engine.

use super::*;

#[test]
fn fixes_that_touch_each_other_wait() {
    let a = [Edit::replace(Span::new(0, 4), "x")];
    let b = [Edit::replace(Span::new(3, 6), "y")];
    let c = [Edit::insert(8, "z")];
    let d = [Edit::insert(8, "w")];
    let (edits, fixed) = compose(&[&a, &b, &c, &d, &c]);
    assert_eq!((edits.len(), fixed), (2, 3));
    assert_eq!(apply("0123456789", &edits).as_deref(), Ok("x4567z89"));
}

#[test]
fn edits_that_cannot_be_made_are_errors() {
    let edit = |start, end| Edit::replace(Span::new(start, end), "x");
    assert_eq!(apply("abcd", &[edit(0, 2), edit(1, 3)]), Err(EditError::Overlap));
    assert_eq!(apply_within("abé", Span::new(0, 4), &[edit(3, 3)]), Err(EditError::OutOfText));
    assert_eq!(apply("abcd", &[edit(1, 2), edit(1, 2)]).as_deref(), Ok("axcd"));
    assert_eq!(apply_within("abcd", Span::new(1, 3), &[edit(1, 2), edit(3, 4)]).as_deref(), Ok("xc"));
}

#[test]
fn python_stays_python() {
    let broken = [Edit::replace(Span::new(4, 5), "= =")];
    assert_eq!(apply_checked("a = 1\n", &broken, Dialect::Python), Err(EditError::Broken));
    assert!(apply_checked("a = = 1\n", &broken, Dialect::Python).is_ok());
    let fine = [Edit::replace(Span::new(4, 5), "2")];
    assert_eq!(apply_checked("a = 1\n", &fine, Dialect::Python).as_deref(), Ok("a = 2\n"));
}

#[test]
fn a_change_becomes_a_diff_that_can_be_applied() {
    let text = (1..=12).map(|line| format!("line {line}")).collect::<Vec<_>>().join("\n") + "\n";
    let after = text.replace("line 2\n", "LINE 2\n").replace("line 11\n", "new\nline 11\n");
    let expected = "--- t.py\n+++ t.py\n@@ -1,5 +1,5 @@\n line 1\n-line 2\n+LINE 2\n line 3\n line 4\n line 5\n@@ -8,5 +8,6 @@\n line 8\n line 9\n line 10\n+new\n line 11\n line 12\n";
    assert_eq!(unified_diff("t.py", "t.py", &text, &after), expected);
    assert_eq!(unified_diff("t.py", "t.py", &text, &text), "");
}
