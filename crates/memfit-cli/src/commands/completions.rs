//! `memfit completions SHELL`.

use std::io;

use clap::{Command, CommandFactory as _};
use clap_complete::{Generator, Shell};
use clap_complete_nushell::Nushell;
use clap_mangen::Man;

use crate::args::{Args, Completions, CompletionsArgs};
use crate::{CliError, Exit, Printer};

/// Prints a completion script, or the manual page.
pub(crate) fn completions(args: &CompletionsArgs, printer: &Printer) -> Result<Exit, CliError> {
    let text = match args.shell {
        Completions::Bash => script(Shell::Bash),
        Completions::Elvish => script(Shell::Elvish),
        Completions::Fish => script(Shell::Fish),
        Completions::Nushell => script(Nushell),
        Completions::Powershell => script(Shell::PowerShell),
        Completions::Zsh => script(Shell::Zsh),
        Completions::Man => page().map_err(CliError::Output)?,
    };
    printer.verbatim(&String::from_utf8_lossy(&text));
    Ok(Exit::Good)
}

fn script(shell: impl Generator) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "memfit", &mut script);
    script
}

/// One manual page for the command and all its verbs.
fn page() -> io::Result<Vec<u8>> {
    let mut command = Args::command();
    command.build();
    let verbs: Vec<Command> = command.get_subcommands().filter(|verb| is_told(verb)).cloned().collect();
    let mut page = Vec::new();
    let man = Man::new(command);
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    for verb in verbs {
        let name = verb.get_name().to_uppercase();
        let man = Man::new(verb);
        let mut part = Vec::new();
        man.render_synopsis_section(&mut part)?;
        man.render_description_section(&mut part)?;
        man.render_options_section(&mut part)?;
        let part = String::from_utf8_lossy(&part).replace(".SH ", ".SS ");
        page.extend_from_slice(format!(".SH {name}\n{part}").as_bytes());
    }
    Ok(page)
}

fn is_told(verb: &Command) -> bool {
    !verb.is_hide_set() && verb.get_name() != "help"
}
