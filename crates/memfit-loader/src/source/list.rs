//! List of paths and labels in one arena: a million of them need three allocations.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use super::{Source, Target};
use crate::LoaderError;
use crate::input::Input;

/// Files by path, each with a label.
#[derive(Debug, Default)]
pub struct List {
    /// Concatenated paths as the file system has them, which need not be UTF-8.
    text: Vec<u8>,
    /// End offset of each path.
    ends: Vec<usize>,
    labels: Vec<i64>,
    classes: Vec<String>,
}

impl List {
    /// Creates an empty list whose labels index these classes.
    pub fn with_classes(classes: Vec<String>) -> Self {
        Self { classes, ..Self::default() }
    }

    /// Adds a file.
    pub fn push(&mut self, path: &Path, label: i64) {
        self.text.extend_from_slice(path.as_os_str().as_bytes());
        self.ends.push(self.text.len());
        self.labels.push(label);
    }

    fn path(&self, index: u64) -> Option<&Path> {
        let index = usize::try_from(index).ok()?;
        let end = *self.ends.get(index)?;
        let begin = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        Some(Path::new(OsStr::from_bytes(&self.text[begin..end])))
    }
}

impl Source for List {
    fn count(&self) -> u64 {
        self.ends.len() as u64
    }

    fn name(&self, index: u64) -> String {
        self.path(index).map_or_else(|| "no such sample".to_owned(), |path| path.display().to_string())
    }

    fn open(&self, index: u64) -> Result<(Input, Target), LoaderError> {
        let path = self.path(index).ok_or_else(|| LoaderError::Bug(format!("there is no sample {index}")))?;
        let label = self.labels.get(index as usize).copied().unwrap_or(0);
        Ok((Input::open(path)?, Target::Label(label)))
    }

    fn classes(&self) -> &[String] {
        &self.classes
    }

    fn label(&self, index: u64) -> Option<i64> {
        self.labels.get(usize::try_from(index).ok()?).copied()
    }
}
