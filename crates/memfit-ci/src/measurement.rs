//! The stored measurement of a run: its peaks, and the memory at the peak by category, line and module.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use memfit_explain::{LineBytes, at_peak, fullest_device, lines_at_peak};
use memfit_recording::Recording;
use memfit_report::wire::{Peak, RunReport};
use memfit_vocabulary::installed_path;
use serde::{Deserialize, Serialize};

/// Reciprocal of the minimum share of the peak for a line or module to be stored.
const SHARE_DIVISOR: u64 = 1000;
/// Maximum lines, and maximum modules.
const MAX_LINES: usize = 60;
/// Maximum characters of a line's source text.
const MAX_TEXT: usize = 120;

/// A measured run of a script on a GPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Measurement {
    /// The script's name.
    pub script: String,
    /// The GPU, as named in the settings.
    pub gpu: String,
    /// The command.
    pub command: Vec<String>,
    /// Steps that ran.
    pub steps: u64,
    /// `true` if it fits on the GPU.
    pub fits: bool,
    /// Version of memfit.
    pub memfit: String,
    /// `torch.__version__`.
    pub torch: Option<String>,
    /// The largest batch that fits.
    pub largest_batch: Option<u64>,
    /// Estimated milliseconds of an optimizer step.
    pub step_ms_estimate: Option<f64>,
    /// The peaks.
    pub peak: Peak,
    /// Bytes at the peak by category, without empty ones.
    #[serde(default)]
    pub by_category: BTreeMap<String, u64>,
    /// Lines that hold memory at the peak, largest first.
    #[serde(default)]
    pub lines: Vec<MeasuredLine>,
    /// Modules that hold memory at the peak, largest first.
    #[serde(default)]
    pub modules: Vec<MeasuredModule>,
}

/// Memory of a line.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeasuredLine {
    /// File, relative to the repository if it is inside.
    pub file: String,
    /// Line number, from 1.
    pub line: u32,
    /// Function.
    pub function: String,
    /// Source text; empty if the file could not be read.
    #[serde(default)]
    pub text: String,
    /// Bytes by category, then by module.
    pub holds: BTreeMap<String, BTreeMap<String, u64>>,
}

impl MeasuredLine {
    /// Bytes of the line.
    pub fn bytes(&self) -> u64 {
        self.holds.values().flat_map(BTreeMap::values).sum()
    }
}

/// Memory of a module.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeasuredModule {
    /// Qualified name.
    pub name: String,
    /// Bytes.
    pub bytes: u64,
}

/// Folders relative to which files are named.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roots {
    /// The checkout that ran.
    pub own: PathBuf,
    /// The user's working tree, if it is another one.
    pub other: Option<PathBuf>,
}

impl Roots {
    /// Name of a file that is the same in every checkout and environment.
    fn name(&self, file: &str) -> String {
        if let Ok(inside) = Path::new(file).strip_prefix(&self.own) {
            return inside.to_string_lossy().into_owned();
        }
        match installed_path(file) {
            Some(package) => format!("site-packages/{package}"),
            None => file.to_owned(),
        }
    }

    /// `true` for source of the user's working tree, if another checkout ran. Packages of an environment in
    /// that tree are the same for both.
    fn is_of_other(&self, file: &str) -> bool {
        let outside = !Path::new(file).starts_with(&self.own);
        let of_other = self.other.as_ref().is_some_and(|other| Path::new(file).starts_with(other));
        outside && of_other && installed_path(file).is_none()
    }
}

impl Measurement {
    /// Extracts the measurement from a run's report and recording. `read` returns the text of a file.
    pub fn new(
        report: &RunReport,
        recording: &Recording,
        roots: &Roots,
        read: &dyn Fn(&str) -> Option<String>,
    ) -> Self {
        let fullest = fullest_device(recording);
        let lines = fullest.map(|(track, device)| lines_at_peak(track, device)).unwrap_or_default();
        let composition = fullest.and_then(|(track, device)| at_peak(track, device));
        let modules = composition.as_ref().map(|found| found.modules.as_slice()).unwrap_or_default();
        let floor = floor(report.peak);
        Self {
            command: report.script.command.clone(),
            steps: report.steps,
            torch: report.torch.clone(),
            step_ms_estimate: report.time.step_ms_estimate,
            peak: report.peak,
            by_category: composition
                .iter()
                .flat_map(|found| &found.by_category)
                .filter(|(_, bytes)| **bytes > 0)
                .map(|(category, bytes)| (category.name().to_owned(), *bytes))
                .collect(),
            lines: by_line(lines, floor, roots, read),
            modules: modules
                .iter()
                .filter(|module| module.bytes > floor)
                .take(MAX_LINES)
                .map(|module| MeasuredModule { name: module.name.clone(), bytes: module.bytes })
                .collect(),
            ..Self::default()
        }
    }

    /// Maximum bytes of lines and modules that may have been left out.
    pub(crate) fn floor(&self) -> u64 {
        let cut = |full: bool, last: Option<u64>| last.filter(|_| full).unwrap_or(0);
        let lines = cut(self.lines.len() >= MAX_LINES, self.lines.last().map(MeasuredLine::bytes));
        let modules = cut(self.modules.len() >= MAX_LINES, self.modules.last().map(|module| module.bytes));
        floor(self.peak).max(lines).max(modules)
    }

    /// A file of the user's working tree that was run instead of the checkout's own.
    pub fn foreign_file(recording: &Recording, roots: &Roots) -> Option<String> {
        let lines = fullest_device(recording).map(|(track, device)| lines_at_peak(track, device));
        lines.into_iter().flatten().map(|line| line.file).find(|file| roots.is_of_other(file))
    }
}

fn floor(peak: Peak) -> u64 {
    peak.allocated / SHARE_DIVISOR
}

fn by_line(
    found: Vec<LineBytes>,
    floor: u64,
    roots: &Roots,
    read: &dyn Fn(&str) -> Option<String>,
) -> Vec<MeasuredLine> {
    let mut texts: BTreeMap<String, Option<String>> = BTreeMap::new();
    let mut lines: Vec<MeasuredLine> = Vec::new();
    for part in found {
        let file = roots.name(&part.file);
        let place = lines
            .iter()
            .position(|line| line.file == file && line.line == part.line && line.function == part.function);
        let place = place.unwrap_or_else(|| {
            let source = texts.entry(part.file.clone()).or_insert_with(|| read(&part.file));
            let text = source.as_deref().and_then(|text| {
                let index = (part.line as usize).checked_sub(1)?;
                text.lines().nth(index)
            });
            lines.push(MeasuredLine {
                file,
                line: part.line,
                function: part.function.clone(),
                text: text.unwrap_or_default().trim().chars().take(MAX_TEXT).collect(),
                holds: BTreeMap::new(),
            });
            lines.len() - 1
        });
        let modules = lines[place].holds.entry(part.category.name().to_owned()).or_default();
        *modules.entry(part.module).or_default() += part.bytes;
    }
    lines.retain(|line| line.bytes() > floor);
    lines.sort_by_key(|line| (std::cmp::Reverse(line.bytes()), line.file.clone(), line.line));
    lines.truncate(MAX_LINES);
    lines
}
