//! Pointers from C callers: out-parameters to write, arrays to read.
//!
//! An entry point must trust its caller, as every C library does. These types concentrate that trust. They
//! have the layout of pointers, so a C caller creates them by passing a pointer; any other code that creates
//! one from an address states with `unsafe` why it may be dereferenced. They check what can be checked: null.

#![allow(unsafe_code, reason = "pointers of C callers are followed here")]

use std::ffi::{CStr, c_char, c_void};

/// A pointer that is passed on or stored, and never dereferenced.
pub type Ptr = *mut c_void;

/// An out-parameter.
#[repr(transparent)]
pub struct Out<T>(*mut T);

impl<T> Clone for Out<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Out<T> {}

impl<T> Out<T> {
    /// Returns `true` for a null pointer.
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// Writes the value; does nothing if the pointer is null.
    pub fn set(self, value: T) {
        self.set_at(0, value);
    }

    /// Writes the value; returns `false` if the pointer is null.
    pub fn write(self, value: T) -> bool {
        self.set_at(0, value);
        !self.is_null()
    }

    /// Writes several consecutive values; does nothing if the pointer is null.
    pub fn set_all(self, values: impl IntoIterator<Item = T>) {
        values.into_iter().enumerate().for_each(|(index, value)| self.set_at(index, value));
    }

    /// A null out-parameter: writes to it are dropped.
    pub fn nowhere() -> Self {
        Self(std::ptr::null_mut())
    }

    /// Writes one value of an array; does nothing if the pointer is null.
    pub fn set_at(self, index: usize, value: T) {
        if !self.0.is_null() {
            // SAFETY: not null, and C's contract for an out-parameter is writable memory; alignment is not
            // promised.
            unsafe { self.0.add(index).write_unaligned(value) };
        }
    }

    /// Reinterprets the pointer as another type, which must be no larger.
    pub fn cast<U>(self) -> Out<U> {
        const { assert!(size_of::<U>() <= size_of::<T>(), "the caller vouched for less room") };
        Out(self.0.cast())
    }

    /// Address of the out-parameter.
    pub fn address(self) -> u64 {
        self.0 as u64
    }

    /// Creates the out-parameter at an address that a C caller passed as a number or inside a structure.
    ///
    /// # Safety
    /// The address must be zero, or writable for as many `T`s as will be written.
    pub unsafe fn from_address(address: u64) -> Self {
        Self(address as *mut T)
    }
}

impl<T: Copy> Out<T> {
    /// Reads the value, for a parameter that is read and written; `None` if the pointer is null.
    pub fn get(self) -> Option<T> {
        In(self.0.cast_const()).get()
    }
}

impl Out<u8> {
    /// Writes a NUL-terminated string into a buffer of `length` bytes, truncating it if necessary.
    pub fn set_text(self, text: &str, length: usize) {
        let kept = text.len().min(length.saturating_sub(1));
        for (index, byte) in text.bytes().take(kept).enumerate() {
            self.set_at(index, byte);
        }
        if length > 0 {
            self.set_at(kept, 0);
        }
    }
}

/// A value or an array that the caller lends for the duration of the call.
#[repr(transparent)]
pub struct In<T>(*const T);

impl<T> Clone for In<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for In<T> {}

impl<T: Copy> In<T> {
    /// Reads the value; `None` if the pointer is null.
    pub fn get(self) -> Option<T> {
        self.get_at(0)
    }

    /// Reads one value of an array; `None` if the pointer is null.
    pub fn get_at(self, index: usize) -> Option<T> {
        if self.0.is_null() {
            return None;
        }
        // SAFETY: not null, and the caller lends an array of at least as many values as the call's contract
        // says.
        Some(unsafe { self.0.add(index).read_unaligned() })
    }

    /// Reads the first `count` values of an array; empty if the pointer is null.
    pub fn list(self, count: usize) -> Vec<T> {
        (0..count).map_while(|index| self.get_at(index)).collect()
    }

    /// Creates the array at an address that a C caller passed as a number or inside a structure.
    ///
    /// # Safety
    /// The address must be zero, or readable for as many `T`s as will be read.
    pub unsafe fn from_address(address: u64) -> Self {
        Self(address as *const T)
    }
}

impl In<c_char> {
    /// Reads the string; `None` if the pointer is null.
    pub fn text(self) -> Option<String> {
        if self.0.is_null() {
            return None;
        }
        // SAFETY: not null, and the caller lends a NUL-terminated string.
        Some(unsafe { CStr::from_ptr(self.0) }.to_string_lossy().into_owned())
    }
}
