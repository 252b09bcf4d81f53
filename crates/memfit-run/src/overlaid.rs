//! Names of the files that a run redirected: those that the script wrote, renamed or removed in the overlay.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::Path;

/// Maximum number of names that are collected.
pub(crate) const MAX_NAMES: usize = 10_000;

/// Names of all files and links below the overlay's folder.
pub(crate) fn names(folder: &Path) -> BTreeSet<OsString> {
    let mut names = BTreeSet::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            if names.len() == MAX_NAMES {
                return names;
            }
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                folders.push(entry.path());
            } else {
                names.insert(entry.file_name());
            }
        }
    }
    names
}
