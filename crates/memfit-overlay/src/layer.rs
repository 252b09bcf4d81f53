//! The overlay on disk, and its contents.
//!
//! `tree/` has the files at their own absolute paths. Two kinds of entries are markers, stored as symbolic
//! links with targets that no script writes: a removed file, and a user's file that the script has renamed. A
//! folder that hides the user's folder of the same path has a marker in it. `made/` has an empty file for
//! each file, folder or link that the run itself created on the user's disk, by device and inode; the script
//! may remove these, as without memfit.

use std::{
    ffi::OsStr,
    os::unix::ffi::{OsStrExt as _, OsStringExt as _},
    path::{Path, PathBuf},
    sync::{
        OnceLock,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use memfit_channel::{RunDir, made_mark};
use rustix::{
    fs::{self, Access, Dir, FileType, Mode, OFlags, SeekFrom, Stat},
    io::Errno,
};

/// Target of a link that marks a removed file.
const REMOVED: &[u8] = b"memfit: removed";
/// Prefix of the target of a link that marks a renamed user's file.
const RENAMED: &[u8] = b"memfit: renamed from ";
/// Marker in a folder that hides the user's folder of the same path.
pub(crate) const HIDES: &[u8] = b".memfit: hides what is below";

/// Overlay of a run.
#[derive(Debug)]
pub struct Layer {
    /// Run directory, which belongs to memfit itself.
    run: PathBuf,
    folder: PathBuf,
    tree: PathBuf,
    made: PathBuf,
    live: PathBuf,
    saved: PathBuf,
    read: PathBuf,
    kept: PathBuf,
    is_live: AtomicBool,
}

/// An entry of the overlay.
#[derive(Debug)]
pub(crate) enum Entry {
    /// No entry: the user's disk decides.
    Absent,
    /// The script has removed the user's file.
    Removed,
    /// The script has renamed the user's file at this path.
    Renamed(PathBuf),
    /// A file, folder or link.
    There(FileType),
}

impl Layer {
    /// Overlay of the run that this process belongs to.
    pub fn get() -> Option<&'static Self> {
        let run = RUN.load(Ordering::Acquire).min(LAYERS.len() - 1);
        LAYERS[run].get_or_init(|| RunDir::from_env().as_ref().and_then(Self::from_run_dir)).as_ref()
    }

    /// Moves this process to another run: a forked child becomes a separate run, which continues with the
    /// current files.
    pub fn become_another() {
        let before = Self::get();
        RUN.fetch_add(1, Ordering::AcqRel);
        if let (Some(before), Some(now)) = (before, Self::get())
            && before.run != now.run
            && before.is_live()
        {
            let _ = copy_folder(&before.folder, &now.folder);
        }
    }

    /// Opens the overlay in a run directory, if the run has one.
    pub fn from_run_dir(run: &RunDir) -> Option<Self> {
        let folder = run.overlay();
        fs::access(&folder, Access::EXISTS).ok()?;
        Some(Self {
            run: run.path().to_owned(),
            tree: run.overlay_tree(),
            made: run.overlay_made(),
            live: folder.join("live"),
            saved: run.saved_checkpoints(),
            read: run.read_back(),
            kept: run.kept_files(),
            folder,
            is_live: AtomicBool::new(false),
        })
    }

    /// Returns `true` if the overlay has any entries. Until then, reads need not consult it.
    pub(crate) fn is_live(&self) -> bool {
        if self.is_live.load(Ordering::Relaxed) {
            return true;
        }
        let live = fs::access(&self.live, Access::EXISTS).is_ok();
        if live {
            self.is_live.store(true, Ordering::Relaxed);
        }
        live
    }

    /// Path in the overlay for an absolute path.
    pub(crate) fn overlay_path(&self, path: &Path) -> PathBuf {
        let mut place = self.tree.clone().into_os_string().into_vec();
        place.extend_from_slice(path.as_os_str().as_bytes());
        PathBuf::from(OsStr::from_bytes(&place))
    }

    /// Path that is represented by a path in the overlay; `None` for other paths.
    pub(crate) fn outside<'path>(&self, path: &'path Path) -> Option<&'path [u8]> {
        let rest = path.as_os_str().as_bytes().strip_prefix(self.tree.as_os_str().as_bytes())?;
        match rest {
            [] => Some(b"/"),
            [b'/', ..] => Some(rest),
            _ => None,
        }
    }

    /// Returns `true` for absolute paths that the overlay ignores: memfit's own files, and the kernel's
    /// virtual file systems.
    pub(crate) fn is_exempt(&self, path: &Path) -> bool {
        (path.starts_with(&self.run) && !path.starts_with(&self.tree))
            || ["/proc", "/sys", "/dev"].iter().any(|kernel| path.starts_with(kernel))
    }

    /// Entry at an absolute path.
    pub(crate) fn entry(&self, path: &Path) -> Entry {
        let place = self.overlay_path(path);
        let Ok(stat) = fs::lstat(&place) else { return Entry::Absent };
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind == FileType::Symlink
            && let Ok(target) = fs::readlink(&place, Vec::new())
        {
            let target = target.as_bytes();
            if target == REMOVED {
                return Entry::Removed;
            }
            if let Some(from) = target.strip_prefix(RENAMED) {
                return Entry::Renamed(PathBuf::from(OsStr::from_bytes(from)));
            }
        }
        Entry::There(kind)
    }

    /// Returns `true` if the folder at this path hides the user's folder there.
    pub(crate) fn hides(&self, path: &Path) -> bool {
        fs::access(self.overlay_path(path).join(OsStr::from_bytes(HIDES)), Access::EXISTS).is_ok()
    }

    /// Makes the folder at this path hide the user's.
    pub(crate) fn hide(&self, path: &Path) -> Result<(), Errno> {
        touch(&self.overlay_path(path).join(OsStr::from_bytes(HIDES)))
    }

    /// Creates the folders above a path, and removes a marker there.
    pub(crate) fn prepare(&self, path: &Path) -> Result<PathBuf, Errno> {
        let place = self.overlay_path(path);
        if let Some(parent) = place.parent() {
            make_folders(parent)?;
        }
        if matches!(self.entry(path), Entry::Removed | Entry::Renamed(_)) {
            fs::unlink(&place)?;
        }
        if !self.is_live() {
            touch(&self.live)?;
        }
        Ok(place)
    }

    /// Marks the user's file at this path as removed.
    pub(crate) fn remove(&self, path: &Path) -> Result<(), Errno> {
        let place = self.prepare(path)?;
        fs::symlink(OsStr::from_bytes(REMOVED), place)
    }

    /// Marks the user's file at `from` as renamed to `path`.
    pub(crate) fn rename(&self, from: &Path, path: &Path) -> Result<(), Errno> {
        let place = self.prepare(path)?;
        // A file that was written there before is replaced.
        let _ = fs::unlink(&place);
        let target = [RENAMED, from.as_os_str().as_bytes()].concat();
        fs::symlink(OsStr::from_bytes(&target), place)
    }

    /// Records for the report that a user's file was protected from the script.
    pub(crate) fn record_protected(&self) {
        let _ = touch(&self.kept);
    }

    /// Records for the report that a checkpoint was written.
    pub(crate) fn record_checkpoint(&self) {
        let _ = touch(&self.saved);
    }

    /// Records that a redirected checkpoint was opened to be read.
    pub(crate) fn record_read(&self) {
        let _ = touch(&self.read);
    }

    // Files that the run created itself

    /// Returns `true` if the run created this file, folder or link on the user's disk.
    pub(crate) fn has_made(&self, stat: &Stat) -> bool {
        fs::access(self.mark(stat), Access::EXISTS).is_ok()
    }

    /// Records that the run created it.
    pub(crate) fn note_made(&self, stat: &Stat) {
        let _ = touch(&self.mark(stat));
    }

    /// Forgets a file that is about to be removed: its inode may be reused.
    pub(crate) fn forget_made(&self, stat: &Stat) {
        let _ = fs::unlink(self.mark(stat));
    }

    fn mark(&self, stat: &Stat) -> PathBuf {
        self.made.join(made_mark(stat.st_dev, stat.st_ino))
    }
}

/// Overlays of the runs that this process has belonged to, in order.
static LAYERS: [OnceLock<Option<Layer>>; 4] = [const { OnceLock::new() }; 4];
/// Index of the current one.
static RUN: AtomicUsize = AtomicUsize::new(0);

/// Creates an empty file, unless it exists.
pub(crate) fn touch(path: &Path) -> Result<(), Errno> {
    let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
    fs::open(path, flags, Mode::RUSR | Mode::WUSR).map(drop)
}

/// Names in a folder, without `.` and `..`.
pub(crate) fn names(folder: &Path) -> Result<Vec<Vec<u8>>, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = Dir::new(fs::open(folder, flags, Mode::empty())?)?;
    let mut names = Vec::new();
    for entry in folder {
        let name = entry?.file_name().to_bytes().to_vec();
        if name != b"." && name != b".." {
            names.push(name);
        }
    }
    Ok(names)
}

/// Copies a folder recursively.
fn copy_folder(from: &Path, to: &Path) -> Result<(), Errno> {
    make_folders(to)?;
    for name in names(from)? {
        let (from, to) = (from.join(OsStr::from_bytes(&name)), to.join(OsStr::from_bytes(&name)));
        let stat = fs::lstat(&from)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => copy_folder(&from, &to)?,
            FileType::Symlink => {
                let target = fs::readlink(&from, Vec::new())?;
                fs::symlink(target.as_c_str(), &to)?;
            }
            _ => copy(&from, &to)?,
        }
    }
    Ok(())
}

/// Copies a file's contents, preserving holes.
pub(crate) fn copy(from: &Path, to: &Path) -> Result<(), Errno> {
    let source = fs::open(from, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let stat = fs::fstat(&source)?;
    let mode = Mode::from_raw_mode(stat.st_mode & 0o777) | Mode::RUSR | Mode::WUSR;
    let target = fs::open(to, OFlags::CREATE | OFlags::WRONLY | OFlags::TRUNC | OFlags::CLOEXEC, mode)?;
    let end = stat.st_size as u64;
    fs::ftruncate(&target, end)?;
    let mut buffer = vec![0; 1 << 20];
    let mut at = 0;
    while at < end {
        let Ok(data) = fs::seek(&source, SeekFrom::Data(at)) else { break };
        let hole = fs::seek(&source, SeekFrom::Hole(data)).unwrap_or(end);
        at = data;
        while at < hole {
            let length = buffer.len().min((hole - at) as usize);
            let read = rustix::io::pread(&source, &mut buffer[..length], at)?;
            if read == 0 {
                return Ok(());
            }
            let mut written = 0;
            while written < read {
                written += rustix::io::pwrite(&target, &buffer[written..read], at + written as u64)?;
            }
            at += read as u64;
        }
    }
    Ok(())
}

/// Creates a folder and its parents.
fn make_folders(folder: &Path) -> Result<(), Errno> {
    match fs::mkdir(folder, Mode::RWXU) {
        Err(Errno::NOENT) => {
            make_folders(folder.parent().ok_or(Errno::NOENT)?)?;
            make_folders(folder)
        }
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(error) => Err(error),
    }
}
