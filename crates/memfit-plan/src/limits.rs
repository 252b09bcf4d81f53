//! Limits of a search.

use memfit_vocabulary::{Label, Lever};

/// Limits that a plan must respect.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// Maximum effect on the training results.
    pub allow: Label,
    /// Bytes of the GPU that the plan may use.
    pub budget: u64,
    /// Samples in one optimizer step; `None` keeps the script's own number.
    pub global_batch: Option<u64>,
    /// `true` if bf16 is fast on the GPU; otherwise fp16 is used.
    pub has_bf16: bool,
    /// `true` if the GPU's tensor cores support TF32.
    pub has_tf32: bool,
    /// Number of GPUs.
    pub cards: u32,
    /// `true` if `torch.compile` may be tried, which takes long.
    pub compiles: bool,
    /// Bandwidth between host and GPU in bytes a second; `None` forbids offloading.
    pub link: Option<f64>,
    /// Levers that must not be used.
    pub without: Vec<Lever>,
    /// Levers that a patch of the script cannot contain, with reasons, if a patch is requested.
    pub unwritable: Vec<(Lever, String)>,
    /// Levers that do not work with the chosen parallelism, with reasons.
    pub unsuited: Vec<(Lever, String)>,
    /// Maximum number of runs.
    pub most_runs: u64,
}

impl Limits {
    /// The limit of runs, if so many runs reach it.
    pub fn reached(&self, runs: u64) -> Option<u64> {
        (runs >= self.most_runs).then_some(self.most_runs)
    }
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
            unsuited: Vec::new(),
            most_runs: u64::MAX,
        }
    }
}
