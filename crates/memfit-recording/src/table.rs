//! Column-oriented tables of a track: a long run has millions of rows, and most of their numbers are small.
//!
//! Callers see rows by value ([`Moment`](crate::Moment), [`Block`](crate::Block)), never the columns.

mod blocks;
mod moments;
mod packed;

pub(crate) use blocks::{BlockChange, Blocks};
pub use blocks::{BlockIter, BlockTable};
pub use moments::{MomentIter, Moments};
pub(crate) use moments::{decode, encode};
