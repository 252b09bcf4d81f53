//! What a C caller hands in and what it gets back: out-parameters, handles, and entry points that cannot unwind.
//!
//! An entry point must believe its caller, as every C library does. These types put that belief in one place: they have
//! the layout of the pointers that they stand for, only a C caller (or a test that acts as one) makes them, and they check
//! what can be checked: null, and a handle that is not of this kind or no longer alive.

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A pointer that is passed on or remembered, and never followed.
pub(crate) type Ptr = *mut c_void;

/// An out-parameter.
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

impl<T> Clone for Out<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Out<T> {}

impl<T> Out<T> {
    /// Writes the value; false where the caller passed null.
    pub(crate) fn put(self, value: T) -> bool {
        if self.0.is_null() {
            return false;
        }
        // SAFETY: not null, and C's contract for an out-parameter is a writable `T`; alignment is not promised.
        unsafe { self.0.write_unaligned(value) };
        true
    }

    /// Writes several values, one after the other; false where the caller passed null.
    pub(crate) fn put_all(self, values: impl IntoIterator<Item = T>) -> bool {
        if self.0.is_null() {
            return false;
        }
        for (index, value) in values.into_iter().enumerate() {
            // SAFETY: not null, and the caller made room for as many values as the call writes.
            unsafe { self.0.add(index).write_unaligned(value) };
        }
        true
    }

    /// Whether there is anywhere to write.
    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// Nowhere: what is put there is dropped.
    pub(crate) fn nowhere() -> Self {
        Self(std::ptr::null_mut())
    }

    /// The place that a caller's untyped pointer names.
    pub(crate) fn at(place: Ptr) -> Self {
        Self(place.cast())
    }
}

#[cfg(test)]
impl<T> Out<T> {
    /// An out-parameter that writes into `target`.
    pub(crate) fn to(target: &mut T) -> Self {
        Self(target)
    }
}

/// A value or an array that the caller lends for the time of the call.
#[repr(transparent)]
pub(crate) struct In<T>(*const T);

impl<T> Clone for In<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for In<T> {}

impl<T: Copy> In<T> {
    /// The value, unless the caller passed null.
    pub(crate) fn get(self) -> Option<T> {
        self.at(0)
    }

    /// One value of an array, unless the caller passed null.
    pub(crate) fn at(self, index: usize) -> Option<T> {
        if self.0.is_null() {
            return None;
        }
        // SAFETY: not null, and the caller lends an array of at least as many values as the call's contract says.
        Some(unsafe { self.0.add(index).read_unaligned() })
    }

    /// The value that a caller's untyped pointer names.
    pub(crate) fn at_address(place: Ptr) -> Self {
        Self(place.cast())
    }

    /// The first `count` values of an array; none where the caller passed null.
    pub(crate) fn list(self, count: usize) -> Vec<T> {
        (0..count).map_while(|index| self.at(index)).collect()
    }
}

#[cfg(test)]
impl<T> In<T> {
    /// What a caller lends.
    pub(crate) fn from(values: &[T]) -> Self {
        Self(values.as_ptr())
    }

    /// Nothing lent.
    pub(crate) fn null() -> Self {
        Self(std::ptr::null())
    }
}

/// What lies behind a [`Handle`].
struct Object<T> {
    cookie: u64,
    value: T,
}

/// A type of which handles are given out.
pub(crate) trait Kind {
    /// Tells objects of this type from all others.
    const COOKIE: u64;
}

/// An opaque pointer as the libraries give them out, to a `T` of ours.
#[repr(transparent)]
pub(crate) struct Handle<T>(*mut Object<T>);

impl<T> Clone for Handle<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Handle<T> {}

impl<T: Kind> Handle<T> {
    /// Gives out a new object.
    pub(crate) fn new(value: T) -> Self {
        Self(Box::into_raw(Box::new(Object { cookie: T::COOKIE, value })))
    }

    /// The object, unless the handle is null or of another kind.
    pub(crate) fn get<'a>(self) -> Option<&'a T> {
        if self.0.is_null() || !self.0.is_aligned() {
            return None;
        }
        // SAFETY: not null, aligned, and by C's contract a handle that one of these libraries gave out, so that at least
        // a cookie can be read there. The object lives until the caller destroys it, which it must not do during a call.
        let object = unsafe { &*self.0 };
        (object.cookie == T::COOKIE).then_some(&object.value)
    }

    /// Destroys the object; false where the handle is null or of another kind.
    pub(crate) fn destroy(self) -> bool {
        if self.get().is_none() {
            return false;
        }
        // SAFETY: `get` has found it alive, and the caller gives up the handle with this call. The cookie is spoilt first,
        // so that a second destruction is likely to be noticed.
        unsafe {
            (*self.0).cookie = 0;
            drop(Box::from_raw(self.0));
        }
        true
    }

    /// The handle of no object.
    pub(crate) fn null() -> Self {
        Self(std::ptr::null_mut())
    }
}

/// Runs an entry point's body; a panic in it is counted by the call's name and becomes the library's own failure.
pub(crate) fn guarded<R>(name: &str, failure: R, body: impl FnOnce() -> R) -> R {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
        crate::tally::refused(name);
        failure
    })
}

/// Declares exported functions: `fail CODE;` is what a call answers after a panic.
macro_rules! entry_points {
    (fail $failure:expr; $(
        $(#[$meta:meta])*
        fn $name:ident($($argument:ident: $kind:ty),* $(,)?) $body:block
    )*) => { $(
        $(#[$meta])*
        #[unsafe(no_mangle)]
        extern "C" fn $name($($argument: $kind),*) -> i32 {
            $crate::libraries::entry::guarded(stringify!($name), $failure, move || -> i32 { $body })
        }
    )* };
}
pub(crate) use entry_points;
