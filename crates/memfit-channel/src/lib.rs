//! The versioned channel between a device in a process and the watcher of a run.
//!
//! A *run directory* connects the two ends. The watcher (the command `memfit run`) writes a [`Setup`] into it
//! and names it in the environment ([`mod@env`]); each process of the run finds it there. The processes send
//! back:
//!
//! * the [`ledger`]: shared memory in which all processes on a device reserve their memory, so that they
//!   share its capacity, and in which a killed process releases its part;
//! * an [`events`] log for each process: every block that PyTorch's allocator hands out, with the phase and
//!   module it was for;
//! * [`board`]s on which the processes post short notes to each other, since no device transfers their bytes;
//! * [`message`]s of each process: the few structured facts that the probe reports (steps, errors, coverage).
//!
//! This crate knows neither end: not how a device is simulated, nor how a run is judged.

pub mod board;
pub mod clock;
pub mod env;
pub mod events;
mod hash;
pub mod identity;
pub mod ledger;
pub mod message;
mod planned;
pub mod proc;
mod run_dir;
mod setup;
mod sync;
mod value_policy;

pub use board::Board;
pub use clock::{ClockMark, ClockMode, HostTime, WorkKind};
pub use hash::hash;
pub use ledger::{Ledger, LedgerView, Outside, ProcessId, TallyKind};
pub use message::Message;
pub use planned::{LeverSetup, LibrarySetup, ParallelSetup, Part, Planned};
pub use run_dir::{RunDir, made_mark};
pub use setup::{
    CardSetup, ChannelError, HostPart, HostRun, Inverted, OtherValues, Setup, Synthetic, SyntheticData,
    SyntheticField,
};
pub use value_policy::{ValuePolicy, scattered};

/// Version of everything in a run directory. Both ends must agree on it exactly.
pub const PROTOCOL: u32 = 5;
