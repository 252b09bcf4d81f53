//! What a file holds that a verb is given: a memory snapshot of PyTorch's, or a recording of memfit's.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

use memfit_recording::{Limits, MAGIC, PickleLimits, Recording, Snapshot};

use crate::CliError;

/// What a file holds.
pub(crate) enum Input {
    /// A memory snapshot of PyTorch's.
    Snapshot(Box<Snapshot>),
    /// A recording of memfit's.
    Recording(Box<Recording>),
}

/// Reads a file, or standard input where it is called `-`. What could not be read of it is told beside it.
pub(crate) fn read(path: &Path) -> Result<(Input, Vec<String>), CliError> {
    if path.as_os_str() == "-" {
        return sniff(path, io::stdin().lock());
    }
    let file = File::open(path).map_err(CliError::io("read", path))?;
    sniff(path, BufReader::with_capacity(1 << 20, file))
}

fn sniff(path: &Path, mut from: impl Read) -> Result<(Input, Vec<String>), CliError> {
    let mut start = Vec::new();
    let magic = MAGIC.len() as u64;
    from.by_ref().take(magic).read_to_end(&mut start).map_err(CliError::io("read", path))?;
    let is_recording = start == MAGIC;
    let whole = io::Cursor::new(start).chain(from);
    if is_recording {
        let recording = Recording::read(whole, Limits::default())
            .map_err(|error| unreadable(path, &error, error.hint()))?;
        return Ok((Input::Recording(Box::new(recording)), Vec::new()));
    }
    let (snapshot, problems) = Snapshot::read(whole, PickleLimits::default())
        .map_err(|error| unreadable(path, &error, error.hint()))?;
    let problems = problems.iter().map(ToString::to_string).collect();
    Ok((Input::Snapshot(Box::new(snapshot)), problems))
}

fn unreadable(path: &Path, why: &dyn std::error::Error, hint: Option<&'static str>) -> CliError {
    CliError::Unreadable { path: path.to_owned(), why: why.to_string(), hint }
}
