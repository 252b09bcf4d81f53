//! What the search asks of whoever runs candidates, and what it is told.

use memfit_vocabulary::{Harm, Label, Lever};

use crate::framework::Framework;
use crate::plan::Expected;
use crate::setting::{Setting, Value};

/// Something to try.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Candidate {
    /// Samples in one forward and backward; nothing where the loader's batch stays whole.
    pub micro_batch: Option<u64>,
    /// Forwards and backwards in one optimizer step.
    pub pieces: u64,
    /// The loader's batches in one optimizer step.
    pub accumulate: u64,
    /// The levers.
    pub settings: Vec<Setting>,
}

impl Candidate {
    /// The script as it is.
    pub fn as_is() -> Self {
        Self { pieces: 1, accumulate: 1, ..Self::default() }
    }

    /// The same with one lever more.
    #[must_use]
    pub fn with(&self, lever: Lever, value: Value) -> Self {
        let mut settings = self.settings.clone();
        settings.retain(|setting| setting.lever != lever);
        settings.push(Setting { lever, value, label: lever.label() });
        Self { settings, ..self.clone() }
    }

    /// How far a lever is moved, where it is.
    pub fn value(&self, lever: Lever) -> Option<&Value> {
        self.settings.iter().find(|setting| setting.lever == lever).map(|setting| &setting.value)
    }

    /// What it does to the training, its micro-batch left aside.
    pub fn label(&self) -> Label {
        self.settings.iter().map(|setting| setting.label).max().unwrap_or(Label::Exact)
    }

    /// How far what is learnt with it is something else.
    pub fn harm(&self) -> Harm {
        self.settings.iter().map(|setting| setting.lever.harm()).max().unwrap_or_default()
    }

    /// In a few words.
    pub fn told(&self) -> String {
        let mut parts = Vec::new();
        if let Some(micro_batch) = self.micro_batch {
            parts.push(format!("micro-batch {micro_batch}"));
        }
        if self.accumulate > 1 {
            parts.push(format!("{} batches a step", self.accumulate));
        }
        parts.extend(self.settings.iter().map(|setting| match &setting.value {
            Value::Names(names) => format!("{} of {} blocks", setting.lever, names.len()),
            Value::Switch(true) => setting.lever.name().to_owned(),
            Value::Count(share) if setting.lever == Lever::ActivationBudget => {
                format!("{} {share} %", setting.lever)
            }
            value => format!("{} {value}", setting.lever),
        }));
        if parts.is_empty() { "as it is".to_owned() } else { parts.join(", ") }
    }
}

/// Where something is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// On a card with the memory that a plan may use.
    Budget,
    /// On the same card with memory without end, to see what it would take.
    Boundless,
}

/// What came of a try.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Whether the steps were completed.
    pub fits: bool,
    /// Whether memory ran out on the way, and the script went on by itself.
    pub recovered: bool,
    /// The peaks, and the time of a step: of all its pieces, where only some were run.
    pub peak: Expected,
    /// The step takes no less than this, in milliseconds, as far as is known.
    pub step_ms_low: Option<f64>,
    /// The step takes no more than this.
    pub step_ms_high: Option<f64>,
    /// Levers that could not be applied, and why.
    pub refused: Vec<(String, String)>,
    /// Why the steps were not completed, where that is not for want of memory: the error's type, message and
    /// line.
    pub problem: Option<String>,
    /// What the training is, where it came far enough to tell.
    pub training: Option<Training>,
}

impl Outcome {
    /// Why it was not completed, on a card with memory without end.
    pub fn failure(&self) -> String {
        match &self.problem {
            Some(problem) => format!("the script fails with it: {problem}"),
            None => "the script fails with it".to_owned(),
        }
    }
}

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
    /// Whether the loss compares samples of a batch with each other.
    pub compares_samples: bool,
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

/// Runs candidates.
pub trait Trial {
    /// Why one could not be run at all.
    type Error;

    /// Runs a candidate. Nothing where whoever waits has had enough.
    fn run(&mut self, candidate: &Candidate, room: Room) -> Result<Option<Outcome>, Self::Error>;
}
