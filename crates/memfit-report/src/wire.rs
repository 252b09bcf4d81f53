//! The format of memfit's JSON output.
//!
//! A published field keeps its meaning until the version in its schema's name changes. Sizes are integers in
//! bytes.

mod calibrate;
mod cards;
mod check;
mod ci;
mod data;
mod data_loader;
mod doctor;
mod explain;
mod gpus;
mod plan;
mod problem;
mod replay;
mod rules;
mod run;
mod shrink;
mod watch;

pub use calibrate::{CalibrateReport, CalibrationList, Compared};
pub use cards::{CardEvidence, CardPrice, CardRow, CardSort, CardVerdict, CardsReport, PricedWork};
pub use check::{CheckEdit, CheckFinding, CheckFix, CheckLabel, CheckProblem, CheckReport, Region};
pub use ci::{CiCommit, CiLine, CiModule, CiReport, CiRow, CiSide, CiVerdict};
pub use data::{
    DataBroken, DataClass, DataFile, DataFormat, DataLoaderHere, DataLoaderThere, DataReport, DataSpread,
};
pub use data_loader::{
    LoaderBatch, LoaderDataset, LoaderHost, LoaderMeasured, LoaderReport, LoaderSample, LoaderSettings,
    LoaderVerdict,
};
pub use doctor::{Check, DoctorReport, Health};
pub use explain::{
    CodeLine, Considered, Edit as ExplainEdit, Environment as ExplainEnvironment, Evidence, ExplainPeak,
    ExplainReport, Fix as ExplainFix, FixProof, Fragmentation, Holder as ExplainHolder, Leak as ExplainLeak,
};
pub use gpus::{GpuList, GpuReport};
pub use plan::{
    PatchNumbers, PlanLever, PlanLimit, PlanPatch, PlanRank, PlanReport, PlanRun, PlanVerdict, RejectedLever,
    SmallestCard,
};
pub use problem::ProblemKind;
pub use replay::{BlockChange, Circumstances, Predicted, Recorded, ReplayOom, ReplayPeak, ReplayReport};
pub use rules::{RuleEntry, RuleList, RuleReport};
pub use run::{
    AssumedValue, AtPeak, CallCount, CardKind, CategoryBytes, Coverage, DeviceInfo, Exception, Fidelity,
    GpuPeak, Host, ModuleBytes, NotRun, Oom, Outside, OutsideModules, OutsidePart, Peak, PeakEnd,
    PeakInterval, PossibleEffect, Problem, Rank, RunReport, Script, Time, Verdict,
};
pub use shrink::{ShrinkBytes, ShrinkLever, ShrinkReport, ShrinkRow, ShrinkSaved};
pub use watch::{WatchReport, WatchedCard, WatchedOom, WatchedProcess, WatchedRun};

/// The schema versions, one for each kind of document.
pub mod schema {
    /// Output of `memfit run`.
    pub const RUN: &str = "memfit.run/1";
    /// Output of `memfit plan`.
    pub const PLAN: &str = "memfit.plan/1";
    /// Output of `memfit cards`.
    pub const CARDS: &str = "memfit.cards/1";
    /// Output of `memfit shrink`.
    pub const SHRINK: &str = "memfit.shrink/1";
    /// Output of `memfit ci`.
    pub const CI: &str = "memfit.ci/1";
    /// Output of `memfit gpus`.
    pub const GPUS: &str = "memfit.gpus/1";
    /// Output of `memfit gpus NAME`.
    pub const GPU: &str = "memfit.gpu/1";
    /// Output of `memfit explain`.
    pub const EXPLAIN: &str = "memfit.explain/1";
    /// Output of `memfit replay`.
    pub const REPLAY: &str = "memfit.replay/1";
    /// Output of `memfit check`.
    pub const CHECK: &str = "memfit.check/1";
    /// Output of `memfit rule`.
    pub const RULES: &str = "memfit.rules/1";
    /// Output of `memfit rule NAME`.
    pub const RULE: &str = "memfit.rule/1";
    /// Output of `memfit data`.
    pub const DATA: &str = "memfit.data/1";
    /// Output of `memfit data --loader`.
    pub const DATA_LOADER: &str = "memfit.data-loader/1";
    /// Output of `memfit calibrate --show`.
    pub const CALIBRATIONS: &str = "memfit.calibrations/1";
    /// Output of `memfit watch` at each sample.
    pub const WATCH: &str = "memfit.watch/1";
    /// Output of `memfit doctor`.
    pub const DOCTOR: &str = "memfit.doctor/1";
}
