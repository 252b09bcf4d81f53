//! Memory of a process on a device outside PyTorch's allocator: context, libraries, communication buffers.
//!
//! The driver does not publish these figures and they change with its release, so each is an interval with
//! its source. A verdict uses the upper bounds.

use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

use crate::bytes::Bytes;
use crate::device::{ComputeCapability, Device};
use crate::outside::{Interval, OutsideMeasurement};

/// Memory outside PyTorch's allocator, for one process on one device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Overhead {
    /// CUDA context: the driver's own memory, the local memory of all resident threads, and the PyTorch
    /// modules that are loaded at start.
    pub context: Interval,
    /// Kernels and handles of PyTorch, cuBLAS, cuBLASLt and cuDNN that are loaded on first use.
    pub libraries: Interval,
    /// Buffers of one NCCL communicator after the first collective. Multiply by the number of communicators.
    pub per_communicator: Interval,
    /// Sources of the three, in that order.
    pub sources: [String; 3],
    /// First and last major CUDA version that they were observed with.
    pub seen_with: [u32; 2],
    /// Major CUDA version that they were requested for.
    pub asked_for: u32,
}

/// Origin of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Origin {
    /// Observed by others on such devices, and published.
    Published,
    /// Derived from figures of other devices.
    Modelled,
    /// Measured on this machine's own device.
    Calibrated,
    /// Stated by the user.
    Stated,
    /// Counted during the run.
    Counted,
}

impl Origin {
    /// Origin of the figure with this source.
    pub fn from_source(source: &str) -> Self {
        match source {
            _ if source.starts_with("calibrated") => Self::Calibrated,
            // Also where published figures of other devices are the base.
            _ if source.contains("modelled") => Self::Modelled,
            _ => Self::Published,
        }
    }

    /// Name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Published => "published",
            Self::Modelled => "modelled",
            Self::Calibrated => "calibrated",
            Self::Stated => "stated",
            Self::Counted => "counted",
        }
    }
}

impl Device {
    /// Memory outside PyTorch's allocator on this device, for a build of the given major CUDA version.
    pub fn overhead(&self, cuda_major: u32) -> Overhead {
        Overhead::for_device(self, cuda_major)
    }
}

impl Overhead {
    /// Returns `true` if the figures were not observed with the requested CUDA version.
    pub fn is_of_another_stack(&self) -> bool {
        let [from, to] = self.seen_with;
        !(from..=to).contains(&self.asked_for)
    }

    /// Compares the figures and their sources, without the requested CUDA version.
    pub fn has_figures_of(&self, other: &Self) -> bool {
        *self == Self { asked_for: self.asked_for, ..other.clone() }
    }

    /// Context and libraries: the total of a process on one GPU.
    pub fn total(&self) -> Interval {
        self.context + self.libraries
    }

    fn for_device(device: &Device, cuda_major: u32) -> Self {
        let entry = TABLE.entry(device.compute_capability, cuda_major);
        let threads = device.resident_threads();
        let local = |per_thread: Bytes| per_thread * threads;
        let context = Interval {
            low: entry.context.low + local(entry.context_per_thread.low),
            typical: entry.context.typical + local(entry.context_per_thread.typical),
            high: entry.context.high + local(entry.context_per_thread.high),
        };
        let known = Self {
            context,
            libraries: entry.libraries,
            per_communicator: if device.peer_link.is_some() {
                entry.per_communicator_nvlink
            } else {
                entry.per_communicator_pcie
            },
            sources: [
                entry.sources.context.clone(),
                entry.sources.libraries.clone(),
                entry.sources.per_communicator.clone(),
            ],
            seen_with: entry.cuda_major,
            asked_for: cuda_major,
        };
        match &device.outside {
            // The modules that a build of torch loads depend on its CUDA version.
            Some(measured) if measured.cuda_major.is_none_or(|major| major == cuda_major) => {
                known.measured(measured)
            }
            _ => known,
        }
    }

    /// Replaces known figures with measured ones, if there are any.
    fn measured(mut self, measured: &OutsideMeasurement) -> Self {
        let parts = &measured.parts;
        let places = [&mut self.context, &mut self.libraries, &mut self.per_communicator];
        let found = [parts.context, parts.libraries, parts.per_communicator];
        for ((place, source), found) in places.into_iter().zip(&mut self.sources).zip(found) {
            if let Some(found) = found {
                *place = found;
                source.clone_from(&measured.source);
            }
        }
        if let Some(major) = measured.cuda_major.filter(|_| parts.context.is_some()) {
            self.seen_with = [major; 2];
        }
        self
    }
}

/// Contents of `overhead.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    overhead: Vec<Entry>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    /// First and last compute capability.
    capability: [ComputeCapability; 2],
    /// First and last major CUDA version.
    cuda_major: [u32; 2],
    /// Part of the context that does not depend on the size of the device.
    context: Interval,
    /// Part that the driver reserves for each thread that can be resident.
    context_per_thread: Interval,
    libraries: Interval,
    /// On devices with NVLink.
    per_communicator_nvlink: Interval,
    /// On devices that reach each other over PCI Express.
    per_communicator_pcie: Interval,
    sources: EntrySources,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct EntrySources {
    context: String,
    libraries: String,
    per_communicator: String,
}

impl Table {
    /// Entry for a device and a CUDA version, or the nearest listed one.
    fn entry(&self, capability: ComputeCapability, cuda_major: u32) -> &Entry {
        let distance = |entry: &&Entry| {
            let [from, to] = entry.capability.map(ComputeCapability::sm_version);
            let [oldest, newest] = entry.cuda_major;
            // The loading of modules (CUDA's version) matters more than the generation of the device.
            (outside(cuda_major, oldest, newest), outside(capability.sm_version(), from, to))
        };
        self.overhead
            .iter()
            .min_by_key(distance)
            .unwrap_or_else(|| unreachable!("the built-in table is empty"))
    }
}

/// Distance of a value from a range.
fn outside(value: u32, from: u32, to: u32) -> u32 {
    from.saturating_sub(value).max(value.saturating_sub(to))
}

static TABLE: LazyLock<Table> = LazyLock::new(|| {
    // The text is part of the program and a test reads it: if it cannot be read, that is a bug.
    toml::from_str(include_str!("../data/overhead.toml"))
        .unwrap_or_else(|error| unreachable!("the built-in overhead table: {error}"))
});

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Catalogue;

    fn ordered(interval: Interval) -> bool {
        interval.low <= interval.typical && interval.typical <= interval.high
    }

    #[test]
    fn every_card_has_ordered_and_sourced_intervals() {
        let catalogue = Catalogue::builtin().unwrap();
        for device in catalogue.devices() {
            for cuda_major in [10, 11, 12, 13, 14] {
                let overhead = device.overhead(cuda_major);
                for interval in [overhead.context, overhead.libraries, overhead.per_communicator] {
                    assert!(ordered(interval), "{} with CUDA {cuda_major}: {interval:?}", device.id);
                }
                assert!(overhead.sources.iter().all(|source| source.len() > 10));
                assert!(overhead.total().high.get() < device.memory.get() / 2, "{}", device.id);
            }
        }
    }

    #[test]
    fn an_interval_is_for_the_stacks_with_which_it_was_seen() {
        let catalogue = Catalogue::builtin().unwrap();
        for device in catalogue.devices() {
            for cuda_major in 9..=14 {
                let seen = (10..=13).contains(&cuda_major);
                let overhead = device.overhead(cuda_major);
                assert_eq!(overhead.is_of_another_stack(), !seen, "{} with CUDA {cuda_major}", device.id);
            }
            // An older CUDA version may load all modules at once: the newer one's interval must not be used
            // for it.
            let (older, newer) = (device.overhead(11).total(), device.overhead(12).total());
            assert!(older.high > newer.high && older.low <= newer.low, "{}", device.id);
        }
    }

    /// Totals (context and libraries) from public out-of-memory messages, each accurate to 15 MiB.
    #[test]
    fn published_totals_lie_within_the_interval() {
        let catalogue = Catalogue::builtin().unwrap();
        let slack = Bytes::from_mib(15);
        for (name, mib) in [
            ("t4", 109),
            ("t4", 151),
            ("t4", 135),
            ("titan-xp", 118),
            ("rtx-2080-ti", 191),
            ("rtx-3060", 85),
            ("rtx-3080", 212),
            ("rtx-3080", 266),
            ("rtx-3090", 256),
            ("rtx-3090", 344),
            ("rtx-a6000", 294),
            ("rtx-a6000", 309),
            ("a10g", 256),
            ("l4", 251),
            ("rtx-4060-ti-16gb", 124),
            ("rtx-4090", 386),
            ("rtx-4090", 504),
            ("rtx-6000-ada", 426),
            ("a100-40gb", 418),
            ("a100-40gb", 530),
            ("a100-80gb", 489),
            ("h100-nvl", 668),
            ("h100-nvl", 768),
            ("h20", 512),
            ("h200", 670),
            ("gh200", 543),
            ("gh200", 758),
            ("b200", 712),
            ("b300", 618),
            ("rtx-5060-ti-16gb", 128),
            ("rtx-5070-ti", 222),
            ("rtx-5090", 593),
            ("rtx-5090", 653),
            ("rtx-pro-6000", 696),
        ] {
            let total = catalogue.find(name).unwrap().overhead(12).total();
            let seen = Bytes::from_mib(mib);
            assert!(
                total.low <= seen + slack && seen.saturating_sub(slack) <= total.high,
                "{name}: {seen} is not within {} to {}",
                total.low,
                total.high
            );
        }
    }

    #[test]
    fn the_interval_is_narrow_enough_to_be_of_use() {
        let catalogue = Catalogue::builtin().unwrap();
        for device in catalogue.devices() {
            let total = device.overhead(13).total();
            let width = total.high.saturating_sub(total.low);
            assert!(width <= Bytes::from_mib(512), "{}: {width}", device.id);
        }
    }

    #[test]
    fn a_version_that_is_not_listed_takes_the_nearest() {
        let catalogue = Catalogue::builtin().unwrap();
        let card = catalogue.find("rtx-4090").unwrap();
        let at = |cuda_major| Overhead { asked_for: 0, ..card.overhead(cuda_major) };
        assert_eq!(at(14), at(13));
        assert_eq!(at(9), at(11));
        assert!(card.overhead(11).total().high > card.overhead(12).total().high);
    }

    #[test]
    fn communicators_cost_more_over_nvlink() {
        let catalogue = Catalogue::builtin().unwrap();
        let nvlink = catalogue.find("a100-80gb").unwrap().overhead(12).per_communicator;
        let pcie = catalogue.find("rtx-4090").unwrap().overhead(12).per_communicator;
        assert!(nvlink.typical > pcie.typical && nvlink.high > pcie.high);
    }
}
