//! `memfit.data-loader/1`: host memory and throughput of a script's own `DataLoader`, and settings that would
//! keep the GPU busy.

use serde::Serialize;

use super::{DeviceInfo, Problem, Script};

/// Output of `memfit data --loader`.
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
    /// Estimated milliseconds of GPU work in a step.
    pub step_ms_estimate: Option<f64>,
    /// The loader's batches per step.
    pub batches_per_step: Option<f64>,
    /// Maximum samples per second that the GPU can consume.
    pub card_samples_per_s: Option<f64>,
    /// The data set.
    pub dataset: LoaderDataset,
    /// Batches.
    pub batch: LoaderBatch,
    /// Its items, timed one by one; absent if items cannot be read individually.
    pub sample: Option<LoaderSample>,
    /// The script's settings.
    pub own: Option<LoaderSettings>,
    /// Measurements by number of workers.
    pub measured: Vec<LoaderMeasured>,
    /// Settings that would keep the GPU busy.
    pub proposed: Option<LoaderSettings>,
    /// The reason.
    pub why: String,
    /// Further advice, one sentence each.
    pub advice: Vec<String>,
    /// This machine.
    pub host: LoaderHost,
    /// The problem, if there is no answer.
    pub problem: Option<Problem>,
}

/// Answer to the question whether the GPU would wait for data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LoaderVerdict {
    /// It would not wait with the script's settings.
    KeepsUp,
    /// It would wait with the script's settings, but not with the proposed ones.
    KeepsUpAsProposed,
    /// It would wait with all measured settings.
    Waits,
    /// Unknown, because the GPU's or the loader's time is unknown.
    Unknown,
}

/// A data set.
#[derive(Clone, Debug, Default, Serialize)]
pub struct LoaderDataset {
    /// Class.
    pub class: String,
    /// Number of items, if the data set has a length.
    pub items: Option<u64>,
}

/// A batch.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct LoaderBatch {
    /// Samples.
    pub samples: u64,
    /// Bytes.
    pub bytes: u64,
    /// `true` if a part of it is on the GPU already.
    pub on_card: bool,
    /// Milliseconds to collate it from its items.
    pub collate_ms: Option<f64>,
    /// Milliseconds of the additional copy that pinning makes, in its own thread.
    pub pin_ms: f64,
}

/// An item.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct LoaderSample {
    /// Median in milliseconds.
    pub median_ms: f64,
    /// Milliseconds of the slowest item.
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
    /// Measured samples per second of the loader.
    pub samples_per_s: Option<f64>,
    /// Expected samples per second together with the GPU.
    pub expected_samples_per_s: Option<f64>,
    /// Share of the time that the GPU waits for data.
    pub card_waits: Option<f64>,
    /// Maximum bytes of host memory: the workers' own memory as measured, and batches in flight.
    pub host_memory: u64,
    /// Of these, bytes in `/dev/shm`.
    pub shared_memory: u64,
    /// Of these, pinned.
    pub pinned: u64,
}

/// Measurement with a number of workers.
#[derive(Clone, Debug, Default, Serialize)]
pub struct LoaderMeasured {
    /// The number.
    pub workers: u64,
    /// Samples in a second.
    pub samples_per_s: Option<f64>,
    /// Milliseconds per batch.
    pub batch_ms: Option<f64>,
    /// Milliseconds of the longest wait for a batch.
    pub slowest_ms: f64,
    /// Milliseconds until the first batch.
    pub start_ms: f64,
    /// Bytes of the workers' own memory.
    pub memory: u64,
    /// Batches that count.
    pub batches: u64,
    /// Share of the time that the GPU would wait.
    pub card_waits: Option<f64>,
    /// The error, if the measurement failed.
    pub error: Option<String>,
}

/// A machine.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct LoaderHost {
    /// Processors.
    pub processors: u64,
    /// Available bytes of memory.
    pub memory: u64,
    /// Free bytes of `/dev/shm`.
    pub shared_memory: u64,
}
