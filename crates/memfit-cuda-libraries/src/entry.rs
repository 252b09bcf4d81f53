//! What the libraries' entry points have in common: handles of their own, and bodies that cannot unwind.

use std::{marker::PhantomData, sync::Arc};

use memfit_abi::handles::Objects;
pub(crate) use memfit_abi::{Api, In, Out, Ptr, entry_points};

/// A library whose calls answer with a status; this is the one after a panic.
pub(crate) struct Fails(pub(crate) i32);

impl Api for Fails {
    type Outcome = i32;

    fn answer(self, outcome: i32) -> i32 {
        outcome
    }

    fn panicked(self, name: &str) -> i32 {
        memfit_cuda::card::count_unmodelled(name);
        self.0
    }
}

/// Runs the body of a call whose result is no status; a panic in it is counted by the call's name and becomes
/// `failure`.
pub(crate) fn guarded<R>(name: &str, failure: R, body: impl FnOnce() -> R) -> R {
    memfit_abi::guard::guarded(body, || {
        memfit_cuda::card::count_unmodelled(name);
        failure
    })
}

/// A type of which handles are given out.
pub(crate) trait Kind: Sized + Send + Sync + 'static {
    /// All that are alive.
    fn objects() -> &'static Objects<Self>;
}

/// An opaque handle as the libraries give them out, of a `T` of ours.
#[repr(transparent)]
pub(crate) struct Handle<T>(usize, PhantomData<fn() -> T>);

impl<T> Clone for Handle<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Handle<T> {}

impl<T> PartialEq for Handle<T> {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl<T: Kind> Handle<T> {
    /// Gives out a new object; null where there are too many.
    pub(crate) fn new(value: T) -> Self {
        T::objects().insert(value).map_or_else(Self::null, |handle| Self(handle as usize, PhantomData))
    }

    /// The object, unless the handle is null, of another kind, or destroyed.
    pub(crate) fn get(self) -> Option<Arc<T>> {
        T::objects().get(self.0 as u64)
    }

    /// Destroys the object; false where there is none.
    pub(crate) fn destroy(self) -> bool {
        T::objects().remove(self.0 as u64)
    }

    /// The handle of no object.
    pub(crate) fn null() -> Self {
        Self(0, PhantomData)
    }
}

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
