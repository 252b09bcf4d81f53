//! The stand-alone command `memfit`.
//!
//! Owns nothing: it hands its arguments to the library and ends with the status that comes back.

use std::process::ExitCode;

use memfit_cli::Home;

fn main() -> ExitCode {
    let exit = memfit_cli::main(std::env::args_os(), &Home::default());
    ExitCode::from(exit.code())
}
