//! `nvidia-smi` on the virtual machine: NVML's answers, in the layouts that scripts parse.

#![allow(
    unsafe_code,
    reason = "the command is an exported function, called by a script in the run directory"
)]

mod arguments;
mod fields;
mod now;
mod report;
mod table;

use std::ffi::{CStr, c_char};
use std::io::Write as _;

use crate::cards::{self, Card};
use crate::devices;
use crate::status::{Outcome, Status};
use arguments::{Arguments, Wanted};

/// Exit status of a usage error.
const USAGE: i32 = 2;
/// Exit status if the output could not be written.
const UNWRITTEN: i32 = 1;

/// A failure with its message and exit status.
#[derive(Debug, PartialEq, Eq)]
struct Failure {
    status: i32,
    message: String,
}

impl Failure {
    fn usage(message: impl Into<String>) -> Self {
        Self { status: USAGE, message: message.into() }
    }
}

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        let message = if status == Status::DRIVER_NOT_LOADED {
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA driver is installed and running."
                .to_owned()
        } else {
            crate::status::text(status.0).to_string_lossy().into_owned()
        };
        Self { status: status.0, message }
    }
}

/// Runs `nvidia-smi` with these arguments, without the program's own name, and returns its exit status.
///
/// # Safety
/// `argv` must lead to `argc` NUL-terminated strings.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn memfit_nvidia_smi(argc: i32, argv: *const *const c_char) -> i32 {
    let count = usize::try_from(argc).unwrap_or(0);
    let mut words = Vec::new();
    for index in 0..count {
        // SAFETY: the caller guarantees this many strings.
        let word = unsafe { CStr::from_ptr(*argv.add(index)) };
        words.push(word.to_string_lossy().into_owned());
    }
    std::panic::catch_unwind(|| run(&words)).unwrap_or(Status::UNKNOWN.0)
}

fn run(words: &[String]) -> i32 {
    let failed = |failure: Failure| {
        let _gone = writeln!(std::io::stdout(), "{}", failure.message);
        failure.status
    };
    let arguments = match Arguments::parse(words) {
        Ok(arguments) => arguments,
        Err(failure) => return failed(failure),
    };
    loop {
        let text = match write_output(&arguments) {
            Ok(text) => text,
            Err(failure) => return failed(failure),
        };
        let written = match &arguments.file {
            Some(path) => std::fs::write(path, &text),
            None => std::io::stdout().write_all(text.as_bytes()),
        };
        if written.is_err() {
            return UNWRITTEN;
        }
        let Some(pause) = arguments.pause else { return 0 };
        std::thread::sleep(pause);
    }
}

fn write_output(arguments: &Arguments) -> Result<String, Failure> {
    cards::initialize()?;
    let text = output(arguments);
    cards::shut_down()?;
    text
}

fn output(arguments: &Arguments) -> Result<String, Failure> {
    let cards = selected_cards(arguments)?;
    match &arguments.wanted {
        Wanted::Table => Ok(table::table(&cards)?),
        Wanted::List => Ok(report::list(&cards)),
        Wanted::Report { sections } => Ok(report::report(&cards, sections)?),
        Wanted::Cards { fields } => fields::card_lines(&cards, fields, arguments.style),
        Wanted::Processes { fields } => fields::process_lines(&cards, fields, arguments.style),
        Wanted::Help => Ok(arguments::HELP.to_owned()),
    }
}

/// Devices that `-i` selects, by index, UUID or PCI address; all of them without it.
fn selected_cards(arguments: &Arguments) -> Result<Vec<Card>, Failure> {
    if arguments.cards.is_empty() {
        return Ok(cards::all_cards()?.collect());
    }
    let by_name = |name: &String| -> Result<Card, Failure> {
        let found: Outcome<Card> = match name.parse::<usize>() {
            Ok(index) => cards::card_at(index),
            Err(_) if name.contains(':') => devices::by_bus_id(name),
            Err(_) => devices::by_uuid(name),
        };
        found
            .map_err(|_| Failure { status: Status::NOT_FOUND.0, message: "No devices were found".to_owned() })
    };
    arguments.cards.iter().map(by_name).collect()
}

/// Bytes in whole MiB, as the command shows them.
const fn mebibytes(bytes: u64) -> u64 {
    bytes >> 20
}
