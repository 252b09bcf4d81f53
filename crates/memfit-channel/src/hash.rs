//! The hash that all processes of a run agree on.

use std::hash::Hasher as _;

use rustc_hash::FxHasher;

/// A hash of bytes: the same in every process of a run, since all of them have the same build. It finds torn
/// notes and free entries, and is no defence against anyone.
pub fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = FxHasher::default();
    hasher.write(bytes);
    hasher.finish()
}
