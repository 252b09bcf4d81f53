//! Published times of single kernels, compared with their estimates.
//!
//! Rows of the first list were used for constants in [`super::shares`]; rows of the second never were.

use std::fmt::Write as _;

use super::{
    shares,
    speeds::{Speeds, card_speeds},
};

/// How a row's kernels are estimated.
#[derive(Clone, Copy)]
enum Kind {
    /// At a share of the bandwidth of long copies.
    Share(f64),
    /// In blocks that load, compute and store one after the other, at a rate in bytes per cycle.
    Serial(f64),
}
use Kind::{Serial, Share};

/// A published time: the work, the card, the bytes that each kernel moves, and microseconds.
type Row = (&'static str, &'static str, &'static [(Kind, f64)], f64);

/// Bytes of a tensor in single precision.
const fn single(elements: f64) -> f64 {
    4.0 * elements
}

/// Layer norm of 4,096 rows in single precision: input and output.
const fn layer_norm(columns: f64) -> f64 {
    2.0 * single(4096.0 * columns)
}

/// Bytes of the input of a group norm over 128 sequences of 512, in groups of four channels.
const fn grouped(channels: f64) -> f64 {
    single(128.0 * 512.0 * channels)
}

const LAYER_NORM: Kind = Serial(shares::LAYER_NORM_RATE);
const ROW_SCAN: Kind = Serial(shares::ROW_SCAN_RATE);
const INPUT_GRADIENT: Kind = Share(shares::LAYER_NORM_GENERAL);
const WEIGHT_GRADIENT: Kind = Share(shares::ACROSS_ROWS);
const GROUP_NORM: Kind = Serial(shares::GROUP_NORM_RATE);
const STRIDED: Kind = Share(shares::STRIDED);

/// Layer norms and group norms: benchmark/data/all_benchmark_data.csv of github.com/linkedin/Liger-Kernel at
/// ead96b6, torch's own modules. Cumulative sums: github.com/flagos-ai/FlagGems/pull/178.
const FITTED: &[Row] = &[
    ("layer norm, 4096 x 1024", "a100-80gb", &[(LAYER_NORM, layer_norm(1024.0))], 34.1),
    ("layer norm, 4096 x 2048", "a100-80gb", &[(LAYER_NORM, layer_norm(2048.0))], 57.3),
    ("layer norm, 4096 x 4096", "a100-80gb", &[(LAYER_NORM, layer_norm(4096.0))], 121.8),
    ("layer norm, 4096 x 8192", "a100-80gb", &[(LAYER_NORM, layer_norm(8192.0))], 257.6),
    ("layer norm, 4096 x 16384", "a100-80gb", &[(LAYER_NORM, layer_norm(16384.0))], 506.7),
    ("cumsum of rows, 1024 x 6144", "a100-80gb", &[(ROW_SCAN, 8.0 * 1024.0 * 6144.0)], 117.5),
    ("cumsum of rows, 1024 x 11264", "a100-80gb", &[(ROW_SCAN, 8.0 * 1024.0 * 11264.0)], 208.0),
    ("cumsum of rows, f16, 1024 x 47104", "a100-80gb", &[(ROW_SCAN, 4.0 * 1024.0 * 47104.0)], 613.6),
    ("cumsum of rows, f16, 1024 x 77824", "a100-80gb", &[(ROW_SCAN, 4.0 * 1024.0 * 77824.0)], 885.5),
    (
        "group norm, 2048 channels",
        "b200",
        &[(GROUP_NORM, grouped(2048.0)), (STRIDED, 2.0 * grouped(2048.0))],
        981.9,
    ),
    (
        "gradient of a group norm, 2048 channels",
        "b200",
        &[(GROUP_NORM, 2.0 * grouped(2048.0)), (STRIDED, 3.0 * grouped(2048.0))],
        1315.9,
    ),
];

/// As above; cumulative sums on an H20 of 141 GB: FlagGems' pull request 4365; group norm on an A100:
/// github.com/pytorch/pytorch/pull/183946.
const HELD_OUT: &[Row] = &[
    ("layer norm, 4096 x 1024", "h100-sxm", &[(LAYER_NORM, layer_norm(1024.0))], 23.6),
    ("layer norm, 4096 x 2048", "h100-sxm", &[(LAYER_NORM, layer_norm(2048.0))], 37.3),
    ("layer norm, 4096 x 4096", "h100-sxm", &[(LAYER_NORM, layer_norm(4096.0))], 66.2),
    ("layer norm, 4096 x 8192", "h100-sxm", &[(LAYER_NORM, layer_norm(8192.0))], 152.7),
    ("layer norm, 4096 x 16384", "h100-sxm", &[(LAYER_NORM, layer_norm(16384.0))], 306.8),
    (
        "gradient of a layer norm, 4096 x 2048",
        "h100-sxm",
        &[(INPUT_GRADIENT, 1.5 * layer_norm(2048.0)), (WEIGHT_GRADIENT, layer_norm(2048.0))],
        99.7,
    ),
    (
        "gradient of a layer norm, 4096 x 4096",
        "h100-sxm",
        &[(INPUT_GRADIENT, 1.5 * layer_norm(4096.0)), (WEIGHT_GRADIENT, layer_norm(4096.0))],
        178.8,
    ),
    (
        "gradient of a layer norm, 4096 x 8192",
        "h100-sxm",
        &[(INPUT_GRADIENT, 1.5 * layer_norm(8192.0)), (WEIGHT_GRADIENT, layer_norm(8192.0))],
        333.7,
    ),
    (
        "gradient of a layer norm, 4096 x 16384",
        "h100-sxm",
        &[(INPUT_GRADIENT, 1.5 * layer_norm(16384.0)), (WEIGHT_GRADIENT, layer_norm(16384.0))],
        642.4,
    ),
    ("cumsum of rows, 4096 x 4096", "h20", &[(ROW_SCAN, 8.0 * 4096.0 * 4096.0)], 195.0),
    ("cumsum of rows, 1024 x 65536", "h20", &[(ROW_SCAN, 8.0 * 1024.0 * 65536.0)], 690.0),
    ("cumsum of rows, f16, 1024 x 65536", "h20", &[(ROW_SCAN, 4.0 * 1024.0 * 65536.0)], 742.0),
    (
        "group norm, bf16, 13 x 18 x 512 x 512",
        "a100-80gb",
        &[(GROUP_NORM, 2.0 * 13.0 * 18.0 * 262_144.0), (STRIDED, 4.0 * 13.0 * 18.0 * 262_144.0)],
        1119.0,
    ),
    (
        "gather of 16384 rows of 4096",
        "a100-80gb",
        &[(Share(shares::ROWS), 2.0 * single(16384.0 * 4096.0))],
        863.4,
    ),
    (
        "gather of 16384 rows of 768",
        "a100-80gb",
        &[(Share(shares::ROWS), 2.0 * single(16384.0 * 768.0))],
        170.3,
    ),
];

/// Estimate in microseconds.
fn estimate(speeds: &Speeds, kernels: &[(Kind, f64)]) -> f64 {
    let each = kernels.iter().map(|(kind, bytes)| {
        speeds.launch
            + match kind {
                Share(share) => speeds.traffic(*bytes, *share),
                Serial(rate) => speeds.serial(*bytes, *rate),
            }
    });
    each.sum::<f64>() / 1e3
}

/// Errors of the estimates, sorted by size.
fn errors(rows: &[Row]) -> Vec<f64> {
    let mut found: Vec<f64> = rows
        .iter()
        .map(|(_, card, kernels, published)| (estimate(&card_speeds(card), kernels) / published - 1.0).abs())
        .collect();
    found.sort_by(f64::total_cmp);
    found
}

/// Start of the page that the rows are printed in.
const HEAD: &str = "# Published times of single kernels compared with estimates

Written by `MEMFIT_UPDATE_DOCS=1 cargo test -p memfit-kernels measured`. Microseconds of PyTorch's kernels: as others
published them, and as the time model of `memfit run` estimates them from the bytes that they move. The sources are in
`crates/memfit-kernels/src/cost/measured.rs`. Nothing was measured on a real GPU here.

- *Fitted* rows were used to fit a constant of the time model, *held-out* rows never were.
- The published gathers are from a PyTorch release before gathers were made faster.
- The H20 of the published cumulative sums has faster memory (141 GB) than the H20 in memfit's list of GPUs.
- Tests compare other kernels with published times: matrix products and convolutions with DeepBench's on V100 and T4 (`gemm.rs`,
  `convolution.rs`), factorisations with cuSOLVER's (`library.rs`).

| | GPU | published | estimate | error | held out |
|---|---|---|---|---|---|
";

/// Renders all rows.
fn page() -> String {
    let mut text = HEAD.to_owned();
    for (rows, held) in [(FITTED, ""), (HELD_OUT, "yes")] {
        for (work, card, kernels, published) in rows {
            let time = estimate(&card_speeds(card), kernels);
            let error = 100.0 * (time / published - 1.0);
            let _ = writeln!(text, "| {work} | {card} | {published} | {time:.1} | {error:+.0}% | {held} |");
        }
    }
    for (rows, name) in [(FITTED, "fitted rows"), (HELD_OUT, "held-out rows")] {
        let found = errors(rows);
        let _ = write!(
            text,
            "\nMedian error of the {} {name}: {:.0}%.",
            found.len(),
            100.0 * found[found.len() / 2]
        );
    }
    text.push('\n');
    text
}

#[test]
fn the_page_lists_every_row() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../measurements/kernel-times.md");
    if std::env::var_os("MEMFIT_UPDATE_DOCS").is_some() {
        std::fs::write(path, page()).unwrap();
    }
    assert_eq!(std::fs::read_to_string(path).unwrap(), page(), "set MEMFIT_UPDATE_DOCS=1 once");
}

#[test]
fn kernels_take_as_long_as_published() {
    for (rows, median, most) in [(FITTED, 0.12, 0.25), (HELD_OUT, 0.15, 0.70)] {
        let found = errors(rows);
        let middle = found[found.len() / 2];
        assert!(middle < median && found[found.len() - 1] < most, "{middle}: {found:?}");
    }
}
