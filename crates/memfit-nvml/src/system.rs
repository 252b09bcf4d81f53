//! Initialisation, shutdown, and facts about the machine as a whole.

#![allow(unsafe_code, reason = "calls are exported under NVML's names")]

use std::ffi::c_char;

use memfit_channel::proc;

use crate::boundary::{Checked, Nvml, write_text};
use crate::cards;
use crate::status::{self, Outcome, Status};
use memfit_abi::{Out, entry_points};

/// Newest CUDA release whose lists this build has: the driver is as new.
pub(crate) const CUDA_VERSION: i32 = 13_020;

/// Driver branch of that release; no driver with this number was ever published.
pub(crate) const DRIVER_VERSION: &str = "595.00";

/// Path of the program that a process runs.
pub(crate) fn process_name(pid: u32) -> Outcome<String> {
    let line = proc::command_line(pid).map_err(|_| Status::NOT_FOUND)?;
    Ok(line.first().map(|word| word.to_string_lossy().into_owned()).unwrap_or_default())
}

/// `nvmlErrorString`: never null.
#[allow(non_snake_case, reason = "exported names are NVML's")]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlErrorString(code: i32) -> *const c_char {
    status::text(code).as_ptr()
}

entry_points! { Nvml;
    fn nvmlInit() {
        cards::initialize()
    }

    fn nvmlInit_v2() {
        cards::initialize()
    }

    fn nvmlInitWithFlags(_flags: u32) {
        cards::initialize()
    }

    fn nvmlShutdown() {
        cards::shut_down()
    }

    fn nvmlSystemGetCudaDriverVersion(version: Out<i32>) {
        version.write_value(CUDA_VERSION)
    }

    fn nvmlSystemGetCudaDriverVersion_v2(version: Out<i32>) {
        version.write_value(CUDA_VERSION)
    }

    fn nvmlSystemGetDriverVersion(text: Out<u8>, length: u32) {
        cards::check()?;
        write_text(text, DRIVER_VERSION, length)
    }

    fn nvmlSystemGetNVMLVersion(text: Out<u8>, length: u32) {
        cards::check()?;
        write_text(text, &format!("{}.{DRIVER_VERSION}", CUDA_VERSION / 1000), length)
    }

    fn nvmlSystemGetProcessName(pid: u32, text: Out<u8>, length: u32) {
        cards::check()?;
        write_text(text, &process_name(pid)?, length)
    }
}
