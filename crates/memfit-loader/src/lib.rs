//! Decode, resize, batch: images into memory that someone else owns, within a byte budget.
//!
//! Owns the decoders and what is decided before them (which scale, which part, what it takes), the order of
//! an epoch, the budget, the threads that fill batches, the cache of small copies, and volumes. It must not
//! know torch, Python, or what a batch is used for.

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
