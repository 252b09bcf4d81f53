//! `memfit.shrink/1`: techniques that make a model smaller, and the savings of each.

use memfit_vocabulary::{Label, Lever, Value};
use serde::{Deserialize, Serialize};

use super::run::{DeviceInfo, Peak, Problem};

/// The report of a comparison of techniques.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShrinkReport {
    /// [`schema::SHRINK`](super::schema::SHRINK).
    pub schema: String,
    /// The GPU. Each run has unlimited memory, so that peaks above its size are known.
    pub device: Option<DeviceInfo>,
    /// The unchanged training.
    pub baseline: Option<ShrinkRow>,
    /// One row per technique.
    pub rows: Vec<ShrinkRow>,
    /// Runs of the script.
    pub runs: u64,
    /// Seconds from the start to the answer.
    pub wall_s: f64,
    /// Optimizer steps of each training run.
    pub steps: u64,
    /// `torch.__version__`.
    pub torch: Option<String>,
    /// The command.
    pub command: Vec<String>,
    /// Remarks.
    pub notes: Vec<String>,
    /// Reason why there is no answer.
    pub problem: Option<Problem>,
}

/// A technique with its measurements.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShrinkRow {
    /// The technique's name, as in `--only`; `none` for the baseline.
    pub technique: String,
    /// Description.
    pub title: String,
    /// The levers of the technique, with their settings.
    pub levers: Vec<ShrinkLever>,
    /// Number of the model's parameters.
    pub parameters: Option<u64>,
    /// Number of parameters that an optimizer updates.
    pub trained: Option<u64>,
    /// Bytes that belong to the parameters.
    pub bytes: Option<ShrinkBytes>,
    /// Peaks of training; `None` if the technique is for inference only, or could not be measured.
    pub training: Option<Peak>,
    /// Peaks of one forward pass under `inference_mode` with the training's batch.
    pub inference: Option<Peak>,
    /// Bytes by which the device peaks are lower than the baseline's.
    pub saves: ShrinkSaved,
    /// `true` if training fits on the card.
    pub fits: Option<bool>,
    /// Estimated milliseconds of an optimizer step.
    pub step_ms_estimate: Option<f64>,
    /// Effect on the training results.
    pub label: Label,
    /// The technique in the user's own code.
    pub how: String,
    /// Remarks, one per line: the cost, or the reason for empty cells.
    pub note: Option<String>,
}

/// A lever of a technique.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShrinkLever {
    /// Name.
    pub name: Lever,
    /// Setting.
    pub value: Value,
}

/// Bytes that belong to a model's parameters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShrinkBytes {
    /// The parameters in their stored type.
    pub weights: u64,
    /// One gradient for each trained parameter.
    pub gradients: u64,
    /// Optimizer state.
    pub optimizer: u64,
}

/// Bytes that a technique saves; negative if it needs more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShrinkSaved {
    /// In training.
    pub training: Option<i64>,
    /// In inference.
    pub inference: Option<i64>,
}
