//! The declaration of a lever: its name, its effect on training results, the condition for trying it, and its
//! texts.

use std::fmt;

use crate::situation::Search;
use crate::{Framework, Held, Label, Lever, Value};

/// Everything about one lever. `Declaration::new` and `Declaration::advice` set defaults; a file in `levers/`
/// states the differences.
#[derive(Clone, Copy, Debug)]
pub struct Declaration {
    /// The name in plan files, in JSON and on the command line.
    pub name: &'static str,
    /// Effect on training results.
    pub label: Label,
    /// Degree of harm to the training results.
    pub harm: Harm,
    /// Stage at which it is applied.
    pub stage: Stage,
    /// Levers that it cannot be combined with, with reasons. Stating a pair on one side is enough.
    pub excludes: &'static [(Lever, &'static str)],
    /// The lever that it requires.
    pub needs: Option<Lever>,
    /// The comment next to it in a plan file.
    pub brief: &'static str,
    /// The line of a report that describes it.
    pub sentence: Sentence,
    /// The unit of a numeric value; empty for plain counts.
    pub unit: &'static str,
    /// Condition under which the search for a plan tries it. `None` if the search does not try it, or
    /// computes its extent.
    pub search: Option<Search>,
    /// Form in a plain PyTorch script.
    pub script: Script,
    /// Equivalent keywords of training libraries.
    pub keywords: &'static [Keyword],
    /// Bytes of device memory that it saves, if they follow from the sizes alone.
    pub saves: Option<fn(&Held) -> u64>,
    /// Row in the table of levers.
    pub docs: Docs,
}

impl Declaration {
    /// A lever that a plan can apply.
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

    /// A lever that is only advice: the user applies it.
    pub(crate) const fn advice(name: &'static str, label: Label) -> Self {
        Self::new(name, Stage::ByHand, label)
    }
}

/// The time at which a lever is applied. Stages are applied in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// Before the process starts.
    Environment,
    /// When batches are loaded.
    Data,
    /// On the model, before the optimizer is created.
    Model,
    /// On the optimizer.
    Optimizer,
    /// Around each step.
    Step,
    /// Never by a plan: the user changes the script, a setting or the machine.
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

/// Degree of harm to the training results, smallest first. A label says whether the training changes; this
/// says how much.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Harm {
    /// Precision at most: the same model learns from the same samples by the same update rule.
    #[default]
    Digits,
    /// Another update rule.
    Rule,
    /// Less of the model is trained or used.
    Model,
    /// Less of each sample is used.
    Samples,
}

impl Harm {
    /// All degrees, smallest first.
    pub const ALL: [Self; 4] = [Self::Digits, Self::Rule, Self::Model, Self::Samples];

    /// Description of the harm, as the end of a sentence about a lever.
    pub const fn what(self) -> &'static str {
        match self {
            Self::Digits => "computes in fewer digits",
            Self::Rule => "changes the update rule",
            Self::Model => "trains or uses less of the model",
            Self::Samples => "shows the model less of each sample (smaller inputs)",
        }
    }
}

/// A lever of a plan, with the data for its report.
#[derive(Clone, Copy, Debug)]
pub struct Moved<'a> {
    /// Setting.
    pub value: &'a Value,
    /// Label for this training.
    pub label: Label,
    /// Forward and backward passes in one optimizer step.
    pub passes: u64,
}

/// The line of a report that describes a lever of a plan.
#[derive(Clone, Copy)]
pub enum Sentence {
    /// The lever's name and its value.
    NameAndValue,
    /// The text of the plan file.
    Brief,
    /// Fixed words.
    Words(&'static str),
    /// A text that depends on the lever's value.
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

impl Framework {
    /// The one with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|known| known.name() == name)
    }

    /// The library's loop, as the subject of a sentence.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Transformers => "Transformers' Trainer",
            Self::Lightning => "Lightning",
            Self::Accelerate => "Accelerate",
        }
    }

    /// The class or function that accepts the settings.
    pub const fn taker(self) -> &'static str {
        match self {
            Self::Transformers => "TrainingArguments",
            Self::Lightning => "Trainer",
            Self::Accelerate => "Accelerator",
        }
    }
}

/// A keyword of a training library that is equivalent to a lever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keyword {
    /// The library.
    pub framework: Framework,
    /// The keyword's name.
    pub name: &'static str,
    /// Value, as Python.
    pub value: &'static str,
}

impl Keyword {
    pub(crate) const fn new(framework: Framework, name: &'static str, value: &'static str) -> Self {
        Self { framework, name, value }
    }
}

/// Form of a lever in a plain PyTorch training script. `memfit-patch` writes each kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Script {
    /// There is no short form in plain PyTorch.
    None,
    /// Gradient accumulation in the script's own loop.
    Accumulation,
    /// `torch.autocast` around the forward pass and the loss.
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
        /// The keyword that it replaces.
        instead_of: &'static str,
    },
    /// An environment variable, set at the beginning of the script.
    Environment {
        /// Name.
        name: &'static str,
        /// Value.
        value: &'static str,
        /// Comment in the script.
        comment: &'static str,
    },
    /// Statements before the training.
    Statements(&'static [&'static str]),
    /// A change to the model before the training: the first one that accepts the lever's value.
    Model(&'static [ModelChange]),
}

/// One way to change a model before its training.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelChange {
    /// For the value `true`: an expression for each model, in which `{model}` is replaced by its name.
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
        /// Definition.
        definition: &'static str,
        /// Modules that it needs.
        imports: &'static [&'static str],
        /// A remark for readers of the change; empty if none is needed.
        remark: &'static str,
        /// A lever with which this code would do something else, and the reason.
        not_beside: Option<(Lever, &'static str)>,
    },
    /// For a percentage: a statement in which `{share}` is replaced by the fraction.
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
    /// The values that it accepts; empty if it is only on or off.
    pub value: &'static str,
    /// Effect.
    pub effect: &'static str,
    /// Addition to its label; empty if there is none.
    pub label: &'static str,
}

impl Docs {
    /// A row without an addition to its label.
    pub(crate) const fn new(value: &'static str, effect: &'static str) -> Self {
        Self { value, effect, label: "" }
    }
}
