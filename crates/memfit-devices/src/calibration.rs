//! Calibrations: measurements on one GPU of one machine, which replace the catalogue's figures.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::bytes::Bytes;
use crate::device::{Device, Range};
use crate::outside::{OutsideMeasurement, OutsideParts};
use crate::speed::{Measured, Share};

/// Measurements on one GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Calibration {
    /// Schema, equal to [`Calibration::SCHEMA`].
    pub schema: String,
    /// GPU that was measured.
    pub card: CalibratedCard,
    /// Place, date and software of the measurement.
    pub with: CalibratedWith,
    /// Memory outside PyTorch's allocator.
    pub outside: OutsideParts,
    /// Rates of large matrix products in operations per second, by the name of the type.
    pub rates: BTreeMap<String, Spread>,
    /// Memory bandwidth in bytes per second.
    pub memory_bandwidth: Option<Spread>,
    /// Bandwidth of copies between host and device.
    pub host_link: CalibratedLink,
    /// Bandwidth of each device's link in collective operations, in bytes per second.
    pub peer_link: Option<Spread>,
    /// Time from one short kernel's start to the next one's, queued in one stream, in nanoseconds.
    pub launch_ns: Option<Spread>,
    /// Figures that could not be measured; the catalogue's are kept.
    pub not_measured: Vec<Gap>,
}

/// GPU that was measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CalibratedCard {
    /// Id in the catalogue.
    pub id: String,
    /// Name that the driver reports.
    pub name: String,
    /// Total memory as PyTorch sees it.
    pub memory: Bytes,
    /// `true` for one of memfit's virtual devices.
    pub is_virtual: bool,
}

/// Place, date and software of a measurement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CalibratedWith {
    /// Name of the machine.
    pub machine: String,
    /// Date, as in `2026-11-20`.
    pub date: String,
    /// Version of the driver.
    pub driver: Option<String>,
    /// `torch.__version__`.
    pub torch: String,
    /// `torch.version.cuda`.
    pub cuda: String,
}

impl CalibratedWith {
    /// Major version of CUDA.
    fn cuda_major(&self) -> Option<u32> {
        self.cuda.split('.').next()?.parse().ok()
    }
}

/// Bandwidth of copies between host and device, in bytes per second.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CalibratedLink {
    /// From page-locked memory to the device.
    pub to_card_pinned: Option<Spread>,
    /// From the device to page-locked memory.
    pub to_host_pinned: Option<Spread>,
    /// From pageable memory to the device.
    pub to_card_pageable: Option<Spread>,
    /// From the device to pageable memory.
    pub to_host_pageable: Option<Spread>,
}

/// A figure that could not be measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gap {
    /// Name of the figure.
    pub what: String,
    /// Reason.
    pub why: String,
}

/// Minimum, median and maximum of several measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "RawSpread")]
pub struct Spread {
    /// Minimum.
    pub low: u64,
    /// Median.
    pub typical: u64,
    /// Maximum.
    pub high: u64,
}

/// Spread as read from a file, which may have been edited.
#[derive(Deserialize)]
struct RawSpread {
    low: u64,
    typical: u64,
    high: u64,
}

impl TryFrom<RawSpread> for Spread {
    type Error = String;

    fn try_from(raw: RawSpread) -> Result<Self, String> {
        let RawSpread { low, typical, high } = raw;
        if 0 < low && low <= typical && typical <= high {
            Ok(Self { low, typical, high })
        } else {
            Err(format!("{low}, {typical} and {high} are not rising measurements above zero"))
        }
    }
}

impl Spread {
    /// Computes the spread of measurements; `None` without measurements, or without any above zero.
    pub fn from_measurements(measured: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<u64> = measured
            .into_iter()
            .filter(|value| value.is_finite() && (1.0..1e18).contains(value))
            .map(|value| value.round() as u64)
            .collect();
        sorted.sort_unstable();
        let (low, high) = (*sorted.first()?, *sorted.last()?);
        Some(Self { low, typical: sorted[sorted.len() / 2], high })
    }

    /// Merges two spreads: the mean of their medians, and the extremes of both.
    fn merge(self, other: Option<Self>) -> Self {
        let Some(other) = other else { return self };
        Self {
            low: self.low.min(other.low),
            typical: self.typical.midpoint(other.typical),
            high: self.high.max(other.high),
        }
    }

    /// Converts to shares of a peak; `None` if the peak is too far from the measurements to belong to this
    /// device.
    fn as_share_of(self, peak: u64) -> Option<Share> {
        let share = |value: u64| u16::try_from(u128::from(value) * 1000 / u128::from(peak.max(1))).ok();
        Share::try_from([share(self.low)?, share(self.typical)?, share(self.high)?]).ok()
    }
}

impl Calibration {
    /// Version of the document's schema.
    pub const SCHEMA: &'static str = "memfit.calibrate/1";

    /// Description of the calibration, used as the source of its figures.
    pub fn source(&self) -> String {
        let CalibratedWith { machine, date, driver, torch, .. } = &self.with;
        let driver = driver.as_ref().map(|driver| format!("driver {driver}, ")).unwrap_or_default();
        let what = if self.card.is_virtual { "calibrated on a virtual GPU" } else { "calibrated on" };
        let place = if self.card.is_virtual { String::new() } else { format!(" {machine}") };
        format!("{what}{place}, {date} ({driver}torch {torch})")
    }
}

/// Staging bandwidth in bytes per second of a driver that need not copy into its own buffers.
const UNSTAGED_BANDWIDTH: f64 = 1e13;

impl Device {
    /// Returns the device with its catalogue figures replaced by measurements.
    #[must_use]
    pub fn calibrated(mut self, calibration: &Calibration) -> Self {
        let source = calibration.source();
        self.memory = calibration.card.memory;
        self.memory_seen = Range {
            low: self.memory_seen.low.min(self.memory),
            high: self.memory_seen.high.max(self.memory),
        };
        self.take_speeds(calibration);
        self.outside = Some(OutsideMeasurement {
            cuda_major: calibration.with.cuda_major(),
            source: source.clone(),
            parts: calibration.outside.clone(),
        });
        for key in ["memory", "achieved", "calibration"] {
            self.sources.insert(key.to_owned(), source.clone());
        }
        self
    }

    /// Source of the calibration, if the device was calibrated.
    pub fn calibrated_by(&self) -> Option<&str> {
        self.sources.get("calibration").map(String::as_str)
    }

    fn take_speeds(&mut self, calibration: &Calibration) {
        let rate = |name: &str| calibration.rates.get(name).copied();
        let typical = |name: &str| rate(name).map(|rate| rate.typical);
        let achieved = &mut self.achieved;
        achieved.measured = Measured {
            fp64: typical("fp64"),
            fp32: typical("fp32"),
            tf32: typical("tf32"),
            fp16: typical("fp16"),
            bf16: typical("bf16"),
            fp8: typical("fp8"),
            int8: typical("int8"),
            peers: calibration.peer_link.map(|peers| peers.typical),
        };
        let peaks = &self.rates;
        let tensor = rate("bf16").zip(peaks.bf16).or_else(|| rate("fp16").map(|rate| (rate, peaks.fp16)));
        let share = |measured: Option<(Spread, u64)>, known: Share| {
            measured.and_then(|(rate, peak)| rate.as_share_of(peak)).unwrap_or(known)
        };
        achieved.tensor = share(tensor, achieved.tensor);
        achieved.ordinary = share(rate("fp32").map(|rate| (rate, peaks.fp32)), achieved.ordinary);
        let bandwidth = calibration.memory_bandwidth.map(|rate| (rate, self.memory_bandwidth));
        achieved.memory = share(bandwidth, achieved.memory);
        let link = &calibration.host_link;
        let both = |one: Option<Spread>, other: Option<Spread>| one.map(|one| one.merge(other)).or(other);
        let pinned = both(link.to_card_pinned, link.to_host_pinned);
        achieved.host_link = share(pinned.map(|rate| (rate, self.host_link.bandwidth)), achieved.host_link);
        let pageable = both(link.to_card_pageable, link.to_host_pageable);
        if let (Some(pinned), Some(pageable)) = (pinned, pageable) {
            // Pageable memory is staged through the driver's own buffers: one copy after the other.
            let (fast, slow) = (pinned.typical as f64, pageable.typical as f64);
            let staging = 1.0 / (1.0 / slow - 1.0 / fast);
            // If pageable memory is no slower, nothing is staged.
            achieved.staging = if staging.is_finite() && staging > 0.0 {
                staging.min(UNSTAGED_BANDWIDTH)
            } else {
                UNSTAGED_BANDWIDTH
            } as u64;
        }
        if let Some(launch) = calibration.launch_ns {
            achieved.launch_ns = u32::try_from(launch.typical).unwrap_or(achieved.launch_ns);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Catalogue, Interval};

    fn spread(typical: u64) -> Option<Spread> {
        Spread::from_measurements([typical as f64 * 0.98, typical as f64, typical as f64 * 1.01])
    }

    fn calibration() -> Calibration {
        let mib = |low, typical, high| Interval {
            low: Bytes::from_mib(low),
            typical: Bytes::from_mib(typical),
            high: Bytes::from_mib(high),
        };
        Calibration {
            schema: Calibration::SCHEMA.to_owned(),
            card: CalibratedCard {
                id: "a100-80gb".to_owned(),
                name: "NVIDIA A100-SXM4-80GB".to_owned(),
                memory: Bytes::from_mib(81_000),
                is_virtual: false,
            },
            with: CalibratedWith {
                machine: "node7".to_owned(),
                date: "2026-11-20".to_owned(),
                driver: Some("580.82".to_owned()),
                torch: "2.15.0".to_owned(),
                cuda: "13.2".to_owned(),
            },
            outside: OutsideParts {
                context: Some(mib(430, 432, 434)),
                libraries: Some(mib(40, 80, 140)),
                per_communicator: None,
                other_processes: Some(Bytes::from_mib(3)),
            },
            rates: [("bf16", 262), ("fp16", 259), ("tf32", 128), ("fp32", 18), ("fp64", 17)]
                .into_iter()
                .filter_map(|(name, tera)| Some((name.to_owned(), spread(tera * 1_000_000_000_000)?)))
                .collect(),
            memory_bandwidth: spread(1_790_000_000_000),
            host_link: CalibratedLink {
                to_card_pinned: spread(25_000_000_000),
                to_host_pinned: spread(26_000_000_000),
                to_card_pageable: spread(9_000_000_000),
                to_host_pageable: None,
            },
            peer_link: None,
            launch_ns: spread(2_300),
            not_measured: Vec::new(),
        }
    }

    fn card() -> Device {
        Catalogue::builtin().unwrap().find("a100-80gb").unwrap().clone()
    }

    #[test]
    fn measured_values_replace_the_catalogue() {
        let card = card().calibrated(&calibration());
        assert_eq!(card.memory, Bytes::from_mib(81_000));
        assert_eq!(card.achieved.measured.bf16, Some(262_000_000_000_000));
        assert_eq!(card.achieved.measured.int8, None);
        let share = 262e15 / card.rates.bf16.unwrap() as f64;
        assert!((f64::from(card.achieved.tensor.typical) - share).abs() < 1.0, "{share}");
        assert_eq!(card.achieved.launch_ns, 2_300);
        // The modelled speed of pageable memory equals the measured one.
        let fast = card.host_link.bandwidth as f64 * card.achieved.host_link.factor();
        let slow = 1.0 / (1.0 / fast + 1.0 / card.achieved.staging as f64);
        assert!((slow / 9e9 - 1.0).abs() < 0.01, "{slow}");
        let outside = card.overhead(13);
        assert_eq!(outside.libraries.high, Bytes::from_mib(140));
        assert!(outside.sources[0].starts_with("calibrated on node7, 2026-11-20"), "{:?}", outside.sources);
        assert_eq!(card.source_of("memory"), card.calibrated_by());
    }

    #[test]
    fn values_not_measured_stay_as_in_the_catalogue() {
        let (plain, mut part) = (card(), calibration());
        part.outside.context = None;
        part.memory_bandwidth = None;
        let card = plain.clone().calibrated(&part);
        assert_eq!(card.achieved.memory, plain.achieved.memory);
        assert_eq!(card.overhead(13).context, plain.overhead(13).context);
        assert_eq!(card.overhead(13).per_communicator, plain.overhead(13).per_communicator);
        assert_eq!(card.overhead(13).sources[0], plain.overhead(13).sources[0]);
        // The context of another CUDA version differs.
        assert_eq!(card.overhead(12), plain.overhead(12));
    }

    #[test]
    fn implausible_measurements_are_ignored() {
        let mut strange = calibration();
        strange.memory_bandwidth = spread(90_000_000_000_000);
        assert_eq!(card().calibrated(&strange).achieved.memory, card().achieved.memory);
        assert_eq!(Spread::from_measurements([0.0, -1.0, f64::NAN, f64::INFINITY]), None);
        assert!(serde_json::from_str::<Spread>(r#"{"low":3,"typical":2,"high":4}"#).is_err());
    }

    #[test]
    fn it_is_read_as_it_was_written() {
        let text = serde_json::to_string(&calibration()).unwrap();
        assert_eq!(serde_json::from_str::<Calibration>(&text).unwrap(), calibration());
        let card = card().calibrated(&calibration());
        let text = serde_json::to_string(&card).unwrap();
        assert_eq!(serde_json::from_str::<Device>(&text).unwrap(), card);
    }
}
