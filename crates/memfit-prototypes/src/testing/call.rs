//! Calls of entry points by their listed prototypes.

#![allow(unsafe_code, reason = "the test bench calls C functions")]

use std::collections::BTreeMap;
use std::ffi::{c_char, c_void};

/// Bytes of an argument, as wide as the widest structure that is passed by value.
#[derive(Clone, Copy)]
#[repr(C, align(16))]
pub struct Argument([u8; 512]);

impl Argument {
    /// Creates an argument with these bits.
    pub fn new<T: Copy>(value: T) -> Self {
        assert!(size_of::<T>() <= 512);
        let mut bytes = [0; 512];
        // SAFETY: the value fits, and is copied by its bytes.
        unsafe { bytes.as_mut_ptr().cast::<T>().write_unaligned(value) };
        Self(bytes)
    }

    /// Value as a type whose every bit pattern is valid: the shapes use numbers, pointers and plain
    /// structures.
    pub fn value<T>(&self) -> T {
        assert!(size_of::<T>() <= 512);
        // SAFETY: the bytes exist, and any bytes are a valid `T`.
        unsafe { self.0.as_ptr().cast::<T>().read_unaligned() }
    }
}

/// Result of a call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Answer {
    /// No value.
    Void,
    /// A number, a status or an address.
    Number(i64),
    /// A floating-point number.
    Float(f64),
    /// A structure.
    Structure,
}

/// Conversions from numbers that fit in an `i64`, and from those whose bits do.
macro_rules! answers {
    ($($exact:ty),*; $($bits:ty),*) => {
        $(impl From<$exact> for Answer {
            fn from(value: $exact) -> Self {
                Self::Number(value.into())
            }
        })*
        $(impl From<$bits> for Answer {
            fn from(value: $bits) -> Self {
                Self::Number(value as i64)
            }
        })*
    };
}
answers!(u8, u16, u32, i32, i64; u64, usize, *mut c_void, *const c_char);

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

/// Two floating-point numbers, passed like `cuComplex`.
#[repr(C)]
pub struct Complex<T>(T, T);

impl<T: Into<f64>> From<Complex<T>> for Answer {
    fn from(value: Complex<T>) -> Self {
        Self::Float(value.0.into())
    }
}

/// A structure that is passed by value.
#[repr(C)]
pub struct Structure<T>(T);

impl<T> From<Structure<T>> for Answer {
    fn from(_: Structure<T>) -> Self {
        Self::Structure
    }
}

/// A function that calls functions of one shape.
pub type Caller = unsafe fn(*const c_void, &[Argument]) -> Answer;

/// The table of callers generated for a crate, for [`Callers::new`]: `memfit_prototypes::callers!()`.
#[macro_export]
macro_rules! callers {
    () => {{
        #[allow(
            unused_variables,
            clippy::all,
            clippy::pedantic,
            improper_ctypes_definitions,
            reason = "generated"
        )]
        mod generated {
            use std::collections::BTreeMap;
            use std::ffi::{c_char, c_void};
            use $crate::testing::call::{Answer, Argument, Caller, Complex, Structure};
            include!(concat!(env!("OUT_DIR"), "/shapes.rs"));
            pub(super) fn shapes() -> &'static [(&'static str, Caller)] {
                SHAPES
            }
        }
        $crate::testing::call::Callers::new(generated::shapes())
    }};
}

/// Callers of a crate's lists, by name.
pub struct Callers(BTreeMap<&'static str, Caller>);

impl Callers {
    /// Creates the callers from the generated table.
    pub fn new(shapes: &[(&'static str, Caller)]) -> Self {
        Self(shapes.iter().copied().collect())
    }

    /// Caller for an entry point, by its listed prototype; `None` if no header declares its parameters.
    pub fn get(&self, name: &str) -> Option<Caller> {
        self.0.get(name).copied()
    }
}
