//! What the watcher tells the device before the first process starts.

use std::{fs, io, path::PathBuf};

use memfit_devices::{Bytes, Device, Overhead};
use serde::{Deserialize, Serialize};

use crate::{ClockMode, HostTime, PROTOCOL, RunDir, ValuePolicy};

/// Limits and options of one run, written once to the run directory as JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(clippy::struct_excessive_bools, reason = "each is a question of its own")]
pub struct Setup {
    /// The version of the channel; must equal [`PROTOCOL`].
    pub protocol: u32,
    /// The virtual cards, in device order. Empty on a real GPU.
    pub cards: Vec<CardSetup>,
    /// Stop after so many optimizer steps; 0 means to the end.
    pub steps: u64,
    /// Where no optimizer exists, stop after so many forward passes of the outermost module; 0 means to the
    /// end. Only asked for explicitly: an evaluation before the training must not be taken for the whole
    /// script.
    #[serde(default)]
    pub forward_steps: u64,
    /// Also run the script's own evaluation and its largest batch.
    pub cover_full: bool,
    /// Whether the probe should keep each allocation's Python stack for a recording.
    pub stacks: bool,
    /// Which size a read-back answers where a kernel would have computed it.
    #[serde(default)]
    pub values: ValuePolicy,
    /// Whether unknown integers are read as another number than zero, to see whether anything depends on it.
    #[serde(default)]
    pub other_numbers: bool,
    /// Whether the probe seeds the generators of random numbers, so that two runs draw the same.
    #[serde(default)]
    pub seeded: bool,
    /// What the probe puts in the place of what this machine lacks.
    #[serde(default)]
    pub synthetic: Synthetic,
    /// Where tensors stay on the host, because their numbers are wanted and not their memory.
    #[serde(default)]
    pub host: Option<HostRun>,
    /// When the device says that work is done.
    #[serde(default)]
    pub clock: ClockMode,
    /// Whether the host's own computing moves the clock.
    #[serde(default)]
    pub host_time: HostTime,
    /// How long the training's own `DataLoader` is tried with each number of workers once the steps are
    /// complete, in milliseconds; 0 does not.
    #[serde(default)]
    pub measure_loader_ms: u64,
    /// Cards whose clocks run beside the run's own, which is the first of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub beside: Vec<Device>,
}

/// A run of small batches on the host, whose gradients are kept or compared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostRun {
    /// The folder in which they are kept.
    pub folder: PathBuf,
    /// Samples in a batch of a loader, at most.
    pub samples: u64,
    /// Its part in the comparison.
    pub part: HostPart,
}

/// The part of a run in a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HostPart {
    /// Keeps what it computes.
    First,
    /// Runs the same script, to know what two runs of it have in common.
    Again,
    /// Runs a changed script.
    Changed,
}

/// What a machine without the weights and the data of a training is given in their place.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Synthetic {
    /// Weights take their shapes from configurations and headers, and are never read.
    pub weights: bool,
    /// Data sets give samples made up: an empty list of fields means what each class of data set is known to
    /// give.
    pub data: Option<SyntheticData>,
}

/// Samples that are made up.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SyntheticData {
    /// The parts of one sample, in order.
    pub fields: Vec<SyntheticField>,
    /// Whether a sample is a mapping from names, and not a tuple.
    pub mapping: bool,
    /// How many samples; nothing where the data set's class knows.
    pub length: Option<u64>,
}

/// One part of a sample.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SyntheticField {
    /// What the sample calls it.
    pub name: String,
    /// The extent of each dimension; none for a number.
    pub shape: Vec<u64>,
    /// `torch`'s name of the element's type.
    pub dtype: String,
    /// Integers lie below this.
    pub below: Option<i64>,
}

/// One virtual card.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CardSetup {
    /// The card; its memory is the capacity of this run.
    pub device: Device,
    /// The memory outside PyTorch's allocator of one process on this card.
    pub overhead: Overhead,
    /// Memory held by programs that are no part of the run.
    #[serde(default)]
    pub other_processes: Bytes,
}

impl CardSetup {
    /// A card that no other program uses.
    pub fn new(device: Device, overhead: Overhead) -> Self {
        Self { device, overhead, other_processes: Bytes::ZERO }
    }

    /// Total memory in bytes, as PyTorch sees it.
    pub fn capacity(&self) -> u64 {
        self.device.memory.get()
    }
}

/// The run directory could not be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChannelError {
    /// A file in the run directory could not be used.
    #[error("cannot use `{path}` in the run directory")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file in the run directory is not what it should be.
    #[error("`{path}` in the run directory is not valid: {why}")]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The other end speaks another version of the channel.
    #[error("the run directory speaks version {found} of the channel, this build speaks {PROTOCOL}")]
    Protocol {
        /// The version found.
        found: u32,
    },
}

impl Setup {
    /// The set-up of a run to its end on these cards, with default options.
    pub fn new(cards: Vec<CardSetup>) -> Self {
        Self {
            protocol: PROTOCOL,
            cards,
            steps: 0,
            forward_steps: 0,
            cover_full: false,
            stacks: false,
            values: ValuePolicy::default(),
            other_numbers: false,
            seeded: false,
            synthetic: Synthetic::default(),
            host: None,
            clock: ClockMode::default(),
            host_time: HostTime::default(),
            measure_loader_ms: 0,
            beside: Vec::new(),
        }
    }

    /// Writes the set-up where the processes of the run look for it.
    pub fn write(&self, run_dir: &RunDir) -> Result<(), ChannelError> {
        let path = run_dir.setup();
        let text = serde_json::to_vec_pretty(self)
            .map_err(|error| ChannelError::Invalid { path: path.clone(), why: error.to_string() })?;
        fs::write(&path, text).map_err(|source| ChannelError::Io { path, source })
    }

    /// Reads the set-up of a run.
    pub fn read(run_dir: &RunDir) -> Result<Self, ChannelError> {
        let path = run_dir.setup();
        let text = fs::read(&path).map_err(|source| ChannelError::Io { path: path.clone(), source })?;
        let setup: Self = serde_json::from_slice(&text)
            .map_err(|error| ChannelError::Invalid { path, why: error.to_string() })?;
        if setup.protocol != PROTOCOL {
            return Err(ChannelError::Protocol { found: setup.protocol });
        }
        Ok(setup)
    }
}
