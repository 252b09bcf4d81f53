//! The stand-alone command `memfit`.
//!
//! Owns nothing: it passes its arguments to the library and exits with the returned status.

use std::process::ExitCode;

use memfit_cli::Home;

fn main() -> ExitCode {
    let exit = memfit_cli::main(std::env::args_os(), &Home::default());
    ExitCode::from(exit.code())
}
