//! Rewrites the examples of the specifications without a change of what they do: a finding must not depend on
//! how the code is written, and code without one must stay so.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::collections::BTreeMap;
use std::path::Path;

use memfit_lint::{Config, check_paths, check_source, rules};

mod arguments;
mod exceptions;
mod files;
mod loops;
mod moves;
mod names;
mod source;
#[path = "../support/specs.rs"]
mod specs;
mod values;

use exceptions::{ADDED, Exception, MISSED};
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

/// Number of examples that each rewrite applies to, at least.
const MIN_EXAMPLES: usize = 30;

/// Maximum distance of a finding from the line that is marked, as a rewrite splits statements.
const NEAR: u32 = 3;

fn lines_found(text: &str, rule: &str, config: &Config) -> Vec<u32> {
    let source = check_source(Path::new("spec.py"), text, config).unwrap();
    assert!(source.problems.is_empty(), "{rule}: {:?}\n{text}", source.problems);
    source.findings.iter().filter(|finding| finding.rule == rule).map(|finding| finding.start.line).collect()
}

/// Examples of a rule that a rewrite changes the findings of.
type Wrong = BTreeMap<(String, String), Vec<String>>;

/// Names of the rewrites after which a function has the finding, or the call of it.
const INTO_FUNCTIONS: &[&str] = &["step in a function", "loss from a function"];

/// Compares wrong examples with the exceptions; each exception has to be one still.
fn compare(what: &str, wrong: &Wrong, exceptions: &[Exception]) {
    let mut problems = Vec::new();
    for (rule, rewrite, count, reason) in exceptions {
        let found = wrong.get(&((*rule).to_owned(), (*rewrite).to_owned())).map_or(0, Vec::len);
        if found < *count {
            problems.push(format!(
                "{what}: {rule}, {rewrite}: only {found} of {count} exceptions are left ({reason})"
            ));
        }
    }
    for ((rule, rewrite), cases) in wrong {
        let allowed = exceptions.iter().find(|(known, way, ..)| known == rule && way == rewrite);
        let allowed = allowed.map_or(0, |(_, _, count, _)| *count);
        if cases.len() > allowed {
            problems.push(format!(
                "{what}: {rule}, {rewrite}: {} examples, of which {allowed} are known\n{}",
                cases.len(),
                cases.join("\n")
            ));
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// Calls a function for each example of each rule's specification, with a configuration for this rule alone.
fn for_each_program(mut each: impl FnMut(&str, &specs::Block, &Program, &Config)) {
    for rule in rules() {
        let file = folder().join(format!("{}.md", rule.name));
        let config = Config { select: vec![rule.name.to_owned()], ..Config::default() };
        for block in blocks(&std::fs::read_to_string(file).unwrap()) {
            if let Some(program) = Program::read(block.text.clone()) {
                each(rule.name, &block, &program, &config);
            }
        }
    }
}

/// Fails for a rewrite that applies to few examples: it tests nothing.
fn apply_often(names: impl Iterator<Item = &'static str>, applied: &BTreeMap<&str, usize>) {
    for name in names {
        let count = applied.get(name).copied().unwrap_or_default();
        assert!(count >= MIN_EXAMPLES, "{name} applies to {count} examples only");
    }
}

/// A rewrite into two files, or `None` where it does not apply.
type IntoFiles = fn(&Program) -> Option<files::Files>;

const INTO_FILES: &[(&str, IntoFiles)] =
    &[("step in another file", files::step_elsewhere), ("loss in another file", files::loss_elsewhere)];

/// Number of findings of a rule in a program of two files.
fn count_in_files((program, module): &files::Files, rule: &str, config: &Config) -> usize {
    let folder = tempfile::tempdir().unwrap();
    let texts = [("train.py", program.as_str()), ("setup.py", "")];
    let module_name = format!("{}.py", files::MODULE);
    for (name, text) in texts.into_iter().chain([(module_name.as_str(), module.as_str())]) {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    let report = check_paths(&[folder.path().to_owned()], config).unwrap();
    let findings = report.files.iter().flat_map(|source| &source.findings);
    findings.filter(|finding| finding.rule == rule).count()
}

#[test]
fn findings_do_not_depend_on_the_file() {
    let (mut missed, mut added) = (Wrong::new(), Wrong::new());
    let mut applied: BTreeMap<&str, usize> = BTreeMap::new();
    for_each_program(|rule, block, program, config| {
        for (name, rewrite) in INTO_FILES {
            let Some(texts) = rewrite(program) else { continue };
            *applied.entry(name).or_default() += 1;
            let wanted = expected(&texts.0, rule).len() + expected(&texts.1, rule).len();
            let found = count_in_files(&texts, rule, config);
            let (is_right, wrong) = match block.part {
                Part::Found => (found >= wanted, &mut missed),
                Part::LeftAlone | Part::CannotBeDecided => (found == 0, &mut added),
            };
            if !is_right {
                let case = format!(
                    "{}.md:{}, {name}: expected {wanted}, found {found}\n{}\n# {}.py\n{}",
                    rule,
                    block.line,
                    texts.0,
                    files::MODULE,
                    texts.1
                );
                wrong.entry((rule.to_owned(), (*name).to_owned())).or_default().push(case);
            }
        }
    });
    apply_often(INTO_FILES.iter().map(|(name, _)| *name), &applied);
    compare("missed", &missed, exceptions::MISSED_IN_FILES);
    compare("added", &added, exceptions::ADDED_IN_FILES);
}

#[test]
fn findings_do_not_depend_on_the_spelling() {
    let (mut missed, mut added) = (Wrong::new(), Wrong::new());
    let mut applied: BTreeMap<&str, usize> = BTreeMap::new();
    for_each_program(|rule, block, program, config| {
        for (name, rewrite) in REWRITES {
            let Some(text) = rewrite(program) else { continue };
            let place = format!("{}.md:{}, {name}", rule, block.line);
            assert!(Program::read(text.clone()).is_some(), "{place} cannot be read\n{text}");
            *applied.entry(name).or_default() += 1;
            let (expected, found) = (expected(&text, rule), lines_found(&text, rule, config));
            let is_found = |line: u32| found.iter().any(|found| found.abs_diff(line) <= NEAR);
            let (is_right, wrong) = match block.part {
                Part::Found if INTO_FUNCTIONS.contains(name) => (found.len() >= expected.len(), &mut missed),
                Part::Found => (expected.iter().all(|(line, _)| is_found(*line)), &mut missed),
                Part::LeftAlone | Part::CannotBeDecided => (found.is_empty(), &mut added),
            };
            if !is_right {
                let case = format!("{place}: expected {expected:?}, found {found:?}\n{text}");
                wrong.entry((rule.to_owned(), (*name).to_owned())).or_default().push(case);
            }
        }
    });
    apply_often(REWRITES.iter().map(|(name, _)| *name), &applied);
    compare("missed", &missed, MISSED);
    compare("added", &added, ADDED);
}
