//! The table of the levers that a plan can apply, for the documentation.

use std::fmt::Write as _;

use memfit_vocabulary::{Lever, Stage};

/// Levers by what they change, a table each, as Markdown.
pub fn lever_table() -> String {
    let mut text = String::new();
    for (stage, heading) in STAGES {
        let mut levers: Vec<Lever> =
            Lever::ALL.iter().copied().filter(|lever| lever.stage() == stage).collect();
        levers.sort_by_key(|lever| lever.name());
        let _ =
            writeln!(text, "### {heading}\n\n| lever | value | what it does | label |\n|---|---|---|---|");
        for lever in levers {
            let docs = lever.declaration().docs;
            let value = if docs.value.is_empty() { String::new() } else { format!("{} ", docs.value) };
            let label = match docs.label {
                "" => lever.label().to_string(),
                more => format!("{} ({more})", lever.label()),
            };
            let _ = writeln!(text, "| `{lever}` | {value}| {} | {label} |", docs.effect);
        }
        text.push('\n');
    }
    text
}

/// Stages with levers that a plan applies, and their headings.
const STAGES: [(Stage, &str); 5] = [
    (Stage::Environment, "Levers of the allocator"),
    (Stage::Data, "Levers of the data loader"),
    (Stage::Model, "Levers of the model"),
    (Stage::Optimizer, "Levers of the optimizer"),
    (Stage::Step, "Levers of the step: precision and micro-batches"),
];
