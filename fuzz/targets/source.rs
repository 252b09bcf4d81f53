//! Python, as a file, a notebook and Markdown: nothing makes the check fail, and fixes parse.
#![no_main]

use libfuzzer_sys::fuzz_target;
use memfit_lint::{Config, check_source};

fuzz_target!(|text: &str| {
    let config = Config { select: vec!["all".to_owned()], ..Config::default() };
    // Without a sign of training nothing is read.
    let text = format!("import torch\n{text}");
    for name in ["x.py", "x.ipynb", "x.md"] {
        let Ok(source) = check_source(name.as_ref(), &text, &config) else { continue };
        assert!(source.problems.iter().all(|problem| !problem.message.contains("fault of memfit")));
        let _fixed = source.fixed(true, &config);
    }
});
