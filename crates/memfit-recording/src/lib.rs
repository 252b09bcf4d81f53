//! The Recording: events of PyTorch's caching allocator in the processes of a run, with the modules and
//! phases that caused them.
//!
//! A [`Recording`] has an [`Origin`] and one [`Track`] for each process. A track is a sequence of [`Moment`]s
//! (allocations, frees, phases, steps, failures), with a table of [`Block`]s and their lifetimes, and a table
//! of module [`Call`]s. Texts are interned. A track is built from a process's event log
//! ([`Track::from_log`]); a recording is stored in a file format of its own ([`Recording::write`],
//! [`Recording::read`]).
//!
//! A [`Snapshot`] holds the content of a PyTorch memory snapshot. It is read from a pickle, of which nothing
//! is executed.
//!
//! This crate holds facts and does not judge them: neither causes of a failure nor remedies are found here.

mod columns;
mod confidential;
mod error;
mod export;
mod file;
mod from_log;
mod nsight;
mod oom_text;
mod origin;
mod outline;
mod pickle;
mod snapshot;
mod source;
mod source_file;
mod table;
mod texts;
mod trace;
mod track;
mod unknown;

pub use error::{OpenError, RecordingError};
pub use export::{RowFormat, Rows, Writer, write_chrome, write_perfetto, write_rows};
pub use file::{Amendment, Limits, MAGIC, Part, RecordingReader, RecordingWriter, VERSION};
pub use oom_text::{Advice, Amount, Elsewhere, Figures, LogFrame, OomKind, OomText, find as find_oom_texts};
pub use origin::{Origin, OriginKind, Recording, Trial};
pub use outline::{Outline, OutlinePoint};
pub use pickle::{PickleError, PickleErrorKind, PickleLimits};
pub use snapshot::{
    Annotation, Frame, FrameId, Problem, Segment, SegmentBlock, SegmentBlockState, Snapshot, SnapshotError,
    StackId, Stacks, TraceAction, TraceEvent, TracedSettings,
};
pub use source::{OpenLimits, Source, open, read};
pub use source_file::{SourceFile, line_hash};
pub use table::{BlockIter, BlockTable, MomentIter, Moments};
pub use texts::{TextId, Texts};
pub use track::{
    Block, Call, Moment, MomentKind, NEVER, NamedRange, PoolRef, RangeSource, Refusal, Span, StreamRef,
    Totals, Track,
};
pub use unknown::Unknown;
