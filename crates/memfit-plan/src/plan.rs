//! A plan: what to do so that a training fits, and what it was made for.

use memfit_vocabulary::{Label, Lever, Value};
use serde::{Deserialize, Serialize};

use crate::setting::Setting;

/// What to do so that a training fits.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Samples in one forward and backward; nothing where the loader's batch stays whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub micro_batch: Option<u64>,
    /// Forwards and backwards in one optimizer step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub micro_batches_per_step: Option<u64>,
    /// The loader's batches in one optimizer step.
    #[serde(default = "one")]
    pub accumulate: u64,
    /// The levers, in the order in which they are applied.
    #[serde(default, rename = "lever")]
    pub levers: Vec<Setting>,
    /// What it was made for.
    #[serde(default)]
    pub made_for: MadeFor,
    /// What came of running it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<Expected>,
}

/// What a plan was made for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MadeFor {
    /// The version of memfit that made it.
    pub memfit: String,
    /// `torch.__version__`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub torch: Option<String>,
    /// The card's name.
    pub gpu: String,
    /// Its memory in bytes, as PyTorch sees it.
    pub capacity: u64,
    /// How many of them.
    pub count: u64,
    /// The command.
    pub command: Vec<String>,
    /// Samples in a batch of the script's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch: Option<u64>,
    /// After so many of its batches the script itself asks its optimizer to step.
    #[serde(skip_serializing_if = "is_one_or_less")]
    pub own_accumulation: u64,
    /// The script's own names for that number, where it makes its batches without a loader.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub batch_names: Vec<String>,
    /// The script's own names for the models that train beside the first one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub models: Vec<String>,
    /// Whether the script only goes forward.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub inference: bool,
    /// The script in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub script: Option<String>,
    /// The SHA-256 of the script's text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub script_sha256: Option<String>,
}

/// What came of running a plan on the virtual card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expected {
    /// Peak bytes of tensors.
    pub allocated: u64,
    /// Peak bytes that the allocator holds.
    pub reserved: u64,
    /// Peak bytes that the card sees, as a best guess.
    pub device: u64,
    /// The same with everything outside the allocator at its upper bound.
    pub device_upper: u64,
    /// Milliseconds that an optimizer step takes, as an estimate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_ms: Option<f64>,
}

const fn one() -> u64 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_one_or_less(number: &u64) -> bool {
    *number <= 1
}

impl Plan {
    /// A plan that changes nothing.
    pub fn as_is() -> Self {
        Self { accumulate: 1, ..Self::default() }
    }

    /// The setting of a lever, if the plan moves it.
    pub fn setting(&self, lever: Lever) -> Option<&Setting> {
        self.levers.iter().find(|setting| setting.lever == lever)
    }

    /// Whether a lever is moved, and not expressly off.
    pub fn moves(&self, lever: Lever) -> bool {
        self.setting(lever).is_some_and(|setting| setting.value != Value::Switch(false))
    }

    /// What it does to the training, all in all.
    pub fn label(&self) -> Label {
        self.levers.iter().map(|setting| setting.label).max().unwrap_or(Label::Exact)
    }
}
