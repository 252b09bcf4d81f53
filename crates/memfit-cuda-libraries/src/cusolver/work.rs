//! Decompositions: nothing is decomposed, and each takes its time on its handle's stream.
//!
//! Operations are those of LAPACK's algorithms (Golub and Van Loan, Matrix Computations, 4th edition, for
//! real numbers; complex ones count four times); eigenvectors and singular vectors are taken to be wanted.

#![allow(
    clippy::used_underscore_binding,
    reason = "what an argument is called says what it is, and all are looked at alike"
)]

use super::handle::Context;
use super::status;
use crate::cost::library;
use crate::entry::{Handle, Ptr, entry_points};
use memfit_cuda::card;

/// What a decomposition of an `m` by `n` matrix, or of a square one, computes.
mod operations {
    pub(super) fn cholesky(n: f64) -> f64 {
        n.powi(3) / 3.0
    }

    pub(super) fn lu(m: f64, n: f64) -> f64 {
        let least = m.min(n);
        2.0 * m * n * least - (m + n) * least.powi(2) + 2.0 / 3.0 * least.powi(3)
    }

    pub(super) fn qr(m: f64, n: f64) -> f64 {
        let least = m.min(n);
        2.0 * least.powi(2) * (m.max(n) - least / 3.0)
    }

    pub(super) fn eigen(n: f64) -> f64 {
        9.0 * n.powi(3)
    }

    pub(super) fn singular(m: f64, n: f64) -> f64 {
        let (most, least) = (m.max(n), m.min(n));
        14.0 * most * least.powi(2) + 8.0 * least.powi(3)
    }

    /// Some ten sweeps of rotations.
    pub(super) fn jacobi(m: f64, n: f64) -> f64 {
        let (most, least) = (m.max(n), m.min(n));
        10.0 * 6.0 * most * least.powi(2)
    }
}

/// A number of rows or columns; none where it makes no sense.
fn count(number: impl Into<i64>) -> f64 {
    number.into().max(0) as f64
}

/// The real and the complex types of a call's four names.
#[derive(Clone, Copy)]
struct Scalar {
    double: bool,
    complex: bool,
}

const S: Scalar = Scalar { double: false, complex: false };
const D: Scalar = Scalar { double: true, complex: false };
const C: Scalar = Scalar { double: false, complex: true };
const Z: Scalar = Scalar { double: true, complex: true };

impl Scalar {
    /// By a `cudaDataType`.
    fn of(kind: i32) -> Self {
        Self { double: matches!(kind, 1 | 5), complex: matches!(kind, 4 | 5) }
    }
}

fn run(handle: Handle<Context>, (rows, columns): (f64, f64), operations: f64, scalar: Scalar) -> i32 {
    let Some(context) = handle.get() else { return status::NOT_INITIALIZED };
    let operations = if scalar.complex { 4.0 * operations } else { operations };
    card::launch(context.stream(), |speeds| {
        library::solver(operations, rows, columns, scalar.double, speeds)
    });
    status::SUCCESS
}

/// What a decomposition is handed: it may write wherever it is led to.
trait Argument {
    /// What was known there is known no more.
    fn overwritten(self);
}

impl Argument for Ptr {
    fn overwritten(self) {
        card::overwritten(self);
    }
}

/// Numbers lead nowhere.
macro_rules! numbers {
    ($($number:ty),+) => { $( impl Argument for $number { fn overwritten(self) {} } )+ };
}
numbers!(u8, i32, i64, usize);

/// Declares decompositions that share a signature: `[name SCALAR…](parameters) ROWS, COLUMNS => OPERATIONS`.
macro_rules! decompositions {
    ($([$($name:ident $scalar:expr),+] $arguments:tt $rows:expr, $columns:expr => $operations:expr;)*) => {
        $( decompositions!(@each [$($name $scalar),+] $arguments ($rows) ($columns) ($operations)); )*
    };
    (@each [$($name:ident $scalar:expr),+] $arguments:tt $rows:tt $columns:tt $operations:tt) => {
        $( decompositions!(@one $name ($scalar) $arguments $rows $columns $operations); )+
    };
    (@one $name:ident ($scalar:expr) ($($argument:ident: $kind:ty),*) ($rows:expr) ($columns:expr) ($operations:expr)) => {
        entry_points! {
            fail status::INTERNAL_ERROR;
            /// Takes its time.
            fn $name(handle: Handle<Context>, $($argument: $kind),*) {
                $( Argument::overwritten($argument); )*
                run(handle, (count($rows), count($columns)), $operations, $scalar)
            }
        }
    };
}

decompositions! {
    [cusolverDnSpotrf S, cusolverDnDpotrf D, cusolverDnCpotrf C, cusolverDnZpotrf Z]
        (_fill: i32, n: i32, _a: Ptr, _lda: i32, _work: Ptr, _length: i32, _info: Ptr)
        n, n => operations::cholesky(count(n));
    [cusolverDnSgetrf S, cusolverDnDgetrf D, cusolverDnCgetrf C, cusolverDnZgetrf Z]
        (m: i32, n: i32, _a: Ptr, _lda: i32, _work: Ptr, _pivots: Ptr, _info: Ptr)
        m, n => operations::lu(count(m), count(n));
    [cusolverDnSgeqrf S, cusolverDnDgeqrf D, cusolverDnCgeqrf C, cusolverDnZgeqrf Z]
        (m: i32, n: i32, _a: Ptr, _lda: i32, _tau: Ptr, _work: Ptr, _length: i32, _info: Ptr)
        m, n => operations::qr(count(m), count(n));
    [cusolverDnSsyevd S, cusolverDnDsyevd D, cusolverDnCheevd C, cusolverDnZheevd Z]
        (_vectors: i32, _fill: i32, n: i32, _a: Ptr, _lda: i32, _w: Ptr, _work: Ptr, _length: i32, _info: Ptr)
        n, n => operations::eigen(count(n));
    [cusolverDnSgesvd S, cusolverDnDgesvd D, cusolverDnCgesvd C, cusolverDnZgesvd Z]
        (_left: u8, _right: u8, m: i32, n: i32, _a: Ptr, _lda: i32, _s: Ptr, _u: Ptr, _ldu: i32, _v: Ptr, _ldv: i32,
         _work: Ptr, _length: i32, _real_work: Ptr, _info: Ptr)
        m, n => operations::singular(count(m), count(n));
    [cusolverDnSgesvdj S, cusolverDnDgesvdj D, cusolverDnCgesvdj C, cusolverDnZgesvdj Z]
        (_vectors: i32, _economy: i32, m: i32, n: i32, _a: Ptr, _lda: i32, _s: Ptr, _u: Ptr, _ldu: i32, _v: Ptr,
         _ldv: i32, _work: Ptr, _length: i32, _info: Ptr, _parameters: Ptr)
        m, n => operations::jacobi(count(m), count(n));
    [cusolverDnXpotrf Scalar::of(kind)]
        (_parameters: Ptr, _fill: i32, n: i64, kind: i32, _a: Ptr, _lda: i64, _compute: i32, _work: Ptr, _bytes: usize,
         _host: Ptr, _host_bytes: usize, _info: Ptr)
        n, n => operations::cholesky(count(n));
    [cusolverDnXgetrf Scalar::of(kind)]
        (_parameters: Ptr, m: i64, n: i64, kind: i32, _a: Ptr, _lda: i64, _pivots: Ptr, _compute: i32, _work: Ptr,
         _bytes: usize, _host: Ptr, _host_bytes: usize, _info: Ptr)
        m, n => operations::lu(count(m), count(n));
    [cusolverDnXgeqrf Scalar::of(kind)]
        (_parameters: Ptr, m: i64, n: i64, kind: i32, _a: Ptr, _lda: i64, _tau_kind: i32, _tau: Ptr, _compute: i32,
         _work: Ptr, _bytes: usize, _host: Ptr, _host_bytes: usize, _info: Ptr)
        m, n => operations::qr(count(m), count(n));
    [cusolverDnXsyevd Scalar::of(kind)]
        (_parameters: Ptr, _vectors: i32, _fill: i32, n: i64, kind: i32, _a: Ptr, _lda: i64, _w_kind: i32, _w: Ptr,
         _compute: i32, _work: Ptr, _bytes: usize, _host: Ptr, _host_bytes: usize, _info: Ptr)
        n, n => operations::eigen(count(n));
}

#[cfg(test)]
mod tests {
    use super::operations::*;

    #[test]
    fn square_matrices_take_what_the_books_say() {
        let n = 1000.0;
        for (found, wanted) in [
            (cholesky(n), 1.0 / 3.0),
            (lu(n, n), 2.0 / 3.0),
            (qr(n, n), 4.0 / 3.0),
            (singular(n, n), 22.0),
            (eigen(n), 9.0),
        ] {
            assert!((found / n.powi(3) - wanted).abs() < 1e-9, "{found} for {wanted}");
        }
        // A tall one is as a wide one, and more than its square part.
        assert!((lu(2000.0, n) - lu(n, 2000.0)).abs() < 1.0 && lu(2000.0, n) > lu(n, n));
        assert!((qr(2000.0, n) - qr(n, 2000.0)).abs() < 1.0 && jacobi(2000.0, n) > jacobi(n, n));
    }
}
