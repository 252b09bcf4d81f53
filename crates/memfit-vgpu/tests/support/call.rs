//! Calling an entry point by its listed prototype.

use std::ffi::{c_char, c_void};

/// The bytes of one argument, as wide as the widest structure that is passed by value.
#[derive(Clone, Copy)]
#[repr(C, align(16))]
pub(crate) struct Argument([u8; 256]);

impl Argument {
    /// An argument with these bits.
    pub(crate) fn new<T: Copy>(value: T) -> Self {
        assert!(size_of::<T>() <= 256);
        let mut bytes = [0; 256];
        // SAFETY: the value fits, and is copied by its bytes.
        unsafe { bytes.as_mut_ptr().cast::<T>().write_unaligned(value) };
        Self(bytes)
    }

    /// The value, read as a type whose every bit pattern is valid: the shapes use numbers, pointers and plain structures.
    fn value<T>(&self) -> T {
        assert!(size_of::<T>() <= 256);
        // SAFETY: the bytes are there, and any of them are a valid `T`.
        unsafe { self.0.as_ptr().cast::<T>().read_unaligned() }
    }
}

/// What a call returned.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Answer {
    /// Nothing.
    Void,
    /// A number, a status or an address.
    Number(i64),
    /// A floating-point number.
    Float(f64),
    /// A structure.
    Structure,
}

macro_rules! answers {
    ($($from:ty),*) => {$(
        impl From<$from> for Answer {
            fn from(value: $from) -> Self {
                Self::Number(value as i64)
            }
        }
    )*};
}
answers!(u8, u16, u32, i32, u64, i64, usize, *mut c_void, *const c_char);

impl From<()> for Answer {
    fn from((): ()) -> Self {
        Self::Void
    }
}

impl From<f32> for Answer {
    fn from(value: f32) -> Self {
        Self::Float(value.into())
    }
}

impl From<f64> for Answer {
    fn from(value: f64) -> Self {
        Self::Float(value)
    }
}

#[repr(C)]
struct Complex<T>(T, T);

impl<T: Into<f64>> From<Complex<T>> for Answer {
    fn from(value: Complex<T>) -> Self {
        Self::Float(value.0.into())
    }
}

#[repr(C)]
struct Structure<T>(T);

impl<T> From<Structure<T>> for Answer {
    fn from(_: Structure<T>) -> Self {
        Self::Structure
    }
}

/// Calls a function of one shape.
pub(crate) type Caller = unsafe fn(*const c_void, &[Argument]) -> Answer;

/// The caller for an entry point, by its listed prototype.
pub(crate) fn caller(name: &str) -> Option<Caller> {
    generated::shapes().iter().find(|(each, _)| *each == name).map(|(_, caller)| *caller)
}

mod generated {
    #![allow(
        unused_variables,
        clippy::all,
        clippy::pedantic,
        improper_ctypes_definitions,
        clippy::undocumented_unsafe_blocks,
        reason = "generated"
    )]
    use super::{Answer, Argument, Caller, Complex, Structure, c_char, c_void};
    include!(concat!(env!("OUT_DIR"), "/shapes.rs"));
    pub(super) fn shapes() -> &'static [(&'static str, Caller)] {
        SHAPES
    }
}
