//! The API boundary: return codes of NVML's calls, and checks of their arguments.

use std::ffi::c_char;

use memfit_abi::{Api, In, Out};

use crate::{
    status::{Outcome, Status},
    tally,
};

/// NVML's API.
pub(crate) struct Nvml;

impl Api for Nvml {
    type Outcome = Outcome;

    fn to_status(self, outcome: Outcome) -> i32 {
        outcome.map_or_else(|status| status.0, |()| 0)
    }

    fn panicked(self, name: &str) -> i32 {
        tally::count(&format!("{name} (internal error)"));
        Status::UNKNOWN.0
    }
}

/// Checked access to a caller's pointer: null is an invalid argument.
pub(crate) trait Checked<T> {
    /// Writes the value; an error if the pointer is null.
    fn write_value(self, value: T) -> Outcome;

    /// Writes one value of an array.
    fn write_value_at(self, index: usize, value: T) -> Outcome;

    /// Reads the value of a parameter that is read and written.
    fn read_value(self) -> Outcome<T>;
}

impl<T: Copy> Checked<T> for Out<T> {
    fn write_value(self, value: T) -> Outcome {
        self.write_value_at(0, value)
    }

    fn write_value_at(self, index: usize, value: T) -> Outcome {
        if self.is_null() {
            return Err(Status::INVALID_ARGUMENT);
        }
        self.set_at(index, value);
        Ok(())
    }

    fn read_value(self) -> Outcome<T> {
        self.get().ok_or(Status::INVALID_ARGUMENT)
    }
}

/// Writes a NUL-terminated string into a buffer of `length` bytes; an error if it does not fit.
pub(crate) fn write_text(place: Out<u8>, text: &str, length: u32) -> Outcome {
    if place.is_null() {
        return Err(Status::INVALID_ARGUMENT);
    }
    if text.len() >= length as usize {
        return Err(Status::INSUFFICIENT_SIZE);
    }
    place.set_text(text, length as usize);
    Ok(())
}

/// Reads a string that the caller lends.
pub(crate) fn read_text(text: In<c_char>) -> Outcome<String> {
    text.text().ok_or(Status::INVALID_ARGUMENT)
}
