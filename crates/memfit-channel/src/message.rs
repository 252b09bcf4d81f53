//! The few structured facts that the probe in a process tells: one JSON object a line, appended.
//!
//! The probe is Python and writes these lines itself; a test of the Python package holds its lines to this
//! type.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ClockMark;

/// One line of a process's messages.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Message {
    /// The probe is in, before anything of the script has run.
    Hello {
        /// Process id.
        pid: u32,
        /// The process that started it.
        #[serde(default)]
        parent: Option<u32>,
        /// `sys.version_info` as text.
        python: String,
        /// `sys.executable`.
        executable: String,
        /// `RANK` where the process is one of several.
        rank: Option<u32>,
        /// `WORLD_SIZE` where the process is one of several.
        world_size: Option<u32>,
    },
    /// PyTorch was imported.
    Torch {
        /// `torch.__version__`.
        version: String,
        /// `torch.version.cuda`; absent in a CPU-only build.
        cuda: Option<String>,
        /// The allocator's settings in the environment by then, which the script may have changed itself.
        #[serde(default)]
        alloc_conf: Option<String>,
    },
    /// An optimizer step was completed.
    Step {
        /// How many are complete now.
        step: u64,
        /// Bytes in blocks now, on the process's busiest device.
        allocated: u64,
        /// Peak bytes in blocks since the step before.
        peak_allocated: u64,
        /// The virtual device's clock then; absent on a real one.
        #[serde(default)]
        clock: Option<ClockMark>,
    },
    /// A forward pass of a script without an optimizer has ended.
    Pass {
        /// The virtual device's clock then.
        clock: ClockMark,
    },
    /// The allocator could not serve a request.
    Oom(Oom),
    /// An `OutOfMemoryError` was made: PyTorch's message, word for word.
    OomText {
        /// The text.
        text: String,
    },
    /// A remark on how far the figures can be trusted.
    Note {
        /// Its id.
        id: String,
        /// Values for the placeholders of its text.
        #[serde(default)]
        values: BTreeMap<String, String>,
    },
    /// An exception that nothing caught ended the process.
    Exception {
        /// Qualified name of the type.
        r#type: String,
        /// `str(exception)`.
        message: String,
        /// The traceback as Python prints it.
        traceback: String,
        /// Whether it is an out-of-memory error.
        oom: bool,
        /// Whether no value can have caused it: a name that is not there, a call that does not fit.
        #[serde(default)]
        program: bool,
    },
    /// An integer was read back that only a GPU computes.
    ReadBack {
        /// The line that read it.
        place: String,
    },
    /// A lever that could not be applied.
    Refused {
        /// Its name.
        lever: String,
        /// Why.
        why: String,
    },
    /// What the training is, as a plan needs to know it.
    Training(Box<Training>),
    /// A run on the host was kept or compared.
    HostRun(HostCompared),
    /// The training's own `DataLoader`, taken apart on this host.
    Loader(Box<Loader>),
    /// The same loader with another number of workers.
    LoaderTrial(LoaderTrial),
    /// The process has what was asked of it, and waits to be ended; or is at its own end.
    Done(Done),
}

/// What came of a run on the host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HostCompared {
    /// Optimizer steps.
    pub steps: u64,
    /// Whether all gradients are what was kept, within rounding.
    pub equal: bool,
    /// The largest relative difference of a gradient, as Python prints it.
    pub difference: String,
    /// The parameter that has it.
    #[serde(default)]
    pub parameter: Option<String>,
    /// The first line that is printed with other numbers, and what was printed before.
    #[serde(default)]
    pub printed: Option<(String, String)>,
}

/// What a training is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct Training {
    /// Samples in the largest of the loader's batches, or of those that the script makes itself; 0 where
    /// neither is known.
    pub batch: u64,
    /// The first dimension of what went into the model.
    pub seen: u64,
    /// Names of the script's own that hold that number, where it has no loader of torch's.
    pub names: Vec<String>,
    /// What the script calls the models that train beside the first one.
    #[serde(default)]
    pub models: Vec<String>,
    /// How many of the loader's batches were gone through.
    pub batches: u64,
    /// Optimizer steps meanwhile.
    pub steps: u64,
    /// Of how many items the largest were put into each batch; empty where items are alike, or none could be
    /// looked at.
    #[serde(default)]
    pub sampled: String,
    /// How its batches are loaded, where that could be measured.
    #[serde(default)]
    pub loading: Option<Loading>,
    /// Whether what is computed of a sample depends on the others in its batch, as with batch normalisation.
    pub couples_samples: bool,
    /// Why parts of its batch are not known to train as the whole does; empty where they are.
    #[serde(default)]
    pub undivided: Option<String>,
    /// Whether there are convolutions.
    pub convolves: bool,
    /// Outputs of the widest linear layer.
    #[serde(default)]
    pub classes: u64,
    /// Whether attention's matrix is made as a whole.
    #[serde(default)]
    pub explicit_attention: bool,
    /// Whether several optimizers step one after the other within a batch, each after a backward of its own.
    #[serde(default)]
    pub alternates: bool,
    /// The most backwards that add up gradients from one step of an optimizer to its next, of whole batches.
    #[serde(default)]
    pub backwards: u64,
    /// Whether some of its labels are left out of the loss.
    #[serde(default)]
    pub ignores: bool,
    /// Whether the script compiles its model itself.
    #[serde(default)]
    pub compiled: bool,
    /// Whether its model draws random numbers in a forward.
    #[serde(default)]
    pub draws: bool,
    /// Whether the script uses autocast itself.
    pub autocast: bool,
    /// Whether parameters are in 16 bits.
    pub half: bool,
    /// Whether gradients are exchanged in buckets with other processes.
    #[serde(default)]
    pub replicated: bool,
    /// Bytes of what the optimizers keep.
    #[serde(default)]
    pub state: u64,
    /// Bytes of the parameters that they update.
    #[serde(default)]
    pub trained: u64,
    /// Samples in the data set that it trains on, where that can count them.
    #[serde(default)]
    pub epoch: Option<u64>,
    /// The optimizers' classes.
    pub optimizers: Vec<String>,
    /// Whether they have fused kernels.
    pub fusible: bool,
    /// Whether they use them.
    pub fused: bool,
    /// Whether they update one parameter at a time.
    pub foreach_off: bool,
    /// Whether gradients are clipped over all parameters.
    pub clips: bool,
    /// The library whose loop trains: `transformers`, `lightning`, `accelerate`; empty where the script's
    /// own does.
    #[serde(default)]
    pub framework: String,
    /// Whether all pieces of each step were run, though only some were asked for.
    #[serde(default)]
    pub whole: bool,
    /// Sizes of items of the data set, where they differ.
    #[serde(default)]
    pub lengths: Vec<u64>,
    /// Bytes of the model's parameters, trained or not.
    #[serde(default)]
    pub parameters: u64,
    /// Bytes of the weights of its linear layers.
    #[serde(default)]
    pub linears: u64,
    /// Whether it goes on from weights that were trained before.
    #[serde(default)]
    pub pretrained: bool,
    /// Bytes of the cache of a language model that generates.
    #[serde(default)]
    pub cached: u64,
    /// Tokens in it.
    #[serde(default)]
    pub tokens: u64,
    /// Height and width of the largest pictures that a loader gave.
    #[serde(default)]
    pub pictures: (u64, u64),
    /// Processes that train together.
    #[serde(default)]
    pub processes: u64,
    /// The repeated blocks, in the order of their forwards, where they were measured.
    pub blocks: Vec<Block>,
}

/// How a training's batches are loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loading {
    /// Processes that load.
    pub workers: u64,
    /// Whether batches are pinned.
    pub pinned: bool,
    /// Nanoseconds that making an item takes on this machine.
    pub item_ns: u64,
    /// Bytes of an item.
    pub item_bytes: u64,
    /// So many were measured.
    pub items: u64,
}

/// A training's own `DataLoader` as the script has it, and what its batches take on this host without
/// workers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loader {
    /// The data set's class.
    pub dataset: String,
    /// Its items, where it can count them.
    pub items: Option<u64>,
    /// Batches that the training was given.
    pub given: u64,
    /// `num_workers`.
    pub workers: u64,
    /// `prefetch_factor`.
    pub prefetch: Option<u64>,
    /// `pin_memory`.
    pub pinned: bool,
    /// `persistent_workers`.
    pub persistent: bool,
    /// Samples in a batch.
    pub samples: u64,
    /// Bytes of a batch.
    pub bytes: u64,
    /// Some part of a batch lies on the card already.
    pub on_card: bool,
    /// Nanoseconds that making half of the items takes at most; nothing where they do not come one by one.
    pub item_ns: Option<u64>,
    /// Nanoseconds that the slowest of them took.
    pub slowest_ns: Option<u64>,
    /// So many were timed.
    pub measured: u64,
    /// Nanoseconds in which a batch is put together of its items.
    pub collate_ns: Option<u64>,
    /// Nanoseconds of a copy of a batch, as pinning makes one.
    pub copy_ns: u64,
    /// The error, where something went wrong.
    pub error: Option<String>,
}

/// The pace of a number of workers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoaderTrial {
    /// The number.
    pub workers: u64,
    /// Batches that came in the time that counts: from when those had come that were begun at the start.
    pub batches: u64,
    /// Samples in them.
    pub samples: u64,
    /// That time in nanoseconds.
    pub wall_ns: u64,
    /// Nanoseconds to the first batch, the start of the workers among them.
    pub start_ns: u64,
    /// The longest wait for a batch.
    pub slowest_ns: u64,
    /// Bytes of the workers' memory that no other process shares.
    pub memory: u64,
    /// The error, where something went wrong.
    pub error: Option<String>,
}

/// How the pass that trains was fed, as far as the run shows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Feeding {
    /// Processes that load.
    pub workers: u64,
    /// Batches that the pass was given.
    pub batches: u64,
    /// Nanoseconds in which the loader makes a batch on this host; nothing where the run does not tell.
    pub period_ns: Option<u64>,
}

/// A repeated block of a model, in one forward.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Block {
    /// Its name in the model.
    pub name: String,
    /// Bytes that its forward leaves for the backward, its output among them.
    pub kept: u64,
    /// Nanoseconds that its forward takes on the card.
    pub busy_ns: u64,
    /// Bytes of its output.
    pub output: u64,
}

/// Where an out-of-memory error struck.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Oom {
    /// Bytes asked for.
    pub requested: u64,
    /// The device.
    pub device: u32,
    /// Completed optimizer steps before it, plus one: the step it struck in.
    pub step: u64,
    /// `forward`, `backward`, `optimizer` or `other`.
    pub phase: String,
    /// The innermost module.
    pub module: Option<String>,
    /// Python frames, the user's own first, innermost first within each part: `file:line in function`.
    pub stack: Vec<String>,
}

/// The end of a process, as far as the probe is concerned.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own in the report's coverage")]
pub struct Done {
    /// `steps` (the asked number is complete, the process waits), or `exit` (the script came to its own
    /// end).
    pub reason: String,
    /// Completed optimizer steps, or forward passes of a script without an optimizer.
    pub steps: u64,
    /// Whether `steps` counts forward passes.
    pub forward_only: bool,
    /// An evaluation was among what ran.
    pub evaluation: bool,
    /// The largest batch of the data set was among what ran.
    pub largest_batch: bool,
    /// A loader's epoch came to its end.
    pub epoch_end: bool,
    /// Bytes by which the allocated memory grew from one step's end to the next, in the steady part.
    pub growth_per_step: Option<i64>,
    /// Bytes of optimizer state and gradients on the card after the only step, which no forward pass has met
    /// yet.
    #[serde(default)]
    pub unmet: u64,
    /// How its training was fed, where it has a loader of torch's.
    #[serde(default)]
    pub feeding: Option<Feeding>,
    /// Whether the script asked how large the card is, where that is noticed.
    #[serde(default)]
    pub asks_size: bool,
    /// Peaks and counters by device, from `torch.cuda.memory_stats`.
    #[serde(deserialize_with = "by_index")]
    pub devices: BTreeMap<u32, DeviceStats>,
}

/// PyTorch's own statistics of one device.
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

/// JSON's keys are texts, and within a tagged enum serde does not take them for numbers by itself.
fn by_index<'de, D: serde::Deserializer<'de>>(
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
    fn what_one_end_says_the_other_understands() {
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
            feeding: Some(Feeding { workers: 2, batches: 9, period_ns: None }),
            asks_size: true,
            devices: [(0, stats), (11, stats)].into(),
        });
        let line = serde_json::to_string(&done).unwrap();
        assert_eq!(serde_json::from_str::<Message>(&line).unwrap(), done);
    }
}
