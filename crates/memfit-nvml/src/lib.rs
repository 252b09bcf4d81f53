//! The virtual device as NVML shows it: `libnvidia-ml.so.1`.
//!
//! It owns NVML's view of a run: which cards there are, what the run's ledger says is used on them and by
//! whom. Every name that the real library exports is in the prototype list (`api/nvml.api`); what the list
//! does not call modelled is refused as "not supported", and counted.
//!
//! The command `nvidia-smi` of a run is `memfit_nvidia_smi` of this library: what it prints is what NVML
//! answers.
//!
//! It must not know how memory is simulated: it reads the set-up and the ledger of the run, and nothing else.
//! Outside a run there is no driver, as on a machine without a card.

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
