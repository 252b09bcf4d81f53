//! The form in which a lever is declared: its name, its effect on the training, when it is worth a try, and
//! every text that people read about it.

use std::fmt;

use crate::situation::Search;
use crate::{Held, Label, Lever, Value};

/// Everything about one lever. `Declaration::new` and `Declaration::advice` give the usual answers; a file in
/// `levers/` states what differs.
#[derive(Clone, Copy, Debug)]
pub struct Declaration {
    /// The name in plan files, in JSON and on the command line.
    pub name: &'static str,
    /// Equivalence with the original training.
    pub label: Label,
    /// Cost in learning quality.
    pub harm: Harm,
    /// When it is applied.
    pub stage: Stage,
    /// Levers that it cannot be combined with, each with the reason. Stating a pair on one side suffices.
    pub excludes: &'static [(Lever, &'static str)],
    /// The lever without which it makes no sense.
    pub needs: Option<Lever>,
    /// The comment beside it in a plan file.
    pub brief: &'static str,
    /// The line of a report that says what the plan does.
    pub sentence: Sentence,
    /// The unit of a value that is a number; empty for plain counts.
    pub unit: &'static str,
    /// When the search for a plan tries it. `None`: the search does not, or calculates how far it goes.
    pub search: Option<Search>,
    /// Its spelling in a plain PyTorch script.
    pub script: Script,
    /// The keywords of training libraries that do the same.
    pub keywords: &'static [Keyword],
    /// Bytes that it saves of what is on the device, where that follows from the sizes alone.
    pub saves: Option<fn(&Held) -> u64>,
    /// Its row in the table of levers.
    pub docs: Docs,
}

impl Declaration {
    /// A lever that a plan applies.
    pub(crate) const fn new(name: &'static str, stage: Stage, label: Label) -> Self {
        Self {
            name,
            label,
            harm: Harm::Digits,
            stage,
            excludes: &[],
            needs: None,
            brief: "",
            sentence: Sentence::NameAndValue,
            unit: "",
            search: None,
            script: Script::None,
            keywords: &[],
            saves: None,
            docs: Docs { value: "", effect: "", label: "" },
        }
    }

    /// A lever that is only advice: a person carries it out.
    pub(crate) const fn advice(name: &'static str, label: Label) -> Self {
        Self::new(name, Stage::ByHand, label)
    }
}

/// When a lever is applied. Stages are applied in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// Before the process starts.
    Environment,
    /// Where batches are produced.
    Data,
    /// On the model, before the optimizer is made.
    Model,
    /// On the optimizer.
    Optimizer,
    /// Around each step.
    Step,
    /// Never by a plan: a person changes the script, a setting or the machine.
    ByHand,
}

impl Stage {
    /// The name in JSON and in text.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Environment => "environment",
            Self::Data => "data",
            Self::Model => "model",
            Self::Optimizer => "optimizer",
            Self::Step => "step",
            Self::ByHand => "by-hand",
        }
    }
}

/// Cost of a lever in learning quality, the smallest first. A label says if the training changes; this
/// orders how much.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Harm {
    /// Digits, at most: the same model learns from the same samples by the same rule.
    #[default]
    Digits,
    /// Another rule updates it.
    Rule,
    /// Less of the model learns, or is used.
    Model,
    /// It is shown less of its samples.
    Samples,
}

impl Harm {
    /// All of them, the least first.
    pub const ALL: [Self; 4] = [Self::Digits, Self::Rule, Self::Model, Self::Samples];

    /// Its effect, as the end of a sentence about a lever.
    pub const fn what(self) -> &'static str {
        match self {
            Self::Digits => "computes in fewer digits",
            Self::Rule => "changes the update rule",
            Self::Model => "trains or uses less of the model",
            Self::Samples => "shows the model less of each sample (smaller inputs)",
        }
    }
}

/// A lever of a plan as a report talks about it.
#[derive(Clone, Copy, Debug)]
pub struct Moved<'a> {
    /// Its setting.
    pub value: &'a Value,
    /// Its label for this training.
    pub label: Label,
    /// Forwards and backwards in one optimizer step.
    pub passes: u64,
}

/// The line of a report that says what a plan does with a lever.
#[derive(Clone, Copy)]
pub enum Sentence {
    /// The lever's name and its value.
    NameAndValue,
    /// The same words as in the plan file.
    Brief,
    /// Fixed words.
    Words(&'static str),
    /// Words that depend on how far the lever is moved.
    With(fn(Moved<'_>) -> String),
}

impl fmt::Debug for Sentence {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::NameAndValue => "NameAndValue",
            Self::Brief => "Brief",
            Self::Words(words) => words,
            Self::With(_) => "With",
        })
    }
}

/// A library whose loop trains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framework {
    /// The Trainer of transformers.
    Transformers,
    /// Lightning.
    Lightning,
    /// accelerate.
    Accelerate,
}

impl Framework {
    /// The one with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "transformers" => Some(Self::Transformers),
            "lightning" => Some(Self::Lightning),
            "accelerate" => Some(Self::Accelerate),
            _ => None,
        }
    }

    /// The class or function that takes the settings.
    pub const fn taker(self) -> &'static str {
        match self {
            Self::Transformers => "TrainingArguments",
            Self::Lightning => "Trainer",
            Self::Accelerate => "Accelerator",
        }
    }
}

/// A keyword of a training library that does what a lever does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keyword {
    /// The library.
    pub framework: Framework,
    /// The keyword's name.
    pub name: &'static str,
    /// Its value, as Python.
    pub value: &'static str,
}

impl Keyword {
    pub(crate) const fn new(framework: Framework, name: &'static str, value: &'static str) -> Self {
        Self { framework, name, value }
    }
}

/// Spelling of a lever in a plain PyTorch training script. `memfit-patch` writes each kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Script {
    /// Plain PyTorch has no few lines for it.
    None,
    /// Gradient accumulation in the script's own loop.
    Accumulation,
    /// `torch.autocast` around the forward and its loss.
    Autocast {
        /// The dtype's name in `torch`.
        dtype: &'static str,
        /// `true` if a `GradScaler` scales the loss.
        scaled: bool,
    },
    /// A keyword of the optimizer's constructor.
    OptimizerKeyword {
        /// The keyword, with its value.
        keyword: &'static str,
        /// The same keyword without its value.
        name: &'static str,
        /// The keyword whose place it takes.
        instead_of: &'static str,
    },
    /// An environment variable, set at the script's start.
    Environment {
        /// Its name.
        name: &'static str,
        /// Its value.
        value: &'static str,
    },
    /// Statements before the training.
    Statements(&'static [&'static str]),
    /// A change of the model before the training: the first one that takes the lever's value.
    Model(&'static [ModelChange]),
}

/// One way to change a model before its training.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelChange {
    /// For the value `true`: an expression of each model, in which `{model}` stands for its name.
    Each {
        /// The expression.
        statement: &'static str,
        /// Modules that it needs.
        imports: &'static [&'static str],
    },
    /// For a list of modules: a function that is called with a model and the names of its modules.
    Modules {
        /// The function's name.
        function: &'static str,
        /// Its definition.
        definition: &'static str,
        /// Modules that it needs.
        imports: &'static [&'static str],
        /// A remark for readers of the change; empty if none is needed.
        remark: &'static str,
        /// A lever beside which these lines do something else, and why.
        not_beside: Option<(Lever, &'static str)>,
    },
    /// For a number of hundredths: a statement in which `{share}` stands for the fraction.
    Share {
        /// The statement.
        statement: &'static str,
        /// Modules that it needs.
        imports: &'static [&'static str],
    },
}

/// The row of a lever in the table of levers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Docs {
    /// The values that it takes; empty where it is only on or off.
    pub value: &'static str,
    /// Its effect.
    pub effect: &'static str,
    /// More about its label; empty where the label says it all.
    pub label: &'static str,
}

impl Docs {
    /// A row whose label needs no more words.
    pub(crate) const fn new(value: &'static str, effect: &'static str) -> Self {
        Self { value, effect, label: "" }
    }
}
