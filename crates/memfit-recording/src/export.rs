//! Exports to the formats of other programs: PyTorch's snapshots, Chrome's and Perfetto's traces, tables of
//! rows.
//!
//! Exports write only recorded data; they compute nothing that would need a replay.

mod chrome;
mod from_track;
mod perfetto;
mod pickle;
mod rows;
#[cfg(test)]
mod tests;
mod timeline;

pub use chrome::write as write_chrome;
pub use from_track::Writer;
pub use perfetto::write as write_perfetto;
pub use rows::{RowFormat, Rows, write as write_rows};
