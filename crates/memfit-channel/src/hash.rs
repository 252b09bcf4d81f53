//! The hash function shared by all processes of a run.

use std::hash::Hasher as _;

use rustc_hash::FxHasher;

/// Hashes bytes. The result is the same in every process of a run, since all have the same build. It detects
/// torn notes and finds free entries, and is not a defence against attackers.
pub fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = FxHasher::default();
    hasher.write(bytes);
    hasher.finish()
}
