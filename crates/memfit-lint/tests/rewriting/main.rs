//! Rewrites the examples of the specifications without a change of what they do: a finding must not depend on
//! how the code is written, and code without one must stay so.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::collections::BTreeMap;
use std::path::Path;

use memfit_lint::{Config, check_source, rules};

mod arguments;
mod loops;
mod moves;
mod names;
mod source;
#[path = "../support/specs.rs"]
mod specs;
mod values;

use source::Program;
use specs::{Part, blocks, expected, folder};

/// A rewrite, or `None` where it does not apply.
type Rewrite = fn(&Program) -> Option<String>;

const REWRITES: &[(&str, Rewrite)] = &[
    ("in main", moves::into_main),
    ("in a class", moves::into_class),
    ("step in a function", moves::step_function),
    ("loss from a function", moves::loss_function),
    ("other names", names::renamed),
    ("other attributes", names::renamed_attributes),
    ("torch as th", names::torch_as_th),
    ("imported parts", names::imported_parts),
    ("imported names", names::imported_names),
    ("imported modules", names::imported_modules),
    ("annotations", names::annotated),
    ("while", loops::as_while),
    ("enumerate", loops::enumerated),
    ("tqdm", loops::with_progress_bar),
    ("named tqdm", loops::with_named_progress_bar),
    ("epochs", loops::in_epochs),
    ("early continue", loops::with_early_continue),
    ("every few steps", loops::now_and_then),
    ("temporaries", values::with_temporaries),
    ("loss in a dictionary", values::loss_in_dictionary),
    ("outputs.loss", values::loss_of_outputs),
    ("outputs[\"loss\"]", values::loss_key_of_outputs),
    ("loss with logits", values::loss_in_tuple),
    ("dictionary of lists", values::list_in_dictionary),
    ("defaultdict of lists", values::list_in_defaultdict),
    ("sum in a dictionary", values::sum_in_dictionary),
    ("sum in a defaultdict", values::sum_in_defaultdict),
    ("list by addition", values::list_by_addition),
    ("list of tuples", values::in_tuples),
    ("keywords", arguments::by_keyword),
    ("numbers of args", arguments::numbers_of_args),
    ("numbers of a dictionary", arguments::numbers_of_dictionary),
];

/// Maximum distance of a finding from the line that is marked, as a rewrite splits statements.
const NEAR: u32 = 3;

fn lines_found(text: &str, rule: &str, config: &Config) -> Vec<u32> {
    let source = check_source(Path::new("spec.py"), text, config).unwrap();
    assert!(source.problems.is_empty(), "{rule}: {:?}\n{text}", source.problems);
    source.findings.iter().filter(|finding| finding.rule == rule).map(|finding| finding.start.line).collect()
}

#[test]
fn findings_do_not_depend_on_the_spelling() {
    let mut wrong: BTreeMap<(&str, &str, bool), Vec<String>> = BTreeMap::new();
    let mut applied: BTreeMap<&str, usize> = BTreeMap::new();
    for rule in rules() {
        let file = folder().join(format!("{}.md", rule.name));
        let config = Config { select: vec![rule.name.to_owned()], ..Config::default() };
        for block in blocks(&std::fs::read_to_string(file).unwrap()) {
            let Some(program) = Program::read(block.text.clone()) else { continue };
            for (name, rewrite) in REWRITES {
                let Some(text) = rewrite(&program) else { continue };
                assert!(
                    Program::read(text.clone()).is_some(),
                    "{name} breaks {}.md:{}\n{text}",
                    rule.name,
                    block.line
                );
                *applied.entry(name).or_default() += 1;
                let (expected, found) = (expected(&text, rule.name), lines_found(&text, rule.name, &config));
                let moved = ["step in a function", "loss from a function"].contains(name);
                let is_right = if block.part == Part::Found && moved {
                    // The call or what it runs.
                    found.len() >= expected.len()
                } else if block.part == Part::Found {
                    expected.iter().all(|(line, _)| found.iter().any(|found| found.abs_diff(*line) <= NEAR))
                } else {
                    found.is_empty()
                };
                if !is_right {
                    wrong.entry((rule.name, name, block.part == Part::Found)).or_default().push(format!(
                        "{}.md:{} {name}: expected {expected:?}, found {found:?}\n{text}",
                        rule.name, block.line
                    ));
                }
            }
        }
    }
    if let Ok(path) = std::env::var("REPORT") {
        use std::fmt::Write as _;
        let mut report = format!("{applied:#?}\n");
        for ((rule, name, is_found), cases) in &wrong {
            let _ = writeln!(
                report,
                "PAIR {} {rule} | {name} | {}",
                if *is_found { "miss" } else { "false" },
                cases.len()
            );
        }
        for cases in wrong.values() {
            for case in cases {
                let _ = writeln!(report, "======= {case}");
            }
        }
        std::fs::write(path, report).unwrap();
    }
    assert!(wrong.is_empty(), "{} pairs", wrong.len());
}
