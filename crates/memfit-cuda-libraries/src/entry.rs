//! What the libraries' entry points have in common: handles of their own, and bodies that cannot unwind.

use std::panic::{AssertUnwindSafe, catch_unwind};

pub(crate) use memfit_abi::{In, Out, Ptr};

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
        // SAFETY: not null, aligned, and by C's contract a handle that one of these libraries gave out, so
        // that at least a cookie can be read there. The object lives until the caller destroys it,
        // which it must not do during a call.
        let object = unsafe { &*self.0 };
        (object.cookie == T::COOKIE).then_some(&object.value)
    }

    /// Destroys the object; false where the handle is null or of another kind.
    pub(crate) fn destroy(self) -> bool {
        if self.get().is_none() {
            return false;
        }
        // SAFETY: `get` has found it alive, and the caller gives up the handle with this call. The cookie is
        // spoilt first, so that a second destruction is likely to be noticed.
        unsafe {
            (*self.0).cookie = 0;
            drop(Box::from_raw(self.0));
        }
        true
    }

    /// Whether two handles are one and the same.
    pub(crate) fn is(self, other: Self) -> bool {
        std::ptr::eq(self.0, other.0)
    }

    /// The handle of no object.
    pub(crate) fn null() -> Self {
        Self(std::ptr::null_mut())
    }
}

/// Runs an entry point's body; a panic in it is counted by the call's name and becomes the library's own
/// failure.
pub(crate) fn guarded<R>(name: &str, failure: R, body: impl FnOnce() -> R) -> R {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
        memfit_cuda::card::refused(name);
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
            $crate::entry::guarded(stringify!($name), $failure, move || -> i32 { $body })
        }
    )* };
}
pub(crate) use entry_points;

/// What a library answers about its handles.
pub(crate) struct HandleStatus {
    /// All is well.
    pub(crate) success: i32,
    /// There is no such handle, or no card for one.
    pub(crate) not_initialized: i32,
    /// There is no place for the answer.
    pub(crate) invalid_value: i32,
}

impl HandleStatus {
    /// Gives out a handle; what the library takes outside the allocator is booked with the first.
    pub(crate) fn create<T: Kind + Default>(&self, place: Out<Handle<T>>) -> i32 {
        if place.is_null() {
            return self.invalid_value;
        }
        if !memfit_cuda::card::use_libraries() {
            return self.not_initialized;
        }
        place.put(Handle::new(T::default()));
        self.success
    }

    /// Takes a handle back.
    pub(crate) fn destroy<T: Kind>(&self, handle: Handle<T>) -> i32 {
        if handle.destroy() { self.success } else { self.not_initialized }
    }
}

/// Declares the two calls that give out a library's handles and take them back.
macro_rules! handle_calls {
    ($create:ident, $destroy:ident: $context:ty) => {
        const HANDLES: $crate::entry::HandleStatus = $crate::entry::HandleStatus {
            success: status::SUCCESS,
            not_initialized: status::NOT_INITIALIZED,
            invalid_value: status::INVALID_VALUE,
        };

        $crate::entry::entry_points! {
            fail status::INTERNAL_ERROR;

            /// Gives out a handle.
            fn $create(handle: Out<Handle<$context>>) { HANDLES.create(handle) }

            /// Takes a handle back.
            fn $destroy(handle: Handle<$context>) { HANDLES.destroy(handle) }
        }
    };
}
pub(crate) use handle_calls;
