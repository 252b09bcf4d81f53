//! Checks the option tables of the guides that have one against the command's options. `MEMFIT_UPDATE_DOCS=1
//! cargo test -p memfit-cli documented` writes them.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use clap::CommandFactory as _;

use super::Args;

/// Options of a verb as a Markdown table for a guide.
fn table(verb: &str) -> String {
    let command = Args::command();
    let command = command.find_subcommand(verb).unwrap();
    let mut table = String::from("| option | |\n|---|---|\n");
    for argument in command.get_arguments().filter(|argument| !argument.is_positional()) {
        let Some(long) = argument.get_long().filter(|long| *long != "help") else { continue };
        let short = argument.get_short().map(|short| format!("`-{short}`, ")).unwrap_or_default();
        let takes = argument.get_action().takes_values();
        let value = argument.get_value_names().filter(|_| takes).and_then(<[_]>::first).map(|value| {
            let optional = argument.get_num_args().is_some_and(|number| number.min_values() == 0);
            match (optional, argument.is_require_equals_set()) {
                (true, true) => format!("[={value}]"),
                (true, false) => format!(" [{value}]"),
                (false, true) => format!("={value}"),
                (false, false) => format!(" {value}"),
            }
        });
        let help = argument.get_help().unwrap().to_string();
        let choices: Vec<_> =
            argument.get_possible_values().iter().map(|value| format!("`{}`", value.get_name())).collect();
        let described = choices.iter().all(|choice| help.contains(choice.as_str()));
        let choices = if takes && !described { format!(": {}", choices.join(", ")) } else { String::new() };
        let help = help.trim_end_matches('.');
        let _ = writeln!(
            table,
            "| {short}`--{long}{}` | {}{choices} |",
            value.unwrap_or_default(),
            help.replace('|', "\\|").replace('\n', " ")
        );
    }
    table
}

fn guide(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name)
}

#[test]
fn option_tables_are_complete() {
    for (verb, name) in [
        ("run", "run.md"),
        ("calibrate", "calibrate.md"),
        ("cards", "cards.md"),
        ("shrink", "shrink.md"),
        ("ci", "ci.md"),
    ] {
        let (begin, end) = (format!("<!-- options of {verb} -->\n\n"), "\n<!-- end of options -->");
        let path = guide(name);
        let text = std::fs::read_to_string(&path).unwrap();
        let (before, rest) = text.split_once(&begin).unwrap();
        let (_, after) = rest.split_once(end).unwrap();
        let wanted = format!("{before}{begin}{}{end}{after}", table(verb));
        if std::env::var_os("MEMFIT_UPDATE_DOCS").is_some() {
            std::fs::write(&path, &wanted).unwrap();
        } else {
            assert_eq!(text, wanted, "docs/{name} does not list what `memfit {verb}` takes");
        }
    }
}
