//! A calibration: what was measured on one card of one machine, and how it takes the place of the catalogue's
//! figures.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::bytes::Bytes;
use crate::device::{Device, Range};
use crate::outside::{CalibratedOutside, MeasuredOutside};
use crate::speed::{Measured, Share};

/// What was measured on one card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Calibration {
    /// [`Calibration::SCHEMA`].
    pub schema: String,
    /// The card.
    pub card: CalibratedCard,
    /// Where, when, and with what.
    pub with: CalibratedWith,
    /// What lies outside PyTorch's allocator.
    pub outside: CalibratedOutside,
    /// Products of large matrices, in operations a second, by the name of the type.
    pub rates: BTreeMap<String, Spread>,
    /// The card's memory, in bytes a second.
    pub memory_bandwidth: Option<Spread>,
    /// Copies between host and card.
    pub host_link: CalibratedLink,
    /// Between cards in collective operations, in bytes a second of each card's link.
    pub peer_link: Option<Spread>,
    /// From one short kernel's start to the next one's, queued in one stream, in nanoseconds.
    pub launch_ns: Option<Spread>,
    /// What could not be measured: the catalogue's figure stays.
    pub not_measured: Vec<Gap>,
}

/// The card that was measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CalibratedCard {
    /// Its name in the catalogue.
    pub id: String,
    /// The name that the driver reports.
    pub name: String,
    /// Total memory as PyTorch sees it.
    pub memory: Bytes,
    /// Whether it is one of memfit's virtual cards.
    pub is_virtual: bool,
}

/// Where, when, and with what a card was measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CalibratedWith {
    /// The machine's name.
    pub machine: String,
    /// The day, as in `2026-11-20`.
    pub date: String,
    /// The driver's version.
    pub driver: Option<String>,
    /// `torch.__version__`.
    pub torch: String,
    /// `torch.version.cuda`.
    pub cuda: String,
}

impl CalibratedWith {
    /// CUDA's major version.
    fn cuda_major(&self) -> Option<u32> {
        self.cuda.split('.').next()?.parse().ok()
    }
}

/// A way between host and card, in bytes a second.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CalibratedLink {
    /// From page-locked memory to the card.
    pub to_card_pinned: Option<Spread>,
    /// From the card to page-locked memory.
    pub to_host_pinned: Option<Spread>,
    /// From pageable memory to the card.
    pub to_card_pageable: Option<Spread>,
    /// From the card to pageable memory.
    pub to_host_pageable: Option<Spread>,
}

/// Something that could not be measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gap {
    /// What.
    pub what: String,
    /// Why.
    pub why: String,
}

/// Several measurements of one thing: the least, the middle one, the greatest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "RawSpread")]
pub struct Spread {
    /// The least.
    pub low: u64,
    /// The middle one.
    pub typical: u64,
    /// The greatest.
    pub high: u64,
}

/// As it stands in a file, which people may have edited.
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
            Err(format!("{low}, {typical} and {high} are no rising measurements above zero"))
        }
    }
}

impl Spread {
    /// Of measurements; none of no measurements, and of none above zero.
    pub fn of(measured: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<u64> = measured
            .into_iter()
            .filter(|value| value.is_finite() && (1.0..1e18).contains(value))
            .map(|value| value.round() as u64)
            .collect();
        sorted.sort_unstable();
        let (low, high) = (*sorted.first()?, *sorted.last()?);
        Some(Self { low, typical: sorted[sorted.len() / 2], high })
    }

    /// Both as one: between their middles, from the least of either to the most.
    fn with(self, other: Option<Self>) -> Self {
        let Some(other) = other else { return self };
        Self {
            low: self.low.min(other.low),
            typical: self.typical.midpoint(other.typical),
            high: self.high.max(other.high),
        }
    }

    /// As shares of a peak. A peak that is far from what was measured is no peak of this card's.
    fn of_peak(self, peak: u64) -> Option<Share> {
        let share = |value: u64| u16::try_from(u128::from(value) * 1000 / u128::from(peak.max(1))).ok();
        Share::try_from([share(self.low)?, share(self.typical)?, share(self.high)?]).ok()
    }
}

impl Calibration {
    /// The version of the document's shape.
    pub const SCHEMA: &'static str = "memfit.calibrate/1";

    /// Who says so: what stands where the catalogue has a source.
    pub fn source(&self) -> String {
        let CalibratedWith { machine, date, driver, torch, .. } = &self.with;
        let driver = driver.as_ref().map(|driver| format!("driver {driver}, ")).unwrap_or_default();
        let what = if self.card.is_virtual { "calibrated on a virtual card" } else { "calibrated on" };
        let place = if self.card.is_virtual { String::new() } else { format!(" {machine}") };
        format!("{what}{place}, {date} ({driver}torch {torch})")
    }
}

/// Bytes a second of a driver that need not move anything into buffers of its own.
const UNSTAGED: f64 = 1e13;

impl Device {
    /// The same card with what was measured in the place of what the catalogue says.
    #[must_use]
    pub fn calibrated(mut self, calibration: &Calibration) -> Self {
        let source = calibration.source();
        self.memory = calibration.card.memory;
        self.memory_seen = Range {
            low: self.memory_seen.low.min(self.memory),
            high: self.memory_seen.high.max(self.memory),
        };
        self.take_speeds(calibration);
        self.outside = Some(MeasuredOutside {
            cuda_major: calibration.with.cuda_major(),
            source: source.clone(),
            parts: calibration.outside.clone(),
        });
        for key in ["memory", "achieved", "calibration"] {
            self.sources.insert(key.to_owned(), source.clone());
        }
        self
    }

    /// Who calibrated it, if somebody did.
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
            measured.and_then(|(rate, peak)| rate.of_peak(peak)).unwrap_or(known)
        };
        achieved.tensor = share(tensor, achieved.tensor);
        achieved.ordinary = share(rate("fp32").map(|rate| (rate, peaks.fp32)), achieved.ordinary);
        let bandwidth = calibration.memory_bandwidth.map(|rate| (rate, self.memory_bandwidth));
        achieved.memory = share(bandwidth, achieved.memory);
        let link = &calibration.host_link;
        let both = |one: Option<Spread>, other: Option<Spread>| one.map(|one| one.with(other)).or(other);
        let pinned = both(link.to_card_pinned, link.to_host_pinned);
        achieved.host_link = share(pinned.map(|rate| (rate, self.host_link.bandwidth)), achieved.host_link);
        let pageable = both(link.to_card_pageable, link.to_host_pageable);
        if let (Some(pinned), Some(pageable)) = (pinned, pageable) {
            // Pageable memory goes through the driver's own buffers: one copy after the other.
            let (fast, slow) = (pinned.typical as f64, pageable.typical as f64);
            let staging = 1.0 / (1.0 / slow - 1.0 / fast);
            // Where pageable memory is no slower, nothing is staged.
            achieved.staging =
                if staging.is_finite() && staging > 0.0 { staging.min(UNSTAGED) } else { UNSTAGED } as u64;
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
        Spread::of([typical as f64 * 0.98, typical as f64, typical as f64 * 1.01])
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
            outside: CalibratedOutside {
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
    fn what_was_measured_takes_the_place_of_what_is_known() {
        let card = card().calibrated(&calibration());
        assert_eq!(card.memory, Bytes::from_mib(81_000));
        assert_eq!(card.achieved.measured.bf16, Some(262_000_000_000_000));
        assert_eq!(card.achieved.measured.int8, None);
        let share = 262e15 / card.rates.bf16.unwrap() as f64;
        assert!((f64::from(card.achieved.tensor.typical) - share).abs() < 1.0, "{share}");
        assert_eq!(card.achieved.launch_ns, 2_300);
        // Pageable memory arrives as fast as it was measured, by the way that it is said to go.
        let fast = card.host_link.bandwidth as f64 * card.achieved.host_link.factor();
        let slow = 1.0 / (1.0 / fast + 1.0 / card.achieved.staging as f64);
        assert!((slow / 9e9 - 1.0).abs() < 0.01, "{slow}");
        let outside = card.overhead(13);
        assert_eq!(outside.libraries.high, Bytes::from_mib(140));
        assert!(outside.sources[0].starts_with("calibrated on node7, 2026-11-20"), "{:?}", outside.sources);
        assert_eq!(card.source_of("memory"), card.calibrated_by());
    }

    #[test]
    fn what_was_not_measured_stays() {
        let (plain, mut part) = (card(), calibration());
        part.outside.context = None;
        part.memory_bandwidth = None;
        let card = plain.clone().calibrated(&part);
        assert_eq!(card.achieved.memory, plain.achieved.memory);
        assert_eq!(card.overhead(13).context, plain.overhead(13).context);
        assert_eq!(card.overhead(13).per_communicator, plain.overhead(13).per_communicator);
        assert_eq!(card.overhead(13).sources[0], plain.overhead(13).sources[0]);
        // A context of another CUDA is another context.
        assert_eq!(card.overhead(12), plain.overhead(12));
    }

    #[test]
    fn a_measurement_that_cannot_be_this_cards_is_passed_over() {
        let mut strange = calibration();
        strange.memory_bandwidth = spread(90_000_000_000_000);
        assert_eq!(card().calibrated(&strange).achieved.memory, card().achieved.memory);
        assert_eq!(Spread::of([0.0, -1.0, f64::NAN, f64::INFINITY]), None);
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
