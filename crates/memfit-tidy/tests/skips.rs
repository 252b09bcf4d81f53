//! Checks that no test is skipped silently: skipped tests are marked as such, and only child processes are.

mod common;

/// The only permitted reason for an ignored test: another test starts it as a process.
const CHILD: &str = "child process of the other tests";

#[test]
fn ignored_tests_are_child_processes() {
    for (file, text) in common::sources("crates", "rs") {
        // Split so that this file does not match itself.
        let attribute = concat!("#[", "ignore");
        for line in text.lines().filter(|line| line.trim_start().starts_with(attribute)) {
            assert!(line.contains(CHILD), "{}: {}", file.display(), line.trim());
        }
    }
}

#[test]
fn no_test_returns_for_want_of_a_variable() {
    for (file, text) in common::sources("crates", "rs") {
        if !file.components().any(|part| part.as_os_str() == "tests") {
            continue;
        }
        for (number, line) in text.lines().enumerate() {
            let returns = line.contains("env::var") && line.contains(concat!("else { ", "return }"));
            assert!(!returns, "{}:{}: {}", file.display(), number + 1, line.trim());
        }
    }
}
