//! Shared parts of the libraries' entry points: handles, and bodies that cannot unwind.

use std::{marker::PhantomData, sync::Arc};

use memfit_abi::handles::Objects;
pub(crate) use memfit_abi::{Api, In, Out, Ptr, entry_points};

/// API of a library whose calls return a status; this status is returned after a panic.
pub(crate) struct Fails(pub(crate) i32);

impl Api for Fails {
    type Outcome = i32;

    fn to_status(self, outcome: i32) -> i32 {
        outcome
    }

    fn panicked(self, name: &str) -> i32 {
        memfit_cuda::card::count_unmodelled(name);
        self.0
    }
}

/// Runs the body of a call whose result is not a status. A panic is counted under the call's name and becomes
/// `failure`.
pub(crate) fn guarded<R>(name: &str, failure: R, body: impl FnOnce() -> R) -> R {
    memfit_abi::guard::guarded(body, || {
        memfit_cuda::card::count_unmodelled(name);
        failure
    })
}

/// A type of object behind handles.
pub(crate) trait Kind: Sized + Send + Sync + 'static {
    /// All live objects.
    fn objects() -> &'static Objects<Self>;
}

/// An opaque handle to a `T`, as the libraries return it.
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
    /// Creates an object; null if there are too many.
    pub(crate) fn new(value: T) -> Self {
        T::objects().insert(value).map_or_else(Self::null, |handle| Self(handle as usize, PhantomData))
    }

    /// Returns the object; `None` if the handle is null, of another kind, or destroyed.
    pub(crate) fn get(self) -> Option<Arc<T>> {
        T::objects().get(self.0 as u64)
    }

    /// Destroys the object; `false` if there is none.
    pub(crate) fn destroy(self) -> bool {
        T::objects().remove(self.0 as u64)
    }

    /// The null handle.
    pub(crate) fn null() -> Self {
        Self(0, PhantomData)
    }
}

/// Status codes of a library for its handles.
pub(crate) struct HandleStatus {
    /// All is well.
    pub(crate) success: i32,
    /// There is no such handle, or no device for one.
    pub(crate) not_initialized: i32,
    /// The output pointer is null.
    pub(crate) invalid_value: i32,
}

impl HandleStatus {
    /// Creates a handle; the first one reserves the memory that the libraries take outside the allocator.
    pub(crate) fn create<T: Kind + Default>(&self, place: Out<Handle<T>>) -> i32 {
        if place.is_null() {
            return self.invalid_value;
        }
        if !memfit_cuda::card::use_libraries() {
            return self.not_initialized;
        }
        place.set(Handle::new(T::default()));
        self.success
    }

    /// Destroys a handle.
    pub(crate) fn destroy<T: Kind>(&self, handle: Handle<T>) -> i32 {
        if handle.destroy() { self.success } else { self.not_initialized }
    }
}
