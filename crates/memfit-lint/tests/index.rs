//! The list of rules in the documentation matches the code. `MEMFIT_UPDATE_DOCS=1` rewrites it.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::fmt::Write as _;
use std::path::Path;

use memfit_lint::{Fixes, page, rules};

fn index() -> String {
    let mut text = String::from(
        "# The rules of `memfit check`\n\nMade from the code by `MEMFIT_UPDATE_DOCS=1 cargo test -p memfit-lint --test index`. `memfit rule NAME` shows the\npage; its specification, which is its test, is linked.\n\n| rule | severity | fix | |\n|---|---|---|---|\n",
    );
    for rule in rules() {
        let page = page(rule);
        let part =
            page.split("## What it does\n").nth(1).unwrap().split("\n\n").next().unwrap().replace('\n', " ");
        let fix = match rule.fixes {
            Fixes::Never => "",
            Fixes::Safe => "safe",
            Fixes::Unsafe => "unsafe",
        };
        let off = if rule.on { "" } else { " (off unless selected)" };
        let _ = writeln!(
            text,
            "| [{0}](../crates/memfit-lint/specs/{0}.md) | {1}{off} | {fix} | {part} |",
            rule.name, rule.severity
        );
    }
    text
}

#[test]
fn the_index_page_is_up_to_date() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/rules.md");
    if std::env::var_os("MEMFIT_UPDATE_DOCS").is_some() {
        std::fs::write(&file, index()).unwrap();
    }
    assert_eq!(
        std::fs::read_to_string(&file).unwrap_or_default(),
        index(),
        "MEMFIT_UPDATE_DOCS=1 updates it"
    );
}
