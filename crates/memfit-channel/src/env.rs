//! Environment variables through which the two ends find each other.

/// The run directory. A device or a watcher library does nothing if it is unset.
pub const RUN_DIR: &str = "MEMFIT_RUN_DIR";
/// Folder of the device libraries and the watcher library, for child processes and for `doctor`.
pub const LIBRARY_DIR: &str = "MEMFIT_LIBRARY_DIR";
/// Set if the only process of a run stands for one rank of many: the other ranks never exist.
pub const LONE_RANK: &str = "MEMFIT_LONE_RANK";
/// Ranks per machine of the group whose communicator is created next, set by the probe of such a process.
pub const GROUP_PER_MACHINE: &str = "MEMFIT_GROUP_PER_MACHINE";
