//! Whatever file somebody has: what it is, told by its first bytes, and what it holds.

mod compressed;
mod html;
mod notebook;

use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::Path;

use crate::error::{MAX_LAYERS, OpenError};
use crate::oom_text::{self, OomText};
use crate::snapshot::Problem;
use crate::{Limits, MAGIC, PickleLimits, Recording, Snapshot};
use crate::{nsight, trace};

/// How much of a file is looked at to tell what it is.
const LOOK: usize = 64 << 10;

/// What a file holds.
#[derive(Clone, Debug)]
pub enum Source {
    /// A recording, of memfit's own or made from a trace that needs no replay.
    Recording(Box<Recording>),
    /// A memory snapshot of PyTorch's: a replay makes it a recording.
    Snapshot(Box<Snapshot>),
    /// Out-of-memory errors in a text, at least one.
    Texts(Vec<OomText>),
}

/// What a file may ask of its reader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenLimits {
    /// Of a pickle.
    pub pickle: PickleLimits,
    /// Of a recording.
    pub recording: Limits,
}

/// Opens a file, whatever it is; `-` is what comes in. What was read before something went wrong is there,
/// and what went wrong is among the problems.
pub fn open(path: &Path) -> Result<(Source, Vec<Problem>), OpenError> {
    if path.as_os_str() == "-" {
        return read(io::stdin().lock(), OpenLimits::default());
    }
    read(File::open(path)?, OpenLimits::default())
}

/// Reads a file, whatever it is.
pub fn read(reader: impl Read, limits: OpenLimits) -> Result<(Source, Vec<Problem>), OpenError> {
    layer(Box::new(reader), limits, 0)
}

fn layer(
    reader: Box<dyn Read + '_>,
    limits: OpenLimits,
    depth: u32,
) -> Result<(Source, Vec<Problem>), OpenError> {
    let mut reader = BufReader::with_capacity(LOOK, reader);
    let (start, failed) = look(&mut reader);
    if start.is_empty() {
        return Err(failed.map_or(OpenError::Empty, OpenError::Io));
    }
    // Where reading failed, it fails again behind what was read: that much can be used.
    let reader = Failed(failed).chain(reader);
    if let Some(format) = compressed::format(&start) {
        if depth == MAX_LAYERS {
            return Err(OpenError::Layers);
        }
        let whole = Cursor::new(start).chain(reader);
        return layer(compressed::unpack(format, Box::new(whole))?, limits, depth + 1);
    }
    let whole = BufReader::with_capacity(LOOK, Cursor::new(start.clone()).chain(reader));
    match Format::of(&start) {
        Format::Recording => {
            let (recording, problems) = Recording::read_far(whole, limits.recording)?;
            Ok((Source::Recording(Box::new(recording)), problems))
        }
        Format::Pickle => {
            let (snapshot, problems) = Snapshot::read(whole, limits.pickle)?;
            Ok((Source::Snapshot(Box::new(snapshot)), problems))
        }
        Format::Html => html::read(whole, limits.pickle),
        Format::Notebook => {
            let (text, broken) = notebook::text(whole)?;
            match (texts(Cursor::new(text)), broken) {
                (Ok((found, mut problems)), Some(error)) => {
                    problems.push(Problem::Notebook(error.to_string()));
                    Ok((found, problems))
                }
                (Err(_), Some(error)) => Err(error),
                (found, None) => found,
            }
        }
        Format::Trace => {
            let (recording, problems) = trace::read(whole)?;
            Ok((Source::Recording(Box::new(recording)), problems))
        }
        Format::Database => {
            let (recording, problems) = nsight::read(whole)?;
            Ok((Source::Recording(Box::new(recording)), problems))
        }
        Format::Text => texts(whole),
        Format::Packed(name) => Err(OpenError::Packed(name)),
        Format::Unknown => Err(OpenError::Unknown),
    }
}

/// The first bytes, as many as are looked at or as there are, and why there are no more where that is an
/// error.
fn look(reader: &mut impl Read) -> (Vec<u8>, Option<io::Error>) {
    let mut start = Vec::new();
    let failed = reader.take(LOOK as u64).read_to_end(&mut start).err();
    (start, failed)
}

/// Fails once, if there is something to fail with.
struct Failed(Option<io::Error>);

impl Read for Failed {
    fn read(&mut self, _buffer: &mut [u8]) -> io::Result<usize> {
        self.0.take().map_or(Ok(0), Err)
    }
}

fn texts(text: impl BufRead) -> Result<(Source, Vec<Problem>), OpenError> {
    let (found, lines) = oom_text::find_counting(text)?;
    if found.is_empty() {
        return Err(OpenError::NoError { lines });
    }
    Ok((Source::Texts(found), Vec::new()))
}

/// What a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Recording,
    Pickle,
    Html,
    Notebook,
    Trace,
    Database,
    Text,
    Packed(&'static str),
    Unknown,
}

impl Format {
    fn of(start: &[u8]) -> Self {
        let trimmed = start.strip_prefix(b"\xef\xbb\xbf").unwrap_or(start).trim_ascii_start();
        let has = |part: &[u8]| start.windows(part.len()).any(|window| window == part);
        if start.starts_with(&MAGIC[..6]) {
            Self::Recording
        } else if start.first() == Some(&0x80) {
            Self::Pickle
        } else if start.starts_with(b"SQLite format 3\0") {
            Self::Database
        } else if start.starts_with(b"PK\x03\x04") {
            Self::Packed("a zip archive")
        } else if start.starts_with(b"BZh") {
            Self::Packed("compressed with bzip2")
        } else if trimmed.starts_with(b"<")
            && (has(b"base64") || has(b"<html") || has(b"<!DOCTYPE") || has(b"<script"))
        {
            Self::Html
        } else if trimmed.starts_with(b"{") && has(b"\"cells\"") {
            Self::Notebook
        } else if has(b"\"traceEvents\"") || (trimmed.starts_with(b"[") && has(b"\"ph\"")) {
            Self::Trace
        } else if is_text(start) {
            Self::Text
        } else {
            Self::Unknown
        }
    }
}

/// Whether bytes may be the beginning of a text: logs are not always UTF-8, and never have zeros.
fn is_text(start: &[u8]) -> bool {
    let odd = start.iter().filter(|byte| **byte < 0x20 && !b"\n\r\t\x1b\x07\x08\x0c".contains(*byte)).count();
    !start.contains(&0) && odd * 100 <= start.len()
}

#[cfg(test)]
mod tests;
