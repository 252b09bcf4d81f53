//! Bytes at the peak of a recorded run, by source line, for the lines of an open text.
//!
//! A recording has hashes of the lines that ran. Lines of the open text that a diff finds unchanged get their
//! bytes, also if an edit has moved them. The bytes of all other lines are unknown.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use memfit_explain::{LineBytes, fullest_device, lines_at_peak};
use memfit_recording::{Limits, Origin, OriginKind, Recording, RecordingError, line_hash};
use memfit_report::text::size;
use memfit_vocabulary::one_line;
use serde_json::{Value, json};
use similar::{Algorithm, DiffOp, capture_diff_slices};

/// Lines below this share of all lines' bytes are left out: 1/1000.
const SHARE_DIVISOR: u64 = 1000;
/// Maximum rows of a tooltip.
const MAX_ROWS: usize = 8;
/// Limit of a recording's uncompressed size in an editor.
const MAX_BYTES: u64 = 2 << 30;

/// Recording that the editor's settings name. It is read again when the file changes.
#[derive(Default)]
pub(crate) struct RecordingFile {
    path: Option<PathBuf>,
    /// Time of the last change, and length.
    stamp: Option<(SystemTime, u64)>,
    content: Option<Recorded>,
}

impl RecordingFile {
    /// Sets the path.
    pub(crate) fn set_path(&mut self, path: Option<PathBuf>) {
        if self.path != path {
            *self = Self { path, ..Self::default() };
        }
    }

    /// Reads the file if it has changed. A missing file is a run that has not ended yet, and so is one that
    /// breaks off.
    pub(crate) fn refresh(&mut self) -> Result<(), String> {
        let Some(path) = &self.path else { return Ok(()) };
        let meta = std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file);
        let stamp = meta.and_then(|meta| Some((meta.modified().ok()?, meta.len())));
        if stamp == self.stamp {
            return Ok(());
        }
        (self.stamp, self.content) = (stamp, None);
        if stamp.is_none() {
            return Ok(());
        }
        match read(path) {
            Ok(recorded) => self.content = Some(recorded),
            Err(RecordingError::Damaged { .. } | RecordingError::Io(_)) => {}
            Err(error) => return Err(format!("`{}` is not shown: {error}", path.display())),
        }
        Ok(())
    }

    /// The recording, as last read.
    pub(crate) const fn content(&self) -> Option<&Recorded> {
        self.content.as_ref()
    }
}

/// Bytes by file and line.
pub(crate) struct Recorded {
    files: BTreeMap<PathBuf, RecordedFile>,
    /// Bytes below which a line is left out.
    floor: u64,
    /// Description of the run.
    run: String,
}

/// File that ran.
struct RecordedFile {
    /// Hash of each line.
    hashes: Vec<u32>,
    /// Bytes by line number, from 0.
    lines: BTreeMap<usize, Vec<LineBytes>>,
}

fn read(path: &Path) -> Result<Recorded, RecordingError> {
    let file = BufReader::new(File::open(path)?);
    Ok(Recorded::new(&Recording::read(file, Limits { bytes: MAX_BYTES })?))
}

impl Recorded {
    /// Takes the lines that hold memory at the peak of the fullest device.
    pub(crate) fn new(recording: &Recording) -> Self {
        let lines = fullest_device(recording).map(|(track, device)| lines_at_peak(track, device));
        let lines = lines.unwrap_or_default();
        let floor = lines.iter().map(|line| line.bytes).sum::<u64>() / SHARE_DIVISOR;
        let mut files = BTreeMap::new();
        for source in &recording.origin.sources {
            let mut of_file: BTreeMap<usize, Vec<LineBytes>> = BTreeMap::new();
            for line in lines.iter().filter(|line| line.file == source.file && line.line > 0) {
                of_file.entry(line.line as usize - 1).or_default().push(line.clone());
            }
            let hashes = source.lines.clone();
            files.insert(source.path.clone(), RecordedFile { hashes, lines: of_file });
        }
        Self { files, floor, run: run_text(&recording.origin) }
    }

    /// Inlay hints for a text of this path, in a range of lines: bytes at the end of each line.
    pub(crate) fn hints(&self, path: &Path, text: &str, within: &std::ops::RangeInclusive<usize>) -> Value {
        let real = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let Some(file) = self.files.get(&real) else { return json!([]) };
        let texts: Vec<&str> = text.lines().collect();
        let hashes: Vec<u32> = texts.iter().map(|line| line_hash(line)).collect();
        let changes = capture_diff_slices(Algorithm::Patience, &file.hashes, &hashes);
        let is_changed = changes.iter().any(|change| !matches!(change, DiffOp::Equal { .. }));
        let mut hints = Vec::new();
        for change in changes {
            let DiffOp::Equal { old_index, new_index, len } = change else { continue };
            for (recorded, parts) in file.lines.range(old_index..old_index + len) {
                let line = new_index + (recorded - old_index);
                let bytes: u64 = parts.iter().map(|part| part.bytes).sum();
                if bytes > self.floor && within.contains(&line) {
                    let character = texts.get(line).map_or(0, |text| text.encode_utf16().count());
                    hints.push(json!({
                        "position": {"line": line, "character": character},
                        "label": label(bytes, parts),
                        "tooltip": {"kind": "markdown", "value": self.tooltip(bytes, parts, is_changed)},
                        "paddingLeft": true,
                    }));
                }
            }
        }
        Value::Array(hints)
    }

    fn tooltip(&self, bytes: u64, parts: &[LineBytes], is_changed: bool) -> String {
        let mut text =
            format!("**{}** of the memory at the peak was allocated by this line:\n\n", size(bytes));
        for part in parts.iter().take(MAX_ROWS) {
            let _ = write!(text, "- {} {}", size(part.bytes), part.category.name());
            if !part.module.is_empty() {
                let _ = write!(text, " of `{}`", one_line(&part.module).replace('`', "'"));
            }
            text.push('\n');
        }
        if let Some(rest) = parts.get(MAX_ROWS..).filter(|rest| !rest.is_empty()) {
            let bytes = rest.iter().map(|part| part.bytes).sum();
            let _ = writeln!(text, "- {} in {} others", size(bytes), rest.len());
        }
        let _ = write!(text, "\n{}", self.run);
        if is_changed {
            text.push_str("\n\nOther lines of this file have changed since then.");
        }
        text
    }
}

/// `1.24 GiB activations, temporary`: the bytes, and the categories with a tenth of them or more.
fn label(bytes: u64, parts: &[LineBytes]) -> String {
    let mut categories: BTreeMap<&str, u64> = BTreeMap::new();
    for part in parts {
        *categories.entry(part.category.name()).or_default() += part.bytes;
    }
    let mut named: Vec<(&str, u64)> =
        categories.into_iter().filter(|(_, part)| *part >= bytes.div_ceil(10)).collect();
    named.sort_by_key(|(_, part)| Reverse(*part));
    let names: Vec<&str> = named.into_iter().map(|(name, _)| name).collect();
    format!("{} {}", size(bytes), names.join(", "))
}

fn run_text(origin: &Origin) -> String {
    let gpu = if origin.kind == OriginKind::RealRun { "GPU" } else { "virtual GPU" };
    let mut text = format!("Recorded on a {gpu}");
    if let Some(device) = &origin.device {
        let _ = write!(text, " ({})", one_line(device));
    }
    if !origin.command.is_empty() {
        let _ = write!(text, ": `{}`", one_line(&origin.command.join(" ")).replace('`', "'"));
    }
    text
}
