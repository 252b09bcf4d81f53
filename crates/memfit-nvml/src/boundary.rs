//! The boundary: what a C caller hands in, and entry points that no panic leaves.

use std::ffi::{CStr, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::status::{Outcome, Status};
use crate::tally;

/// A place that the caller gave to write to. Only a C caller makes one, and it is believed but for null.
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

impl<T> Clone for Out<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Out<T> {}

impl<T: Copy> Out<T> {
    /// Writes the value, or says that there is nowhere to write.
    pub(crate) fn put(self, value: T) -> Outcome {
        self.put_at(0, value)
    }

    /// Writes one value of an array.
    pub(crate) fn put_at(self, index: usize, value: T) -> Outcome {
        if self.0.is_null() {
            return Err(Status::INVALID_ARGUMENT);
        }
        // SAFETY: not null, and C's contract for an out-parameter is writable room; alignment is not
        // promised.
        unsafe { self.0.add(index).write_unaligned(value) };
        Ok(())
    }

    /// What is there, for a parameter that is read and written.
    pub(crate) fn get(self) -> Outcome<T> {
        if self.0.is_null() {
            return Err(Status::INVALID_ARGUMENT);
        }
        // SAFETY: not null, and C's contract for such a parameter is an initialised value.
        Ok(unsafe { self.0.read_unaligned() })
    }
}

impl Out<u8> {
    /// Writes a string and its NUL into room for `length` bytes, or says that it does not fit.
    pub(crate) fn put_text(self, text: &str, length: u32) -> Outcome {
        if text.len() >= length as usize {
            return Err(if self.0.is_null() { Status::INVALID_ARGUMENT } else { Status::INSUFFICIENT_SIZE });
        }
        for (index, byte) in text.bytes().chain([0]).enumerate() {
            self.put_at(index, byte)?;
        }
        Ok(())
    }
}

/// A string that the caller lends.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct Text(*const c_char);

impl Text {
    /// The string; what is not UTF-8 in it is of no card.
    pub(crate) fn get(self) -> Outcome<String> {
        if self.0.is_null() {
            return Err(Status::INVALID_ARGUMENT);
        }
        // SAFETY: not null, and C's contract for a string is that it ends with NUL.
        Ok(unsafe { CStr::from_ptr(self.0) }.to_string_lossy().into_owned())
    }
}

/// Runs the body of an entry point.
pub(crate) fn enter(name: &str, body: impl FnOnce() -> Outcome) -> i32 {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => 0,
        Ok(Err(status)) => status.0,
        Err(_) => {
            tally::count(&format!("{name} (internal error)"));
            Status::UNKNOWN.0
        }
    }
}

/// Declares exported calls: `calls! { fn nvmlX(count: Out<u32>) { count.put(1) } }`.
macro_rules! calls {
    ($(
        $(#[$meta:meta])*
        fn $name:ident($($argument:ident: $kind:ty),* $(,)?) $body:block
    )*) => { $(
        $(#[$meta])*
        #[allow(non_snake_case, reason = "exported names are NVML's")]
        #[unsafe(no_mangle)]
        pub(crate) extern "C" fn $name($($argument: $kind),*) -> i32 {
            $crate::boundary::enter(stringify!($name), move || -> $crate::status::Outcome { $body })
        }
    )* };
}
pub(crate) use calls;
