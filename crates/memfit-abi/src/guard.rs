//! Entry points: exported functions that catch every panic.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// An API with its own kind of results.
pub trait Api {
    /// Result of a call's body.
    type Outcome;

    /// Converts the result to the status that the caller gets.
    fn to_status(self, outcome: Self::Outcome) -> i32;

    /// Counts a panic under the call's name, and returns the status that the caller gets.
    fn panicked(self, name: &str) -> i32;
}

/// Runs the body of a call.
#[inline]
pub fn enter<A: Api>(api: A, name: &str, body: impl FnOnce() -> A::Outcome) -> i32 {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(outcome) => api.to_status(outcome),
        Err(_) => api.panicked(name),
    }
}

/// Runs the body of a call whose result is not a status; `panicked` supplies the result after a panic.
pub fn guarded<R>(body: impl FnOnce() -> R, panicked: impl FnOnce() -> R) -> R {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| panicked())
}

/// Declares exported calls of an [`Api`]:
///
/// ```ignore
/// entry_points! { Runtime, Driver;
///     /// Creates an event.
///     fn cudaEventCreateWithFlags(event: Out<u64>, flags: u32),
///     fn cuEventCreate() {
///         …
///     }
/// }
/// ```
///
/// Calls with the same parameters and the same body are declared together; the first one lists the
/// parameters. The others belong to the second API, or to the same one if only one is named. In a body, the
/// constant `NAME` is the name of its own call. Each name appears in the source once, as `fn NAME(`.
#[macro_export]
macro_rules! entry_points {
    ($api:expr; $($calls:tt)*) => { $crate::entry_points! { $api, $api; $($calls)* } };
    ($api:expr, $others:expr; $(
        $(#[$meta:meta])*
        fn $name:ident $arguments:tt $(, fn $same:ident())* $body:block
    )*) => { $(
        $crate::entry_point! { $api; $(#[$meta])* $name $arguments $body }
        $( $crate::entry_point! { $others; $same $arguments $body } )*
    )* };
}

/// Declares one exported call.
#[doc(hidden)]
#[macro_export]
macro_rules! entry_point {
    ($api:expr; $(#[$meta:meta])* $name:ident ($($argument:ident: $kind:ty),* $(,)?) $body:block) => {
        $(#[$meta])*
        #[allow(non_snake_case, unsafe_code, reason = "it is exported under the library's own name")]
        #[unsafe(no_mangle)]
        pub(crate) extern "C" fn $name($($argument: $kind),*) -> i32 {
            #[allow(dead_code, reason = "only a few bodies use it")]
            const NAME: &str = stringify!($name);
            $crate::guard::enter($api, NAME, move || $body)
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Halves(i32);

    impl Api for Halves {
        type Outcome = Result<(), i32>;

        fn to_status(self, outcome: Self::Outcome) -> i32 {
            outcome.map_or_else(|status| status / 2, |()| 0)
        }

        fn panicked(self, name: &str) -> i32 {
            self.0 + name.len() as i32
        }
    }

    crate::entry_points! { Halves(100), Halves(200);
        /// Fails with the status that it is passed.
        fn memfit_abi_test_fails(status: i32),
        fn memfit_abi_test_fails_too() {
            if status == 0 { Ok(()) } else { Err(status) }
        }

        fn memfit_abi_test_panics() {
            panic!("{NAME}")
        }
    }

    #[test]
    fn bodies_are_shared_and_no_panic_leaves() {
        assert_eq!((memfit_abi_test_fails(0), memfit_abi_test_fails_too(8)), (0, 4));
        assert_eq!(memfit_abi_test_panics(), 100 + "memfit_abi_test_panics".len() as i32);
        assert_eq!(guarded(|| panic!("no"), || 7), 7);
    }
}
