//! Interactive HTML page for a recording.
//!
//! A [`Lane`] is the activity of one process on one device, on a clock with one tick for each memory event.
//! Lanes provide levels of detail: an [`Envelope`] bounds every category's curve at each zoom, and blocks are
//! stored in chunks sorted by lifetime, so that a page only loads what is wide enough to be visible. [`View`]
//! packs and compresses them with the page's metadata; [`write_page`] embeds everything in one HTML file, and
//! [`Server`] serves it section by section on loopback. [`Loopback`] is the HTTP server, also for other
//! content.
//!
//! The crate contains the page, its wire format, and its server. It does not know where a recording came
//! from, how an explanation (given as JSON) was computed, or terminals.

mod chunks;
mod columns;
mod envelope;
mod from_track;
mod lane;
mod loopback;
mod page;
mod places;
mod redact;
mod serve;
mod view;

pub use chunks::{CHUNK_BLOCKS, Chunk, FIRST_LEVEL_MAX_LIFE, blocks_in_chunks, life_level};
pub use envelope::{Bin, Envelope, FANOUT, FINEST, SERIES};
pub use from_track::lane;
pub use lane::{Lane, Mark, MarkKind, NOWHERE, Piece, Pool, Span};
pub use loopback::{Answer, Loopback, Pages};
pub use page::{served_page, write_page};
pub use places::Places;
pub use redact::redact;
pub use serve::{ServeError, Server};
pub use view::{View, ViewedRecording};
