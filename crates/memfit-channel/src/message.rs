//! Messages of the probe in a process: the few structured facts that it reports, appended as one JSON object
//! per line.
//!
//! The probe is Python and writes these lines itself; a test of the Python package checks its lines against
//! this type.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ClockMark;

/// A name or an argument that the installed release of a package does not have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gone {
    /// The package, as it is imported.
    pub package: String,
    /// Its `__version__`.
    pub release: Option<String>,
    /// Name of the attribute or the argument.
    pub name: String,
    /// `true` for an argument of a function.
    pub argument: bool,
}

/// Possible causes of an exception.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[expect(clippy::struct_excessive_bools, reason = "each is an independent fact")]
pub struct Cause {
    /// `true` if no value can have caused it: an undefined name, a call with the wrong arguments.
    pub program: bool,
    /// `false` if no value that was assumed can have reached the statement that raised it.
    pub reached: bool,
    /// `false` if nothing of a synthetic data set but its length can have reached that statement.
    pub sampled: bool,
    /// `false` if no synthetic weights can have reached that statement.
    pub loaded: bool,
    /// Class of the script's own data set whose constructor or `__getitem__` raised it for lack of files.
    pub data_set: Option<String>,
    /// File of weights that it did not download.
    pub weights: Option<String>,
    /// Host that this process had asked for before, and whose name was not resolved.
    pub unreached: Option<String>,
    /// Folder in which the script last looked for files, and which does not exist.
    pub folder: Option<String>,
    /// What an installed package does not have, and was asked for.
    pub gone: Option<Gone>,
}

impl Default for Cause {
    fn default() -> Self {
        Self {
            program: false,
            reached: true,
            sampled: true,
            loaded: true,
            data_set: None,
            weights: None,
            unreached: None,
            folder: None,
            gone: None,
        }
    }
}

/// One line of a process's messages.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Message {
    /// The probe has started, before anything of the script has run.
    Hello {
        /// Process id.
        pid: u32,
        /// Process id of its parent.
        #[serde(default)]
        parent: Option<u32>,
        /// `sys.version_info` as text.
        python: String,
        /// `sys.executable`.
        executable: String,
        /// `RANK`, if the process is one of several.
        rank: Option<u32>,
        /// `WORLD_SIZE`, if the process is one of several.
        world_size: Option<u32>,
    },
    /// PyTorch was imported.
    Torch {
        /// `torch.__version__`.
        version: String,
        /// `torch.version.cuda`; absent in a CPU-only build.
        cuda: Option<String>,
        /// The allocator's settings in the environment at that time, which the script may have changed
        /// itself.
        #[serde(default)]
        alloc_conf: Option<String>,
    },
    /// An optimizer step was completed.
    Step {
        /// Number of completed steps.
        step: u64,
        /// Bytes in blocks now, on the process's busiest device.
        allocated: u64,
        /// Peak bytes in blocks since the previous step.
        peak_allocated: u64,
        /// Reading of the virtual device's clock; absent on a real device.
        #[serde(default)]
        clock: Option<ClockMark>,
    },
    /// A forward pass of a script without an optimizer has ended.
    Pass {
        /// Reading of the virtual device's clock.
        clock: ClockMark,
    },
    /// The allocator could not serve a request.
    Oom(Oom),
    /// An `OutOfMemoryError` was created, with PyTorch's exact message.
    OomText {
        /// Text of the message.
        text: String,
    },
    /// A remark on the accuracy of the results.
    Note {
        /// Id.
        id: String,
        /// Values for the placeholders of its text.
        #[serde(default)]
        values: BTreeMap<String, String>,
    },
    /// An uncaught exception ended the process.
    Exception {
        /// Qualified name of the type.
        r#type: String,
        /// `str(exception)`.
        message: String,
        /// The traceback as Python prints it.
        traceback: String,
        /// `true` for an out-of-memory error.
        oom: bool,
        /// What may have caused it.
        #[serde(flatten)]
        cause: Cause,
    },
    /// One line has read values that only a GPU can compute many times since the last step.
    Repeated {
        /// Line of the script that read them.
        place: String,
        /// Number of reads.
        count: u64,
    },
    /// A condition on unknown values was evaluated, for the first time at its place.
    Condition {
        /// Place: the script's line, and the libraries that it called.
        place: String,
    },
    /// A line of the script read a value that was assumed, for the first time.
    Assumed {
        /// Id of the assumption.
        id: String,
        /// Line of the script that read it.
        place: String,
    },
    /// A lever that could not be applied.
    Refused {
        /// Name of the lever.
        lever: String,
        /// Reason.
        why: String,
    },
    /// Facts about the training that a plan needs.
    Training(Box<Training>),
    /// Results of a run on the host were stored or compared.
    HostRun(HostCompared),
    /// Measurement of the training's own `DataLoader` on this host.
    Loader(Box<Loader>),
    /// Measurement of the same loader with another number of workers.
    LoaderTrial(LoaderTrial),
    /// The process has completed the requested work and waits to be ended, or has reached its own end.
    Done(Done),
}

/// Result of a comparison run on the host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HostCompared {
    /// Optimizer steps.
    pub steps: u64,
    /// `true` if all gradients and the other state equal the stored ones, within rounding.
    pub equal: bool,
    /// The largest relative difference of a gradient, or of the state, as Python prints it.
    pub difference: String,
    /// Parameter whose gradient has the largest difference.
    #[serde(default)]
    pub parameter: Option<String>,
    /// Buffer, other parameter or optimizer setting that differs, if the gradients are equal.
    #[serde(default)]
    pub state: Option<String>,
    /// First printed line whose numbers differ, and the same line before the change.
    #[serde(default)]
    pub printed: Option<(String, String)>,
}

/// Facts about a training run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "each is an independent fact")]
pub struct Training {
    /// Samples in the largest batch of the loader, or of those that the script builds itself; 0 if neither is
    /// known.
    pub batch: u64,
    /// First dimension of the model's input.
    pub seen: u64,
    /// Variables of the script that hold that number, if it has no PyTorch loader.
    pub names: Vec<String>,
    /// Names of the models that train in addition to the first one.
    #[serde(default)]
    pub models: Vec<String>,
    /// Number of the loader's batches that were consumed.
    pub batches: u64,
    /// Number of optimizer steps meanwhile.
    pub steps: u64,
    /// Number of items from which the largest were chosen for each batch; empty if items are equal, or none
    /// could be inspected.
    #[serde(default)]
    pub sampled: String,
    /// Loading of its batches, if that could be measured.
    #[serde(default)]
    pub loading: Option<Loading>,
    /// `true` if the result for a sample depends on the others in its batch, as with batch normalisation.
    pub couples_samples: bool,
    /// Reasons why splitting its batch may change training results; empty if it was verified that it does
    /// not, `None` if nothing was compared.
    #[serde(default)]
    pub undivided: Option<String>,
    /// `true` if there are convolutions.
    pub convolves: bool,
    /// Outputs of the widest linear layer.
    #[serde(default)]
    pub classes: u64,
    /// `true` if the attention matrix is materialised.
    #[serde(default)]
    pub explicit_attention: bool,
    /// `true` if several optimizers step in turn within a batch, each after its own backward pass.
    #[serde(default)]
    pub alternates: bool,
    /// Maximum backward passes of whole batches that accumulate gradients between two steps of an optimizer.
    #[serde(default)]
    pub backwards: u64,
    /// `true` if some of its labels are ignored by the loss.
    #[serde(default)]
    pub ignores: bool,
    /// `true` if the script compiles its model itself.
    #[serde(default)]
    pub compiled: bool,
    /// `true` if its model draws random numbers in the forward pass.
    #[serde(default)]
    pub draws: bool,
    /// `true` if the script uses autocast itself.
    pub autocast: bool,
    /// `true` if parameters have 16 bits.
    pub half: bool,
    /// `true` if gradients are exchanged with other processes in buckets.
    #[serde(default)]
    pub replicated: bool,
    /// Bytes of optimizer state.
    #[serde(default)]
    pub state: u64,
    /// Bytes of the parameters that the optimizers update.
    #[serde(default)]
    pub trained: u64,
    /// Samples in the training's data set, if they can be counted.
    #[serde(default)]
    pub epoch: Option<u64>,
    /// Classes of the optimizers.
    pub optimizers: Vec<String>,
    /// `true` if they have fused kernels.
    pub fusible: bool,
    /// `true` if they use fused kernels.
    pub fused: bool,
    /// `true` if they update one parameter at a time.
    pub foreach_off: bool,
    /// `true` if gradients are clipped over all parameters.
    pub clips: bool,
    /// Library whose loop trains: `transformers`, `lightning`, `accelerate`; empty for the script's own.
    #[serde(default)]
    pub framework: String,
    /// `true` if all micro-batches of each step were run, though only some were requested.
    #[serde(default)]
    pub whole: bool,
    /// Sizes of items in the data set, if they differ.
    #[serde(default)]
    pub lengths: Vec<u64>,
    /// Bytes of the model's parameters, trained or not.
    #[serde(default)]
    pub parameters: u64,
    /// Bytes of the weights of its linear layers.
    #[serde(default)]
    pub linears: u64,
    /// `true` if it continues from pretrained weights.
    #[serde(default)]
    pub pretrained: bool,
    /// Bytes of the key-value cache of a generating language model.
    #[serde(default)]
    pub cached: u64,
    /// Tokens in the cache.
    #[serde(default)]
    pub tokens: u64,
    /// Height and width of the largest images that a loader returned.
    #[serde(default)]
    pub pictures: (u64, u64),
    /// Length of the longest sequence of tokens that a loader returned.
    #[serde(default)]
    pub sequence: u64,
    /// Number of processes that train together.
    #[serde(default)]
    pub processes: u64,
    /// Repeated blocks, in the order of their forward passes, if they were measured.
    pub blocks: Vec<Block>,
    /// Classes of these blocks.
    #[serde(default)]
    pub block_classes: Vec<String>,
    /// Numbers of parameters, and their bytes.
    #[serde(default)]
    pub holdings: Holdings,
    /// Peaks of a part of the run, if requested.
    #[serde(default)]
    pub peaks: Option<PartPeaks>,
}

/// A model's parameters, and the bytes that belong to them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holdings {
    /// Number of parameters.
    pub parameters: u64,
    /// Number of those that an optimizer updates.
    pub trained: u64,
    /// Bytes of the parameters in their stored type.
    pub weights: u64,
    /// Bytes of one gradient for each trained parameter.
    pub gradients: u64,
    /// Bytes of the optimizer state.
    pub optimizer: u64,
}

/// Peaks of a part of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartPeaks {
    /// Peak of allocated bytes.
    pub allocated: u64,
    /// Peak of reserved bytes.
    pub reserved: u64,
    /// Why it failed; empty if it did not.
    pub error: String,
}

/// Loading of a training run's batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loading {
    /// Number of worker processes.
    pub workers: u64,
    /// `true` if batches are pinned.
    pub pinned: bool,
    /// Nanoseconds to produce an item on this machine.
    pub item_ns: u64,
    /// Bytes per item.
    pub item_bytes: u64,
    /// Number of items measured.
    pub items: u64,
}

/// The script's own `DataLoader`, and the time of its batches on this host without workers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loader {
    /// Class of the data set.
    pub dataset: String,
    /// Number of items, if the data set can count them.
    pub items: Option<u64>,
    /// Number of batches that the training received.
    pub given: u64,
    /// `num_workers`.
    pub workers: u64,
    /// `prefetch_factor`.
    pub prefetch: Option<u64>,
    /// `pin_memory`.
    pub pinned: bool,
    /// `persistent_workers`.
    pub persistent: bool,
    /// Samples per batch.
    pub samples: u64,
    /// Bytes per batch.
    pub bytes: u64,
    /// `true` if part of a batch is already on the device.
    pub on_card: bool,
    /// Median nanoseconds to produce an item; `None` if items do not come one by one.
    pub item_ns: Option<u64>,
    /// Nanoseconds of the slowest item.
    pub slowest_ns: Option<u64>,
    /// Number of items timed.
    pub measured: u64,
    /// Nanoseconds to collate a batch from its items.
    pub collate_ns: Option<u64>,
    /// Nanoseconds to copy a batch, as pinning does.
    pub copy_ns: u64,
    /// Error message, if something went wrong.
    pub error: Option<String>,
}

/// Throughput of a loader with a number of workers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoaderTrial {
    /// Number of workers.
    pub workers: u64,
    /// Batches that arrived in the measured time, which begins after the prefetched ones.
    pub batches: u64,
    /// Samples in those batches.
    pub samples: u64,
    /// Measured time in nanoseconds.
    pub wall_ns: u64,
    /// Nanoseconds to the first batch, including the start of the workers.
    pub start_ns: u64,
    /// Longest wait for a batch.
    pub slowest_ns: u64,
    /// Unique set size of the workers in bytes: memory that no other process shares.
    pub memory: u64,
    /// Error message, if something went wrong.
    pub error: Option<String>,
}

/// Data loading of the training pass, as far as it was observed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Feeding {
    /// Number of worker processes.
    pub workers: u64,
    /// Number of batches that the pass received.
    pub batches: u64,
    /// Nanoseconds per batch of the loader on this host; `None` if unknown.
    pub period_ns: Option<u64>,
}

/// A repeated block of a model, in one forward pass.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Block {
    /// Name in the model.
    pub name: String,
    /// Bytes that its forward pass saves for the backward pass, including its output.
    pub kept: u64,
    /// Nanoseconds of its forward pass on the device.
    pub busy_ns: u64,
    /// Bytes of its output.
    pub output: u64,
}

/// Circumstances of an out-of-memory error.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Oom {
    /// Bytes requested.
    pub requested: u64,
    /// The device.
    pub device: u32,
    /// Step in which it occurred: completed optimizer steps plus one.
    pub step: u64,
    /// `forward`, `backward`, `optimizer` or `other`.
    pub phase: String,
    /// The innermost module.
    pub module: Option<String>,
    /// `true` if the last model that was called was in evaluation mode.
    #[serde(default)]
    pub evaluation: bool,
    /// Python frames, the user's own first, innermost first within each part: `file:line in function`.
    pub stack: Vec<String>,
}

/// End of a process, as reported by the probe.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "each is an independent fact of the report's coverage")]
pub struct Done {
    /// `steps` (the requested number is complete, the process waits), or `exit` (the script reached its own
    /// end).
    pub reason: String,
    /// Completed optimizer steps, or forward passes of a script without an optimizer.
    pub steps: u64,
    /// `true` if `steps` counts forward passes.
    pub forward_only: bool,
    /// `true` if an evaluation was run.
    pub evaluation: bool,
    /// `true` if the largest batch of the data set was run.
    pub largest_batch: bool,
    /// `true` if a loader's epoch ended.
    pub epoch_end: bool,
    /// Growth of the allocated bytes from one step's end to the next, in the steady part.
    pub growth_per_step: Option<i64>,
    /// Bytes of optimizer state and gradients on the device after the only step: no forward pass has run
    /// with them allocated.
    #[serde(default)]
    pub unmet: u64,
    /// `true` if the script ended while a plan waited for more micro-batches before the first optimizer step.
    #[serde(default)]
    pub held: bool,
    /// Data loading of its training, if it has a PyTorch loader.
    #[serde(default)]
    pub feeding: Option<Feeding>,
    /// `true` if the script queried the GPU's memory size, as far as that is detected.
    #[serde(default)]
    pub asks_size: bool,
    /// Samples of the model's input when memory ran out first, and after the last time, if they were fewer.
    #[serde(default)]
    pub reduced: Option<(u64, u64)>,
    /// Place and first source line of statements that would use a GPU and did not run before the run was
    /// ended.
    #[serde(default)]
    pub not_run: Vec<(String, String)>,
    /// Peaks and counters by device, from `torch.cuda.memory_stats`.
    #[serde(deserialize_with = "parse_device_keys")]
    pub devices: BTreeMap<u32, DeviceStats>,
}

/// PyTorch's own statistics of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceStats {
    /// Peak of `allocated_bytes.all`.
    pub peak_allocated: u64,
    /// Peak of `active_bytes.all`: blocks in use, and those that wait for another stream.
    #[serde(default)]
    pub peak_active: u64,
    /// Peak of `reserved_bytes.all`.
    pub peak_reserved: u64,
    /// Peak of `requested_bytes.all`.
    pub peak_requested: u64,
    /// `num_alloc_retries`.
    pub retries: u64,
    /// `num_ooms`.
    pub ooms: u64,
}

/// Parses string keys as numbers: JSON's keys are strings, and within a tagged enum serde does not convert
/// them.
fn parse_device_keys<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<u32, DeviceStats>, D::Error> {
    BTreeMap::<String, DeviceStats>::deserialize(deserializer)?
        .into_iter()
        .map(|(index, stats)| Ok((index.parse().map_err(serde::de::Error::custom)?, stats)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_round_trip() {
        let stats = DeviceStats { peak_reserved: 7, ..DeviceStats::default() };
        let done = Message::Done(Done {
            reason: "steps".to_owned(),
            steps: 3,
            forward_only: false,
            evaluation: true,
            largest_batch: false,
            epoch_end: true,
            growth_per_step: Some(-1),
            unmet: 0,
            held: false,
            feeding: Some(Feeding { workers: 2, batches: 9, period_ns: None }),
            asks_size: true,
            reduced: Some((1024, 128)),
            not_run: vec![("train.py:7".to_owned(), "evaluate(model)".to_owned())],
            devices: [(0, stats), (11, stats)].into(),
        });
        let line = serde_json::to_string(&done).unwrap();
        assert_eq!(serde_json::from_str::<Message>(&line).unwrap(), done);
    }
}
