//! Computes a calibration from the measuring process's facts and the GPU's memory use.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use memfit_devices::{
    Bytes, CalibratedCard, CalibratedLink, CalibratedWith, Calibration, Device, Gap, Interval, OutsideParts,
    Spread,
};
use memfit_run::LocalGpu;

use super::child::{Fact, GpuFact, Measuring, Sample};
use crate::CliError;

/// The types whose rates are measured.
const RATES: [&str; 7] = ["fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8"];
/// Granularity of the driver, which limits the precision of all figures.
const DRIVER_GRANULARITY: u64 = 2 << 20;

/// All facts and memory readings.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    /// `true` if the GPU is a virtual one.
    is_virtual: bool,
    /// The driver's version.
    pub(super) driver: Option<String>,
    /// Quantities that could not be measured.
    pub(super) gaps: Vec<Gap>,
    gpu: GpuFact,
    samples: Vec<Sample>,
    /// By stage, memory in use beyond the allocator's own.
    outside: BTreeMap<String, u64>,
    /// Bytes in use at the end minus those at the start.
    drift: u64,
}

impl Seen {
    /// Creates an empty state, for one of memfit's virtual GPUs or a real one.
    pub(super) fn nothing(is_virtual: bool) -> Self {
        Self { is_virtual, ..Self::default() }
    }

    /// Follows processes until all are done. When all have reached a stage, reads the GPU's memory use.
    pub(super) fn follow(&mut self, all: &mut [Measuring], gpu: &LocalGpu) -> Result<(), CliError> {
        let together = all.len() > 1;
        let before = gpu.used();
        let mut ended = false;
        while !ended {
            let mut stage = None;
            for (rank, measuring) in all.iter_mut().enumerate() {
                // Of several ranks, the first one's GPU is read, and only its facts count.
                let reached = self.listen(measuring, rank == 0)?;
                if rank == 0 {
                    stage = reached;
                }
            }
            ended = stage.is_none();
            if let Some(((name, reserved), used)) = stage.zip(gpu.used()) {
                let name = if together { format!("ranks: {name}") } else { name };
                self.outside.insert(name, used.saturating_sub(reserved));
            }
            all.iter_mut().for_each(Measuring::go_on);
        }
        if let (Some(before), Some(after)) = (before, gpu.used()) {
            self.drift = self.drift.max(after.abs_diff(before));
        }
        Ok(())
    }

    /// Returns the next stage that a process reaches.
    fn listen(&mut self, measuring: &mut Measuring, first: bool) -> Result<Option<(String, u64)>, CliError> {
        while let Some(fact) = measuring.next()? {
            match fact {
                Fact::Stage { name, reserved } => return Ok(Some((name, reserved))),
                _ if !first => {}
                Fact::Gpu(gpu) => self.gpu = gpu,
                Fact::Sample(sample) => self.samples.push(sample),
                Fact::NotMeasured { what, why } => self.gaps.push(Gap { what, why }),
                Fact::End => {}
            }
        }
        Ok(None)
    }

    /// Number of GPUs.
    pub(super) fn gpu_count(&self) -> u32 {
        self.gpu.count
    }

    /// The GPU's description, if the process sent one.
    pub(super) fn gpu(&self) -> Result<&GpuFact, CliError> {
        let nothing = || CliError::Measuring { said: "it reported nothing about the GPU".to_owned() };
        (!self.gpu.name.is_empty()).then_some(&self.gpu).ok_or_else(nothing)
    }

    /// The calibration.
    pub(super) fn conclude(mut self, known: &Device) -> Result<Calibration, CliError> {
        let gpu = self.gpu()?.clone();
        let outside = self.outside();
        let rates = RATES.iter().filter_map(|name| Some(((*name).to_owned(), self.speed(name)?))).collect();
        let launch = self.samples.iter().filter(|sample| sample.name == "launch");
        Ok(Calibration {
            schema: Calibration::SCHEMA.to_owned(),
            card: CalibratedCard {
                id: known.id.clone(),
                name: gpu.name.clone(),
                memory: Bytes::new(gpu.memory),
                is_virtual: self.is_virtual,
            },
            with: CalibratedWith {
                machine: machine(),
                date: date(SystemTime::now()),
                driver: self.driver.clone(),
                torch: gpu.torch.clone(),
                cuda: gpu.cuda.clone(),
            },
            outside,
            rates,
            memory_bandwidth: self.speed("memory"),
            host_link: CalibratedLink {
                to_card_pinned: self.speed("to_card_pinned"),
                to_host_pinned: self.speed("to_host_pinned"),
                to_card_pageable: self.speed("to_card_pageable"),
                to_host_pageable: self.speed("to_host_pageable"),
            },
            peer_link: self.speed("peers"),
            launch_ns: Spread::from_measurements(
                launch.flat_map(|sample| sample.nanoseconds.iter().copied()),
            ),
            not_measured: self.gaps,
        })
    }

    /// Rate of one kind of work. The fastest of several sizes shows the GPU's limit; all of them show the
    /// variation.
    fn speed(&self, name: &str) -> Option<Spread> {
        let sizes: Vec<Spread> = self
            .samples
            .iter()
            .filter(|sample| sample.name == name)
            .filter_map(|sample| {
                Spread::from_measurements(sample.nanoseconds.iter().map(|time| sample.amount * 1e9 / time))
            })
            .collect();
        let best = sizes.iter().map(|spread| spread.typical).max()?;
        let low = sizes.iter().map(|spread| spread.low).min()?;
        let high = sizes.iter().map(|spread| spread.high).max()?;
        Some(Spread { low, typical: best, high })
    }

    /// Memory outside PyTorch's allocator, by stage.
    fn outside(&mut self) -> OutsideParts {
        let at = |name: &str| self.outside.get(name).copied();
        let noise = DRIVER_GRANULARITY.max(self.drift);
        let around = |low: u64, typical: u64, high: u64| Interval {
            low: Bytes::new(low.saturating_sub(noise)),
            typical: Bytes::new(typical),
            high: Bytes::new(high + noise),
        };
        let context = at("context").zip(at("before")).map(|(with, without)| with.saturating_sub(without));
        let beyond = |name: &str| Some(at(name)?.saturating_sub(at("context")?));
        let libraries = beyond("basic").zip(beyond("training")).map(|(basic, training)| {
            let most = beyond("everything").unwrap_or(training).max(training);
            // A script may load libraries that the measurement did not: allow a quarter more.
            around(basic.min(training), training, most + most / 4)
        });
        let communicator = |name: &str| {
            Some(at(&format!("ranks: {name}"))?.saturating_sub(at("ranks: before")?))
                .filter(|bytes| *bytes > 0)
        };
        let per_communicator = communicator("first")
            .zip(communicator("all"))
            .map(|(first, all)| around(first, all.max(first), all.max(first)));
        let found = OutsideParts {
            context: context.filter(|bytes| *bytes > 0).map(|bytes| around(bytes, bytes, bytes)),
            libraries,
            per_communicator,
            other_processes: at("before").map(Bytes::new),
        };
        if found.context.is_none() {
            let why = "the driver does not report how much GPU memory is in use".to_owned();
            self.gaps.push(Gap { what: "context and libraries".to_owned(), why });
            return OutsideParts { context: None, libraries: None, ..found };
        }
        found
    }
}

/// The machine's name.
pub(super) fn machine() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    if name.is_empty() { "this machine".to_owned() } else { name.to_owned() }
}

/// The date in UTC, as in `2026-11-20`.
fn date(now: SystemTime) -> String {
    let days = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() / 86_400) as i64;
    // Days since 1 March of year 0, in eras of 400 years, so that a leap day is the last day of its year.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use memfit_devices::Catalogue;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn seen() -> Seen {
        let sample = |name: &str, amount: f64, nanoseconds: &[f64]| Sample {
            name: name.to_owned(),
            amount,
            nanoseconds: nanoseconds.to_vec(),
        };
        Seen {
            gpu: GpuFact {
                name: "Tesla T4".to_owned(),
                memory: 14_900 * MIB,
                count: 1,
                torch: "2.15.0".to_owned(),
                cuda: "13.2".to_owned(),
            },
            samples: vec![
                sample("fp16", 2e12, &[40e6, 50e6, 42e6]),
                sample("fp16", 1e12, &[40e6, 50e6, 30e6]),
                sample("memory", 2e9, &[8e6, 8e6, 8e6]),
                sample("launch", 1.0, &[2500.0, 2400.0, 2600.0]),
            ],
            outside: [
                ("before", 10),
                ("context", 120),
                ("basic", 140),
                ("training", 160),
                ("everything", 200),
            ]
            .map(|(name, mib)| (name.to_owned(), mib * MIB))
            .into(),
            ..Seen::default()
        }
    }

    fn conclude(seen: Seen) -> Calibration {
        let catalogue = Catalogue::builtin().unwrap();
        seen.conclude(catalogue.find("t4").unwrap()).unwrap()
    }

    #[test]
    fn stages_become_intervals() {
        let outside = conclude(seen()).outside;
        let mib = |interval: Option<Interval>| {
            interval.map(|i| [i.low, i.typical, i.high].map(|bytes| bytes.get() / MIB)).unwrap()
        };
        assert_eq!(mib(outside.context), [108, 110, 112]);
        assert_eq!(mib(outside.libraries), [18, 40, 102]);
        assert_eq!(outside.per_communicator, None);
        assert_eq!(outside.other_processes, Some(Bytes::from_mib(10)));
    }

    #[test]
    fn neighbours_that_come_and_go_widen_what_is_known() {
        let narrow = conclude(seen()).outside.context.unwrap();
        let wide = conclude(Seen { drift: 30 * MIB, ..seen() }).outside.context.unwrap();
        assert!(wide.low < narrow.low && wide.high > narrow.high && wide.typical == narrow.typical);
    }

    #[test]
    fn a_card_that_cannot_be_looked_at_keeps_the_catalogues_figures() {
        let calibration = conclude(Seen { outside: BTreeMap::new(), ..seen() });
        assert_eq!(calibration.outside, OutsideParts::default());
        assert!(calibration.not_measured.iter().any(|gap| gap.what.contains("context")));
    }

    #[test]
    fn the_fastest_size_is_what_a_card_can() {
        let calibration = conclude(seen());
        let rate = calibration.rates["fp16"];
        assert!(rate.typical.abs_diff(47_619_047_619_048) <= 1);
        assert!(rate.low < rate.typical && rate.typical <= rate.high);
        assert_eq!(calibration.memory_bandwidth.unwrap().typical, 250_000_000_000);
        assert_eq!(calibration.launch_ns.unwrap().typical, 2_500);
        assert!(!calibration.rates.contains_key("fp8"));
    }

    #[test]
    fn a_process_that_named_no_card_measured_nothing() {
        let catalogue = Catalogue::builtin().unwrap();
        let outcome = Seen::default().conclude(catalogue.find("t4").unwrap());
        assert!(matches!(outcome, Err(CliError::Measuring { .. })));
    }

    #[test]
    fn days_have_their_dates() {
        for (day, wanted) in [
            (0, "1970-01-01"),
            (59, "1970-03-01"),
            (11_016, "2000-02-29"),
            (19_789, "2024-03-07"),
            (20_777, "2026-11-20"),
            (47_540, "2100-02-28"),
            (47_541, "2100-03-01"),
        ] {
            assert_eq!(date(UNIX_EPOCH + Duration::from_hours(24 * day + 5)), wanted);
        }
    }
}
