//! The boundary: what NVML's calls come to, and what they ask of what a caller hands in.

use std::ffi::c_char;

use memfit_abi::{Api, In, Out};

use crate::{
    status::{Outcome, Status},
    tally,
};

/// NVML's calls.
pub(crate) struct Nvml;

impl Api for Nvml {
    type Outcome = Outcome;

    fn answer(self, outcome: Outcome) -> i32 {
        outcome.map_or_else(|status| status.0, |()| 0)
    }

    fn panicked(self, name: &str) -> i32 {
        tally::count(&format!("{name} (internal error)"));
        Status::UNKNOWN.0
    }
}

/// What NVML's calls ask of what a caller hands in: null is an invalid argument.
pub(crate) trait Checked<T> {
    /// Writes the value, or says that there is nowhere to write.
    fn give(self, value: T) -> Outcome;

    /// Writes one value of an array.
    fn give_at(self, index: usize, value: T) -> Outcome;

    /// What is there, for a parameter that is read and written.
    fn given(self) -> Outcome<T>;
}

impl<T: Copy> Checked<T> for Out<T> {
    fn give(self, value: T) -> Outcome {
        self.give_at(0, value)
    }

    fn give_at(self, index: usize, value: T) -> Outcome {
        if self.is_null() {
            return Err(Status::INVALID_ARGUMENT);
        }
        self.put_at(index, value);
        Ok(())
    }

    fn given(self) -> Outcome<T> {
        self.get().ok_or(Status::INVALID_ARGUMENT)
    }
}

/// Writes a string and its NUL into room for `length` bytes, or says that it does not fit.
pub(crate) fn give_text(place: Out<u8>, text: &str, length: u32) -> Outcome {
    if place.is_null() {
        return Err(Status::INVALID_ARGUMENT);
    }
    if text.len() >= length as usize {
        return Err(Status::INSUFFICIENT_SIZE);
    }
    place.put_text(text, length as usize);
    Ok(())
}

/// A string that the caller lends.
pub(crate) fn text_of(text: In<c_char>) -> Outcome<String> {
    text.text().ok_or(Status::INVALID_ARGUMENT)
}
