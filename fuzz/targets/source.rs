//! Python, as a file, a notebook and Markdown: nothing makes the check fail, and what is fixed parses no
//! worse and has no finding that was not there.
#![no_main]

use libfuzzer_sys::fuzz_target;
use memfit_lint::{Config, Source, check_source};

fn count(source: &Source, rule: &str) -> usize {
    source.findings.iter().filter(|finding| finding.rule == rule).count()
}

fuzz_target!(|text: &str| {
    let config = Config { select: vec!["all".to_owned()], ..Config::default() };
    // Without a sign of training nothing is read.
    let text = format!("import torch\n{text}");
    for name in ["x.py", "x.ipynb", "x.md"] {
        let Ok(source) = check_source(name.as_ref(), &text, &config) else { continue };
        assert!(source.problems.iter().all(|problem| !problem.message.contains("fault of memfit")));
        let Ok(applied) = source.fix_all(true, &config) else { continue };
        if applied.text == text {
            continue;
        }
        let after = check_source(name.as_ref(), &applied.text, &config).expect("what was checked can be");
        assert!(after.problems.len() <= source.problems.len());
        assert!(after.findings.iter().all(|found| count(&after, found.rule) <= count(&source, found.rule)));
    }
});
