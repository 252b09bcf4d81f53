//! Runs the specifications in `specs/`, one for each rule: a line with `# error: [rule]` has that finding,
//! and no other line has it.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::path::Path;

use memfit_lint::{Config, check_source, page, rules};

#[path = "support/specs.rs"]
mod specs;

use specs::{Block, Part, blocks, expected, folder};

fn found(block: &Block, rule: &str, config: &Config) -> Vec<(u32, String)> {
    let source = check_source(Path::new("spec.py"), &block.text, config).unwrap();
    assert!(source.problems.is_empty(), "{rule}, block at line {}: {:?}", block.line, source.problems);
    source
        .findings
        .iter()
        .filter(|finding| finding.rule == rule)
        .map(|finding| (finding.start.line, finding.severity.name().to_owned()))
        .collect()
}

#[test]
fn every_rule_does_what_its_specification_says() {
    let mut wrong = Vec::new();
    for rule in rules() {
        let file = folder().join(format!("{}.md", rule.name));
        let text =
            std::fs::read_to_string(&file).unwrap_or_else(|_| panic!("{} has no specification", rule.name));
        let blocks = blocks(&text);
        let count = |part| blocks.iter().filter(|block| block.part == part).count();
        assert!(count(Part::Found) >= 3, "{} has fewer than three blocks that it finds", rule.name);
        assert!(count(Part::LeftAlone) >= 3, "{} has fewer than three that it leaves alone", rule.name);
        assert!(count(Part::CannotBeDecided) >= 1, "{} has none that cannot be decided", rule.name);
        let config = Config { select: vec![rule.name.to_owned()], ..Config::default() };
        for block in &blocks {
            let (expected, found) = (expected(&block.text, rule.name), found(block, rule.name, &config));
            assert_eq!(expected.is_empty(), block.part != Part::Found, "{}, line {}", rule.name, block.line);
            if expected != found {
                wrong.push(format!(
                    "{}.md:{}: expected {expected:?}, found {found:?}\n{}",
                    rule.name, block.line, block.text
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{} blocks are not as specified:\n\n{}", wrong.len(), wrong.join("\n"));
}

/// Fixing a rule's findings yields text that parses, with fewer findings of the rule and no more of any
/// other.
#[test]
fn a_fix_removes_its_finding_and_adds_none() {
    let config = Config { select: vec!["all".to_owned()], ..Config::default() };
    let mut fixed = 0;
    for rule in rules() {
        let text = std::fs::read_to_string(folder().join(format!("{}.md", rule.name))).unwrap();
        for block in blocks(&text) {
            let source = check_source(Path::new("spec.py"), &block.text, &config).unwrap();
            let applied = source.fix_all(true, &config).unwrap();
            let after = check_source(Path::new("spec.py"), &applied.text, &config).unwrap();
            assert!(after.problems.is_empty(), "{} at {}:\n{}", rule.name, block.line, applied.text);
            for rule in rules() {
                let count = |source: &memfit_lint::Source| {
                    source.findings.iter().filter(|finding| finding.rule == rule.name).count()
                };
                assert!(count(&after) <= count(&source), "{} is new in\n{}", rule.name, applied.text);
            }
            // All possible fixes were applied, so fixing again changes nothing.
            let again = after.fix_all(true, &config).unwrap();
            assert_eq!(again.text, applied.text, "{} at {}", rule.name, block.line);
            fixed += applied.fixed;
        }
    }
    assert!(fixed > 50, "only {fixed} findings were fixed");
}

#[test]
fn no_specification_is_left_of_a_rule_that_is_gone() {
    for entry in std::fs::read_dir(folder()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(memfit_lint::rule(name.trim_end_matches(".md")).is_some(), "{name}");
    }
}

/// Examples of a page, with the preamble of its specification: the bad one and the corrected one.
fn examples(rule: &memfit_lint::Rule) -> Vec<String> {
    let specification = std::fs::read_to_string(folder().join(format!("{}.md", rule.name))).unwrap();
    let given =
        specification.split("```python given\n").nth(1).map_or("", |rest| rest.split("```").next().unwrap());
    let page = page(rule);
    let part = page.split("## Example\n").nth(1).unwrap().split("\n## ").next().unwrap();
    let blocks = part.split("```python\n").skip(1);
    blocks.map(|block| format!("{given}{}", block.split("```").next().unwrap())).collect()
}

#[test]
fn bad_examples_of_a_page_are_found_and_good_ones_are_not() {
    let mut wrong = Vec::new();
    for rule in rules() {
        let config = Config { select: vec![rule.name.to_owned()], ..Config::default() };
        let examples = examples(rule);
        assert!(examples.len() >= 2, "{} has no good and bad example", rule.name);
        for (index, example) in examples.iter().enumerate() {
            let source = check_source(Path::new("page.py"), example, &config).unwrap();
            if !source.problems.is_empty() {
                wrong.push(format!("{}, example {}, cannot be read\n{example}", rule.name, index + 1));
            }
            let found = source.findings.iter().any(|finding| finding.rule == rule.name);
            if found != (index == 0) {
                wrong.push(format!("{}, example {}: found is {found}\n{example}", rule.name, index + 1));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Outputs that a loop collects keep the graphs of all passes, not of two.
#[test]
fn evaluation_that_collects_its_outputs_keeps_every_pass() {
    let config = Config { select: vec!["eval-without-no-grad".to_owned()], ..Config::default() };
    let message = |body: &str| {
        let text = format!(
            "import torch\n\ndef evaluate(model, loader):\n    model.eval()\n    preds = []\n    for x in loader:\n{body}    return preds\n"
        );
        let source = check_source(Path::new("spec.py"), &text, &config).unwrap();
        assert_eq!(source.findings.len(), 1, "{text}");
        source.findings[0].message.clone()
    };
    for body in [
        "        preds.append(model(x))\n",
        "        out = model(x)\n        preds.append(out)\n",
        "        preds.append(model(x).softmax(1))\n",
    ] {
        assert!(message(body).contains("`preds` keeps the activations of every pass"), "{}", message(body));
    }
    for body in [
        "        out = model(x)\n        preds.append(out.detach())\n",
        "        out = model(x)\n        preds.append(out.argmax(1).tolist())\n",
    ] {
        assert!(message(body).contains("up to two passes"), "{}", message(body));
    }
}
