//! `memfit check PATH…`

use std::io::Read as _;
use std::path::{Path, PathBuf};

use memfit_lint::{Config, Report, Severity, Source, unified_diff};
use memfit_report::findings::{self, RuleInfo};
use memfit_report::text;
use memfit_report::wire::CheckReport;

use crate::args::{CheckArgs, FailOn, FindingsFormat, Format};
use crate::printer::{Printer, to_json};
use crate::settings::Settings;
use crate::{CliError, Exit};

/// Name of standard input.
const STDIN: &str = "<stdin>.py";

/// Checks files, applies fixes if requested, and prints the findings.
pub(crate) fn check(args: &CheckArgs, settings: &Settings, printer: &Printer) -> Result<Exit, CliError> {
    let config = config(args, settings)?;
    let mut report = read(&args.paths, &config)?;
    if report.read == 0 {
        return Err(CliError::NothingToCheck { paths: args.paths.clone() });
    }
    for source in &report.files {
        for problem in &source.problems {
            let place =
                problem.start.map(|start| format!(":{}:{}", start.line, start.column)).unwrap_or_default();
            printer.warning(&format!("{}{place}: {}", source.path.display(), problem.message));
        }
    }
    if args.diff {
        let changes = diff(&report, args, &config)?;
        printer.verbatim(&changes);
        let fixes =
            report.files.iter().flat_map(|source| &source.findings).filter_map(|found| found.fix.as_ref());
        let unsafe_fixes = fixes.filter(|fix| !fix.safe).count();
        if unsafe_fixes > 0 && !args.unsafe_fixes {
            let (are, show) = if unsafe_fixes == 1 { ("fix needs", "it") } else { ("fixes need", "them") };
            printer
                .remark(&format!("{unsafe_fixes} more {are} a review: `--diff --unsafe-fixes` shows {show}"));
        }
        return Ok(exit(&report, args, settings));
    }
    let mut fixed = 0;
    if args.fix {
        fixed = fix(&mut report, args, &config, printer)?;
    }
    print_findings(&report, fixed, args, settings, printer)?;
    Ok(exit(&report, args, settings))
}

fn config(args: &CheckArgs, settings: &Settings) -> Result<Config, CliError> {
    let or = |typed: &[String], set: &[String]| if typed.is_empty() { set.to_vec() } else { typed.to_vec() };
    let config = Config {
        select: or(&args.select, &settings.select),
        extend: [args.extend_select.as_slice(), &settings.extend_select].concat(),
        ignore: [args.ignore.as_slice(), &settings.ignore].concat(),
        severity: settings.severity.clone(),
        exclude: or(&args.exclude, &settings.exclude),
        root: if args.exclude.is_empty() { settings.folder.clone() } else { PathBuf::new() },
    };
    config.validate()?;
    Ok(config)
}

fn read(paths: &[PathBuf], config: &Config) -> Result<Report, CliError> {
    let stdin = Path::new("-");
    let files: Vec<PathBuf> = paths.iter().filter(|path| *path != stdin).cloned().collect();
    let mut report =
        if files.is_empty() { Report::default() } else { memfit_lint::check_paths(&files, config)? };
    if files.len() < paths.len() {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).map_err(CliError::io("read", STDIN))?;
        report.read += 1;
        report.files.push(memfit_lint::check_source(Path::new(STDIN), &text, config)?);
    }
    Ok(report)
}

/// Writes the fixed files, and checks them again.
fn fix(report: &mut Report, args: &CheckArgs, config: &Config, printer: &Printer) -> Result<usize, CliError> {
    let mut fixed = 0;
    for source in &mut report.files {
        if source.path == Path::new(STDIN) {
            printer.warning("standard input is not fixed: `--diff -` prints its fixes");
            continue;
        }
        let applied = source.fix_all(args.unsafe_fixes, config)?;
        for refused in &applied.refused {
            let cell = refused.start.cell.map(|cell| format!("cell {cell}:")).unwrap_or_default();
            printer.warning(&format!(
                "{}:{cell}{}:{}: [{}] was not fixed: {}",
                source.path.display(),
                refused.start.line,
                refused.start.column,
                refused.rule,
                refused.reason
            ));
        }
        if applied.text == *source.text {
            continue;
        }
        // A file that has been changed in the meantime is not written.
        let now = std::fs::read_to_string(&source.path).map_err(CliError::io("read", &source.path))?;
        if now != *source.text {
            printer.warning(&format!(
                "{} changed while it was being checked, and was not written",
                source.path.display()
            ));
            continue;
        }
        std::fs::write(&source.path, &applied.text).map_err(CliError::io("write", &source.path))?;
        fixed += applied.fixed;
        let path = source.path.clone();
        *source = memfit_lint::check_source(&path, &applied.text, config)?;
    }
    Ok(fixed)
}

fn diff(report: &Report, args: &CheckArgs, config: &Config) -> Result<String, CliError> {
    let mut text = String::new();
    for source in &report.files {
        let applied = source.fix_all(args.unsafe_fixes, config)?;
        if applied.text != *source.text {
            let name = source.path.display().to_string();
            text.push_str(&unified_diff(&name, &name, &source.text, &applied.text));
        }
    }
    Ok(text)
}

fn print_findings(
    report: &Report,
    fixed: usize,
    args: &CheckArgs,
    settings: &Settings,
    printer: &Printer,
) -> Result<(), CliError> {
    let wire = || CheckReport::new(report, fixed);
    if let Some(file) = &args.json {
        std::fs::write(file, to_json(&wire())?).map_err(CliError::io("write", file))?;
    }
    let set = settings.format.map(|format| match format {
        Format::Text => FindingsFormat::Text,
        Format::Json => FindingsFormat::Json,
    });
    match args.format.or(set).unwrap_or(FindingsFormat::Text) {
        FindingsFormat::Text => printer.answer(&text::findings(report, fixed, printer.canvas())),
        FindingsFormat::Concise => printer.answer(&text::concise(report, fixed)),
        FindingsFormat::Json => printer.json(&wire())?,
        FindingsFormat::Sarif => printer.json(&findings::sarif(&wire(), &rules(), crate::VERSION))?,
        FindingsFormat::Github => printer.answer(&findings::github(&wire())),
        FindingsFormat::Gitlab => printer.json(&findings::gitlab(&wire()))?,
        FindingsFormat::Junit => printer.answer(&findings::junit(&wire())),
    }
    Ok(())
}

/// The rules with their properties in SARIF.
fn rules() -> Vec<RuleInfo> {
    memfit_lint::rules()
        .map(|rule| {
            let page = memfit_lint::page(rule);
            RuleInfo {
                name: rule.name.to_owned(),
                summary: super::rule::summary(&page),
                page,
                severity: rule.severity.name().to_owned(),
            }
        })
        .collect()
}

fn exit(report: &Report, args: &CheckArgs, settings: &Settings) -> Exit {
    let least = match args.fail_on.or(settings.fail_on).unwrap_or_default() {
        FailOn::Error => Some(Severity::Error),
        FailOn::Warning => Some(Severity::Warning),
        FailOn::Note => Some(Severity::Note),
        FailOn::Never => None,
    };
    let bad = |source: &Source| {
        source.findings.iter().any(|finding| least.is_some_and(|least| finding.severity >= least))
    };
    if report.files.iter().any(bad) {
        return Exit::BadNews;
    }
    // If nothing was found but some files could not be read, the result is not a success.
    let unread = report.files.iter().any(|source| !source.problems.is_empty());
    if unread { Exit::NoAnswer } else { Exit::Good }
}
