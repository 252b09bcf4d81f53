//! `memfit.data-loader/1`: what a script's own `DataLoader` takes and gives on this host, and which settings
//! would feed the GPU.

use serde::Serialize;

use super::{DeviceInfo, Problem, Script};

/// The answer of `memfit data --loader`.
#[derive(Clone, Debug, Serialize)]
pub struct LoaderReport {
    /// [`super::schema::DATA_LOADER`].
    pub schema: &'static str,
    /// The answer: does the GPU wait for data?
    pub verdict: LoaderVerdict,
    /// The GPU.
    pub device: DeviceInfo,
    /// The command.
    pub script: Script,
    /// Optimizer steps that ran.
    pub steps: u64,
    /// Milliseconds that the GPU takes for a step, estimated.
    pub step_ms_estimate: Option<f64>,
    /// Batches of the loader in a step.
    pub batches_per_step: Option<f64>,
    /// Samples that the GPU takes up in a second, at most.
    pub card_samples_per_s: Option<f64>,
    /// The data set.
    pub dataset: LoaderDataset,
    /// Its batches.
    pub batch: LoaderBatch,
    /// Its items, timed one by one; nothing where they do not come so.
    pub sample: Option<LoaderSample>,
    /// The script's settings.
    pub own: Option<LoaderSettings>,
    /// By number of workers, as measured.
    pub measured: Vec<LoaderMeasured>,
    /// Settings that would feed the GPU.
    pub proposed: Option<LoaderSettings>,
    /// The reason.
    pub why: String,
    /// Further advice, one sentence each.
    pub advice: Vec<String>,
    /// This machine.
    pub host: LoaderHost,
    /// The problem, where there is no answer.
    pub problem: Option<Problem>,
}

/// The answers to: would the GPU wait for its data?
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LoaderVerdict {
    /// It would not, as the script is.
    KeepsUp,
    /// It would as the script is, and not with what is proposed.
    KeepsUpAsProposed,
    /// It would in any case that was measured.
    Waits,
    /// Not known, as what the GPU takes, or what the loader gives, is not.
    Unknown,
}

/// A data set.
#[derive(Clone, Debug, Default, Serialize)]
pub struct LoaderDataset {
    /// Its class.
    pub class: String,
    /// Its items, where it can count them.
    pub items: Option<u64>,
}

/// A batch.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct LoaderBatch {
    /// Samples.
    pub samples: u64,
    /// Bytes.
    pub bytes: u64,
    /// Some part of it lies on the GPU already.
    pub on_card: bool,
    /// Milliseconds in which it is put together of its items.
    pub collate_ms: Option<f64>,
    /// Milliseconds of one more copy of it, which pinning makes, in a thread of its own.
    pub pin_ms: f64,
}

/// An item.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct LoaderSample {
    /// Milliseconds, of which half of the items take less.
    pub median_ms: f64,
    /// Milliseconds of the slowest.
    pub slowest_ms: f64,
    /// Number of timed items.
    pub measured: u64,
}

/// Settings of a `DataLoader`, with their outcome.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct LoaderSettings {
    /// `num_workers`.
    pub num_workers: u64,
    /// `prefetch_factor`.
    pub prefetch_factor: Option<u64>,
    /// `pin_memory`.
    pub pin_memory: bool,
    /// `persistent_workers`.
    pub persistent_workers: bool,
    /// Samples that the loader gives in a second, measured.
    pub samples_per_s: Option<f64>,
    /// Samples in a second with the GPU.
    pub expected_samples_per_s: Option<f64>,
    /// The share of the time in which the GPU waits for data.
    pub card_waits: Option<f64>,
    /// Bytes of the host's memory: the workers' own, measured, and batches on their way, at most.
    pub host_memory: u64,
    /// Of these, in `/dev/shm`.
    pub shared_memory: u64,
    /// Of these, pinned.
    pub pinned: u64,
}

/// The pace of a number of workers.
#[derive(Clone, Debug, Default, Serialize)]
pub struct LoaderMeasured {
    /// The number.
    pub workers: u64,
    /// Samples in a second.
    pub samples_per_s: Option<f64>,
    /// Milliseconds of a batch.
    pub batch_ms: Option<f64>,
    /// Milliseconds of the longest wait for one.
    pub slowest_ms: f64,
    /// Milliseconds to the first batch.
    pub start_ms: f64,
    /// Bytes of the workers' own memory.
    pub memory: u64,
    /// Batches that count.
    pub batches: u64,
    /// The share of the time in which the GPU would wait.
    pub card_waits: Option<f64>,
    /// The error, where something went wrong.
    pub error: Option<String>,
}

/// A machine.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct LoaderHost {
    /// Processors.
    pub processors: u64,
    /// Bytes of memory that are available.
    pub memory: u64,
    /// Bytes that are free in `/dev/shm`.
    pub shared_memory: u64,
}
