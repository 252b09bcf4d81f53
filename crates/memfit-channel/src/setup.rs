//! Settings of a run, which the watcher writes before the first process starts.

use std::{fs, io, path::PathBuf};

use memfit_devices::{Bytes, Device, Overhead};
use serde::{Deserialize, Serialize};

use crate::{ClockMode, HostTime, PROTOCOL, RunDir, ValuePolicy};

/// Values that a repeated run reads in place of those that were assumed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OtherValues {
    /// Value of unknown integers in place of 0; unknown floating-point numbers differ as well.
    pub number: Option<u16>,
    /// Conditions on unknown values that have the other truth value.
    pub conditions: Option<Inverted>,
    /// How often a condition is inverted at each place. A loop may wait for it.
    #[serde(default)]
    pub times: u32,
    /// Position of sizes between their bounds, whatever the policy is.
    #[serde(default)]
    pub sizes: Option<ValuePolicy>,
    /// `true` if unknown numbers differ from read to read, counts and random numbers are scattered between
    /// their bounds, and comparisons have the results that follow from all these.
    #[serde(default)]
    pub varied: bool,
    /// `true` if positions, such as that of a maximum, vary as other integers do, and may be out of range.
    #[serde(default)]
    pub positions: bool,
}

/// Conditions that a repeated run inverts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Inverted {
    /// All conditions.
    All,
    /// Those at these places, as [`Message::Condition`](crate::Message::Condition) names them.
    Only(Vec<String>),
}

/// Limits and options of a run, written once to the run directory as JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Setup {
    /// Version of the channel; must equal [`PROTOCOL`].
    pub protocol: u32,
    /// Virtual devices, in order. Empty on a real GPU.
    pub cards: Vec<CardSetup>,
    /// Number of optimizer steps to stop after; 0 to run to the end.
    pub steps: u64,
    /// Number of forward passes of the outermost module to stop after if there is no optimizer; 0 to run to
    /// the end. Only used on explicit request: an evaluation before the training must not be taken for the
    /// whole script.
    #[serde(default)]
    pub forward_steps: u64,
    /// Also run the script's own evaluation and its largest batch.
    pub cover_full: bool,
    /// `true` if the probe records the Python stack of each allocation.
    pub stacks: bool,
    /// Policy for sizes that are read back but only a GPU can compute.
    #[serde(default)]
    pub values: ValuePolicy,
    /// Values other than the assumed ones, in a run that detects whether anything depends on them.
    #[serde(default)]
    pub others: OtherValues,
    /// `true` if the probe seeds the random number generators, so that two runs draw the same numbers.
    #[serde(default)]
    pub seeded: bool,
    /// Replacements by the probe for data and weights that this machine lacks.
    #[serde(default)]
    pub synthetic: Synthetic,
    /// Set for a run whose tensors stay on the host, because their values matter and not their memory.
    #[serde(default)]
    pub host: Option<HostRun>,
    /// Policy for the completion time of device work.
    #[serde(default)]
    pub clock: ClockMode,
    /// Source of host time.
    #[serde(default)]
    pub host_time: HostTime,
    /// Milliseconds for which the training's own `DataLoader` is measured with each number of workers after
    /// the last step; 0 to skip that.
    #[serde(default)]
    pub measure_loader_ms: u64,
    /// GPUs with auxiliary clocks; the first is the run's own GPU.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub beside: Vec<Device>,
}

/// A run of small batches on the host, whose gradients are stored or compared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostRun {
    /// Folder in which they are stored.
    pub folder: PathBuf,
    /// Maximum samples per batch of a loader.
    pub samples: u64,
    /// Role in the comparison.
    pub part: HostPart,
}

/// Role of a run in a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HostPart {
    /// Stores its results.
    First,
    /// Runs the same script, to find out how far two runs of it agree.
    Again,
    /// Runs a changed script.
    Changed,
}

/// Replacements for weights and data on a machine that lacks them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Synthetic {
    /// `true` if weights take their shapes from configurations and headers, and are never read.
    pub weights: bool,
    /// Data sets return synthetic samples. If the list of fields is empty, samples have the fields that each
    /// class of data set is known to return.
    pub data: Option<SyntheticData>,
}

/// Synthetic samples.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SyntheticData {
    /// Fields of a sample, in order.
    pub fields: Vec<SyntheticField>,
    /// `true` if a sample is a mapping from names instead of a tuple.
    pub mapping: bool,
    /// Number of samples; `None` if the data set's class knows it.
    pub length: Option<u64>,
}

/// A field of a sample.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SyntheticField {
    /// Name in the sample.
    pub name: String,
    /// Extent of each dimension; empty for a number.
    pub shape: Vec<u64>,
    /// PyTorch's name of the element type; `tuple`, `list` or `dict` for a group of fields.
    pub dtype: String,
    /// Exclusive upper bound for integers.
    pub below: Option<i64>,
    /// Contents of a text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Fields of a group, in order; empty for all else.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fields: Vec<SyntheticField>,
}

/// A virtual device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CardSetup {
    /// Catalogue entry, with the memory capacity of this run.
    pub device: Device,
    /// Memory outside PyTorch's allocator, for one process on this device.
    pub overhead: Overhead,
    /// Memory held by programs outside the run.
    #[serde(default)]
    pub other_processes: Bytes,
}

impl CardSetup {
    /// Creates a device that no other program uses.
    pub fn new(device: Device, overhead: Overhead) -> Self {
        Self { device, overhead, other_processes: Bytes::ZERO }
    }

    /// Total memory in bytes, as PyTorch sees it.
    pub fn capacity(&self) -> u64 {
        self.device.memory.get()
    }
}

/// Error of the run directory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChannelError {
    /// A file in the run directory could not be read or written.
    #[error("cannot use `{path}` in the run directory")]
    Io {
        /// The file.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// A file in the run directory is invalid.
    #[error("`{path}` in the run directory is not valid: {why}")]
    Invalid {
        /// The file.
        path: PathBuf,
        /// Reason.
        why: String,
    },
    /// The other end uses another version of the channel.
    #[error(
        "the run directory has protocol version {found}, but this build of memfit reads version {PROTOCOL}"
    )]
    Protocol {
        /// Version found.
        found: u32,
    },
}

impl Setup {
    /// Returns `true` if the first GPU's memory is the host's.
    pub fn shares_host_memory(&self) -> bool {
        self.cards.first().is_some_and(|card| card.device.shares_host_memory())
    }

    /// Creates the settings of a complete run on these devices, with default options.
    pub fn new(cards: Vec<CardSetup>) -> Self {
        Self {
            protocol: PROTOCOL,
            cards,
            steps: 0,
            forward_steps: 0,
            cover_full: false,
            stacks: false,
            values: ValuePolicy::default(),
            others: OtherValues::default(),
            seeded: false,
            synthetic: Synthetic::default(),
            host: None,
            clock: ClockMode::default(),
            host_time: HostTime::default(),
            measure_loader_ms: 0,
            beside: Vec::new(),
        }
    }

    /// Writes the settings to the file that the processes of the run read.
    pub fn write(&self, run_dir: &RunDir) -> Result<(), ChannelError> {
        let path = run_dir.setup();
        let text = serde_json::to_vec_pretty(self)
            .map_err(|error| ChannelError::Invalid { path: path.clone(), why: error.to_string() })?;
        fs::write(&path, text).map_err(|source| ChannelError::Io { path, source })
    }

    /// Reads the settings of a run.
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
