//! Why memory ran out and what would have helped: judgements over a
//! [`Recording`](memfit_recording::Recording).
//!
//! [`at_peak`] says what filled a device when its tensors took the most, [`at`] says it for any moment, and
//! [`category`] what one block was for. A block is what it was told to be for; where nothing was told, its
//! life says it: what is made in a module's call of the forward and outlives that call is an activation, what
//! does not is temporary.
//!
//! [`explain`] names the cause of an out-of-memory error, with what speaks for it, and the remedies with what
//! each would have saved; where it can, it shows that by making the recorded calls once more.
//!
//! A remedy is a lever and the lines that it is about. The change of the source that makes it is
//! `memfit-patch`'s, or refused there: nothing here reads or cuts source.
//!
//! This crate knows neither terminals nor files: it turns a recording into facts, and others show them.

mod bench;
mod case;
mod category;
mod changes;
mod composition;
mod conditions;
mod explain;
mod explanation;
mod fragmentation;
mod from_text;
mod holders;
mod leaks;
mod origins;
mod others;
mod out_of_memory;
mod recorded;
mod story;
mod weigh;

pub use case::{Card, Case, Kin, OtherProcess, Refused};
pub use category::{Lives, category, category_with};
pub use changes::{Change, Changes, Effect, NothingNamed, Reach, Selector, SelectorError};
pub use composition::{Composition, ModuleBytes, at, at_peak, peak_moment};
pub use conditions::Conditions;
pub use explain::explain;
pub use explanation::{Apply, Explanation, Fact, Fix, Fragmentation, LeakFacts, Line, MomentFacts, Weighed};
pub use holders::Holder;
pub use memfit_patch::Change as SourceChange;
pub use out_of_memory::{OutOfMemory, out_of_memory};
pub use recorded::{Asked, ExplainError, explain_recording, explain_source};
pub use story::categories;
