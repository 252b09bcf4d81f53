//! The facts of a training: what was measured of a script while it trained.

use crate::{Framework, Label, Lever};

/// What a training is.
#[derive(Clone, Debug, Default, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct Training {
    /// Samples in the largest of the batches; 0 where nothing from outside can set how many there are.
    pub batch: u64,
    /// The script's own names for that number, where it has no loader of torch's.
    pub names: Vec<String>,
    /// What the script calls the models that train beside the first one; what is said of one of their
    /// modules begins with that.
    pub models: Vec<String>,
    /// The loader's batches in one optimizer step of the script's own.
    pub own_accumulation: u64,
    /// Whether what is computed of a sample depends on others in its batch.
    pub couples_samples: bool,
    /// What was seen of dividing its batch.
    pub parts: Parts,
    /// Whether there are convolutions.
    pub convolves: bool,
    /// Outputs of the widest linear layer.
    pub classes: u64,
    /// Whether attention's matrix is made as a whole.
    pub explicit_attention: bool,
    /// Whether several optimizers step one after the other within a batch, each after a backward of its own.
    pub alternates: bool,
    /// The most backwards from one step of an optimizer to its next.
    pub backwards: u64,
    /// Whether some of its labels are left out of the loss.
    pub ignores: bool,
    /// Whether the script compiles its model.
    pub compiled: bool,
    /// Whether its model draws random numbers in a forward.
    pub draws: bool,
    /// Whether fewer bits are used already.
    pub reduced: bool,
    /// Whether its weights are in 16 bits.
    pub half: bool,
    /// Whether it is one of several that exchange gradients in buckets.
    pub replicated: bool,
    /// Bytes of what the optimizers keep.
    pub state: u64,
    /// Bytes of the parameters that they update.
    pub trained: u64,
    /// Whether there is an optimizer.
    pub optimizes: bool,
    /// Whether its optimizers have fused kernels that they do not use.
    pub fusible: bool,
    /// Whether they make temporaries for all parameters at once.
    pub foreach: bool,
    /// Whether gradients are clipped over all parameters.
    pub clips: bool,
    /// The library whose loop trains; nothing where the script's own does.
    pub framework: Option<Framework>,
    /// Sizes of items of the data set, where they differ.
    pub lengths: Vec<u64>,
    /// Bytes of the model's parameters, trained or not.
    pub parameters: u64,
    /// Bytes of the weights of its linear layers.
    pub linears: u64,
    /// Whether it goes on from weights that were trained before.
    pub pretrained: bool,
    /// Bytes of the cache of a language model that generates.
    pub cached: u64,
    /// Tokens in it.
    pub tokens: u64,
    /// Height and width of the largest pictures that a loader gave.
    pub pictures: (u64, u64),
    /// Processes that train together.
    pub processes: u64,
    /// Its repeated blocks.
    pub blocks: Vec<Measured>,
    /// How its batches are loaded, where that could be measured.
    pub loading: Option<Loading>,
}

impl Training {
    /// That parts of its batch are not known to train as the whole does; nothing where they are, and where a
    /// batch is not divided for a training.
    pub fn unverified(&self) -> Option<String> {
        let why = self.parts.doubt().filter(|_| self.optimizes && !self.couples_samples)?;
        Some(format!("not verified, because {why}: `memfit.Step` checks it on the first batch"))
    }

    /// The label of dividing this training's batch.
    pub fn label_of_dividing(&self) -> Label {
        if !self.optimizes {
            // Nothing is accumulated where nothing is trained.
            Label::Exact
        } else if self.couples_samples || self.parts != Parts::TrainAsWhole {
            // What is not shown counts as another training.
            Label::ChangesTraining
        } else {
            Lever::MicroBatch.label()
        }
    }
}

/// What was seen of a script's own step, from its batch to its loss.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Parts {
    /// The loss is a mean in which each sample counts the same, and no sample's numbers reach another's.
    TrainAsWhole,
    /// That was not shown, and why.
    Unverified(String),
    /// There was no such step.
    #[default]
    Unseen,
}

impl Parts {
    /// Why parts of a batch are not known to train as the whole; nothing where they are.
    pub fn doubt(&self) -> Option<&str> {
        match self {
            Self::TrainAsWhole => None,
            Self::Unverified(why) => Some(why),
            Self::Unseen => Some("no unmodified step of the script could be traced"),
        }
    }
}

/// How a training's batches are loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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

/// A repeated block as it was measured.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Measured {
    /// Its name.
    pub name: String,
    /// Bytes that its forward leaves.
    pub kept: u64,
    /// Nanoseconds of its forward.
    pub busy_ns: u64,
    /// Bytes of its output.
    pub output: u64,
}
