//! Folder with one subfolder for each class, read like torchvision's `ImageFolder`.

use std::fs;
use std::path::{Path, PathBuf};

use super::{List, Source, Target, is_image};
use crate::LoaderError;
use crate::input::Input;

/// Maximum nesting of folders; more indicates a cycle of links.
const MAX_DEPTH: usize = 64;

/// Images of a folder.
#[derive(Debug)]
pub struct Folder {
    classes: Vec<String>,
    files: List,
}

impl Folder {
    /// Lists a folder: its subfolders are the classes, sorted by name. A folder that contains images itself
    /// is a single class.
    pub fn read(root: &Path) -> Result<Self, LoaderError> {
        let wrong =
            |reason: &str| LoaderError::BadSource { path: root.to_owned(), reason: reason.to_owned() };
        let (mut folders, images) = entries(root)?;
        folders.sort();
        let mut files = List::default();
        let mut classes = Vec::new();
        for folder in &folders {
            let label = classes.len() as i64;
            let before = files.count();
            for file in walk(folder)? {
                files.push(&file, label);
            }
            let name = folder.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            if files.count() == before {
                // Hidden and empty folders next to the classes are ignored.
                continue;
            }
            classes.push(name);
        }
        if classes.is_empty() {
            if images.is_empty() {
                return Err(wrong("there are no images in it or in its folders"));
            }
            let mut images = images;
            images.sort();
            for file in &images {
                files.push(file, 0);
            }
            classes
                .push(root.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default());
        }
        Ok(Self { classes, files })
    }
}

impl Source for Folder {
    fn count(&self) -> u64 {
        self.files.count()
    }

    fn name(&self, index: u64) -> String {
        self.files.name(index)
    }

    fn open(&self, index: u64) -> Result<(Input, Target), LoaderError> {
        self.files.open(index)
    }

    fn classes(&self) -> &[String] {
        &self.classes
    }

    fn label(&self, index: u64) -> Option<i64> {
        self.files.label(index)
    }
}

/// Images below a class's folder: by folder in path order, by name within a folder.
fn walk(root: &Path) -> Result<Vec<PathBuf>, LoaderError> {
    let mut folders = Vec::new();
    let mut open = vec![(root.to_owned(), 0)];
    while let Some((folder, depth)) = open.pop() {
        let (inner, images) = entries(&folder)?;
        if depth < MAX_DEPTH {
            open.extend(inner.into_iter().map(|path| (path, depth + 1)));
        }
        folders.push((folder, images));
    }
    // Paths are compared as strings, not by components, as in torchvision.
    folders.sort_by(|one, other| {
        one.0.as_os_str().as_encoded_bytes().cmp(other.0.as_os_str().as_encoded_bytes())
    });
    Ok(folders
        .into_iter()
        .flat_map(|(_, mut images)| {
            images.sort();
            images
        })
        .collect())
}

/// Subfolders and images of a folder; links are followed.
fn entries(folder: &Path) -> Result<(Vec<PathBuf>, Vec<PathBuf>), LoaderError> {
    let failed = |error: std::io::Error| LoaderError::BadSource {
        path: folder.to_owned(),
        reason: format!("it cannot be listed: {error}"),
    };
    let mut folders = Vec::new();
    let mut images = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        // A file that vanishes while the folder is listed is ignored.
        let Ok(about) = fs::metadata(&path) else { continue };
        if about.is_dir() {
            folders.push(path);
        } else if path.file_name().is_some_and(|name| is_image(&name.to_string_lossy())) {
            images.push(path);
        }
    }
    Ok((folders, images))
}
