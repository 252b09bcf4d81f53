//! A recording as a page to look at.
//!
//! A [`Lane`] is what one process did on one device, on a clock of its own: one tick for each thing that
//! happened to memory. From lanes come levels of detail: an [`Envelope`] for each, which bounds every
//! category's curve at each zoom, and the blocks in chunks sorted by how long they lived, so that a page that
//! shows much loads only what is wide enough to be seen. [`View`] packs them, compressed, with what the page
//! has to know; [`write_page`] embeds the pack in one HTML file, and [`Server`] hands it out piece by piece
//! on loopback.
//!
//! It owns the page, its wire format, and its server. It must not know where a recording came from, how an
//! explanation was reached (it is given one as JSON), or terminals.

mod chunks;
mod columns;
mod envelope;
mod from_track;
mod lane;
mod page;
mod places;
mod redact;
mod serve;
mod view;

pub use chunks::{CHUNK_BLOCKS, Chunk, SHORTEST_LIFE, blocks_in_chunks, life_level};
pub use envelope::{Bin, Envelope, FANOUT, FINEST, SERIES};
pub use from_track::lane;
pub use lane::{Lane, Mark, MarkKind, NOWHERE, Piece, Pool, Span};
pub use page::{served_page, write_page};
pub use places::Places;
pub use redact::redact;
pub use serve::{ServeError, Server};
pub use view::{Recorded, View};
