//! The virtual device as NVML shows it.
