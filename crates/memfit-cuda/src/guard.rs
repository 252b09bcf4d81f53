//! The boundary: every modelled call of the runtime and of the driver enters and leaves through here.
//!
//! No panic crosses it, and the runtime's calls leave their error behind for `cudaGetLastError`.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::{
    machine,
    status::{Outcome, Status},
    thread,
};

/// Runs a call of the driver.
#[inline]
pub(crate) fn driver(name: &str, body: impl FnOnce() -> Outcome) -> i32 {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => 0,
        Ok(Err(status)) => status.0,
        Err(_) => panicked(name).0,
    }
}

/// Runs a call of the runtime.
#[inline]
pub(crate) fn runtime(name: &str, body: impl FnOnce() -> Outcome) -> i32 {
    let status = driver(name, body);
    if status != 0 {
        thread::set_last_error(status);
    }
    status
}

#[cold]
fn panicked(name: &str) -> Status {
    machine::refused(&format!("{name} (internal error)"));
    Status::UNKNOWN
}

/// Declares exported calls of one API: `calls! { runtime; fn cudaX(...) { ... Ok(()) } }`. A call of the
/// runtime that the driver has too, with the same parameters and the same meaning, is declared once: `fn
/// cudaX | cuX(...)`.
macro_rules! calls {
    ($api:ident;) => {};
    ($api:ident; $(#[$meta:meta])* fn $name:ident | $twin:ident
        ($($argument:ident: $kind:ty),* $(,)?) $body:block $($rest:tt)*) => {
        $crate::guard::call! { $(#[$meta])* $api $name ($($argument: $kind),*) $body }
        $crate::guard::call! { driver $twin ($($argument: $kind),*) $body }
        $crate::guard::calls! { $api; $($rest)* }
    };
    ($api:ident; $(#[$meta:meta])* fn $name:ident
        ($($argument:ident: $kind:ty),* $(,)?) $body:block $($rest:tt)*) => {
        $crate::guard::call! { $(#[$meta])* $api $name ($($argument: $kind),*) $body }
        $crate::guard::calls! { $api; $($rest)* }
    };
}
pub(crate) use calls;

/// Declares one exported call.
macro_rules! call {
    ($(#[$meta:meta])* $api:ident $name:ident ($($argument:ident: $kind:ty),* $(,)?) $body:block) => {
        $(#[$meta])*
        #[allow(non_snake_case, reason = "exported names are CUDA's")]
        #[unsafe(no_mangle)]
        pub(crate) extern "C" fn $name($($argument: $kind),*) -> i32 {
            $crate::guard::$api(stringify!($name), move || -> $crate::status::Outcome { $body })
        }
    };
}
pub(crate) use call;
