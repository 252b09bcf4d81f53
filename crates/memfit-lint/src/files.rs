//! Which files are read: what is named, and what stands in the folders that are named, apart from what git
//! ignores.

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use ignore::{WalkBuilder, WalkState};
use memfit_source::document::Format;

use crate::config::Excluded;

/// A file to be read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Input {
    /// Where it is.
    pub(crate) path: PathBuf,
    /// It was named itself, not found in a folder.
    pub(crate) named: bool,
}

/// Larger texts without a known name are not looked into for Python.
const LARGEST_TEXT: u64 = 256 * 1024;

/// The files that some paths lead to, in order, each once.
pub(crate) fn collect(
    paths: &[PathBuf],
    excluded: &Excluded,
    threads: usize,
) -> Result<Vec<Input>, (PathBuf, std::io::Error)> {
    let mut inputs = Vec::new();
    for path in paths {
        let metadata = std::fs::metadata(path).map_err(|error| (path.clone(), error))?;
        if metadata.is_dir() {
            inputs.extend(in_folder(path, excluded, threads));
        } else {
            inputs.push(Input { path: path.clone(), named: true });
        }
    }
    inputs.sort();
    inputs.dedup_by(|a, b| a.path == b.path);
    Ok(inputs)
}

fn in_folder(folder: &Path, excluded: &Excluded, threads: usize) -> Vec<Input> {
    // Passed to the walker's own threads.
    let passed_over = excluded.clone();
    let found = Mutex::new(Vec::new());
    let walk = WalkBuilder::new(folder)
        .require_git(false)
        .threads(threads)
        .filter_entry(move |entry| {
            let is_folder = entry.file_type().is_some_and(|kind| kind.is_dir());
            !(is_foreign(entry) || entry.depth() > 0 && passed_over.holds(entry.path(), is_folder))
        })
        .build_parallel();
    walk.run(|| {
        let found = &found;
        Box::new(move |entry| {
            let Ok(entry) = entry else { return WalkState::Continue };
            let is_file = entry.file_type().is_some_and(|kind| kind.is_file());
            if is_file
                && is_python(entry.path())
                && let Ok(mut found) = found.lock()
            {
                found.push(Input { path: plain(entry.into_path()), named: false });
            }
            WalkState::Continue
        })
    });
    found.into_inner().unwrap_or_default()
}

/// Without the dot that a walk of the current folder puts in front: so do other programs name files.
fn plain(path: PathBuf) -> PathBuf {
    match path.strip_prefix(".") {
        Ok(rest) if !rest.as_os_str().is_empty() => rest.to_owned(),
        _ => path,
    }
}

/// Folders of other people's code.
fn is_foreign(entry: &ignore::DirEntry) -> bool {
    const FOREIGN: &[&str] =
        &["node_modules", "__pycache__", "site-packages", "venv", ".venv", "__pypackages__"];
    entry.depth() > 0 && entry.file_name().to_str().is_some_and(|name| FOREIGN.contains(&name))
}

fn is_python(path: &Path) -> bool {
    let Some(name) = path.file_name().and_then(|name| name.to_str()) else { return false };
    if Format::from_name(name).is_some() {
        return true;
    }
    // Texts may hold fenced blocks as Markdown does.
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("txt"))
        && std::fs::metadata(path).is_ok_and(|metadata| metadata.len() <= LARGEST_TEXT)
        && std::fs::read_to_string(path).is_ok_and(|text| memfit_source::document::has_python_fence(&text))
}
