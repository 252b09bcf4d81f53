//! The catalogue of GPUs.
//!
//! Owns the properties of each GPU as the CUDA driver and PyTorch see it ([`Device`]), the memory outside
//! PyTorch's allocator on it ([`Overhead`]), the source of every figure, look-up by name ([`Catalogue`]), and
//! the measurements on a real GPU that replace these figures ([`Calibration`]). It knows no other crate of
//! memfit, no CUDA and no terminal.
//!
//! ```
//! use memfit_devices::{Catalogue, parse_size};
//!
//! let catalogue = Catalogue::builtin()?;
//! let gpu = catalogue.find("NVIDIA GeForce RTX 4090")?;
//! assert_eq!(gpu.id, "rtx-4090");
//! assert!(gpu.memory < gpu.box_memory);
//!
//! let small = gpu.clone().with_memory(parse_size("14 GiB")?);
//! assert!(small.overhead(13).total().high < small.memory);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod bytes;
mod calibration;
mod catalogue;
mod cluster;
mod device;
mod error;
mod link;
mod outside;
mod overhead;
mod raw;
mod speed;

pub use bytes::{Bytes, SizeError, parse_size};
pub use calibration::{CalibratedCard, CalibratedLink, CalibratedWith, Calibration, Gap, Spread};
pub use catalogue::Catalogue;
pub use device::{
    Class, ComputeCapability, Device, HostLink, HostLinkKind, PeerLink, Range, Rates, SmLimits,
};
pub use error::CatalogueError;
pub use link::{Cluster, Link, LinkError, LinkOwner, LinkPlace, LinkSpeed, find_link, links};
pub use outside::{Interval, OutsideMeasurement, OutsideParts};
pub use overhead::{Origin, Overhead};
pub use speed::{Achieved, Measured, Share};
