//! `memfit.calibrate/1` and `memfit.calibrations/1`: measurements of a GPU.

use memfit_devices::{Calibration, Device, Spread};
use serde::Serialize;

use super::schema;

/// Measurements of a GPU next to the catalogue's figures.
#[derive(Clone, Debug, Serialize)]
pub struct CalibrateReport {
    /// The contents of the calibration file, with the schema version.
    #[serde(flatten)]
    pub calibration: Calibration,
    /// Each measurement next to the catalogue's figure.
    pub compared: Vec<Compared>,
    /// The file in which the calibration is stored.
    pub stored: Option<String>,
}

/// A measurement next to the catalogue's figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Compared {
    /// The measured quantity.
    pub name: String,
    /// Unit of both figures: `bytes`, `operations/s`, `bytes/s` or `ns`.
    pub unit: &'static str,
    /// The median measurement.
    pub measured: u64,
    /// The catalogue's figure.
    pub catalogue: u64,
}

impl CalibrateReport {
    /// Compares a calibration with the catalogue's entry for the same GPU.
    pub fn new(calibration: Calibration, known: &Device, stored: Option<String>) -> Self {
        Self { compared: compared(&calibration, known), calibration, stored }
    }
}

fn compared(calibration: &Calibration, known: &Device) -> Vec<Compared> {
    let mut rows = Vec::new();
    let mut row = |name: &str, unit: &'static str, measured: Option<u64>, catalogue: Option<u64>| {
        if let (Some(measured), Some(catalogue)) = (measured, catalogue) {
            rows.push(Compared { name: name.to_owned(), unit, measured, catalogue });
        }
    };
    row("memory", "bytes", Some(calibration.card.memory.get()), Some(known.memory.get()));
    let major = calibration.with.cuda.split('.').next().and_then(|major| major.parse().ok());
    // Without a version, assume the newest build.
    let overhead = known.overhead(major.unwrap_or(13));
    let outside = &calibration.outside;
    for (name, measured, catalogue) in [
        ("context", outside.context, overhead.context),
        ("libraries", outside.libraries, overhead.libraries),
        ("communicator", outside.per_communicator, overhead.per_communicator),
    ] {
        row(name, "bytes", measured.map(|part| part.typical.get()), Some(catalogue.typical.get()));
    }
    let share = |peak: u64, factor: f64| Some((peak as f64 * factor) as u64);
    let (rates, achieved) = (&known.rates, &known.achieved);
    let tensor = achieved.tensor.factor();
    for (name, peak, factor) in [
        ("fp64", Some(rates.fp64), achieved.ordinary.factor()),
        ("fp32", Some(rates.fp32), achieved.ordinary.factor()),
        ("tf32", rates.tf32, tensor),
        ("fp16", Some(rates.fp16), tensor),
        ("bf16", rates.bf16, tensor),
        ("fp8", rates.fp8, tensor),
        ("int8", rates.int8, tensor),
    ] {
        let measured = calibration.rates.get(name).map(|rate| rate.typical);
        row(name, "operations/s", measured, peak.and_then(|peak| share(peak, factor)));
    }
    let typical = |spread: Option<Spread>| spread.map(|spread| spread.typical);
    let memory = share(known.memory_bandwidth, achieved.memory.factor());
    row("memory bandwidth", "bytes/s", typical(calibration.memory_bandwidth), memory);
    let pinned = share(known.host_link.bandwidth, achieved.host_link.factor());
    let pageable = pinned.map(|pinned| (1.0 / (1.0 / pinned as f64 + 1.0 / achieved.staging as f64)) as u64);
    let link = &calibration.host_link;
    row("host to GPU, pinned", "bytes/s", typical(link.to_card_pinned), pinned);
    row("GPU to host, pinned", "bytes/s", typical(link.to_host_pinned), pinned);
    row("host to GPU, pageable", "bytes/s", typical(link.to_card_pageable), pageable);
    row("GPU to host, pageable", "bytes/s", typical(link.to_host_pageable), pageable);
    let peers = known.peer_link.map(|link| (link.bandwidth as f64 * achieved.peer_link.factor()) as u64);
    row("card to card", "bytes/s", typical(calibration.peer_link), peers.or(pinned));
    row("launch", "ns", typical(calibration.launch_ns), Some(u64::from(achieved.launch_ns)));
    rows
}

/// Calibrations that are stored for this machine, or that were removed.
#[derive(Clone, Debug, Serialize)]
pub struct CalibrationList {
    /// [`schema::CALIBRATIONS`].
    pub schema: &'static str,
    /// Stored calibrations.
    pub calibrations: Vec<CalibrateReport>,
    /// The removed files.
    pub forgotten: Vec<String>,
}

impl CalibrationList {
    /// Lists stored calibrations.
    pub fn new(calibrations: Vec<CalibrateReport>) -> Self {
        Self { schema: schema::CALIBRATIONS, calibrations, forgotten: Vec::new() }
    }

    /// Lists removed calibrations.
    pub fn forgotten(forgotten: Vec<String>) -> Self {
        Self { schema: schema::CALIBRATIONS, calibrations: Vec::new(), forgotten }
    }
}
