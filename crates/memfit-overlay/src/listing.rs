//! The entries of a folder in both layers.

use std::{
    collections::HashSet,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{self, FileType},
    io::Errno,
};

use crate::{
    layer::{Entry, HIDES, Layer, names},
    walk::Found,
};

/// What the layer changes about a folder's entries.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    /// Entries of the user's disk that are not shown.
    pub(crate) hidden: HashSet<Vec<u8>>,
    /// Entries that the layer adds.
    pub(crate) added: Vec<(Vec<u8>, FileType)>,
}

impl Layer {
    /// What the layer changes about the entries of a folder.
    pub(crate) fn listing(&self, path: &Path) -> Result<Listing, Errno> {
        let mut listing = Listing::default();
        for name in names(&self.place(path))? {
            match self.entry(&join(path, &name)) {
                Entry::There(kind) if name != HIDES => listing.added.push((name.clone(), kind)),
                Entry::Renamed(_) => listing.added.push((name.clone(), FileType::RegularFile)),
                Entry::There(_) | Entry::Removed | Entry::Absent => {}
            }
            listing.hidden.insert(name);
        }
        Ok(listing)
    }

    /// Whether the script sees an empty folder there.
    pub(crate) fn is_empty(&self, found: &Found) -> Result<bool, Errno> {
        let mut listing = Listing::default();
        if matches!(found.entry, Entry::There(_)) {
            listing = self.listing(&found.path)?;
        }
        if !listing.added.is_empty() {
            return Ok(false);
        }
        let below = match found.entry {
            Entry::Absent => found.below.is_some(),
            _ => found.is_merged(self),
        };
        Ok(!below || names(&found.path)?.iter().all(|name| listing.hidden.contains(name)))
    }

    /// Takes away a folder of the layer that the script sees as empty.
    pub(crate) fn take_away(&self, path: &Path) -> Result<(), Errno> {
        let place = self.place(path);
        for name in names(&place)? {
            fs::unlink(join(&place, &name))?;
        }
        fs::rmdir(place)
    }
}

/// A folder's entry.
pub(crate) fn join(folder: &Path, name: &[u8]) -> PathBuf {
    use std::os::unix::ffi::OsStrExt as _;
    folder.join(std::ffi::OsStr::from_bytes(name))
}
