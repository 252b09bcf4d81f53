//! Routing of calls with a path: to the user's disk unchanged, or to the overlay.

use std::{
    cell::Cell,
    ffi::{CString, OsStr},
    os::unix::ffi::{OsStrExt as _, OsStringExt as _},
    path::{Path, PathBuf},
};

use libc::c_int;
use rustix::{
    fs::{self, Access, FileType, Mode, OFlags, Stat},
    io::Errno,
};

use crate::{
    checkpoints,
    layer::{Entry, Layer, copy, touch},
    walk::{Found, Lost},
};

/// Route of a call.
#[derive(Debug, PartialEq, Eq)]
pub enum Route {
    /// Unchanged.
    Pass,
    /// Unchanged; the created file is recorded as the run's own.
    Make,
    /// With this path.
    At(CString),
    /// With this path; the created file is recorded as the run's own.
    MakeAt(CString),
    /// Already carried out.
    Done,
    /// Fails with this error.
    Fail(Errno),
}

/// A path as a call names it: a folder's descriptor, and a path relative to it.
#[derive(Clone, Copy, Debug)]
pub struct Name<'path> {
    /// Descriptor of the folder, or `AT_FDCWD`.
    pub folder: c_int,
    /// Relative or absolute path.
    pub path: &'path [u8],
}

thread_local! {
    /// Nesting depth of checkpoint writers on this thread.
    static SAVING: Cell<u32> = const { Cell::new(0) };
}

/// Records the begin or end of a checkpoint writer on this thread.
pub fn count_writer(begins: bool) {
    // A thread that is ending writes no checkpoint.
    let _ = SAVING.try_with(|depth| {
        depth.set(if begins { depth.get() + 1 } else { depth.get().saturating_sub(1) });
    });
}

/// Returns `true` if a checkpoint writer is active on this thread.
fn is_saving() -> bool {
    SAVING.try_with(|depth| depth.get() > 0).unwrap_or(false)
}

impl Layer {
    /// Resolves a name. `None` if the overlay does not concern the call.
    pub(crate) fn find(&self, name: Name<'_>, follow: bool) -> Option<Result<Found, Lost>> {
        let path = Path::new(OsStr::from_bytes(name.path));
        if name.path.is_empty() || (path.is_absolute() && self.is_exempt(path)) {
            return None;
        }
        let base = if path.is_absolute() {
            PathBuf::from("/")
        } else {
            let base = folder_path(name.folder).ok()?;
            if self.is_exempt(&base) {
                return None;
            }
            base
        };
        match self.walk(&base, name.path, follow) {
            Ok(found) if self.is_exempt(&found.path) => None,
            found => Some(found),
        }
    }

    /// Routes a call that only reads, or changes only a file's attributes.
    pub fn route_read(&self, name: Name<'_>, follow: bool) -> Route {
        if !self.is_live() {
            return Route::Pass;
        }
        match self.find(name, follow) {
            None => Route::Pass,
            Some(found) => found.map_or_else(Route::lost, |found| self.route_found(&found)),
        }
    }

    pub(crate) fn route_found(&self, found: &Found) -> Route {
        match &found.entry {
            // A folder that exists in both is the user's.
            Entry::There(FileType::Directory) if found.is_merged(self) => found.below_route(),
            Entry::There(_) => Route::to_path(&self.overlay_path(&found.path)),
            Entry::Renamed(from) => Route::to_path(from),
            Entry::Removed => Route::Fail(Errno::NOENT),
            Entry::Absent => found.below_route(),
        }
    }

    /// Routes `open`, with any flags.
    pub fn open(&self, name: Name<'_>, flags: c_int) -> Route {
        let flags = OFlags::from_bits_retain(flags as u32);
        let writes = flags.intersects(OFlags::WRONLY | OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC);
        let follow = !flags.contains(OFlags::NOFOLLOW) && !flags.contains(OFlags::CREATE | OFlags::EXCL);
        if !writes || flags.contains(OFlags::PATH) {
            let route = self.route_read(name, follow);
            if let Route::At(path) = &route {
                // The data may be written elsewhere.
                checkpoints::expect_checkpoint();
                if checkpoints::is_checkpoint(path) {
                    self.record_read();
                }
            }
            return route;
        }
        if flags.contains(OFlags::TMPFILE) {
            return Route::Pass;
        }
        let found = match self.find(name, follow) {
            None => return Route::Pass,
            Some(Err(lost)) => return Route::lost(lost),
            Some(Ok(found)) => found,
        };
        self.open_found(&found, flags).unwrap_or_else(Route::Fail)
    }

    fn open_found(&self, found: &Found, flags: OFlags) -> Result<Route, Errno> {
        match (&found.entry, &found.below) {
            (Entry::There(FileType::Directory), _) => Ok(self.route_found(found)),
            (Entry::There(_), _) => {
                if flags.contains(OFlags::RDWR) {
                    self.record_read();
                }
                Ok(Route::to_path(&self.overlay_path(&found.path)))
            }
            (Entry::Renamed(_), _) if flags.contains(OFlags::CREATE | OFlags::EXCL) => Err(Errno::EXIST),
            (Entry::Renamed(from), _) => {
                let place = self.prepare(&found.path)?;
                if !flags.contains(OFlags::TRUNC) {
                    copy(from, &place)?;
                } else if !flags.contains(OFlags::CREATE) {
                    touch(&place)?;
                }
                Ok(Route::to_path(&place))
            }
            (Entry::Removed, _) | (Entry::Absent, None) if !flags.contains(OFlags::CREATE) => {
                Ok(if found.redirected || matches!(found.entry, Entry::Removed) || !found.parent_below {
                    Route::Fail(Errno::NOENT)
                } else {
                    Route::Pass
                })
            }
            (Entry::Removed, _) => Ok(Route::to_path(&self.prepare(&found.path)?)),
            (Entry::Absent, None) if !found.parent_below => Ok(Route::to_path(&self.prepare(&found.path)?)),
            (Entry::Absent, None) if is_saving() => {
                let parent = found.path.parent().unwrap_or(Path::new("/"));
                self.save_at(&found.path, parent, flags)
            }
            (Entry::Absent, None) => Ok(found.make_route()),
            (Entry::Absent, Some(stat)) => {
                let regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
                let replaces = flags.contains(OFlags::TRUNC) && !flags.contains(OFlags::EXCL);
                if regular && replaces && is_saving() {
                    return self.save_at(&found.path, &found.path, flags);
                }
                if regular && replaces && stat.st_size > 0 && self.is_users(stat, &found.path) {
                    allow_writing(&found.path)?;
                    self.record_protected();
                    return Ok(Route::to_path(&self.prepare_file(&found.path, stat)?));
                }
                Ok(found.below_route())
            }
        }
    }

    /// Redirects a checkpoint to the overlay, if the user could have written it at its path.
    fn save_at(&self, path: &Path, writable: &Path, flags: OFlags) -> Result<Route, Errno> {
        allow_writing(writable)?;
        let place = self.prepare(path)?;
        if !flags.contains(OFlags::CREATE) {
            touch(&place)?;
        }
        self.record_checkpoint();
        Ok(Route::to_path(&place))
    }

    /// Creates an empty file in the overlay in place of the user's.
    pub(crate) fn prepare_file(&self, path: &Path, stat: &Stat) -> Result<PathBuf, Errno> {
        let place = self.prepare(path)?;
        let mode = Mode::from_raw_mode(stat.st_mode & 0o777) | Mode::RUSR | Mode::WUSR;
        drop(fs::open(&place, OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC, mode)?);
        Ok(place)
    }

    /// Routes `truncate`: the user's own file keeps its length.
    pub fn truncate(&self, name: Name<'_>) -> Route {
        let found = match self.find(name, true) {
            None => return Route::Pass,
            Some(Err(lost)) => return Route::lost(lost),
            Some(Ok(found)) => found,
        };
        match (&found.entry, &found.below) {
            (Entry::Renamed(from), _) => {
                self.copy_up(from, &found.path).map_or_else(Route::Fail, |place| Route::to_path(&place))
            }
            (Entry::Absent, Some(stat))
                if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
                    && self.is_users(stat, &found.path) =>
            {
                let from = found.path.clone();
                self.copy_up(&from, &found.path).map_or_else(Route::Fail, |place| Route::to_path(&place))
            }
            _ => self.route_found(&found),
        }
    }

    /// Copies a user's file to the overlay.
    pub(crate) fn copy_up(&self, from: &Path, path: &Path) -> Result<PathBuf, Errno> {
        allow_writing(from)?;
        self.record_protected();
        let place = self.prepare(path)?;
        copy(from, &place)?;
        Ok(place)
    }

    /// Returns `true` if a file, folder or link on the user's disk must not be changed because the run did
    /// not create it. Files that the kernel and the loader open themselves are replaced in place.
    pub(crate) fn is_users(&self, stat: &Stat, path: &Path) -> bool {
        let kind = FileType::from_raw_mode(stat.st_mode);
        matches!(kind, FileType::RegularFile | FileType::Directory | FileType::Symlink)
            && !self.has_made(stat)
            && !(kind == FileType::RegularFile && is_compiled(path))
    }
}

impl Found {
    /// Returns `true` if it is a folder both in the overlay and on the user's disk.
    pub(crate) fn is_merged(&self, layer: &Layer) -> bool {
        matches!(self.entry, Entry::There(FileType::Directory))
            && self.below.as_ref().is_some_and(crate::walk::is_folder)
            && !layer.hides(&self.path)
    }

    /// Route of the call on the user's disk.
    pub(crate) fn below_route(&self) -> Route {
        match (self.redirected, self.below.is_some() || self.parent_below) {
            (false, true) => Route::Pass,
            (true, true) => Route::to_path(&self.path),
            (_, false) => Route::Fail(Errno::NOENT),
        }
    }

    /// Route of a call that creates something there.
    pub(crate) fn make_route(&self) -> Route {
        if self.redirected {
            CString::new(self.path.as_os_str().as_bytes()).map_or(Route::Fail(Errno::INVAL), Route::MakeAt)
        } else {
            Route::Make
        }
    }
}

impl Route {
    pub(crate) fn to_path(path: &Path) -> Self {
        CString::new(path.as_os_str().as_bytes()).map_or(Self::Fail(Errno::INVAL), Self::At)
    }

    pub(crate) fn lost(lost: Lost) -> Self {
        match lost {
            Lost::Below => Self::Pass,
            Lost::Here(error) => Self::Fail(error),
        }
    }
}

/// Path of an open folder, or of the current one.
pub(crate) fn folder_path(folder: c_int) -> Result<PathBuf, Errno> {
    let path = if folder == libc::AT_FDCWD {
        rustix::process::getcwd(Vec::new())?
    } else {
        fs::readlink(format!("/proc/self/fd/{folder}"), Vec::new())?
    };
    let path = PathBuf::from(std::ffi::OsString::from_vec(path.into_bytes()));
    if path.is_absolute() { Ok(path) } else { Err(Errno::NOTDIR) }
}

/// Fails as the kernel would if the user may not write there.
pub(crate) fn allow_writing(path: &Path) -> Result<(), Errno> {
    fs::access(path, Access::WRITE_OK)
}

/// Returns `true` for a compiled program or library.
fn is_compiled(path: &Path) -> bool {
    let mut start = [0; 4];
    fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty())
        .and_then(|file| rustix::io::read(file, &mut start))
        .is_ok_and(|read| read == 4 && start == *b"\x7fELF")
}
