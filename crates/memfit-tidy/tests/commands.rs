//! Checks that commands in messages and documents work as they are printed.

mod common;

/// Verbs that run a script on a GPU, which has to be named.
const VERBS: &[&str] = &["memfit run ", "memfit plan ", "memfit shrink "];
/// How the interpreter is chosen, whatever the GPU is: nothing to type.
const INTERPRETER: &str = "memfit run -- python";

/// Commands in a line that have a script and no GPU. Those with an ellipsis show only a part, and those with
/// a placeholder may get the GPU from it.
fn without_gpu(line: &str) -> Vec<&str> {
    let starts = VERBS.iter().flat_map(|verb| line.match_indices(verb).map(|(start, _)| start));
    let commands = starts.map(|start| line[start..].split('`').next().unwrap_or_default());
    commands
        .filter(|command| command.contains(" -- ") && !command.contains(['…', '{']))
        .filter(|command| !command.contains("--gpu ") && !command.contains(" -g "))
        .filter(|command| command.trim() != INTERPRETER)
        .collect()
}

#[test]
fn a_command_that_needs_a_gpu_names_one() {
    let mut found = Vec::new();
    for file in common::files() {
        let extension = file.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
        let shown = ["crates", "docs", "python", "examples"].iter().any(|folder| file.starts_with(folder))
            || file.ends_with("README.md");
        let is_test = file.components().any(|part| part.as_os_str() == "tests");
        if !shown || is_test || !["rs", "py", "md", "toml"].contains(&extension) {
            continue;
        }
        for (number, line) in common::text(&file).unwrap_or_default().lines().enumerate() {
            found.extend(
                without_gpu(line).iter().map(|each| format!("{}:{}: {each}", file.display(), number + 1)),
            );
        }
    }
    assert!(found.is_empty(), "commands without a GPU: {found:#?}");
}

#[test]
fn the_search_finds_commands_without_a_gpu() {
    for (line, count) in [
        ("`memfit run -o run.memfit -- python train.py` makes one", 1),
        ("#   memfit run --plan FILE -- COMMAND     runs it", 1),
        ("`memfit run --gpu NAME -- python train.py`, `memfit plan -- python train.py`", 1),
        ("`memfit run -o FILE`, a dash -- and more", 0),
        ("`memfit run … -- script -qec python`", 0),
        ("[default: as in `memfit run -- python`]", 0),
    ] {
        assert_eq!(without_gpu(line).len(), count, "{line}");
    }
}
