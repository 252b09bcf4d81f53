//! What a C caller hands in: places to write to, arrays to read from.
//!
//! An entry point must believe its caller, as every C library does. These types put that belief in one place:
//! they have the layout of the pointers that they stand for, so that a C caller makes them by calling; any
//! other code that makes one out of an address says with `unsafe` why it may be followed. They check what can
//! be checked: null.

#![allow(unsafe_code, reason = "pointers of C callers are followed here")]

use std::ffi::{CStr, c_char, c_void};

/// A pointer that is passed on or remembered, and never followed.
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
    /// Whether there is nowhere to write.
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// Writes the value; does nothing where the caller passed null.
    pub fn put(self, value: T) {
        self.put_at(0, value);
    }

    /// Writes the value; false where the caller passed null.
    pub fn write(self, value: T) -> bool {
        self.put_at(0, value);
        !self.is_null()
    }

    /// Writes several values, one after the other; does nothing where the caller passed null.
    pub fn put_all(self, values: impl IntoIterator<Item = T>) {
        values.into_iter().enumerate().for_each(|(index, value)| self.put_at(index, value));
    }

    /// Nowhere: what is put there is dropped.
    pub fn nowhere() -> Self {
        Self(std::ptr::null_mut())
    }

    /// Writes one value of an array; does nothing where the caller passed null.
    pub fn put_at(self, index: usize, value: T) {
        if !self.0.is_null() {
            // SAFETY: not null, and C's contract for an out-parameter is writable room; alignment is not
            // promised.
            unsafe { self.0.add(index).write_unaligned(value) };
        }
    }

    /// The same place as another type, which must be no larger.
    pub fn cast<U>(self) -> Out<U> {
        const { assert!(size_of::<U>() <= size_of::<T>(), "the caller vouched for less room") };
        Out(self.0.cast())
    }

    /// The address.
    pub fn address(self) -> u64 {
        self.0 as u64
    }

    /// The out-parameter at an address that a C caller gave as a number or inside a structure.
    ///
    /// # Safety
    /// The address is zero, or as many `T`s may be written there as will be.
    pub unsafe fn from_address(address: u64) -> Self {
        Self(address as *mut T)
    }
}

impl<T: Copy> Out<T> {
    /// What is there, for a parameter that is read and written; nothing where the caller passed null.
    pub fn get(self) -> Option<T> {
        In(self.0.cast_const()).get()
    }
}

impl Out<u8> {
    /// Writes a string that ends with NUL into room for `length` bytes, cutting it if it must.
    pub fn put_text(self, text: &str, length: usize) {
        let kept = text.len().min(length.saturating_sub(1));
        for (index, byte) in text.bytes().take(kept).enumerate() {
            self.put_at(index, byte);
        }
        if length > 0 {
            self.put_at(kept, 0);
        }
    }
}

/// A value or an array that the caller lends for the time of the call.
#[repr(transparent)]
pub struct In<T>(*const T);

impl<T> Clone for In<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for In<T> {}

impl<T: Copy> In<T> {
    /// The value, unless the caller passed null.
    pub fn get(self) -> Option<T> {
        self.at(0)
    }

    /// One value of an array, unless the caller passed null.
    pub fn at(self, index: usize) -> Option<T> {
        if self.0.is_null() {
            return None;
        }
        // SAFETY: not null, and the caller lends an array of at least as many values as the call's contract
        // says.
        Some(unsafe { self.0.add(index).read_unaligned() })
    }

    /// The first `count` values of an array; none where the caller passed null.
    pub fn list(self, count: usize) -> Vec<T> {
        (0..count).map_while(|index| self.at(index)).collect()
    }

    /// The array at an address that a C caller gave as a number or inside a structure.
    ///
    /// # Safety
    /// The address is zero, or as many `T`s may be read there as will be.
    pub unsafe fn from_address(address: u64) -> Self {
        Self(address as *const T)
    }
}

impl In<c_char> {
    /// The string, unless the caller passed null.
    pub fn text(self) -> Option<String> {
        if self.0.is_null() {
            return None;
        }
        // SAFETY: not null, and the caller lends a string that ends with NUL.
        Some(unsafe { CStr::from_ptr(self.0) }.to_string_lossy().into_owned())
    }
}
