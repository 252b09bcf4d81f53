//! Routing of calls that create, remove and rename directory entries. "Below" is the user's own file system,
//! under the overlay's layer.

use std::{ffi::OsStr, os::unix::ffi::OsStrExt as _, path::Path};

use rustix::{
    fs::{self, FileType, Mode, Stat},
    io::Errno,
};

use crate::{
    decide::{Name, Route, allow_writing},
    layer::{Entry, Layer, copy},
    walk::{Found, Lost},
};

/// Resolves a name within a function that returns a `Result<Route, Errno>`; returns from it if the overlay
/// does not concern the call.
macro_rules! found {
    ($layer:expr, $name:expr, $follow:expr) => {
        match $layer.find($name, $follow) {
            None | Some(Err(Lost::Below)) => return Ok(Route::Pass),
            Some(Err(Lost::Here(error))) => return Err(error),
            Some(Ok(found)) => found,
        }
    };
}

impl Layer {
    /// Routes `unlink`.
    pub fn unlink(&self, name: Name<'_>) -> Route {
        self.try_unlink(name).unwrap_or_else(Route::Fail)
    }

    fn try_unlink(&self, name: Name<'_>) -> Result<Route, Errno> {
        let found = found!(self, name, false);
        if found.is_folder() {
            return Ok(self.route_found(&found));
        }
        match (&found.entry, &found.below) {
            (Entry::There(_) | Entry::Renamed(_), _) => {
                fs::unlink(self.overlay_path(&found.path))?;
                self.stay_removed(&found)?;
                Ok(Route::Done)
            }
            (Entry::Absent, Some(stat)) if self.is_users(stat, &found.path) => {
                allow_writing(parent(&found.path))?;
                self.record_protected();
                self.remove(&found.path)?;
                Ok(Route::Done)
            }
            (Entry::Absent, Some(stat)) => {
                self.forget_made(stat);
                Ok(found.below_route())
            }
            _ => Ok(self.route_found(&found)),
        }
    }

    /// Keeps a path removed after its overlay entry is gone: the user's file that it hid does not reappear.
    fn stay_removed(&self, found: &Found) -> Result<(), Errno> {
        match &found.below {
            Some(stat) if self.is_users(stat, &found.path) => self.remove(&found.path),
            Some(stat) if !crate::walk::is_folder(stat) => {
                self.forget_made(stat);
                fs::unlink(&found.path)
            }
            _ => Ok(()),
        }
    }

    /// Routes `rmdir`.
    pub fn rmdir(&self, name: Name<'_>) -> Route {
        self.try_rmdir(name).unwrap_or_else(Route::Fail)
    }

    fn try_rmdir(&self, name: Name<'_>) -> Result<Route, Errno> {
        let found = found!(self, name, false);
        if !found.is_folder() {
            return Ok(self.route_found(&found));
        }
        if !self.is_empty(&found)? {
            return Err(Errno::NOTEMPTY);
        }
        let merged = found.is_merged(self);
        if matches!(found.entry, Entry::There(_)) {
            self.remove_empty(&found.path)?;
        }
        match &found.below {
            Some(stat) if matches!(found.entry, Entry::Absent) || merged => {
                allow_writing(parent(&found.path))?;
                if !self.is_users(stat, &found.path) && fs::rmdir(&found.path).is_ok() {
                    self.forget_made(stat);
                } else {
                    self.record_protected();
                    self.remove(&found.path)?;
                }
            }
            Some(_) => self.remove(&found.path)?,
            None => {}
        }
        Ok(Route::Done)
    }

    /// Routes `mkdir`.
    pub fn mkdir(&self, name: Name<'_>, mode: u32) -> Route {
        self.try_mkdir(name, mode).unwrap_or_else(Route::Fail)
    }

    fn try_mkdir(&self, name: Name<'_>, mode: u32) -> Result<Route, Errno> {
        // `mkdir("new/")` means the folder itself, and fails on a link there.
        let path = name.path.strip_suffix(b"/").filter(|path| !path.is_empty()).unwrap_or(name.path);
        let found = found!(self, Name { path, ..name }, false);
        match (&found.entry, &found.below) {
            (Entry::There(_) | Entry::Renamed(_), _) => Err(Errno::EXIST),
            (Entry::Absent, None) if found.parent_below => Ok(found.make_route()),
            (Entry::Absent, Some(_)) => Ok(found.below_route()),
            (Entry::Removed | Entry::Absent, below) => {
                let place = self.prepare(&found.path)?;
                fs::mkdir(&place, Mode::from_raw_mode(mode) | Mode::RWXU)?;
                if below.is_some() {
                    self.hide(&found.path)?;
                }
                Ok(Route::Done)
            }
        }
    }

    /// Routes `symlink`.
    pub fn symlink(&self, target: &[u8], name: Name<'_>) -> Route {
        self.try_symlink(target, name).unwrap_or_else(Route::Fail)
    }

    fn try_symlink(&self, target: &[u8], name: Name<'_>) -> Result<Route, Errno> {
        let found = found!(self, name, false);
        if found.is_there() {
            return Err(Errno::EXIST);
        }
        // A link to a file that exists only in the overlay would be broken on the user's disk.
        let leads_here = self.is_live()
            && self.walk(parent(&found.path), target, true).is_ok_and(|end| {
                matches!(end.entry, Entry::There(_) | Entry::Renamed(_)) && !end.is_merged(self)
            });
        if matches!(found.entry, Entry::Absent) && found.parent_below && !leads_here {
            return Ok(found.make_route());
        }
        fs::symlink(OsStr::from_bytes(target), self.prepare(&found.path)?)?;
        Ok(Route::Done)
    }

    /// Routes `link`.
    pub fn link(&self, from: Name<'_>, to: Name<'_>, follow: bool) -> Route {
        self.try_link(from, to, follow).unwrap_or_else(Route::Fail)
    }

    fn try_link(&self, from: Name<'_>, to: Name<'_>, follow: bool) -> Result<Route, Errno> {
        let (from, to) = (found!(self, from, follow), found!(self, to, false));
        if to.is_there() {
            return Err(Errno::EXIST);
        }
        match (&from.entry, &from.below) {
            (Entry::There(FileType::Directory), _) => Err(Errno::PERM),
            (Entry::There(_), _) => {
                fs::link(self.overlay_path(&from.path), self.prepare(&to.path)?)?;
                Ok(Route::Done)
            }
            (Entry::Renamed(origin), _) => {
                self.rename(origin, &to.path)?;
                Ok(Route::Done)
            }
            (Entry::Absent, Some(_)) => {
                if from.redirected || to.redirected || matches!(to.entry, Entry::Removed) || !to.parent_below
                {
                    copy(&from.path, &self.prepare(&to.path)?)?;
                    return Ok(Route::Done);
                }
                Ok(Route::Pass)
            }
            (Entry::Removed, _) | (Entry::Absent, None) => Err(Errno::NOENT),
        }
    }

    /// Routes `rename`.
    pub fn rename_to(&self, from: Name<'_>, to: Name<'_>, flags: u32) -> Route {
        self.try_rename(from, to, flags).unwrap_or_else(Route::Fail)
    }

    fn try_rename(&self, from: Name<'_>, to: Name<'_>, flags: u32) -> Result<Route, Errno> {
        let strip = |name: Name<'_>| {
            let path = name.path.strip_suffix(b"/").filter(|path| !path.is_empty()).unwrap_or(name.path);
            (name.folder, path.to_vec())
        };
        let ((from_folder, from), (to_folder, to)) = (strip(from), strip(to));
        let a = found!(self, Name { folder: from_folder, path: &from }, false);
        let b = found!(self, Name { folder: to_folder, path: &to }, false);
        if !a.is_there() {
            return Err(Errno::NOENT);
        }
        if b.is_there() && flags & libc::RENAME_NOREPLACE != 0 {
            return Err(Errno::EXIST);
        }
        if a.path == b.path {
            return Ok(Route::Done);
        }
        if b.path.starts_with(&a.path) {
            return Err(Errno::INVAL);
        }
        if b.is_there() {
            match (a.is_folder(), b.is_folder()) {
                (true, false) => return Err(Errno::NOTDIR),
                (false, true) => return Err(Errno::ISDIR),
                (true, true) if !self.is_empty(&b)? => return Err(Errno::NOTEMPTY),
                _ => {}
            }
        }
        let plain = is_plain(&a) && is_plain(&b) && flags & libc::RENAME_EXCHANGE == 0;
        if plain && !self.keeps(a.below.as_ref(), &a.path) && !self.keeps(b.below.as_ref(), &b.path) {
            if let Some(stat) = &b.below {
                self.forget_made(stat);
            }
            return Ok(Route::Pass);
        }
        if flags & libc::RENAME_EXCHANGE != 0 {
            // Callers fall back to renaming by way of a third name, as on file systems without it.
            return if plain || !self.is_live() { Ok(Route::Pass) } else { Err(Errno::INVAL) };
        }
        for end in [&a, &b] {
            if end.parent_below {
                allow_writing(parent(&end.path))?;
            }
            if self.keeps(end.below.as_ref(), &end.path) {
                self.record_protected();
            }
        }
        if a.is_folder() {
            self.rename_folder(&a, &b)?;
        } else {
            self.rename_file(&a, &b)?;
        }
        Ok(Route::Done)
    }

    /// Returns `true` if a file on the user's disk must not be changed.
    fn keeps(&self, stat: Option<&Stat>, path: &Path) -> bool {
        stat.is_some_and(|stat| self.is_users(stat, path))
    }

    fn rename_file(&self, a: &Found, b: &Found) -> Result<(), Errno> {
        // The run's own file there is replaced, as without memfit.
        if let (Entry::Absent, Some(stat)) = (&b.entry, &b.below)
            && !self.is_users(stat, &b.path)
        {
            self.forget_made(stat);
            fs::unlink(&b.path)?;
        }
        match (&a.entry, &a.below) {
            (Entry::There(_), _) => {
                fs::rename(self.overlay_path(&a.path), self.prepare(&b.path)?)?;
                self.stay_removed(a)
            }
            (Entry::Renamed(origin), _) => {
                self.rename(origin, &b.path)?;
                fs::unlink(self.overlay_path(&a.path))?;
                self.stay_removed(a)
            }
            (Entry::Absent, Some(stat)) if self.is_users(stat, &a.path) => {
                self.rename(&a.path, &b.path)?;
                self.remove(&a.path)
            }
            (Entry::Absent, Some(stat)) => {
                let place = self.prepare(&b.path)?;
                if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink {
                    let _ = fs::unlink(&place);
                    let target = fs::readlink(&a.path, Vec::new())?;
                    fs::symlink(target.as_c_str(), &place)?;
                } else {
                    copy(&a.path, &place)?;
                }
                self.forget_made(stat);
                fs::unlink(&a.path)
            }
            (Entry::Removed, _) | (Entry::Absent, None) => Err(Errno::NOENT),
        }
    }

    fn rename_folder(&self, a: &Found, b: &Found) -> Result<(), Errno> {
        let below = a.below.as_ref().filter(|_| matches!(a.entry, Entry::Absent) || a.is_merged(self));
        if let Some(stat) = below {
            // A user's folder would have to be copied, as would one that moves to a folder that exists only
            // in the overlay. Callers do that, as between file systems.
            if self.is_users(stat, &a.path) || !b.parent_below || self.keeps(b.below.as_ref(), &b.path) {
                return Err(Errno::XDEV);
            }
        }
        if let Entry::There(_) = b.entry {
            self.remove_empty(&b.path)?;
        }
        if below.is_some() {
            fs::rename(&a.path, &b.path)?;
        }
        if let Entry::There(_) = a.entry {
            let place = self.prepare(&b.path)?;
            fs::rename(self.overlay_path(&a.path), place)?;
            if below.is_none() && b.below.is_some() {
                self.hide(&b.path)?;
            }
            if below.is_none() && a.below.is_some() {
                self.remove(&a.path)?;
            }
        }
        Ok(())
    }
}

/// Returns `true` if the overlay does not concern it.
fn is_plain(found: &Found) -> bool {
    matches!(found.entry, Entry::Absent) && found.parent_below && !found.redirected
}

fn parent(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("/"))
}
