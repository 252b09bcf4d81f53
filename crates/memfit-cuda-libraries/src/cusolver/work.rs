//! Cost model of matrix decompositions: nothing is computed, but each takes time on its handle's stream.
//!
//! FLOP counts are those of LAPACK's algorithms (Golub and Van Loan, Matrix Computations, 4th edition,
//! for real numbers; complex ones count four times). Eigenvectors and singular vectors are assumed to be
//! computed.

#![allow(
    clippy::used_underscore_binding,
    reason = "argument names document the call, and all arguments are processed alike"
)]

use super::handle::Context;
use super::status;
use crate::cost::library;
use crate::entry::{Fails, Handle, Ptr, entry_points};
use memfit_cuda::card;

/// FLOPs of a decomposition of an `m` by `n` matrix, or of a square one.
mod operations {
    pub(super) fn cholesky(n: f64) -> f64 {
        n.powi(3) / 3.0
    }

    pub(super) fn lu(m: f64, n: f64) -> f64 {
        let short = m.min(n);
        2.0 * m * n * short - (m + n) * short.powi(2) + 2.0 / 3.0 * short.powi(3)
    }

    pub(super) fn qr(m: f64, n: f64) -> f64 {
        let short = m.min(n);
        2.0 * short.powi(2) * (m.max(n) - short / 3.0)
    }

    pub(super) fn eigen(n: f64) -> f64 {
        9.0 * n.powi(3)
    }

    pub(super) fn svd(m: f64, n: f64) -> f64 {
        let (long, short) = (m.max(n), m.min(n));
        14.0 * long * short.powi(2) + 8.0 * short.powi(3)
    }

    /// One-sided Jacobi: about ten sweeps of rotations.
    pub(super) fn svd_jacobi(m: f64, n: f64) -> f64 {
        let (long, short) = (m.max(n), m.min(n));
        10.0 * 6.0 * long * short.powi(2)
    }
}

/// Number of rows or columns; 0 if negative.
fn extent(number: impl Into<i64>) -> f64 {
    number.into().max(0) as f64
}

/// Type of a call's elements.
#[derive(Clone, Copy)]
struct Scalar {
    double: bool,
    complex: bool,
}

impl Scalar {
    /// Derives the type from the letter in the call's name.
    fn from_name(name: &str) -> Self {
        let letter = name.as_bytes().get("cusolverDn".len()).copied();
        Self { double: matches!(letter, Some(b'D' | b'Z')), complex: matches!(letter, Some(b'C' | b'Z')) }
    }

    /// Derives the type from a `cudaDataType`.
    fn from_data_type(kind: i32) -> Self {
        Self { double: matches!(kind, 1 | 5), complex: matches!(kind, 4 | 5) }
    }
}

fn run(handle: Handle<Context>, (rows, columns): (f64, f64), operations: f64, scalar: Scalar) -> i32 {
    let Some(context) = handle.get() else { return status::NOT_INITIALIZED };
    let operations = if scalar.complex { 4.0 * operations } else { operations };
    card::queue_work(context.stream(), |speeds| {
        library::solver(operations, rows, columns, scalar.double, speeds)
    });
    status::SUCCESS
}

entry_points! {
    Fails(status::INTERNAL_ERROR);

    /// Queues the work and forgets the contents behind every pointer argument.
    fn cusolverDnSpotrf(
        handle: Handle<Context>, _fill: i32, n: i32, a: Ptr, _lda: i32, work: Ptr, _length: i32, info: Ptr,
    ),
    fn cusolverDnDpotrf(),
    fn cusolverDnCpotrf(),
    fn cusolverDnZpotrf() {
        [a, work, info].into_iter().for_each(card::forget_contents);
        run(handle, (extent(n), extent(n)), operations::cholesky(extent(n)), Scalar::from_name(NAME))
    }

    /// Queues the work and forgets the contents behind every pointer argument.
    fn cusolverDnSgetrf(
        handle: Handle<Context>, m: i32, n: i32, a: Ptr, _lda: i32, work: Ptr, pivots: Ptr, info: Ptr,
    ),
    fn cusolverDnDgetrf(),
    fn cusolverDnCgetrf(),
    fn cusolverDnZgetrf() {
        [a, work, pivots, info].into_iter().for_each(card::forget_contents);
        run(handle, (extent(m), extent(n)), operations::lu(extent(m), extent(n)), Scalar::from_name(NAME))
    }

    /// Queues the work and forgets the contents behind every pointer argument.
    fn cusolverDnSgeqrf(
        handle: Handle<Context>, m: i32, n: i32, a: Ptr, _lda: i32, tau: Ptr, work: Ptr, _length: i32,
        info: Ptr,
    ),
    fn cusolverDnDgeqrf(),
    fn cusolverDnCgeqrf(),
    fn cusolverDnZgeqrf() {
        [a, tau, work, info].into_iter().for_each(card::forget_contents);
        run(handle, (extent(m), extent(n)), operations::qr(extent(m), extent(n)), Scalar::from_name(NAME))
    }

    /// Queues the work and forgets the contents behind every pointer argument.
    fn cusolverDnSsyevd(
        handle: Handle<Context>, _vectors: i32, _fill: i32, n: i32, a: Ptr, _lda: i32, w: Ptr, work: Ptr,
        _length: i32, info: Ptr,
    ),
    fn cusolverDnDsyevd(),
    fn cusolverDnCheevd(),
    fn cusolverDnZheevd() {
        [a, w, work, info].into_iter().for_each(card::forget_contents);
        run(handle, (extent(n), extent(n)), operations::eigen(extent(n)), Scalar::from_name(NAME))
    }

    /// Queues the work and forgets the contents behind every pointer argument.
    fn cusolverDnSgesvd(
        handle: Handle<Context>, _left: u8, _right: u8, m: i32, n: i32, a: Ptr, _lda: i32, s: Ptr, u: Ptr,
        _ldu: i32, v: Ptr, _ldv: i32, work: Ptr, _length: i32, real_work: Ptr, info: Ptr,
    ),
    fn cusolverDnDgesvd(),
    fn cusolverDnCgesvd(),
    fn cusolverDnZgesvd() {
        [a, s, u, v, work, real_work, info].into_iter().for_each(card::forget_contents);
        run(handle, (extent(m), extent(n)), operations::svd(extent(m), extent(n)), Scalar::from_name(NAME))
    }

    /// Queues the work and forgets the contents behind every pointer argument.
    fn cusolverDnSgesvdj(
        handle: Handle<Context>, _vectors: i32, _economy: i32, m: i32, n: i32, a: Ptr, _lda: i32, s: Ptr,
        u: Ptr, _ldu: i32, v: Ptr, _ldv: i32, work: Ptr, _length: i32, info: Ptr, parameters: Ptr,
    ),
    fn cusolverDnDgesvdj(),
    fn cusolverDnCgesvdj(),
    fn cusolverDnZgesvdj() {
        [a, s, u, v, work, info, parameters].into_iter().for_each(card::forget_contents);
        let flops = operations::svd_jacobi(extent(m), extent(n));
        run(handle, (extent(m), extent(n)), flops, Scalar::from_name(NAME))
    }

    /// Queues the work and forgets the contents behind every pointer argument.
    fn cusolverDnXpotrf(
        handle: Handle<Context>, parameters: Ptr, _fill: i32, n: i64, kind: i32, a: Ptr, _lda: i64,
        _compute: i32, work: Ptr, _bytes: usize, host: Ptr, _host_bytes: usize, info: Ptr,
    ) {
        [parameters, a, work, host, info].into_iter().for_each(card::forget_contents);
        run(handle, (extent(n), extent(n)), operations::cholesky(extent(n)), Scalar::from_data_type(kind))
    }

    /// Queues the work and forgets the contents behind every pointer argument.
    fn cusolverDnXgetrf(
        handle: Handle<Context>, parameters: Ptr, m: i64, n: i64, kind: i32, a: Ptr, _lda: i64, pivots: Ptr,
        _compute: i32, work: Ptr, _bytes: usize, host: Ptr, _host_bytes: usize, info: Ptr,
    ) {
        [parameters, a, pivots, work, host, info].into_iter().for_each(card::forget_contents);
        run(handle, (extent(m), extent(n)), operations::lu(extent(m), extent(n)), Scalar::from_data_type(kind))
    }

    /// Queues the work and forgets the contents behind every pointer argument.
    fn cusolverDnXgeqrf(
        handle: Handle<Context>, parameters: Ptr, m: i64, n: i64, kind: i32, a: Ptr, _lda: i64, _tau_kind: i32,
        tau: Ptr, _compute: i32, work: Ptr, _bytes: usize, host: Ptr, _host_bytes: usize, info: Ptr,
    ) {
        [parameters, a, tau, work, host, info].into_iter().for_each(card::forget_contents);
        run(handle, (extent(m), extent(n)), operations::qr(extent(m), extent(n)), Scalar::from_data_type(kind))
    }

    /// Queues the work and forgets the contents behind every pointer argument.
    fn cusolverDnXsyevd(
        handle: Handle<Context>, parameters: Ptr, _vectors: i32, _fill: i32, n: i64, kind: i32, a: Ptr,
        _lda: i64, _w_kind: i32, w: Ptr, _compute: i32, work: Ptr, _bytes: usize, host: Ptr, _host_bytes: usize,
        info: Ptr,
    ) {
        [parameters, a, w, work, host, info].into_iter().for_each(card::forget_contents);
        run(handle, (extent(n), extent(n)), operations::eigen(extent(n)), Scalar::from_data_type(kind))
    }
}

#[cfg(test)]
mod tests {
    use super::operations::*;

    #[test]
    fn costs_of_square_matrices_match_the_literature() {
        let n = 1000.0;
        for (found, wanted) in [
            (cholesky(n), 1.0 / 3.0),
            (lu(n, n), 2.0 / 3.0),
            (qr(n, n), 4.0 / 3.0),
            (svd(n, n), 22.0),
            (eigen(n), 9.0),
        ] {
            assert!((found / n.powi(3) - wanted).abs() < 1e-9, "{found} for {wanted}");
        }
        // A tall matrix costs as much as a wide one, and more than its square part.
        assert!((lu(2000.0, n) - lu(n, 2000.0)).abs() < 1.0 && lu(2000.0, n) > lu(n, n));
        assert!((qr(2000.0, n) - qr(n, 2000.0)).abs() < 1.0 && svd_jacobi(2000.0, n) > svd_jacobi(n, n));
    }
}
