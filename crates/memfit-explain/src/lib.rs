//! Diagnosis of out-of-memory errors: causes and remedies from a [`Recording`](memfit_recording::Recording).
//!
//! [`at_peak`] gives the breakdown of a device's memory at its peak, [`composition_at`] at any moment, and
//! [`category`] the purpose of one block. The category assigned by the probe has precedence. Without one, the
//! lifetime decides: a tensor allocated in a module's forward call is an activation if it outlives the call,
//! and temporary otherwise.
//!
//! [`explain`] finds the cause of an out-of-memory error with its evidence, and remedies with the bytes that
//! each would have saved; where possible, a replay of the recorded calls proves the effect.
//!
//! A remedy is a lever and the lines that it applies to. The source edit is made or refused by
//! `memfit-patch`: this crate reads source only through its `Code`, and edits none.
//!
//! This crate knows neither terminals nor files: it turns a recording into facts, and others render them.

mod analysis;
mod case;
mod category;
mod changes;
mod composition;
mod conditions;
mod earlier;
mod explain;
mod explanation;
mod fragmentation;
mod from_text;
mod holders;
mod leaks;
mod origins;
mod others;
mod out_of_memory;
mod peak_lines;
mod recorded;
mod repeated;
mod timeline;
mod weigh;

pub use case::{Card, Case, Kin, OtherProcess, Refused};
pub use category::{Lives, category, category_with};
pub use changes::{Change, Changes, Effect, NoMatchingBlocks, Reach, Selector, SelectorError};
pub use composition::{Composition, ModuleBytes, at_peak, composition_at, peak_moment};
pub use conditions::Conditions;
pub use explain::explain;
pub use explanation::{
    Apply, CUT_OFF, ConsideredCause, ENDED, Explanation, Fact, Fix, Fragmentation, HAD_ROOM, LeakFacts, Line,
    MomentFacts, NO_FIGURES, NO_HISTORY, NO_PERIODS,
};
pub use holders::Holder;
pub use memfit_allocator::Release;
pub use memfit_patch::Change as SourceChange;
pub use out_of_memory::{OutOfMemory, out_of_memory};
pub use peak_lines::{LineBytes, fullest_device, lines_at_peak, user_files};
pub use recorded::{ExplainError, ExplainOverrides, explain_recording, explain_source};
pub use repeated::{RepeatedWork, repeated_work};
pub use timeline::categories;
pub use weigh::GPU_SIZES_GIB;
