//! The command `memfit`: arguments, dispatch and output.
//!
//! Owns the arguments ([`args`](mod@args)), the settings files, the exit status and all output (one
//! [`Printer`]). It does not know how a script is run, how memory is simulated or analysed, or how a report
//! is rendered: it calls the crates that do, and passes wire types to renderers.

mod args;
mod calibrate;
mod cause_pages;
mod commands;
mod confidential;
mod contained;
mod error;
mod input;
mod plan;
mod printer;
mod request;
mod settings;

use std::ffi::OsString;

use clap::Parser as _;
use memfit_report::wire::Verdict;

pub use error::{CliError, Hint};
pub use memfit_run::Home;
pub use printer::Printer;

use crate::args::{Args, Verb};
use crate::printer::Colour;
use crate::settings::Settings;

/// Exit of the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// It fits, or nothing was found.
    Good,
    /// It does not fit, or something was found.
    BadNews,
    /// There is no answer.
    NoAnswer,
    /// The exit status of a command run on behalf of the user.
    Command(u8),
}

impl Exit {
    /// The exit status.
    pub const fn code(self) -> u8 {
        match self {
            Self::Good => 0,
            Self::BadNews => 1,
            Self::NoAnswer => 2,
            Self::Command(status) => status,
        }
    }
}

impl From<Verdict> for Exit {
    fn from(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Fits => Self::Good,
            Verdict::Oom => Self::BadNews,
            Verdict::Unknown | Verdict::Error => Self::NoAnswer,
        }
    }
}

/// Runs the command with these arguments; the first is the program's name.
pub fn main(arguments: impl IntoIterator<Item = OsString>, home: &Home) -> Exit {
    let exit = answer(arguments, home);
    match printer::lost_answer() {
        None => exit,
        Some(error) => Printer::new(Colour::Auto, false).error(&CliError::Output(error)),
    }
}

fn answer(arguments: impl IntoIterator<Item = OsString>, home: &Home) -> Exit {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let args = match Args::try_parse_from(&arguments) {
        Ok(args) => args,
        Err(error) => return Printer::new(Colour::Auto, false).usage(&error),
    };
    let printer = Printer::new(args.color, args.quiet);
    // An editor's server loads the settings of each file, and reports their errors to the editor.
    let isolated = args.isolated || matches!(args.verb, Verb::Server);
    let settings = match Settings::load(isolated) {
        Ok(settings) => settings,
        Err(error) => return printer.error(&error),
    };
    let words = arguments.get(1..).unwrap_or_default();
    if let Some(outcome) = contained::run(&args.verb, words, &settings, &printer) {
        return outcome.unwrap_or_else(|error| printer.error(&error));
    }
    let outcome = match args.verb {
        Verb::Run(args) => return commands::run(*args, &settings, home, &printer),
        Verb::Plan(args) => return commands::plan(*args, &settings, home, &printer),
        Verb::Launch(args) => commands::launch(&args, home, &printer),
        Verb::Cards(args) => return commands::cards(&args, &settings, home, &printer),
        Verb::Shrink(args) => return commands::shrink(&args, &settings, home, &printer),
        Verb::Ci(args) => return commands::ci(&args, &settings, home, &printer),
        Verb::Explain(args) => commands::explain(&args, &settings, &printer),
        Verb::Replay(args) => commands::replay(&args, &settings, &printer),
        Verb::Check(args) => commands::check(&args, &settings, &printer),
        Verb::Server => commands::server(args.isolated),
        Verb::Rule(args) => commands::rule(&args, &settings, &printer),
        Verb::Data(args) if !args.loader.is_empty() => commands::data_loader(args, &settings, home, &printer),
        Verb::Data(args) => commands::data(&args, &settings, &printer),
        Verb::Watch(args) => commands::watch(&args, &settings, &printer),
        Verb::Gpus(args) => commands::gpus(&args, &settings, &printer),
        Verb::Calibrate(args) => commands::calibrate(&args, &settings, home, &printer),
        Verb::Doctor(args) => commands::doctor(&args, &settings, home, &printer),
        Verb::Convert(args) => commands::convert(&args, &printer),
        Verb::View(args) => commands::view(&args, &printer),
        Verb::Completions(args) => commands::completions(&args, &printer),
    };
    outcome.unwrap_or_else(|error| printer.error(&error))
}

/// The version of this build.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
