//! Entries of a folder in both layers.

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

/// Changes of a folder's entries by the overlay.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    /// Entries on the user's disk that are hidden.
    pub(crate) hidden: HashSet<Vec<u8>>,
    /// Entries that the overlay adds.
    pub(crate) added: Vec<(Vec<u8>, FileType)>,
}

impl Layer {
    /// Changes of the entries of a folder by the overlay.
    pub(crate) fn listing(&self, path: &Path) -> Result<Listing, Errno> {
        let mut listing = Listing::default();
        for name in names(&self.overlay_path(path))? {
            match self.entry(&join(path, &name)) {
                Entry::There(kind) if name != HIDES => listing.added.push((name.clone(), kind)),
                Entry::Renamed(_) => listing.added.push((name.clone(), FileType::RegularFile)),
                Entry::There(_) | Entry::Removed | Entry::Absent => {}
            }
            listing.hidden.insert(name);
        }
        Ok(listing)
    }

    /// Returns `true` if the script sees an empty folder there.
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

    /// Removes a folder of the overlay that the script sees as empty.
    pub(crate) fn remove_empty(&self, path: &Path) -> Result<(), Errno> {
        let place = self.overlay_path(path);
        for name in names(&place)? {
            fs::unlink(join(&place, &name))?;
        }
        fs::rmdir(place)
    }
}

/// Path of a folder's entry.
pub(crate) fn join(folder: &Path, name: &[u8]) -> PathBuf {
    use std::os::unix::ffi::OsStrExt as _;
    folder.join(std::ffi::OsStr::from_bytes(name))
}
