//! Facts about a training run, measured while the script trained.

use crate::{Framework, Label, Lever};

/// Facts of a training run.
#[derive(Clone, Debug, Default, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "each is an independent fact")]
pub struct Training {
    /// Samples in the largest batch; 0 if the number cannot be set from outside.
    pub batch: u64,
    /// The script's variables with that number, if it does not use a DataLoader.
    pub names: Vec<String>,
    /// The script's variables for the models that train in addition to the first one; names of their modules
    /// begin with them.
    pub models: Vec<String>,
    /// The loader's batches in one optimizer step of the unchanged script.
    pub own_accumulation: u64,
    /// `true` if a sample's result depends on other samples in its batch.
    pub couples_samples: bool,
    /// Evidence about splitting its batch.
    pub parts: Parts,
    /// `true` if there are convolutions.
    pub convolves: bool,
    /// Outputs of the widest linear layer.
    pub classes: u64,
    /// `true` if the attention matrix is materialised.
    pub explicit_attention: bool,
    /// `true` if several optimizers step in turn within a batch, each after its own backward pass.
    pub alternates: bool,
    /// Maximum backward passes between two steps of an optimizer.
    pub backwards: u64,
    /// `true` if the loss ignores some labels.
    pub ignores: bool,
    /// `true` if the script compiles its model.
    pub compiled: bool,
    /// `true` if its model draws random numbers in the forward pass.
    pub draws: bool,
    /// `true` if the precision is reduced already.
    pub reduced: bool,
    /// `true` if its weights are in 16 bits.
    pub half: bool,
    /// `true` if it is one of several DDP replicas.
    pub replicated: bool,
    /// Bytes of the optimizer state.
    pub state: u64,
    /// Bytes of the trained parameters.
    pub trained: u64,
    /// `true` if there is an optimizer.
    pub optimizes: bool,
    /// `true` if its optimizers have fused kernels that they do not use.
    pub fusible: bool,
    /// `true` if they allocate temporaries for all parameters at once.
    pub foreach: bool,
    /// `true` if gradients are clipped by their norm over all parameters.
    pub clips: bool,
    /// The library whose loop trains; `None` for the script's own loop.
    pub framework: Option<Framework>,
    /// Sizes of items of the data set, if they differ.
    pub lengths: Vec<u64>,
    /// Bytes of the model's parameters, trained or not.
    pub parameters: u64,
    /// Bytes of the weights of its linear layers.
    pub linears: u64,
    /// `true` if it starts from pretrained weights.
    pub pretrained: bool,
    /// Bytes of the KV cache of a language model that generates.
    pub cached: u64,
    /// Tokens in it.
    pub tokens: u64,
    /// Height and width of the largest images from a loader.
    pub pictures: (u64, u64),
    /// Length of the longest token sequence from a loader.
    pub sequence: u64,
    /// Processes that train together.
    pub processes: u64,
    /// Repeated blocks.
    pub blocks: Vec<Measured>,
    /// Classes of the repeated blocks.
    pub block_classes: Vec<String>,
    /// Measurements of its data loading; `None` if they were not possible.
    pub loading: Option<Loading>,
}

impl Training {
    /// Reason why splitting a batch could change training results; `None` if it was verified, or if no
    /// training batch is split.
    pub fn unverified(&self) -> Option<String> {
        let why = self.parts.doubt().filter(|_| self.optimizes && !self.couples_samples)?;
        Some(format!("not verified, because {why}: `memfit.Step` checks it on the first batch"))
    }

    /// The label of splitting this training's batch.
    pub fn label_of_dividing(&self) -> Label {
        if !self.optimizes {
            // Inference accumulates nothing.
            Label::Exact
        } else if self.couples_samples || self.parts != Parts::TrainAsWhole {
            // Without verification, splitting counts as changing training results.
            Label::ChangesTraining
        } else {
            Lever::MicroBatch.label()
        }
    }
}

/// Result of tracing the script's own step from its batch to its loss.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Parts {
    /// The loss is a mean with equal weights for all samples, and no sample influences another.
    TrainAsWhole,
    /// Not verified, with the reason.
    Unverified(String),
    /// There was no such step.
    #[default]
    Unseen,
}

impl Parts {
    /// Reason why splitting was not verified; `None` if it was.
    pub fn doubt(&self) -> Option<&str> {
        match self {
            Self::TrainAsWhole => None,
            Self::Unverified(why) => Some(why),
            Self::Unseen => Some("no unmodified step of the script could be traced"),
        }
    }
}

/// Measurements of a training run's data loading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Loading {
    /// Processes that load.
    pub workers: u64,
    /// `true` if batches are pinned.
    pub pinned: bool,
    /// Nanoseconds per item on this machine.
    pub item_ns: u64,
    /// Bytes of an item.
    pub item_bytes: u64,
    /// Number of measured items.
    pub items: u64,
}

/// Measurements of a repeated block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Measured {
    /// Name.
    pub name: String,
    /// Bytes that its forward pass keeps.
    pub kept: u64,
    /// Nanoseconds of its forward pass.
    pub busy_ns: u64,
    /// Bytes of its output.
    pub output: u64,
}
