//! Empty folders that a script created on the user's disk for checkpoints which were redirected to the
//! overlay.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use memfit_channel::{RunDir, made_mark};

/// Removes the folders that the run created, if they have files in the overlay and are empty on the disk.
pub(crate) fn clear(run_dir: &RunDir) {
    clear_below(run_dir, &run_dir.overlay_tree(), Path::new("/"));
}

fn clear_below(run_dir: &RunDir, here: &Path, outside: &Path) {
    for entry in fs::read_dir(here).into_iter().flatten().flatten() {
        if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        let outside: PathBuf = outside.join(OsStr::from_bytes(entry.file_name().as_bytes()));
        clear_below(run_dir, &entry.path(), &outside);
        let made = fs::symlink_metadata(&outside).is_ok_and(|meta| {
            meta.is_dir() && run_dir.overlay_made().join(made_mark(meta.dev(), meta.ino())).exists()
        });
        if made {
            // Fails for a folder that is not empty, which is then kept.
            let _ = fs::remove_dir(&outside);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_empty_folders_that_the_run_made_go() {
        let folder = tempfile::tempdir().unwrap();
        let run_dir = RunDir::new(folder.path().join("run"));
        fs::create_dir_all(run_dir.overlay_made()).unwrap();
        let user = folder.path().join("user");
        for (name, made, file) in
            [("empty", true, None), ("logs", true, Some("log.txt")), ("theirs", false, None)]
        {
            let path = user.join(name);
            fs::create_dir_all(&path).unwrap();
            let place = format!("{}{}", run_dir.overlay_tree().display(), path.display());
            fs::create_dir_all(place).unwrap();
            if let Some(file) = file {
                fs::write(path.join(file), "").unwrap();
            }
            if made {
                let meta = fs::metadata(&path).unwrap();
                fs::write(run_dir.overlay_made().join(made_mark(meta.dev(), meta.ino())), "").unwrap();
            }
        }
        clear(&run_dir);
        assert!(!user.join("empty").exists());
        assert!(user.join("logs/log.txt").exists() && user.join("theirs").exists());
    }
}
