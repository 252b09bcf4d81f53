//! Files of the tree: those that git tracks or would track, as they are on disk.
#![allow(dead_code, reason = "each file of tests uses a part of it")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// Root of the project.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the project has a root")
}

/// All files of the project, relative to its root.
pub(crate) fn files() -> Vec<PathBuf> {
    let listing = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard", "-z"])
        .current_dir(root())
        .output()
        .expect("git lists the project's files");
    assert!(listing.status.success(), "git ls-files failed: {}", String::from_utf8_lossy(&listing.stderr));
    let mut files: Vec<PathBuf> = String::from_utf8(listing.stdout)
        .expect("file names are UTF-8")
        .split('\0')
        .filter(|name| !name.is_empty() && root().join(name).is_file())
        .map(PathBuf::from)
        .collect();
    files.sort();
    assert!(files.len() > 20, "only {} files found: this test looks in the wrong place", files.len());
    files
}

/// Text of a file; `None` if it is not text.
pub(crate) fn text(file: &Path) -> Option<String> {
    fs::read_to_string(root().join(file)).ok()
}

/// Files with an extension below a folder, with their text.
pub(crate) fn sources(folder: &str, extension: &str) -> Vec<(PathBuf, String)> {
    files()
        .into_iter()
        .filter(|file| file.starts_with(folder) && file.extension().is_some_and(|found| found == extension))
        .filter_map(|file| text(&file).map(|text| (file, text)))
        .collect()
}
