//! `memfit ci`.

mod measure;

use std::path::{Path, PathBuf};
use std::time::Instant;

use memfit_ci::{CiSettings, Comparison, Measurement, Roots, Script, compare, failed, file_name};
use memfit_report::wire::{CiCommit, CiReport, CiVerdict, schema};
use memfit_report::{ci_comment, text};
use memfit_run::{Checkout, Home, Interrupt, RunError, repository, without_secrets};

use self::measure::{Measurer, Unmeasured};
use super::{catalogue, problem, seconds_since};
use crate::args::{CiArgs, CiFormat, Format};
use crate::printer::to_json;
use crate::settings::Settings;
use crate::{CliError, Exit, Printer};

/// Compares the peaks of the project's scripts with their baselines, or with another commit.
pub(crate) fn ci(args: &CiArgs, settings: &Settings, home: &Home, printer: &Printer) -> Exit {
    let started = Instant::now();
    let mut report = CiReport {
        schema: schema::CI.to_owned(),
        rows: Vec::new(),
        base: None,
        peak: settings.ci.as_ref().map(|ci| ci.peak).unwrap_or_default().name().to_owned(),
        accepted: Vec::new(),
        memfit: crate::VERSION.to_owned(),
        wall_s: 0.0,
        notes: Vec::new(),
        problem: None,
    };
    let found = judge(args, settings, home, printer, &mut report);
    report.wall_s = seconds_since(started);
    if let Err(error) = &found {
        report.problem = Some(problem(error));
    }
    let format = args.format.unwrap_or(match settings.format.unwrap_or_default() {
        Format::Text => CiFormat::Text,
        Format::Json => CiFormat::Json,
    });
    let printed = tell(&report, args, format, found.is_ok(), printer);
    match (printed, found) {
        (Err(error), _) | (Ok(()), Err(error)) => printer.error(&error),
        (Ok(()), Ok(())) => exit(&report, args.accept),
    }
}

/// Growth takes precedence over failures: it is certain, whatever a failed script would have shown.
fn exit(report: &CiReport, accepts: bool) -> Exit {
    let has = |verdict| report.rows.iter().any(|row| row.verdict == verdict);
    if has(CiVerdict::Grew) && !accepts {
        Exit::BadNews
    } else if has(CiVerdict::Failed) {
        Exit::NoAnswer
    } else {
        Exit::Good
    }
}

fn tell(
    report: &CiReport,
    args: &CiArgs,
    format: CiFormat,
    answered: bool,
    printer: &Printer,
) -> Result<(), CliError> {
    let shared = crate::confidential::shared(report, args.script.confidential)?;
    if let Some(file) = &args.json {
        std::fs::write(file, to_json(&shared)?).map_err(CliError::io("write", file))?;
    }
    match format {
        CiFormat::Json => printer.json(&shared)?,
        CiFormat::Markdown => printer.answer(&ci_comment(&shared)),
        // For people, the error is enough; programs always get a document.
        CiFormat::Text if answered => printer.answer(&text::ci(report, printer.canvas())),
        CiFormat::Text => {}
    }
    Ok(())
}

fn judge(
    args: &CiArgs,
    settings: &Settings,
    home: &Home,
    printer: &Printer,
    report: &mut CiReport,
) -> Result<(), CliError> {
    let ci = settings.ci.as_ref().ok_or(CliError::NoCiSettings)?;
    let gpu = settings.gpu.as_ref().map(|gpu| match gpu.count {
        1 => gpu.name.clone(),
        count => format!("{}:{count}", gpu.name),
    });
    let file = settings.folder.join("pyproject.toml");
    let scripts = ci.scripts(gpu.as_deref()).map_err(|error| CliError::CiSettings {
        file: file.clone(),
        why: error.to_string(),
        hint: error.hint(),
    })?;
    // Listens for signals from here on, so that an interrupt removes the checkout.
    let interrupt = Interrupt::listen();
    let catalogue = catalogue(args.script.catalogue.as_deref(), settings)?;
    let measurer = Measurer { args, settings, catalogue: &catalogue, home, printer, interrupt: &interrupt };
    let base = match &args.base {
        Some(reference) => Base::Commit(Checkout::new(&settings.folder, reference, &ci.link)?),
        None => Base::Files(settings.folder.join(ci.baselines())),
    };
    if let (Base::Commit(checkout), Some(reference)) = (&base, &args.base) {
        report.base = Some(CiCommit { reference: reference.clone(), commit: checkout.commit().to_owned() });
    }
    let own = Roots { own: base.root(&settings.folder), other: None };
    let mut heads = Vec::new();
    for (place, script) in scripts.iter().enumerate() {
        let comparison = Comparison { script, peak: ci.peak };
        let progress = format!("{} on {} ({} of {})", script.name, script.gpu, place + 1, scripts.len());
        printer.remark(&format!("measuring {progress}"));
        let head = match measurer.measure(script, &settings.folder, &own) {
            Ok(head) => head,
            Err(unmeasured) => {
                report.rows.push(no_answer(comparison, unmeasured, "")?);
                continue;
            }
        };
        let row = match base.measurement(script, &measurer) {
            Ok(base) => compare(comparison, base.as_ref(), &head),
            Err(unmeasured) => no_answer(comparison, unmeasured, "the base: ")?,
        };
        report.rows.push(row);
        heads.push(head);
    }
    for row in &mut report.rows {
        row.command = without_secrets(std::mem::take(&mut row.command));
    }
    if args.accept {
        report.accepted = accept(&heads, &settings.folder, ci)?;
    }
    report.notes.extend(stale(&scripts, &settings.folder, ci));
    Ok(())
}

/// The side of the comparison other than the working tree.
enum Base {
    Commit(Checkout),
    /// Folder of the baselines.
    Files(PathBuf),
}

impl Base {
    /// Root relative to which files of the working tree are named.
    fn root(&self, folder: &Path) -> PathBuf {
        let top = match self {
            Self::Commit(checkout) => Some(checkout.repository().to_owned()),
            Self::Files(_) => repository(folder).ok(),
        };
        top.unwrap_or_else(|| folder.canonicalize().unwrap_or_else(|_| folder.to_owned()))
    }

    /// The base's measurement of a script; `None` if it has none.
    fn measurement(
        &self,
        script: &Script,
        measurer: &Measurer<'_>,
    ) -> Result<Option<Measurement>, Unmeasured> {
        match self {
            Self::Commit(checkout) => {
                let roots =
                    Roots { own: checkout.root().to_owned(), other: Some(checkout.repository().to_owned()) };
                match measurer.measure(script, checkout.folder(), &roots) {
                    Ok(found) => Ok(Some(found)),
                    Err(Unmeasured::NoScript(_)) => Ok(None),
                    Err(other) => Err(other),
                }
            }
            Self::Files(folder) => read(&folder.join(file_name(&script.name, &script.gpu))),
        }
    }
}

/// Reads a baseline; `None` if there is none.
fn read(file: &Path) -> Result<Option<Measurement>, Unmeasured> {
    let text = match std::fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Unmeasured::Error(CliError::io("read", file)(error))),
    };
    let wrong = |source| Unmeasured::Error(CliError::Baseline { file: file.to_owned(), source });
    Measurement::from_toml(&text).map(Some).map_err(wrong)
}

/// The row of a script that could not be measured. An interruption ends the comparison.
fn no_answer(
    comparison: Comparison<'_>,
    unmeasured: Unmeasured,
    of: &str,
) -> Result<memfit_report::wire::CiRow, CliError> {
    let mut problem = match unmeasured {
        Unmeasured::Interrupted => return Err(RunError::Interrupted.into()),
        Unmeasured::Problem(problem) => problem,
        Unmeasured::NoScript(error) | Unmeasured::Error(error) => problem(&error),
    };
    problem.message = format!("{of}{}", problem.message);
    Ok(failed(comparison, problem))
}

/// Writes the baselines of all measured scripts.
fn accept(heads: &[Measurement], folder: &Path, ci: &CiSettings) -> Result<Vec<String>, CliError> {
    let baselines = folder.join(ci.baselines());
    std::fs::create_dir_all(&baselines).map_err(CliError::io("create", &baselines))?;
    let write = |head: &Measurement| {
        let name = file_name(&head.script, &head.gpu);
        let file = baselines.join(&name);
        std::fs::write(&file, head.to_toml()).map_err(CliError::io("write", &file))?;
        Ok(ci.baselines().join(name).display().to_string())
    };
    heads.iter().map(write).collect()
}

/// A remark on baselines of scripts that the settings no longer list.
fn stale(scripts: &[Script], folder: &Path, ci: &CiSettings) -> Option<String> {
    let known: Vec<String> = scripts.iter().map(|script| file_name(&script.name, &script.gpu)).collect();
    let files = std::fs::read_dir(folder.join(ci.baselines())).ok()?;
    let mut left: Vec<String> = files
        .filter_map(|file| file.ok()?.file_name().into_string().ok())
        .filter(|name| {
            Path::new(name).extension().is_some_and(|ending| ending == "toml") && !known.contains(name)
        })
        .collect();
    left.sort();
    let one = left.len() == 1;
    (!left.is_empty()).then(|| {
        format!(
            "the settings list no script for the {} {} in {}; delete {}",
            if one { "baseline" } else { "baselines" },
            left.join(", "),
            ci.baselines().display(),
            if one { "it" } else { "them" }
        )
    })
}
