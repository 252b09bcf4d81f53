//! Tests of the table of remarks and assumptions.

use std::fmt::Write as _;

use memfit_vocabulary::{Assumption, Remark};
use proptest::prelude::*;

use super::*;

#[test]
fn every_remark_has_its_own_text() {
    let mut texts: Vec<&str> =
        Remark::ALL.iter().map(|remark| RemarkText::for_remark(*remark).text).collect();
    texts.sort_unstable();
    assert!(texts.windows(2).all(|pair| pair[0] != pair[1]));
    for remark in Remark::ALL {
        assert_eq!(Note::new(*remark).remark(), Some(*remark), "{}", remark.id());
    }
}

#[test]
fn values_fill_their_placeholders() {
    let note =
        Note::new(Remark::LeverRefused).with_value("lever", "lora").with_value("why", "no {lever} here");
    assert_eq!(note.text(), "the plan's `lora` was not applied: no {lever} here");
    assert_eq!(Note::new(Remark::NotCovered).text(), "`--cover full` found no {what}");
}

#[test]
fn an_unknown_remark_is_shown_and_has_no_bound() {
    let note = Note::received("from-a-later-release", BTreeMap::new()).with_value("bytes", "3");
    assert_eq!(note.text(), "from-a-later-release (bytes: 3)");
    assert_eq!(note.effect(), Effect::Unbounded);
    assert_eq!(Note::received("odd", BTreeMap::new()).text(), "odd");
}

#[test]
fn an_unknown_assumption_has_no_bound() {
    assert_eq!(assumption_text("from-a-later-release"), ("from-a-later-release", Stake::Unbounded));
    assert_eq!(assumption_text(Assumption::Elsewhere.id()).1, Stake::Unbounded);
    for assumption in Assumption::ALL {
        assert_ne!(assumption_text(assumption.id()).0, assumption.id());
    }
}

proptest! {
    #[test]
    fn any_template_is_filled_or_kept(template in ".*", value in "[^{}]*") {
        let values = BTreeMap::from([("a".to_owned(), value)]);
        prop_assert_eq!(fill(&template, &BTreeMap::new()), template);
        prop_assert_eq!(fill("x{a}y", &values), format!("x{}y", values["a"]));
    }
}

/// `MEMFIT_UPDATE_DOCS=1 cargo test -p memfit-report` writes the page.
#[test]
fn the_page_lists_each_remark_and_assumption() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/remarks.md");
    let mut page = String::from(PAGE);
    for remark in Remark::ALL {
        let RemarkText { text, effect } = RemarkText::for_remark(*remark);
        let _ = writeln!(page, "| `{}` | {text} | {} |", remark.id(), effect.words());
    }
    page.push_str(ASSUMPTIONS);
    for assumption in Assumption::ALL {
        let (text, stake) = assumption_text(assumption.id());
        let changes = match stake {
            Stake::Value => "nothing: the value is only logged, or is a check that a correct script passes",
            Stake::Condition => "which branch runs; a second run takes the other one",
            Stake::Number => {
                "a size without a bound, if the script uses it as one; a second run with another value shows whether it does"
            }
            Stake::Count => "which branch runs; a further run takes the lower bound",
            Stake::Size => {
                "a size, up to a bound that follows from the arguments; a further run takes the lower bound"
            }
            Stake::Unbounded => "a size without a bound",
        };
        let _ = writeln!(page, "| `{}` | {text} | {changes} |", assumption.id());
    }
    if std::env::var_os("MEMFIT_UPDATE_DOCS").is_some() {
        std::fs::write(path, &page).unwrap();
    }
    assert_eq!(std::fs::read_to_string(path).unwrap(), page, "docs/remarks.md is not up to date");
}

const PAGE: &str = "# Remarks and assumptions

`fidelity` in the JSON of `memfit run` lists each call that the virtual device refused (`unmodelled`), each value that it
assumed (`values`), and remarks on the figures (`notes`). `fidelity.effects` has one entry for each of them: its `id`, and the
`bytes` by which it may change the peaks, `null` if unbounded.

This page is generated from the table in `crates/memfit-report/src/remarks`. `tests/python/test_remarks.py` produces each
remark, or names the test that does.

## Remarks

| `id` | text | what it may change |
|---|---|---|
";

const ASSUMPTIONS: &str = "
## Assumptions about values that were not computed

| `id` | text | what it may change |
|---|---|---|
";
