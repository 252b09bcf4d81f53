//! Checks that a lever needs only one file: the build adds the file in `memfit-vocabulary/sample` and nothing
//! else. `cargo test -p memfit-report --features sample --test sample_lever`

use std::path::Path;

use memfit_plan::{Plan, Setting, movable};
use memfit_report::lever_table;
use memfit_vocabulary::{Label, Lever, Moved, Script, Sense, Situation, Stage, Training, Value};

fn sample() -> Lever {
    Lever::from_name("sample-lever").expect("the build script lists it")
}

#[test]
fn the_vocabulary_has_it() {
    assert!(Lever::ALL.contains(&sample()));
    assert_eq!(sample().name(), "sample-lever");
    assert_eq!((sample().label(), sample().stage()), (Label::ChangesTraining, Stage::Model));
    assert_eq!(sample().excludes(Lever::Compile), Lever::Compile.excludes(sample()));
    assert!(Lever::conflict(&[Lever::Compile, sample()]).is_some_and(|why| why.contains("forgets nothing")));
    assert_eq!(serde_json::to_value(sample()).unwrap(), "sample-lever");
    assert_eq!(serde_json::from_str::<Lever>("\"sample-lever\"").unwrap(), sample());
}

#[test]
fn the_search_tries_it() {
    assert_eq!(movable().last(), Some(&sample()));
    let training = Training { optimizes: true, ..Training::default() };
    let search = sample().declaration().search.expect("it is searched");
    assert_eq!((search.sense)(&Situation::new(&training)), Sense::Try(Value::default()));
}

#[test]
fn a_plan_file_keeps_it() {
    let setting = Setting { lever: sample(), value: Value::Count(7), label: sample().label() };
    let plan = Plan { levers: vec![setting], ..Plan::as_is() };
    let text = plan.to_text();
    assert!(text.contains("[[lever]]  # every other tensor is forgotten\nname = \"sample-lever\""), "{text}");
    assert_eq!(Plan::parse(&text, Path::new("sample.plan.toml")).unwrap(), plan);
}

#[test]
fn reports_and_patches_have_words_for_it() {
    let moved = Moved { value: &Value::Count(7), label: sample().label(), passes: 1 };
    assert_eq!(sample().sentence(moved), "7 tensors are forgotten");
    assert!(matches!(sample().declaration().script, Script::Model(_)));
}

#[test]
fn the_documentation_lists_the_sample_lever() {
    let row = "| `sample-lever` | tensors | so many tensors are forgotten | changes-training |";
    assert!(lever_table().lines().any(|line| line == row), "{}", lever_table());
}
