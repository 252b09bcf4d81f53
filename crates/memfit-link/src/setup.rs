//! What the watcher tells the device before the first process starts.

use std::{fs, io, path::PathBuf};

use serde::{Deserialize, Serialize};

use crate::{PROTOCOL, RunDir};

/// Limits and options of one run, written once to the run directory as JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Setup {
    /// The version of the channel; must equal [`PROTOCOL`].
    pub protocol: u32,
    /// The virtual cards, in device order. Empty on a real GPU.
    pub cards: Vec<CardSetup>,
    /// Stop after so many optimizer steps; 0 means to the end.
    pub steps: u64,
    /// Where no optimizer exists, stop after so many forward passes of the outermost module; 0 means to the end. Only asked
    /// for explicitly: an evaluation before the training must not be taken for the whole script.
    #[serde(default)]
    pub forward_steps: u64,
    /// Also run the script's own evaluation and its largest batch.
    pub cover_full: bool,
    /// Whether the probe should keep each allocation's Python stack for a recording.
    pub stacks: bool,
    /// What a read-back answers where a kernel would have computed the value.
    pub values: ValuePolicy,
}

/// One virtual card.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CardSetup {
    /// The card as the catalogue describes it: a `memfit_devices::Device` as JSON.
    pub device: serde_json::Value,
    /// Total memory in bytes, as PyTorch sees it.
    pub capacity: u64,
    /// CUDA context of one process on this card.
    pub context: SizedInterval,
    /// cuBLAS, cuDNN and the like, of one process, once it uses them.
    pub libraries: SizedInterval,
    /// One NCCL communicator.
    pub communicator: SizedInterval,
}

/// A size that is known to lie in an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SizedInterval {
    /// No less than this.
    pub low: u64,
    /// The best single guess.
    pub typical: u64,
    /// No more than this; a virtual out-of-memory error is judged with it.
    pub high: u64,
}

/// What a read-back of computed values answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ValuePolicy {
    /// Truth tests answer true, sizes their upper bound, everything else zero.
    #[default]
    UpperBound,
    /// Everything reads as zero.
    Zero,
}

/// The run directory could not be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
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
    /// Writes the set-up where the processes of the run look for it.
    pub fn write(&self, run_dir: &RunDir) -> Result<(), LinkError> {
        let path = run_dir.setup();
        let text = serde_json::to_vec_pretty(self)
            .map_err(|error| LinkError::Invalid { path: path.clone(), why: error.to_string() })?;
        fs::write(&path, text).map_err(|source| LinkError::Io { path, source })
    }

    /// Reads the set-up of a run.
    pub fn read(run_dir: &RunDir) -> Result<Self, LinkError> {
        let path = run_dir.setup();
        let text = fs::read(&path).map_err(|source| LinkError::Io { path: path.clone(), source })?;
        let setup: Self = serde_json::from_slice(&text)
            .map_err(|error| LinkError::Invalid { path, why: error.to_string() })?;
        if setup.protocol != PROTOCOL {
            return Err(LinkError::Protocol { found: setup.protocol });
        }
        Ok(setup)
    }
}
