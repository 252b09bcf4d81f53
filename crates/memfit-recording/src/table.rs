//! The tables of a track, column by column: a long run has millions of rows, and most of their numbers are
//! small.
//!
//! Whoever reads them sees rows by value ([`Moment`](crate::Moment), [`Block`](crate::Block)), never the
//! columns.

mod blocks;
mod moments;
mod packed;

pub use blocks::{BlockIter, BlockTable};
pub(crate) use blocks::{Blocks, Told};
pub use moments::{MomentIter, Moments};
pub(crate) use moments::{decode, encode};
