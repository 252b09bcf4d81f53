//! Checks that the page of problems agrees with the declarations, and that their names are distinct.
//! `MEMFIT_UPDATE_DOCS=1` writes the page.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use memfit_report::wire::ProblemKind;

const HEAD: &str = "# Problems

If there is no answer, or no certain one, `problem` in the JSON of `memfit run`, `plan`, `cards`, `shrink`, `ci` and `data
--loader` has a `kind`, a message and often a hint. These are the kinds; a newer memfit may add others. [run.md](run.md)
explains those of scripts that fail.

This page is generated from `crates/memfit-report/src/wire/problem.rs`.

| `kind` | meaning |
|---|---|
";

#[test]
fn the_page_of_problems_is_fresh() {
    let mut page = HEAD.to_owned();
    for kind in ProblemKind::ALL {
        writeln!(page, "| `{kind}` | {} |", kind.meaning()).unwrap();
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/problems.md");
    if std::env::var_os("MEMFIT_UPDATE_DOCS").is_some() {
        std::fs::write(path, page).unwrap();
        return;
    }
    assert_eq!(std::fs::read_to_string(path).unwrap(), page, "MEMFIT_UPDATE_DOCS=1 updates it");
}

#[test]
fn each_kind_has_a_name_of_its_own() {
    let names: BTreeSet<&str> = ProblemKind::ALL.iter().map(|kind| kind.name()).collect();
    assert_eq!(names.len(), ProblemKind::ALL.len());
    for kind in ProblemKind::ALL {
        assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
    }
}
