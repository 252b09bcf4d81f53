//! Opening of files of any supported kind, which is detected from the first bytes.

mod compressed;
mod html;
mod notebook;

use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::Path;

use crate::error::{MAX_LAYERS, OpenError};
use crate::oom_text::{self, OomText, Searched};
use crate::snapshot::Problem;
use crate::{Limits, MAGIC, PickleLimits, Recording, Snapshot};
use crate::{nsight, trace};

/// Number of bytes examined to detect the format.
const DETECTION_BYTES: usize = 64 << 10;

/// Content of a file.
#[derive(Clone, Debug)]
pub enum Source {
    /// A recording, written by memfit or converted from a trace that needs no replay.
    Recording(Box<Recording>),
    /// A memory snapshot of PyTorch. A replay converts it to a recording.
    Snapshot(Box<Snapshot>),
    /// Out-of-memory errors in a text, at least one.
    Texts(Vec<OomText>),
}

/// Limits on the resources that a file may consume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenLimits {
    /// Limits for pickles.
    pub pickle: PickleLimits,
    /// Limits for recordings.
    pub recording: Limits,
}

/// Opens a file of any kind; `-` is standard input. Content before an error is returned, and the error is
/// among the problems.
pub fn open(path: &Path) -> Result<(Source, Vec<Problem>), OpenError> {
    if path.as_os_str() == "-" {
        return read(io::stdin().lock(), OpenLimits::default());
    }
    read(File::open(path)?, OpenLimits::default())
}

/// Reads a file of any kind.
pub fn read(reader: impl Read, limits: OpenLimits) -> Result<(Source, Vec<Problem>), OpenError> {
    layer(Box::new(reader), limits, 0)
}

fn layer(
    reader: Box<dyn Read + '_>,
    limits: OpenLimits,
    depth: u32,
) -> Result<(Source, Vec<Problem>), OpenError> {
    let mut reader = BufReader::with_capacity(DETECTION_BYTES, reader);
    let (start, failed) = read_start(&mut reader);
    if start.is_empty() {
        return Err(failed.map_or(OpenError::Empty, OpenError::Io));
    }
    // A read error is returned again after the bytes that were read, so that these can be used.
    let reader = Failed(failed).chain(reader);
    if let Some(format) = compressed::format(&start) {
        if depth == MAX_LAYERS {
            return Err(OpenError::Layers);
        }
        let whole = Cursor::new(start).chain(reader);
        return layer(compressed::unpack(format, Box::new(whole))?, limits, depth + 1);
    }
    let whole = BufReader::with_capacity(DETECTION_BYTES, Cursor::new(start.clone()).chain(reader));
    match Format::detect(&start) {
        Format::Recording => {
            let (recording, problems) = Recording::read_until_fault(whole, limits.recording)?;
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

/// Reads the first bytes, up to [`DETECTION_BYTES`] or the end, and returns the error if one stopped it.
fn read_start(reader: &mut impl Read) -> (Vec<u8>, Option<io::Error>) {
    let mut start = Vec::new();
    let failed = reader.take(DETECTION_BYTES as u64).read_to_end(&mut start).err();
    (start, failed)
}

/// Reader that returns its error once, if it has one.
struct Failed(Option<io::Error>);

impl Read for Failed {
    fn read(&mut self, _buffer: &mut [u8]) -> io::Result<usize> {
        self.0.take().map_or(Ok(0), Err)
    }
}

fn texts(text: impl BufRead) -> Result<(Source, Vec<Problem>), OpenError> {
    let Searched { found, lines, elsewhere } = oom_text::search(text)?;
    match elsewhere {
        _ if !found.is_empty() => Ok((Source::Texts(found), Vec::new())),
        Some((what, line)) => Err(OpenError::Elsewhere { what, line }),
        None => Err(OpenError::NoError { lines }),
    }
}

/// Format of a file.
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
    fn detect(start: &[u8]) -> Self {
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

/// Returns `true` if the bytes may begin a text: logs are not always UTF-8, but never contain zero bytes.
fn is_text(start: &[u8]) -> bool {
    let odd = start.iter().filter(|byte| **byte < 0x20 && !b"\n\r\t\x1b\x07\x08\x0c".contains(*byte)).count();
    !start.contains(&0) && odd * 100 <= start.len()
}

#[cfg(test)]
mod tests;
