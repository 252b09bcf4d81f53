//! NVML for the virtual device: `libnvidia-ml.so.1`.
//!
//! Owns NVML's view of a run: its devices, and the ledger's memory and processes on them. Every name that the
//! real library exports is in the prototype list (`api/nvml.api`); calls that the list does not mark as
//! modelled are refused as "not supported", and counted.
//!
//! The command `nvidia-smi` of a run is `memfit_nvidia_smi` of this library: it prints NVML's answers.
//!
//! This crate does not know how memory is simulated: it reads only the set-up and the ledger of the run.
//! Outside a run there is no driver, as on a machine without a GPU.

mod boundary;
mod cards;
mod devices;
mod links;
mod memory;
mod smi;
mod status;
mod stubs;
mod system;
mod tally;
use tally::report as report_refusal;
