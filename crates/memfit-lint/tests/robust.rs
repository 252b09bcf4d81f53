//! No input makes the check fail: mutated Python, very long files, very deep nesting, broken documents.

#![allow(
    clippy::unwrap_used,
    clippy::format_push_string,
    clippy::format_collect,
    reason = "a panic fails the test"
)]

use std::path::Path;

use memfit_lint::{Config, Source, check_source};

fn check(name: &str, text: &str) -> Source {
    let config = Config { select: vec!["all".to_owned()], ..Config::default() };
    let source = check_source(Path::new(name), text, &config).unwrap();
    let fault = source.problems.iter().find(|problem| problem.message.contains("fault of memfit"));
    assert!(fault.is_none(), "the check failed on:\n{}", text.chars().take(4000).collect::<String>());
    source
}

/// Random number generator with the same sequence everywhere.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % bound.max(1)
    }
}

fn specifications() -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("specs");
    let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| std::fs::read_to_string(path).unwrap()).collect()
}

/// Fragments that break a line.
const PIECES: &[&str] = &[
    "(",
    ")",
    "[",
    "]",
    ":",
    "\\\n",
    "\"\"\"",
    "f\"{",
    "lambda ",
    "é",
    "\u{1d11e}",
    "\0",
    "\t",
    "\r",
    "% ",
    "**",
    ",",
    "yield ",
    "async ",
];

/// Mutates text: removes, duplicates, swaps and indents lines and fragments, and combines those of different
/// rules.
fn mutated(texts: &[String], numbers: &mut Numbers) -> String {
    let text = &texts[numbers.below(texts.len())];
    let mut lines: Vec<String> = text
        .lines()
        .filter(|line| !line.starts_with("```") && !line.starts_with('#'))
        .map(str::to_owned)
        .collect();
    let begin = numbers.below(lines.len());
    lines = lines.into_iter().skip(begin).take(25).collect();
    for _ in 0..=numbers.below(6) {
        if lines.is_empty() {
            break;
        }
        let at = numbers.below(lines.len());
        match numbers.below(7) {
            0 => drop(lines.remove(at)),
            1 => lines.insert(at, lines[at].clone()),
            2 => lines.insert(at, "    ".repeat(numbers.below(4)) + lines[at].clone().trim_start()),
            3 => {
                let other = numbers.below(lines.len());
                lines.swap(at, other);
            }
            4 => {
                let cut: String = lines[at].chars().take(numbers.below(40)).collect();
                lines[at] = cut;
            }
            5 => {
                let count = lines[at].chars().count();
                let place = numbers.below(count + 1);
                let piece = PIECES[numbers.below(PIECES.len())];
                lines[at] = lines[at].chars().take(place).collect::<String>()
                    + piece
                    + &lines[at].chars().skip(place).collect::<String>();
            }
            _ => {
                let other = &texts[numbers.below(texts.len())];
                let line = other.lines().nth(numbers.below(60)).unwrap_or_default().to_owned();
                lines.insert(at, line);
            }
        }
    }
    lines.join("\n")
}

/// Number of mutations and the generator: `MEMFIT_MUTATIONS` increases the number and changes the seed.
fn mutations() -> (usize, Numbers) {
    let asked = std::env::var("MEMFIT_MUTATIONS").ok().map(|count| count.parse().unwrap());
    asked.map_or((1500, Numbers(1)), |count| (count, Numbers(count as u64)))
}

#[test]
fn mutated_python_is_answered() {
    let texts = specifications();
    let (count, mut numbers) = mutations();
    for _ in 0..count {
        let text = mutated(&texts, &mut numbers);
        let source = check("mutated.py", &text);
        for finding in &source.findings {
            assert!(finding.span.is_some_and(|span| span.end as usize <= text.len()));
        }
    }
}

#[test]
fn fixes_of_mutated_python_are_held_to_what_they_promise() {
    let texts = specifications();
    let mut numbers = Numbers(2);
    let config = Config { select: vec!["all".to_owned()], ..Config::default() };
    for _ in 0..200 {
        let text = mutated(&texts, &mut numbers);
        let source = check("mutated.py", &text);
        let applied = source.fix_all(true, &config).unwrap();
        let after = check("mutated.py", &applied.text);
        assert!(after.findings.len() <= source.findings.len(), "{text}\n---\n{}", applied.text);
    }
}

#[test]
fn a_file_of_thirty_thousand_lines_is_read() {
    let mut text = String::from("import torch\n");
    for number in 0..30_000_u32 {
        text.push_str(&format!("x{} = model(x{}).detach()\n", number % 100, number % 77));
    }
    text.push_str("with torch.no_grad:\n    pass\n");
    let source = check("long.py", &text);
    assert_eq!(
        source.findings.last().map(|finding| (finding.rule, finding.start.line)),
        Some(("no-grad-not-called", 30_002))
    );
}

#[test]
fn deep_nesting_ends_with_an_answer_or_a_message() {
    let blocks: String = (0..1000).map(|depth| format!("{}for x in torch.y:\n", " ".repeat(depth))).collect();
    let calls = format!("import torch\ny = {}x{}\n", "torch.f(".repeat(1000), ")".repeat(1000));
    let brackets = format!("import torch\ny = {}\n", "[".repeat(1000));
    let sums = format!("import torch\ny = {}1\n", "x + ".repeat(15_000));
    for text in [blocks + &" ".repeat(1000) + "pass\n", calls, brackets, sums] {
        check("deep.py", &text);
    }
    let tower = format!("import torch\ny = {}1\n", "-".repeat(200_000));
    let source = check("tower.py", &tower);
    assert!(source.problems[0].message.contains("nested too deeply"));
    assert_eq!(source.problems[0].start.map(|start| start.line), Some(2));
}

#[test]
fn functions_that_call_each_other_end() {
    let mut text = String::from("import torch\n");
    for number in 0..2000_u32 {
        text.push_str(&format!(
            "def f{number}(x):\n    f{}(x)\n    return f{}(x.backward())\n",
            number + 1,
            number.saturating_sub(1)
        ));
    }
    text.push_str("def loop(x):\n    return loop(loop(x))\nfor y in z:\n    f0(y)\n    loop(y)\n");
    check("calls.py", &text);
}

#[test]
fn broken_documents_are_told() {
    for text in [
        "",
        "{",
        "[]",
        "{\"cells\": 3}",
        "{\"cells\": [{\"cell_type\": \"code\", \"source\": [\"torch \\ud800\"]}]}",
    ] {
        check("broken.ipynb", text);
    }
    for text in
        ["```python\ntorch", "```python", "~~~py\nimport torch\n```\n", "> ```python\n> torch.zeros(\n> ```"]
    {
        check("broken.md", text);
    }
}
