//! Path resolution through the overlay and the user's disk below it, link by link.

use std::{
    collections::VecDeque,
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{self, FileType, Stat},
    io::Errno,
};

use crate::layer::{Entry, Layer};

/// Maximum links that are followed in one path, as in the kernel.
const MAX_LINKS: usize = 40;

/// Result of resolving a path.
#[derive(Debug)]
pub(crate) struct Found {
    /// Absolute path, without links before the last name.
    pub(crate) path: PathBuf,
    /// Entry in the overlay.
    pub(crate) entry: Entry,
    /// File on the user's disk that the overlay does not hide.
    pub(crate) below: Option<Stat>,
    /// `true` if its folder is on the user's disk, and visible.
    pub(crate) parent_below: bool,
    /// `true` if the overlay led here, so that the kernel would not find it by the same path.
    pub(crate) redirected: bool,
}

impl Found {
    /// Returns `true` if the script sees something there.
    pub(crate) fn is_there(&self) -> bool {
        match self.entry {
            Entry::There(_) | Entry::Renamed(_) => true,
            Entry::Removed => false,
            Entry::Absent => self.below.is_some(),
        }
    }

    /// Returns `true` if the script sees a folder there.
    pub(crate) fn is_folder(&self) -> bool {
        match self.entry {
            Entry::There(kind) => kind == FileType::Directory,
            Entry::Renamed(_) | Entry::Removed => false,
            Entry::Absent => self.below.as_ref().is_some_and(is_folder),
        }
    }
}

/// Returns `true` for a folder.
pub(crate) fn is_folder(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}

/// Reason why a path cannot be resolved.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Lost {
    /// The kernel will report it: the overlay does not concern the path.
    Below,
    /// The overlay reports this error.
    Here(Errno),
}

/// A folder on the way.
#[derive(Clone, Copy, Debug)]
struct Level {
    /// It exists in the overlay.
    here: bool,
    /// It exists on the user's disk, and the overlay does not hide it.
    below: bool,
}

impl Layer {
    /// Resolves `path`, which begins at the folder `base` unless it is absolute. Follows a link as the last
    /// name if `follow` is set.
    pub(crate) fn walk(&self, base: &Path, path: &[u8], follow: bool) -> Result<Found, Lost> {
        let mut walk = Walk {
            layer: self,
            path: PathBuf::from("/"),
            levels: vec![Level { here: self.is_live(), below: true }],
            names: VecDeque::new(),
            redirected: false,
            links: 0,
        };
        let follow = follow || path.ends_with(b"/");
        let start = Path::new(OsStr::from_bytes(path));
        if let Some(outside) = self.outside(start) {
            walk.redirected = true;
            walk.push(outside);
        } else {
            walk.push(path);
            if start.is_relative() {
                if let Some(outside) = self.outside(base) {
                    walk.redirected = true;
                    walk.push(outside);
                } else {
                    walk.push(base.as_os_str().as_bytes());
                }
            }
        }
        walk.run(follow)
    }
}

struct Walk<'layer> {
    layer: &'layer Layer,
    path: PathBuf,
    levels: Vec<Level>,
    names: VecDeque<OsString>,
    redirected: bool,
    links: usize,
}

impl Walk<'_> {
    /// Puts a path's names in front of those still to resolve.
    fn push(&mut self, path: &[u8]) {
        for name in path.split(|byte| *byte == b'/').rev() {
            if !name.is_empty() && name != b"." {
                self.names.push_front(OsStr::from_bytes(name).to_owned());
            }
        }
    }

    fn level(&self) -> Level {
        self.levels.last().copied().unwrap_or(Level { here: false, below: true })
    }

    fn run(mut self, follow: bool) -> Result<Found, Lost> {
        while let Some(name) = self.names.pop_front() {
            if name == ".." {
                if self.path.pop() {
                    self.levels.pop();
                }
                continue;
            }
            let parent = self.level();
            let next = self.path.join(&name);
            let entry = if parent.here { self.layer.entry(&next) } else { Entry::Absent };
            let below = if parent.below { fs::lstat(&next).ok() } else { None };
            let is_last = self.names.is_empty();
            let link = match (&entry, &below) {
                (Entry::There(FileType::Symlink), _) => Some(self.layer.overlay_path(&next)),
                (Entry::Absent, Some(stat)) if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink => {
                    Some(next.clone())
                }
                _ => None,
            };
            if let Some(link) = link.filter(|_| !is_last || follow) {
                self.redirected |= !matches!(entry, Entry::Absent);
                self.follow(&link)?;
                continue;
            }
            if is_last {
                let (path, redirected) = (next, self.redirected);
                return Ok(Found { path, entry, below, parent_below: parent.below, redirected });
            }
            let level = match (&entry, &below) {
                (Entry::There(FileType::Directory), below) => Level {
                    here: true,
                    below: below.as_ref().is_some_and(is_folder) && !self.layer.hides(&next),
                },
                (Entry::Absent, Some(stat)) if is_folder(stat) => Level { here: false, below: true },
                (Entry::Absent, _) if !self.redirected && parent.below => return Err(Lost::Below),
                (Entry::Removed, _) | (Entry::Absent, None) => return Err(Lost::Here(Errno::NOENT)),
                (Entry::There(_) | Entry::Renamed(_) | Entry::Absent, _) => {
                    return Err(Lost::Here(Errno::NOTDIR));
                }
            };
            self.levels.push(level);
            self.path = next;
        }
        // The path ends in a folder that was passed: the root, or by `..`.
        let level = self.level();
        let below = if level.below { fs::lstat(&self.path).ok() } else { None };
        let entry = if level.here { Entry::There(FileType::Directory) } else { Entry::Absent };
        Ok(Found { path: self.path, entry, below, parent_below: true, redirected: self.redirected })
    }

    /// Continues at the target of a link.
    fn follow(&mut self, link: &Path) -> Result<(), Lost> {
        self.links += 1;
        if self.links > MAX_LINKS {
            return Err(Lost::Here(Errno::LOOP));
        }
        let lost = |error| if self.redirected { Lost::Here(error) } else { Lost::Below };
        let target = fs::readlink(link, Vec::new()).map_err(lost)?;
        let target = target.to_bytes();
        if target.starts_with(b"/") {
            self.path = PathBuf::from("/");
            self.levels.truncate(1);
            if let Some(outside) = self.layer.outside(Path::new(OsStr::from_bytes(target))) {
                let outside = outside.to_vec();
                self.push(&outside);
                return Ok(());
            }
        }
        self.push(target);
        Ok(())
    }
}
