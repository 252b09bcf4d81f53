//! What the probe is asked to do to a training from outside, beside watching it. The device knows nothing of it.

use std::fs;

use serde::{Deserialize, Serialize};

use crate::{LinkError, RunDir};

/// What the probe does to a training from outside.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Planned {
    /// Whether the process stops where it first needs the card, and is forked from there for each run.
    pub serves: bool,
    /// Samples in one forward and backward, at most.
    pub micro_batch: Option<u64>,
    /// Samples in a batch of the script's.
    pub batch: Option<u64>,
    /// Whether the script makes its batches itself, of as many samples as a name of its own says.
    pub by_name: bool,
    /// The loader's batches in one optimizer step.
    pub accumulate: u64,
    /// After so many of the loader's batches the script itself asks its optimizer to step.
    pub own_accumulation: u64,
    /// Of each batch so many pieces are run, in the last step one more; nothing where all are.
    pub most_pieces: Option<u64>,
    /// The levers, in order.
    pub levers: Vec<LeverSetup>,
    /// Whether repeated blocks are measured.
    pub measure: bool,
}

/// One lever, and how far it is moved.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeverSetup {
    /// Its name.
    pub name: String,
    /// How far.
    pub value: serde_json::Value,
}

impl Default for Planned {
    fn default() -> Self {
        Self {
            serves: false,
            micro_batch: None,
            batch: None,
            by_name: false,
            accumulate: 1,
            own_accumulation: 1,
            most_pieces: None,
            levers: Vec::new(),
            measure: false,
        }
    }
}

impl Planned {
    /// Writes it where the probe looks for it.
    pub fn write(&self, run_dir: &RunDir) -> Result<(), LinkError> {
        let path = run_dir.plan();
        let text = serde_json::to_vec(self)
            .map_err(|error| LinkError::Invalid { path: path.clone(), why: error.to_string() })?;
        fs::write(&path, text).map_err(|source| LinkError::Io { path, source })
    }
}
