//! A check: from paths to findings.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use memfit_source::document::{DocumentError, Format, Location, Snippet, snippets};
use memfit_source::{Edit, EditError, Facts, LineIndex, Module, Modules, STACK, Span, TooMuch, is_relevant};

use crate::config::Config;
use crate::files::{self, Input};
use crate::modules::Library;
use crate::rule::{Context, Finding, Findings, Project, Rule, Severity};
use crate::{fix, rules, suppress};

/// What was found in all files.
#[derive(Debug, Default)]
pub struct Report {
    /// Each file with findings or problems, in order.
    pub files: Vec<Source>,
    /// How many files were read.
    pub read: usize,
}

/// A file that was read.
#[derive(Clone, Debug)]
pub struct Source {
    /// As it was named.
    pub path: PathBuf,
    /// Its text.
    pub text: Arc<str>,
    /// What was found, in order.
    pub findings: Vec<Checked>,
    /// What could not be read of it.
    pub problems: Vec<Problem>,
}

/// A finding where people see it.
#[derive(Clone, Debug)]
pub struct Checked {
    /// The rule's name.
    pub rule: &'static str,
    /// By the rule, or by the settings.
    pub severity: Severity,
    /// In the file's bytes, where it is in one piece there.
    pub span: Option<Span>,
    /// Where it begins.
    pub start: Location,
    /// Where it ends.
    pub end: Location,
    /// What it says.
    pub message: String,
    /// Other places.
    pub labels: Vec<FileLabel>,
    /// What to do.
    pub help: Option<String>,
    /// How to do it.
    pub fix: Option<FileFix>,
    /// Why a fix that there is cannot be made here, and whether it would be safe.
    pub blocked: Option<(bool, EditError)>,
    /// The text that it was found in, for those who show it: that of the file, or the code of a notebook.
    pub shown: Shown,
}

/// A text to show, and the finding's place in it.
#[derive(Clone, Debug)]
pub struct Shown {
    /// The text.
    pub text: Arc<str>,
    /// The finding in it.
    pub span: Span,
}

/// Another place of a finding.
#[derive(Clone, Debug)]
pub struct FileLabel {
    /// In the text that is shown.
    pub span: Span,
    /// Where.
    pub start: Location,
    /// What is there.
    pub text: String,
}

/// A fix in the file's bytes.
#[derive(Clone, Debug)]
pub struct FileFix {
    /// It changes nothing that the program computes.
    pub safe: bool,
    /// What it does.
    pub title: String,
    /// The changes.
    pub edits: Vec<Edit>,
}

/// Something that could not be read.
#[derive(Clone, Debug)]
pub struct Problem {
    /// Where, if it is one place.
    pub start: Option<Location>,
    /// What.
    pub message: String,
    /// Nothing of the file was checked.
    pub fatal: bool,
}

/// Why nothing was checked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A path leads nowhere.
    #[error("cannot read `{}`", path.display())]
    Path {
        /// The path.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The settings cannot be meant.
    #[error(transparent)]
    Config(#[from] crate::config::ConfigError),
    /// No thread could be started.
    #[error("cannot start a thread to read with")]
    Thread(#[source] std::io::Error),
}

/// A file that is read and parsed, before its rules run.
struct Parsed {
    path: PathBuf,
    text: Arc<str>,
    parts: Vec<(Snippet, Facts)>,
    problems: Vec<Problem>,
}

/// Checks files and folders.
pub fn check_paths(paths: &[PathBuf], config: &Config) -> Result<Report, Error> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(16);
    let excluded = config.excluded()?;
    let inputs =
        files::collect(paths, &excluded, threads).map_err(|(path, source)| Error::Path { path, source })?;
    let read = inputs.len();
    let library = Library::default();
    let parsed = in_parallel(&inputs, threads, |input| parse_file(input, &library))?;
    let parsed: Vec<Parsed> = parsed.into_iter().flatten().collect();
    let projects = Projects::of(&parsed);
    let files = in_parallel(&parsed, threads, |file| judge(file, config, projects.of_file(&file.path)))?;
    let files =
        files.into_iter().filter(|file| !file.findings.is_empty() || !file.problems.is_empty()).collect();
    // Trees take their time to be taken down, and nobody has to wait for it.
    let taken_down = std::thread::Builder::new().stack_size(STACK).spawn(move || drop((parsed, library)));
    drop(taken_down);
    Ok(Report { files, read })
}

/// Checks one text, which need not be in a file: `path` says where it would be.
pub fn check_source(path: &Path, text: &str, config: &Config) -> Result<Source, Error> {
    let inputs = [(path.to_owned(), Arc::<str>::from(text))];
    let library = Library::default();
    let mut found = in_parallel(&inputs, 1, |(path, text)| {
        let parsed = parse_text(path, text, &library);
        let mut project = Project::default();
        parsed.parts.iter().for_each(|(_, facts)| project.add(facts));
        judge(&parsed, config, &project)
    })?;
    Ok(found.pop().unwrap_or_else(|| Source {
        path: path.to_owned(),
        text: text.into(),
        findings: Vec::new(),
        problems: Vec::new(),
    }))
}

/// What the files of each project say to one another.
#[derive(Default)]
struct Projects {
    /// The folder of the project that each folder is in; nothing stands for all that is in none.
    roots: HashMap<PathBuf, PathBuf>,
    by_root: HashMap<PathBuf, Project>,
    none: Project,
}

impl Projects {
    fn of(files: &[Parsed]) -> Self {
        let mut all = Self::default();
        for file in files {
            let root = all.root(&folder_of(&file.path));
            let project = all.by_root.entry(root).or_default();
            file.parts.iter().for_each(|(_, facts)| project.add(facts));
        }
        all
    }

    fn of_file(&self, path: &Path) -> &Project {
        let root = self.roots.get(&folder_of(path));
        root.and_then(|root| self.by_root.get(root)).unwrap_or(&self.none)
    }

    fn root(&mut self, folder: &Path) -> PathBuf {
        const SIGNS: &[&str] = &["pyproject.toml", "setup.py", "setup.cfg", ".git"];
        if let Some(known) = self.roots.get(folder) {
            return known.clone();
        }
        let root = if SIGNS.iter().any(|sign| folder.join(sign).exists()) {
            folder.to_owned()
        } else {
            folder.parent().map_or_else(PathBuf::new, |parent| self.root(parent))
        };
        self.roots.insert(folder.to_owned(), root.clone());
        root
    }
}

/// The folder of a file, from the root of all.
fn folder_of(path: &Path) -> PathBuf {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned())
}

/// Does the same with each of many things, on threads whose stacks hold a deep syntax tree.
fn in_parallel<T: Sync, R: Send>(
    items: &[T],
    threads: usize,
    work: impl Fn(&T) -> R + Sync,
) -> Result<Vec<R>, Error> {
    let next = AtomicUsize::new(0);
    let run = || {
        let mut done = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(index) else { return done };
            done.push((index, work(item)));
        }
    };
    let threads = threads.min(items.len().div_ceil(4)).max(1);
    let mut done = std::thread::scope(|scope| {
        let started: Result<Vec<_>, _> = (0..threads)
            .map(|_| std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, run))
            .collect();
        started.map(|started| {
            started.into_iter().flat_map(|thread| thread.join().unwrap_or_default()).collect::<Vec<_>>()
        })
    })
    .map_err(Error::Thread)?;
    done.sort_by_key(|(index, _)| *index);
    Ok(done.into_iter().map(|(_, result)| result).collect())
}

fn parse_file(input: &Input, library: &Library) -> Option<Parsed> {
    let failed = |message: String| {
        let problem = Problem { start: None, message, fatal: true };
        Some(Parsed { path: input.path.clone(), text: "".into(), parts: Vec::new(), problems: vec![problem] })
    };
    let bytes = match std::fs::read(&input.path) {
        Ok(bytes) => bytes,
        Err(error) => return failed(format!("it cannot be read: {error}")),
    };
    let Ok(text) = String::from_utf8(bytes) else {
        // What declares another encoding is rare, and seldom about training.
        return if input.named { failed("it is not UTF-8 text".to_owned()) } else { None };
    };
    if !is_relevant(&text) {
        return None;
    }
    Some(parse_text(&input.path, &text.into(), library))
}

fn parse_text(path: &Path, text: &Arc<str>, library: &Library) -> Parsed {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let format = Format::from_name(name).unwrap_or_else(|| Format::from_text(text));
    let mut parsed =
        Parsed { path: path.to_owned(), text: text.clone(), parts: Vec::new(), problems: Vec::new() };
    let found = match snippets(text, format) {
        Ok(found) => found,
        Err(error) => {
            parsed.problems.push(document_problem(&error));
            return parsed;
        }
    };
    let folder = path.parent().unwrap_or(Path::new(""));
    let modules = library.of(folder);
    let known = if format == Format::Python { library.parsed(path, text) } else { None };
    for snippet in found {
        let before = parsed.problems.len();
        let known = known.as_ref().map(|known| known.source());
        let read = || parse_snippet(&mut parsed, snippet, known, &modules);
        // A fault of ours in one file must not cost the others.
        if std::panic::catch_unwind(std::panic::AssertUnwindSafe(read)).is_err() {
            parsed.problems.truncate(before);
            parsed.problems.push(fault());
        }
    }
    parsed
}

/// What is said where the check itself is at fault.
fn fault() -> Problem {
    let message =
        "the check failed on this file: this is a fault of memfit, please report it with the file".to_owned();
    Problem { start: None, message, fatal: true }
}

fn document_problem(error: &DocumentError) -> Problem {
    Problem { start: None, message: error.to_string(), fatal: true }
}

/// `known` is the text, parsed, where that has been done.
fn parse_snippet(parsed: &mut Parsed, snippet: Snippet, known: Option<&Module>, modules: &dyn Modules) {
    if !is_relevant(&snippet.text) {
        return;
    }
    let facts = match known {
        Some(known) => Ok(known.facts(modules)),
        None => memfit_source::facts(&snippet.text, snippet.dialect, modules),
    };
    match facts {
        Ok(facts) => {
            if snippet.is_whole && !facts.problems.is_empty() {
                let lines = LineIndex::new(&parsed.text);
                parsed.problems.extend(facts.problems.iter().map(|problem| Problem {
                    start: Some(snippet.locate(problem.span.start, &parsed.text, &lines)),
                    message: problem.message.clone(),
                    fatal: false,
                }));
            }
            parsed.parts.push((snippet, facts));
        }
        Err(too_much) => {
            let start = match too_much {
                TooMuch::Deep { line, .. } => {
                    let index = LineIndex::new(&snippet.text);
                    let at = index.line_start(line.saturating_sub(1), &snippet.text);
                    Some(snippet.locate(at, &parsed.text, &LineIndex::new(&parsed.text)))
                }
                _ => None,
            };
            parsed.problems.push(Problem { start, message: too_much.to_string(), fatal: true });
        }
    }
}

fn judge(file: &Parsed, config: &Config, project: &Project) -> Source {
    let lines = OnceCell::new();
    let mut findings = Vec::new();
    let mut problems = file.problems.clone();
    for (snippet, facts) in &file.parts {
        let judged = || judge_snippet(file, snippet, facts, &lines, config, project);
        match std::panic::catch_unwind(std::panic::AssertUnwindSafe(judged)) {
            Ok(found) => findings.extend(found),
            Err(_) => problems.push(fault()),
        }
    }
    Source { path: file.path.clone(), text: file.text.clone(), findings, problems }
}

fn judge_snippet(
    file: &Parsed,
    snippet: &Snippet,
    facts: &Facts,
    lines: &OnceCell<LineIndex>,
    config: &Config,
    project: &Project,
) -> Vec<Checked> {
    let mut found: Vec<Finding> = Vec::new();
    let context = Context { facts, project };
    let mut severities: Vec<(&'static str, Severity)> = Vec::new();
    for rule in rules::all() {
        let Some(severity) = config.severity(rule) else { continue };
        severities.push((rule.name, severity));
        (rule.check)(&context, &mut Findings { rule, found: &mut found });
    }
    // Most texts have nothing to tell, and nobody asks where their lines are.
    if found.is_empty() && facts.comments.is_empty() {
        return Vec::new();
    }
    let lines = lines.get_or_init(|| LineIndex::new(&file.text));
    found.sort_by_key(|finding| (finding.span, finding.rule.name));
    found.dedup_by(|a, b| a.span == b.span && a.rule.name == b.rule.name);
    let own = LineIndex::new(&facts.text);
    let mut suppressions = suppress::suppressions(facts, &own);
    found.retain(|finding| !suppress::suppresses(&mut suppressions, finding, &own));
    let mut checked: Vec<Checked> = found
        .into_iter()
        .map(|finding| {
            let severity = severities
                .iter()
                .find(|(name, _)| *name == finding.rule.name)
                .map_or(Severity::Note, |(_, severity)| *severity);
            place(file, snippet, lines, finding, severity)
        })
        .collect();
    if let Some(severity) = config.severity_of(suppress::UNUSED, Severity::Note, true) {
        for suppression in &suppressions {
            let runs = |name: &str| severities.iter().any(|(known, _)| *known == name);
            let Some(message) = suppression.unused(runs) else { continue };
            let fix = suppression.is_idle().then(|| idle_fix(facts, suppression.span));
            let finding = Finding {
                rule: &UNUSED_RULE,
                span: suppression.span,
                message,
                labels: Vec::new(),
                help: Some("take it out".to_owned()),
                fix: fix.flatten(),
            };
            checked.push(place(file, snippet, lines, finding, severity));
        }
    }
    checked.sort_by_key(|finding| (finding.shown.span, finding.rule));
    checked
}

/// What stands for the rule of suppressions that are not needed.
static UNUSED_RULE: Rule = Rule {
    name: suppress::UNUSED,
    severity: Severity::Note,
    fixes: crate::rule::Fixes::Safe,
    on: true,
    check: |_, _| {},
};

fn idle_fix(facts: &Facts, span: Span) -> Option<crate::rule::Fix> {
    let before = &facts.text[..span.start as usize];
    let blank = before.len() - before.trim_end_matches([' ', '\t']).len();
    let start = span.start - blank as u32;
    let edit = match facts.whole_lines(span) {
        Some(line) => Edit::delete(line),
        None => Edit::delete(Span::new(start, span.end)),
    };
    crate::rule::Fix::safe("Take the suppression out", vec![edit])
}

fn place(
    file: &Parsed,
    snippet: &Snippet,
    lines: &LineIndex,
    finding: Finding,
    severity: Severity,
) -> Checked {
    let locate = |offset| snippet.locate(offset, &file.text, lines);
    let start = locate(finding.span.start);
    // What is shown: the file itself, or a notebook's code.
    let mapped = snippet.to_file(finding.span);
    let shown_in_file = start.cell.is_none();
    let show = |span: Span| if shown_in_file { snippet.to_file(span).unwrap_or(span) } else { span };
    let mut blocked = None;
    let fix = finding.fix.and_then(|fix| {
        match fix::in_file(snippet, &sorted(fix.edits), finding.span, &file.text) {
            Ok(edits) => Some(FileFix { safe: fix.safe, title: fix.title, edits }),
            Err(error) => {
                blocked = Some((fix.safe, error));
                None
            }
        }
    });
    Checked {
        rule: finding.rule.name,
        severity,
        span: mapped,
        start,
        end: locate(finding.span.end),
        labels: finding
            .labels
            .iter()
            .map(|label| FileLabel {
                span: show(label.span),
                start: locate(label.span.start),
                text: label.text.clone(),
            })
            .collect(),
        fix,
        blocked,
        shown: Shown {
            text: if shown_in_file { file.text.clone() } else { snippet.text.clone() },
            span: show(finding.span),
        },
        message: finding.message,
        help: finding.help,
    }
}

fn sorted(mut edits: Vec<Edit>) -> Vec<Edit> {
    edits.sort();
    edits
}
