//! The table of the levers that a plan can apply, for the documentation.

use std::fmt::Write as _;

use memfit_vocabulary::{Lever, Stage};

/// Levers in the order of their stages, one row each, as Markdown.
pub fn lever_table() -> String {
    let mut levers: Vec<Lever> =
        Lever::ALL.iter().copied().filter(|lever| lever.stage() != Stage::ByHand).collect();
    levers.sort_by_key(|lever| (lever.stage(), lever.name()));
    let mut table = String::from("| lever | value | what it does | label |\n|---|---|---|---|\n");
    for lever in levers {
        let docs = lever.declaration().docs;
        let value = if docs.value.is_empty() { String::new() } else { format!("{} ", docs.value) };
        let label = match docs.label {
            "" => lever.label().to_string(),
            more => format!("{} ({more})", lever.label()),
        };
        let _ = writeln!(table, "| `{lever}` | {value}| {} | {label} |", docs.effect);
    }
    table
}
