//! What the search asks of whoever runs candidates, and what it is told.

use memfit_vocabulary::{Harm, Label, Lever, Training, Value};

use crate::plan::Expected;
use crate::setting::Setting;

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
            value => match setting.lever.declaration().unit {
                "" => format!("{} {value}", setting.lever),
                unit => format!("{} {value} {unit}", setting.lever),
            },
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

/// Runs candidates.
pub trait Trial {
    /// Why one could not be run at all.
    type Error;

    /// Runs a candidate. Nothing where whoever waits has had enough.
    fn run(&mut self, candidate: &Candidate, room: Room) -> Result<Option<Outcome>, Self::Error>;
}
