//! `memfit completions SHELL`.

use clap::CommandFactory as _;

use crate::args::{Args, CompletionsArgs};
use crate::{Exit, Printer};

/// Prints a completion script.
pub(crate) fn completions(args: &CompletionsArgs, printer: &Printer) -> Exit {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Args::command(), "memfit", &mut script);
    printer.verbatim(&String::from_utf8_lossy(&script));
    Exit::Good
}
