//! Image loading: decodes and resizes images into batches in caller-owned memory, within a byte budget.
//!
//! The crate contains the decoders and the plan for each image (scale, region, cost), the order of an epoch,
//! the budget, the worker threads that fill batches, the disk cache of downscaled copies, and volumes. It
//! does not know torch, Python, or the purpose of a batch.

mod budget;
mod buffer;
mod cache;
mod convert;
mod decode;
mod engine;
mod error;
mod header;
mod host;
mod input;
mod order;
mod pixels;
mod plan;
mod random;
mod reduce;
mod slot;
mod source;
mod survey;
mod turn;
mod view;
#[cfg(feature = "volumes")]
mod volume;

pub use budget::Shares;
pub use cache::{Cache, CacheCounts};
pub use convert::Mode;
pub use decode::{Backend, Decoder, Prepared, at_scale};
pub use engine::{Batch, Counts, Engine, Filled, Job, Left, Policy};
pub use error::LoaderError;
pub use header::{Format, Header, Overview, Packing, Rows, Storage};
pub use host::{DataLoader, HostMemory};
pub use input::Input;
pub use order::{Order, Pass};
pub use pixels::{Bands, Layout, Pixels, Rect, Sample};
pub use plan::{Cost, Filter, Rendering};
pub use slot::Slot;
pub use source::{Folder, List, Shards, Source, Target, Tiles, is_shard};
pub use survey::{Speed, Spread, Survey, measure};
pub use view::{Crop, Framing};
#[cfg(feature = "volumes")]
pub use volume::{Block, Volume, Voxel};
