//! Plan: levers that make training fit, and the environment that they were determined for.

use memfit_vocabulary::{Framework, Label, Lever, Parallel, Value};
use serde::{Deserialize, Serialize};

use crate::setting::Setting;

/// Levers that make training fit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Micro-batch size; `None` keeps the loader's batch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub micro_batch: Option<u64>,
    /// Micro-batches in one optimizer step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub micro_batches_per_step: Option<u64>,
    /// Loader batches in one optimizer step (gradient accumulation).
    #[serde(default = "default_accumulate")]
    pub accumulate: u64,
    /// How the training is spread over several GPUs; `None` for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parallel: Option<Parallel>,
    /// Levers in the order in which they are applied.
    #[serde(default, rename = "lever")]
    pub levers: Vec<Setting>,
    /// Environment that the plan was made for.
    #[serde(default)]
    pub made_for: MadeFor,
    /// Measured result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<Expected>,
}

/// Formats levers in few words.
pub(crate) fn describe(
    parallel: Option<Parallel>,
    micro_batch: Option<u64>,
    accumulate: u64,
    settings: &[Setting],
) -> String {
    let mut parts = Vec::new();
    parts.extend(parallel.map(|parallel| parallel.to_string()));
    if let Some(micro_batch) = micro_batch {
        parts.push(format!("micro-batch {micro_batch}"));
    }
    if accumulate > 1 {
        parts.push(format!("{accumulate} batches a step"));
    }
    parts.extend(settings.iter().map(|setting| match &setting.value {
        Value::Names(names) => {
            let blocks = if names.len() == 1 { "block" } else { "blocks" };
            format!("{} of {} {blocks}", setting.lever, names.len())
        }
        Value::Switch(true) => setting.lever.name().to_owned(),
        value => match setting.lever.declaration().unit {
            "" => format!("{} {value}", setting.lever),
            unit => format!("{} {value} {unit}", setting.lever),
        },
    }));
    if parts.is_empty() { "as it is".to_owned() } else { parts.join(", ") }
}

/// Environment that a plan was made for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MadeFor {
    /// Version of memfit.
    pub memfit: String,
    /// `torch.__version__`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub torch: Option<String>,
    /// Name of the GPU.
    pub gpu: String,
    /// Memory of the GPU in bytes, as PyTorch reports it.
    pub capacity: u64,
    /// Number of GPUs of each machine.
    pub count: u64,
    /// Number of machines; `None` for one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodes: Option<u64>,
    /// Links between the GPUs, as given by the user.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<String>,
    /// Command line.
    pub command: Vec<String>,
    /// Batch size of the script.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch: Option<u64>,
    /// Number of the script's batches in one optimizer step (its own gradient accumulation).
    #[serde(skip_serializing_if = "is_one_or_less")]
    pub own_accumulation: u64,
    /// The script's variables for the batch size, if it creates its batches without a loader.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub batch_names: Vec<String>,
    /// The script's variables for the models that train in addition to the first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub models: Vec<String>,
    /// Library whose loop trains and which distributes the script itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub framework: Option<Framework>,
    /// Classes of the model's repeated blocks, which such a library gathers one by one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub block_classes: Vec<String>,
    /// `true` if the script runs no backward pass.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub inference: bool,
    /// Script in the command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub script: Option<String>,
    /// SHA-256 of the script.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub script_sha256: Option<String>,
}

/// Result of running a plan on the virtual GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expected {
    /// Peak allocated bytes.
    pub allocated: u64,
    /// Peak reserved bytes.
    pub reserved: u64,
    /// Best estimate of the peak bytes on the GPU.
    pub device: u64,
    /// Upper bound of the peak bytes on the GPU, due to memory outside of the allocator.
    pub device_upper: u64,
    /// Estimated milliseconds of an optimizer step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_ms: Option<f64>,
}

const fn default_accumulate() -> u64 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_one_or_less(number: &u64) -> bool {
    *number <= 1
}

impl Plan {
    /// Plan without changes.
    pub fn as_is() -> Self {
        Self { accumulate: 1, ..Self::default() }
    }

    /// Formats its levers in few words.
    pub fn describe(&self) -> String {
        describe(self.parallel, self.micro_batch, self.accumulate, &self.levers)
    }

    /// Environment variables that have to be set before the script starts, with their values.
    pub fn environment(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        let is_on = |setting: &&Setting| setting.value != Value::Switch(false);
        self.levers.iter().filter(is_on).filter_map(|setting| setting.lever.environment())
    }

    /// Setting of a lever, if the plan contains it.
    pub fn setting(&self, lever: Lever) -> Option<&Setting> {
        self.levers.iter().find(|setting| setting.lever == lever)
    }

    /// Returns `true` if the plan contains a lever and does not disable it.
    pub fn moves(&self, lever: Lever) -> bool {
        self.setting(lever).is_some_and(|setting| setting.value != Value::Switch(false))
    }

    /// Combined effect on the training results.
    pub fn label(&self) -> Label {
        self.levers.iter().map(|setting| setting.label).max().unwrap_or(Label::Exact)
    }
}
