//! Matrix products: number of tiles, waves over the device's multiprocessors, and memory traffic.

use memfit_channel::WorkKind;

use super::{
    Work, shares,
    speeds::{Math, Speeds},
};

/// `count` products of an `m × k` with a `k × n` matrix.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gemm {
    /// Rows of the result.
    pub m: f64,
    /// Columns of the result.
    pub n: f64,
    /// Terms of each sum.
    pub k: f64,
    /// Number of products.
    pub count: f64,
    /// Arithmetic in which it is computed.
    pub math: Math,
    /// Bytes per element of the operands.
    pub input: f64,
    /// Bytes per element of the result.
    pub output: f64,
    /// Greatest power of two, up to 16, that divides the row pitches in bytes of all three matrices.
    pub alignment: u32,
    /// Real operations per multiply-add: 2, or 8 for complex numbers.
    pub operations: f64,
}

/// Tile shapes of kernels, and the share of the device's best rate that each reaches.
/// Source: shapes and their order are NVIDIA's (Matrix Multiplication Background User's Guide, section on
/// tile sizes); a test below compares the shares with published rates of cuBLAS.
const TILES: [(f64, f64, f64); 7] = [
    (256.0, 128.0, 1.0),
    (128.0, 256.0, 1.0),
    (128.0, 128.0, 0.94),
    (128.0, 64.0, 0.82),
    (64.0, 128.0, 0.82),
    (64.0, 64.0, 0.65),
    (32.0, 32.0, 0.33),
];
/// Numbers of parts that the sum may be split into if the result has few tiles.
/// Definition: powers of two, as far as they help.
const SPLITS: [f64; 6] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0];
/// Length of the sum that takes as long as filling the pipeline and writing the result.
/// Fitted: products of DeepBench on a V100. At 0, 32, 64, 96 and 128, the median errors in single and mixed
/// precision add up to 0.24, 0.23, 0.22, 0.21 and 0.22; steps are 32 or 64 terms. The T4's, and those of an
/// A100 below, were never fitted.
const OVERHEAD_STEPS: f64 = 64.0;
/// Share of the rate that remains with rows that are aligned to 8 and 4 bytes.
/// Unsourced: between whole and single elements of 16 bits. NVIDIA's guides have the effect in charts without
/// figures, and DeepBench pads such products.
const MISALIGNED_SHARES: [f64; 2] = [0.85, 0.70];
/// Share of the rate that remains with rows that are aligned to 2 bytes.
/// Source: padding a vocabulary of 50,257 to 50,304 made the head's products nearly three times as fast
/// (PyTorch blog, Accelerating Large Language Models with Accelerated Transformers, 2023).
const UNALIGNED_SHARE: f64 = 0.36;

impl Gemm {
    /// Creates a product of real matrices with regular pitches.
    pub fn new([m, n, k, count]: [f64; 4], math: Math, input: f64, output: f64) -> Self {
        Self { m, n, k, count, math, input, output, alignment: 16, operations: 2.0 }
    }

    /// Duration as work of its own.
    pub fn work(&self, speeds: &Speeds) -> Work {
        Work::new(WorkKind::Matmul, self.nanoseconds(speeds))
    }

    /// Duration in nanoseconds, for use as part of other work.
    pub fn nanoseconds(&self, speeds: &Speeds) -> f64 {
        let (m, n, k, count) = (self.m, self.n, self.k, self.count);
        if m < 1.0 || n < 1.0 || count < 1.0 || !(m * n * count).is_finite() {
            return speeds.launch;
        }
        let result = m * n * self.output;
        let moved = count * ((m * k + k * n) * self.input + result);
        let memory = speeds.traffic(moved, shares::PRODUCT_OPERANDS);
        speeds.launch + memory.max(self.computing(speeds))
    }

    /// Nanoseconds of arithmetic with the fastest available kernel.
    pub fn computing(&self, speeds: &Speeds) -> f64 {
        let each = speeds.rate(self.math) * self.aligned() / speeds.multiprocessors;
        // A product with a vector has its own kernels, on ordinary cores and without tiles.
        let mut best = if self.m.min(self.n) <= 1.0 {
            self.m * self.n * self.k * self.count * self.operations / speeds.rate(Math::F32)
        } else {
            f64::INFINITY
        };
        for (rows, columns, share) in TILES {
            // A tile far larger than the result wastes computation.
            let tiles = (self.m / rows).ceil() * (self.n / columns).ceil() * self.count;
            for split in SPLITS {
                if split > 1.0 && (self.k / split < 256.0 || tiles * split > 4.0 * speeds.multiprocessors) {
                    break;
                }
                let waves = (tiles * split / speeds.multiprocessors).ceil();
                let one =
                    rows * columns * (self.k / split + OVERHEAD_STEPS) * self.operations / (each * share);
                let reduction = if split > 1.0 {
                    speeds.launch
                        + speeds.traffic(2.0 * split * self.m * self.n * self.count * 4.0, shares::REDUCTION)
                } else {
                    0.0
                };
                best = best.min(waves * one + reduction);
            }
        }
        best
    }

    /// Share of the rate that remains with misaligned rows, which are loaded in smaller pieces.
    fn aligned(&self) -> f64 {
        let tensor =
            matches!(self.math, Math::F16 | Math::Bf16 | Math::Tf32 | Math::F8 | Math::I8 | Math::F4);
        match self.alignment {
            _ if !tensor => 1.0,
            16.. => 1.0,
            8.. => MISALIGNED_SHARES[0],
            4.. => MISALIGNED_SHARES[1],
            _ => UNALIGNED_SHARE,
        }
    }
}

/// Greatest power of two, up to 16, that divides all of these distances in bytes.
pub fn alignment(strides: &[u64]) -> u32 {
    strides
        .iter()
        .filter(|stride| **stride > 0)
        .map(|stride| stride.trailing_zeros().min(4))
        .min()
        .map_or(16, |bits| 1 << bits)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{
        super::speeds::{card_speeds, speeds_at},
        *,
    };

    fn half(m: f64, n: f64, k: f64) -> Gemm {
        Gemm::new([m, n, k, 1.0], Math::Bf16, 2.0, 2.0)
    }

    /// Products of DeepBench (results/train of github.com/baidu-research/DeepBench) in single precision, and
    /// on tensor cores: extents, and microseconds on a V100 and a T4. Every twelfth row, of those with rows
    /// aligned to 16 bytes.
    const DEEP_BENCH: [(Math, [f64; 3], [f64; 2]); 25] = [
        (Math::F32, [1760.0, 16.0, 1760.0], [38.0, 130.0]),
        (Math::F32, [2560.0, 64.0, 2560.0], [75.0, 207.0]),
        (Math::F32, [1760.0, 7000.0, 1760.0], [3145.0, 10183.0]),
        (Math::F32, [4096.0, 32.0, 4096.0], [114.0, 445.0]),
        (Math::F32, [35.0, 8457.0, 2560.0], [260.0, 972.0]),
        (Math::F32, [7680.0, 32.0, 2560.0], [122.0, 430.0]),
        (Math::F32, [3072.0, 32.0, 1024.0], [36.0, 89.0]),
        (Math::F32, [1024.0, 16.0, 500_000.0], [3664.0, 13218.0]),
        (Math::F32, [3072.0, 48000.0, 1024.0], [22918.0, 75415.0]),
        (Math::F32, [4608.0, 16.0, 1536.0], [48.0, 131.0]),
        (Math::F32, [512.0, 24000.0, 2048.0], [3858.0, 11383.0]),
        (Math::F32, [512.0, 24000.0, 1530.0], [2790.0, 8834.0]),
        (Math::F32, [1024.0, 48000.0, 2048.0], [15462.0, 43833.0]),
        (Math::F32, [1024.0, 48000.0, 1530.0], [10741.0, 34313.0]),
        (Math::F16, [1760.0, 16.0, 1760.0], [20.0, 61.0]),
        (Math::F16, [2560.0, 64.0, 2560.0], [32.0, 60.0]),
        (Math::F16, [1760.0, 7000.0, 1760.0], [461.0, 1141.0]),
        (Math::F16, [4096.0, 32.0, 4096.0], [59.0, 123.0]),
        (Math::F16, [3072.0, 16.0, 1024.0], [15.0, 32.0]),
        (Math::F16, [512.0, 8.0, 500_000.0], [1483.0, 2439.0]),
        (Math::F16, [6144.0, 48000.0, 2048.0], [11261.0, 32089.0]),
        (Math::F16, [8448.0, 48000.0, 2816.0], [22221.0, 63088.0]),
        (Math::F16, [4608.0, 32.0, 1536.0], [39.0, 68.0]),
        (Math::F16, [512.0, 24000.0, 2560.0], [678.0, 1685.0]),
        (Math::F16, [512.0, 32.0, 512.0], [8.0, 10.0]),
    ];

    /// The V100's rows are fitted, the T4's are not. Rates are those of the largest product on the same card.
    #[test]
    fn products_take_as_long_as_published() {
        for (at, card, single, tensor) in [(0, "v100", 14.78e12, 112.28e12), (1, "t4", 4.67e12, 46.52e12)] {
            let speeds = speeds_at(card, single, tensor);
            let mut errors = DEEP_BENCH.map(|(math, [m, n, k], times)| {
                let element = if math == Math::F32 { 4.0 } else { 2.0 };
                let estimate = Gemm::new([m, n, k, 1.0], math, element, element).nanoseconds(&speeds);
                (estimate / 1e3 / times[at] - 1.0).abs()
            });
            errors.sort_by(f64::total_cmp);
            assert!(errors[12] < 0.20 && errors[18] < 0.50, "{card}: {errors:?}");
        }
    }

    fn teraflops(gemm: Gemm, card: &str) -> f64 {
        let speeds = card_speeds(card);
        2.0 * gemm.m * gemm.n * gemm.k * gemm.count / gemm.nanoseconds(&speeds) / 1e3
    }

    #[test]
    fn large_products_run_near_what_the_card_achieves() {
        for (card, at_least, at_most) in [
            ("a100-80gb", 235.0, 272.0),
            ("h100", 650.0, 800.0),
            // 180 at the 2.75 GHz that such devices sustain; the data sheet has 165 at 2.52.
            ("rtx-4090", 135.0, 180.0),
            ("t4", 3.0, 6.0),
        ] {
            let rate = teraflops(half(8192.0, 8192.0, 8192.0), card);
            assert!((at_least..at_most).contains(&rate), "{card}: {rate} TFLOP/s");
        }
    }

    /// Rates that cuBLAS reached in float16 on an A100, for square matrices
    /// (github.com/triton-lang/triton/issues/3551).
    #[test]
    fn square_products_run_as_published() {
        const PUBLISHED: [(f64, f64); 16] = [
            (1024.0, 104.9),
            (1152.0, 129.8),
            (1280.0, 157.5),
            (1408.0, 151.4),
            (1536.0, 176.9),
            (1664.0, 180.0),
            (1792.0, 172.9),
            (1920.0, 209.5),
            (2048.0, 233.0),
            (2176.0, 221.1),
            (2304.0, 246.3),
            (2432.0, 219.5),
            (2560.0, 244.5),
            (2816.0, 230.8),
            (3072.0, 229.2),
            (3200.0, 244.3),
        ];
        let mut errors = PUBLISHED.map(|(extent, rate)| {
            let gemm = Gemm { math: Math::F16, ..half(extent, extent, extent) };
            (teraflops(gemm, "a100-80gb") / rate - 1.0).abs()
        });
        errors.sort_by(f64::total_cmp);
        assert!(errors[errors.len() / 2] < 0.10 && errors[errors.len() - 1] < 0.30, "{errors:?}");
    }

    #[test]
    fn a_faster_card_or_a_better_alignment_is_never_slower() {
        let (a100, h100) = (card_speeds("a100-80gb"), card_speeds("h100-sxm"));
        for extent in [64.0, 513.0, 2048.0, 9000.0] {
            let gemm = half(extent, extent, extent);
            assert!(gemm.nanoseconds(&h100) <= gemm.nanoseconds(&a100), "{extent}");
            let times: Vec<f64> =
                [16, 8, 4, 2].map(|alignment| Gemm { alignment, ..gemm }.nanoseconds(&a100)).to_vec();
            assert!(times.is_sorted(), "{extent}: {times:?}");
        }
    }

    #[test]
    fn small_odd_and_thin_products_run_at_less() {
        let best = teraflops(half(8192.0, 8192.0, 8192.0), "a100-80gb");
        assert!(teraflops(half(512.0, 512.0, 512.0), "a100-80gb") < 0.3 * best);
        assert!(teraflops(half(8192.0, 8192.0, 64.0), "a100-80gb") < 0.5 * best);
        let odd = Gemm { alignment: 2, ..half(8192.0, 8191.0, 8192.0) };
        assert!(teraflops(odd, "a100-80gb") < 0.6 * best);
        // One row: the weights are read once, so memory decides.
        let one_row = half(1.0, 8192.0, 8192.0);
        let speeds = card_speeds("a100-80gb");
        let bytes = 8192.0 * 8192.0 * 2.0;
        let rate = bytes / one_row.nanoseconds(&speeds);
        assert!((0.7 * speeds.memory..speeds.memory).contains(&rate), "{rate} GB/s");
        // So it does for many short ones in single precision, as a token's attention to those before it.
        let each = Gemm::new([1.0, 208.0, 128.0, 32.0], Math::F32, 4.0, 4.0).nanoseconds(&speeds);
        assert!(each < 2.0 * speeds.launch, "{each} ns");
    }

    #[test]
    fn a_result_of_few_tiles_splits_its_sum() {
        let gemm = half(128.0, 128.0, 65_536.0);
        let speeds = card_speeds("a100-80gb");
        let alone = 65_536.0 * 128.0 * 128.0 * 2.0 / (speeds.rate(Math::Bf16) / speeds.multiprocessors);
        assert!(gemm.nanoseconds(&speeds) < 0.3 * alone);
    }

    #[test]
    fn strides_are_aligned_as_their_least() {
        assert_eq!(alignment(&[4096, 64, 32]), 16);
        assert_eq!(alignment(&[4096, 24]), 8);
        assert_eq!(alignment(&[100_514, 16]), 2);
        assert_eq!(alignment(&[]), 16);
    }

    proptest! {
        #[test]
        fn more_work_never_takes_much_less(m in 1_u32..9000, n in 1_u32..9000, k in 1_u32..9000, count in 1_u32..64) {
            let speeds = card_speeds("a100-80gb");
            let of = |m: u32, k: u32, count: u32| {
                let size = [m, n, k, count].map(f64::from);
                Gemm::new(size, Math::F16, 2.0, 2.0).nanoseconds(&speeds)
            };
            let time = of(m, k, count);
            let least = 2.0 * f64::from(m) * f64::from(n) * f64::from(k) * f64::from(count) / speeds.rate(Math::F16);
            prop_assert!(time.is_finite() && time >= speeds.launch && time >= least);
            // Data that fits into the cache is read faster, so there is one step down.
            prop_assert!(of(2 * m, k, count) >= 0.95 * time, "twice the rows");
            prop_assert!(of(m, 2 * k, count) >= 0.95 * time, "twice the sum");
            prop_assert!(of(m, k, 2 * count) >= 0.95 * time, "twice as many");
        }
    }
}
