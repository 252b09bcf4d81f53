//! Every environment variable through which the two ends find each other.

/// The run directory. A device or a watcher library that finds it unset stays out of the way.
pub const RUN_DIR: &str = "MEMFIT_RUN_DIR";
/// Where the device libraries and the watcher library stand, for children and for `doctor`.
pub const LIBRARY_DIR: &str = "MEMFIT_LIBRARY_DIR";
/// Set where the one process of a run stands for one rank of many: the others are not there, and never will
/// be.
pub const LONE_RANK: &str = "MEMFIT_LONE_RANK";
