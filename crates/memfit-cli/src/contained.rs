//! Verbs that run a script, in a container: always where PyTorch has no CUDA builds, elsewhere on request.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::process::Command;

use memfit_container::{Call, ContainerError, Engine, Host, INSIDE, default_image};
use memfit_run::preflight;

use crate::args::{ScriptArgs, Verb};
use crate::settings::Settings;
use crate::{CliError, Exit, Printer, VERSION};

/// The option that asks for a container.
const OPTION: &str = "--container";
/// The engines' own exit status for what went wrong before the command began.
const NOT_STARTED: i32 = 125;

/// The image in which scripts run.
pub(crate) struct Image {
    /// Its name.
    pub(crate) name: String,
    /// `true` if it is memfit's own.
    own: bool,
}

impl Image {
    /// The image that an option or the settings name; without a name, memfit's own.
    pub(crate) fn named(option: Option<&str>, settings: &Settings) -> Self {
        let names = [option, settings.container.as_deref()];
        match names.into_iter().flatten().find(|name| !name.is_empty()) {
            Some(name) => Self { name: name.to_owned(), own: false },
            None => Self { name: default_image(VERSION), own: true },
        }
    }

    /// The engine that is installed and has the image.
    pub(crate) fn engine(&self) -> Result<Engine, ContainerError> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        Engine::with_image(&path, &self.name, self.own)
    }
}

/// What of a verb's arguments a container needs.
struct Contained<'args> {
    /// Value of `--container`; empty for memfit's own image.
    option: Option<&'args str>,
    /// The training command.
    command: &'args [OsString],
}

impl<'args> Contained<'args> {
    /// Returns `None` for verbs that run no script.
    fn of_verb(verb: &'args Verb) -> Option<Self> {
        let with = |script: &'args ScriptArgs, command| Self { option: script.container.as_deref(), command };
        match verb {
            Verb::Run(args) => Some(with(&args.script, &args.command.words)),
            Verb::Plan(args) => Some(with(&args.script, &args.command.words)),
            Verb::Cards(args) => Some(with(&args.script, &args.command.words)),
            Verb::Shrink(args) => Some(with(&args.script, &args.command.words)),
            Verb::Ci(args) => Some(with(&args.script, &[])),
            // The command follows its option without a separator, so it is handed on as it was typed.
            Verb::Data(args) if !args.loader.is_empty() => Some(Self { option: None, command: &[] }),
            _ => None,
        }
    }
}

/// Runs a verb in a container if it has to be or is asked to be. Returns `None` if it is to run here.
/// `words` are the arguments as typed, after the program's name.
pub(crate) fn run(
    verb: &Verb,
    words: &[OsString],
    settings: &Settings,
    printer: &Printer,
) -> Option<Result<Exit, CliError>> {
    let contained = Contained::of_verb(verb)?;
    let asked = contained.option.is_some() || settings.container.is_some();
    let needed = preflight::system().is_err();
    let inside = std::env::var_os(INSIDE).is_some();
    (!inside && (asked || needed))
        .then(|| start(&Image::named(contained.option, settings), contained.command, words, printer))
}

fn start(
    image: &Image,
    command: &[OsString],
    words: &[OsString],
    printer: &Printer,
) -> Result<Exit, CliError> {
    let engine = image.engine()?;
    let folder = std::env::current_dir().map_err(CliError::io("find", PathBuf::from(".")))?;
    let host = Host::here(folder);
    let (own, command) = split(words, command);
    let call = Call::new(engine, &image.name, &host, &own, command)?;
    if let Some(replaced) = &call.replaced {
        printer.remark(&format!("in the container, its own program takes the place of `{replaced}`"));
    }
    let failed = |source| ContainerError::Start { engine, source };
    let status = Command::new(engine.program()).args(call.command_line()).status().map_err(failed)?;
    match status.code() {
        Some(NOT_STARTED) => Err(ContainerError::NotStarted { engine }.into()),
        Some(code) => Ok(Exit::Command(u8::try_from(code).unwrap_or(u8::MAX))),
        None => Ok(Exit::NoAnswer),
    }
}

/// Splits the words into memfit's own, without `--container`, and the training command.
fn split<'words>(words: &[OsString], command: &'words [OsString]) -> (Vec<OsString>, &'words [OsString]) {
    let mut own = &words[..words.len() - command.len().min(words.len())];
    if own.last().is_some_and(|word| word == "--") {
        own = &own[..own.len() - 1];
    }
    (own.iter().filter(|word| !asks_for_container(word)).cloned().collect(), command)
}

fn asks_for_container(word: &OsStr) -> bool {
    word.to_str()
        .and_then(|word| word.strip_prefix(OPTION))
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<OsString> {
        text.split_whitespace().map(Into::into).collect()
    }

    #[test]
    fn the_option_goes_and_the_scripts_own_stays() {
        let command = words("python train.py --container=x -- y");
        for typed in [
            "run --container --gpu t4 -- python train.py --container=x -- y",
            "run --gpu t4 --container=mine python train.py --container=x -- y",
        ] {
            let (own, rest) = split(&words(typed), &command);
            assert_eq!((own, rest), (words("run --gpu t4"), command.as_slice()), "{typed}");
        }
    }
}
