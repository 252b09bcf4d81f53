//! Selection of files: given paths, and the contents of given folders except for files ignored by git.

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use ignore::{WalkBuilder, WalkState};
use memfit_source::document::Format;

use crate::config::Excluded;

/// File to be read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Input {
    /// Path.
    pub(crate) path: PathBuf,
    /// `true` if it was given, `false` if it was found in a folder.
    pub(crate) named: bool,
}

/// Maximum size of a text with an unknown extension that is searched for Python.
const MAX_TEXT_BYTES: u64 = 256 * 1024;

/// Collects the files of the given paths in order, without duplicates.
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
    // Moved to the walker's own threads.
    let passed_over = excluded.clone();
    let found = Mutex::new(Vec::new());
    let walk = WalkBuilder::new(folder)
        .require_git(false)
        .threads(threads)
        .filter_entry(move |entry| {
            let is_folder = entry.file_type().is_some_and(|kind| kind.is_dir());
            !(is_foreign(entry) || entry.depth() > 0 && passed_over.matches(entry.path(), is_folder))
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
                found.push(Input { path: without_dot_prefix(entry.into_path()), named: false });
            }
            WalkState::Continue
        })
    });
    found.into_inner().unwrap_or_default()
}

/// Removes the leading `./` that a walk of the current folder adds, as other programs do.
fn without_dot_prefix(path: PathBuf) -> PathBuf {
    match path.strip_prefix(".") {
        Ok(rest) if !rest.as_os_str().is_empty() => rest.to_owned(),
        _ => path,
    }
}

/// Returns `true` for folders of third-party code.
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
    // Text files may contain fenced blocks like Markdown.
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("txt"))
        && std::fs::metadata(path).is_ok_and(|metadata| metadata.len() <= MAX_TEXT_BYTES)
        && std::fs::read_to_string(path).is_ok_and(|text| memfit_source::document::has_python_fence(&text))
}
