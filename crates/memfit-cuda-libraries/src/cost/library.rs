//! Durations of Fourier transforms, sparse products and dense solvers in the libraries that PyTorch calls for
//! them.

use memfit_channel::WorkKind;

use memfit_kernels::cost::{
    Work, shares,
    speeds::{Math, Speeds},
};

/// Points of a transform that one cuFFT pass keeps in shared memory; longer transforms take another pass.
/// Source: 64 KiB of complex numbers in single precision, within the shared memory of a block since Volta
/// (CUDA C++ Programming Guide).
const POINTS_PER_PASS: f64 = 8192.0;
/// Share of the bandwidth reached by a pass over the data.
/// Source: VkFFT's and cuFFT's published runs lie between 0.7
/// and 0.9 of a plain copy's (Tolmachev, VkFFT: A Performant, Cross-Platform and Open-Source GPU FFT Library,
/// 2023, figures 4 to 7).
const PASS_SHARE: f64 = 0.8;

/// Duration of `batch` transforms over these dimensions. Each dimension is read and written once, or more
/// often if it is long; `bytes` is the size of a complex number.
pub(crate) fn fourier(sizes: &[u64], padded: &[u64], batch: u64, bytes: u64, speeds: &Speeds) -> Work {
    let points: f64 = sizes.iter().map(|size| *size as f64).product::<f64>() * batch as f64;
    let (mut traffic, mut operations) = (0.0, 0.0);
    for (size, padded) in sizes.iter().zip(padded) {
        // Bluestein's algorithm replaces one transform with three of the padded size.
        let (times, length) = if padded == size { (1.0, *size as f64) } else { (3.0, *padded as f64) };
        let grown = length / (*size as f64).max(1.0);
        let passes = (length.max(2.0).ln() / POINTS_PER_PASS.ln()).ceil();
        traffic += times * passes * 2.0 * points * grown * bytes as f64;
        operations += times * 5.0 * points * grown * length.max(2.0).log2();
    }
    let math = if bytes > 8 { Math::F64 } else { Math::F32 };
    let time = speeds.traffic(traffic, PASS_SHARE).max(operations / speeds.rate(math));
    Work::new(WorkKind::Memory, speeds.launch * sizes.len() as f64 + time)
}

/// Duration of a sparse matrix of `entries` times a dense one of `columns`: each entry fetches a row of the
/// dense one.
pub(crate) fn sparse_times_dense(entries: f64, rows: f64, columns: f64, width: f64, speeds: &Speeds) -> Work {
    /// Bytes of an index.
    /// Definition: PyTorch passes 32-bit indices to cuSPARSE where they suffice.
    const INDEX: f64 = 4.0;
    let own = entries * (INDEX + width) + rows * INDEX;
    let time = speeds.traffic(own + rows * columns * width, PASS_SHARE)
        + speeds.traffic(entries * columns * width, shares::ROWS);
    Work::new(WorkKind::Memory, 2.0 * speeds.launch + time)
}

/// Duration of a `rows` by `columns` factorisation of `operations`, column by column: columns depend on
/// each other, and the rest of the matrix is multiplied at the device's rate.
pub(crate) fn solver(operations: f64, rows: f64, columns: f64, double: bool, speeds: &Speeds) -> Work {
    /// Kernels per column, one after the other.
    /// Fitted: `cholesky` of 512 columns (github.com/pytorch/pytorch/pull/173515). Those of 128 and 2,048
    /// were never fitted.
    const KERNELS_PER_COLUMN: f64 = 0.31;
    /// Throughput of matrix products of shrinking size, relative to large ones.
    /// Unsourced: the last products are as small as a block of columns. Times of cuSOLVER were found up to
    /// 2,048 columns, where the kernels decide, and without the card.
    const SHRINKING_SHARE: f64 = 0.5;
    let math = if double { Math::F64 } else { Math::F32 };
    let kernels = (rows.min(columns) * KERNELS_PER_COLUMN).ceil().max(1.0);
    let time = kernels * speeds.launch + operations / (SHRINKING_SHARE * speeds.rate(math));
    Work::new(WorkKind::Matmul, time)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::card_speeds;

    fn fft(sizes: &[u64], batch: u64, bytes: u64) -> f64 {
        let speeds = card_speeds("a100-80gb");
        fourier(sizes, sizes, batch, bytes, &speeds).length as f64
    }

    #[test]
    fn a_transform_takes_a_few_copies() {
        let speeds = card_speeds("a100-80gb");
        let batch = 1 << 16;
        let copy = speeds.launch + speeds.traffic(2.0 * 1024.0 * batch as f64 * 8.0, 1.0);
        let one = fft(&[1024], batch, 8);
        assert!((1.0..2.0).contains(&(one / copy)), "{}", one / copy);
        assert!((1.8..2.2).contains(&(fft(&[1024, 64], batch / 64, 8) / one)), "two dimensions, two passes");
        assert!(fft(&[1 << 22], 16, 8) > 1.8 * fft(&[1 << 12], 1 << 14, 8), "long ones take more passes");
        assert!(fft(&[1024], batch, 16) > 1.8 * one);
        let prime = fourier(&[1031], &[4096], batch, 8, &speeds).length as f64;
        assert!(prime > 5.0 * one, "Bluestein pads");
        assert!(fourier(&[u64::MAX], &[u64::MAX], u64::MAX, 16, &speeds).length > 0, "no overflow");
        assert!(fourier(&[], &[], 1, 8, &speeds).length < 100);
    }

    #[test]
    fn sparse_products_grow_with_entries_and_columns() {
        let speeds = card_speeds("a100-80gb");
        let of = |entries, columns| sparse_times_dense(entries, 1e6, columns, 4.0, &speeds).length;
        assert!(of(2e7, 64.0) > 3 * of(5e6, 64.0));
        assert!(of(2e7, 256.0) > 3 * of(2e7, 64.0));
    }

    /// Times of `torch.linalg.cholesky` with cuSOLVER in github.com/pytorch/pytorch/pull/173515, less those
    /// of a matrix of 16 columns, which are the host's. The card is not named: few columns wait on any card.
    #[test]
    fn factorisations_take_as_long_as_published() {
        let speeds = card_speeds("a100-80gb");
        for (columns, microseconds) in [(128.0, 73.8_f64), (512.0, 341.3), (2048.0, 1919.5)] {
            let estimate = solver(columns * columns * columns / 3.0, columns, columns, false, &speeds).length;
            let error = estimate as f64 / 1e3 / microseconds - 1.0;
            assert!(error.abs() < 0.25, "{columns}: {error:+.2}");
        }
    }

    #[test]
    fn small_factorisations_wait_and_large_ones_compute() {
        let speeds = card_speeds("a100-80gb");
        let of = |n: f64| solver(2.0 / 3.0 * n.powi(3), n, n, false, &speeds).length as f64;
        assert!(of(256.0) < 1e6, "{}", of(256.0));
        assert!((6.0..9.0).contains(&(of(32_768.0) / of(16_384.0))), "the cube");
    }
}
