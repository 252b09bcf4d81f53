//! Environment variables through which both ends find the run directory.

/// The run directory. A device or a watcher library does nothing if it is unset.
pub const RUN_DIR: &str = "MEMFIT_RUN_DIR";
/// Folder of the device libraries and the watcher library, for child processes and for `doctor`.
pub const LIBRARY_DIR: &str = "MEMFIT_LIBRARY_DIR";
/// Set if the only process of a run represents one rank of several: the other ranks never exist.
pub const LONE_RANK: &str = "MEMFIT_LONE_RANK";
/// Ranks per machine of the group whose communicator is created next. The probe of a process with
/// [`LONE_RANK`] sets it.
pub const GROUP_PER_MACHINE: &str = "MEMFIT_GROUP_PER_MACHINE";
