//! The command `memfit`: arguments and dispatch, and the processes of a run.
//!
//! Owns what a user types ([`args`](mod@args)), the settings files, the exit status, all output (one [`Printer`]), and
//! the life of the processes that `memfit run` starts: set-up, watching, ending.
//! It must not know how memory is simulated or analysed, nor how a report looks: it gathers facts, asks the crates that
//! judge, and hands a wire type to a renderer.

mod args;
mod calibrate;
mod commands;
mod error;
mod explained;
mod input;
mod libraries;
mod plan;
mod printer;
mod run;
mod settings;
mod synthetic;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Parser as _;

pub use error::{CliError, Hint};
pub use printer::Printer;

use crate::args::{Args, Verb};
use crate::printer::Colour;
use crate::settings::Settings;

/// What the command was started from: the things that a stand-alone program and a Python package find differently.
#[derive(Clone, Debug, Default)]
pub struct Home {
    /// The interpreter that memfit is installed beside.
    pub python: Option<PathBuf>,
    /// A folder with the device libraries.
    pub libraries: Option<PathBuf>,
}

/// How the command ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// All well.
    Good,
    /// The answer is bad news.
    BadNews,
    /// The question could not be answered.
    NoAnswer,
}

impl Exit {
    /// The exit status.
    pub const fn code(self) -> u8 {
        match self {
            Self::Good => 0,
            Self::BadNews => 1,
            Self::NoAnswer => 2,
        }
    }
}

/// Runs the command with these arguments, the first of which is the program's name.
pub fn main(arguments: impl IntoIterator<Item = OsString>, home: &Home) -> Exit {
    let args = match Args::try_parse_from(arguments) {
        Ok(args) => args,
        Err(error) => return Printer::new(Colour::Auto, false).usage(&error),
    };
    let printer = Printer::new(args.color, args.quiet);
    // An editor's server asks for the settings of each file, and tells the editor what is wrong with them.
    let isolated = args.isolated || matches!(args.verb, Verb::Server);
    let settings = match Settings::load(isolated) {
        Ok(settings) => settings,
        Err(error) => return printer.error(&error),
    };
    let outcome = match args.verb {
        Verb::Run(args) => return commands::run(*args, &settings, home, &printer),
        Verb::Plan(args) => return commands::plan(*args, &settings, home, &printer),
        Verb::Explain(args) => commands::explain(&args, &settings, &printer),
        Verb::Replay(args) => commands::replay(&args, &settings, &printer),
        Verb::Check(args) => commands::check(&args, &settings, &printer),
        Verb::Server => commands::server(args.isolated),
        Verb::Rule(args) => commands::rule(&args, &settings, &printer),
        Verb::Data(args) => commands::data(&args, &settings, &printer),
        Verb::Watch(args) => commands::watch(&args, &settings, &printer),
        Verb::Gpus(args) => commands::gpus(&args, &settings, &printer),
        Verb::Calibrate(args) => commands::calibrate(&args, &settings, home, &printer),
        Verb::Doctor(args) => commands::doctor(&args, &settings, home, &printer),
        Verb::Convert(args) => commands::convert(&args, &printer),
        Verb::View(args) => commands::view(&args, &printer),
        Verb::Completions(args) => return commands::completions(&args, &printer),
    };
    outcome.unwrap_or_else(|error| printer.error(&error))
}

/// The version of this build.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
