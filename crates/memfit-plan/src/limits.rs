//! The limits of a search.

use memfit_vocabulary::{Label, Lever};

/// Within what a plan has to stay.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// How far the training may change.
    pub allow: Label,
    /// Bytes of the card that it may take.
    pub budget: u64,
    /// Samples in one optimizer step; nothing where the script's own number stays.
    pub global_batch: Option<u64>,
    /// Which 16-bit type the card computes fast with: bf16, or else fp16.
    pub has_bf16: bool,
    /// Whether its tensor cores take fp32 in fewer bits.
    pub has_tf32: bool,
    /// How many cards there are.
    pub cards: u32,
    /// Whether `torch.compile` is tried, which takes long.
    pub compiles: bool,
    /// Bytes a second between the host and the card; nothing where nothing is to be sent there.
    pub link: Option<f64>,
    /// Levers that are not to be moved.
    pub without: Vec<Lever>,
    /// Levers that a change of the script's source cannot carry, and why, where one is wanted.
    pub unwritable: Vec<(Lever, String)>,
    /// Runs, at most.
    pub most_runs: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            allow: Label::Precision,
            budget: 0,
            global_batch: None,
            has_bf16: false,
            has_tf32: false,
            cards: 1,
            compiles: false,
            link: None,
            without: Vec::new(),
            unwritable: Vec::new(),
            most_runs: u64::MAX,
        }
    }
}
