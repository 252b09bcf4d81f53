//! Checking of files: from paths to findings.

use std::cell::{LazyCell, OnceCell};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use memfit_source::document::{DocumentError, Format, Location, Snippet, snippets};
use memfit_source::{Edit, EditError, Facts, LineIndex, Module, Modules, STACK, Span, TooMuch, is_relevant};

use crate::calls::Calls;
use crate::config::Config;
use crate::files::{self, Input};
use crate::modules::Library;
use crate::requirements::{AllowedTorch, LazyTorch, Requirements};
use crate::rule::{Context, Finding, Findings, Project, Rule, Severity};
use crate::{fix, rules, suppress};

/// Result of a check.
#[derive(Debug, Default)]
pub struct Report {
    /// Files with findings or problems, in order.
    pub files: Vec<Source>,
    /// Number of files read.
    pub read: usize,
}

/// File that was checked.
#[derive(Clone, Debug)]
pub struct Source {
    /// Path as given by the user.
    pub path: PathBuf,
    /// Text of the file.
    pub text: Arc<str>,
    /// Findings in order.
    pub findings: Vec<Checked>,
    /// Parts that could not be parsed.
    pub problems: Vec<Problem>,
}

/// Finding with its position in the file.
#[derive(Clone, Debug)]
pub struct Checked {
    /// Name of the rule.
    pub rule: &'static str,
    /// Severity of the rule, or as configured.
    pub severity: Severity,
    /// Span in the file, if it is contiguous there.
    pub span: Option<Span>,
    /// Start position.
    pub start: Location,
    /// End position.
    pub end: Location,
    /// Message.
    pub message: String,
    /// Related positions.
    pub labels: Vec<FileLabel>,
    /// Advice.
    pub help: Option<String>,
    /// Fix.
    pub fix: Option<FileFix>,
    /// Reason why an existing fix cannot be applied here, and whether it would be safe.
    pub blocked: Option<(bool, EditError)>,
    /// Text for display that contains the finding: that of the file, or the code of a notebook.
    pub shown: Shown,
}

/// Text for display, with the finding's position.
#[derive(Clone, Debug)]
pub struct Shown {
    /// Text.
    pub text: Arc<str>,
    /// Span of the finding.
    pub span: Span,
}

/// Related position of a finding.
#[derive(Clone, Debug)]
pub struct FileLabel {
    /// Span in the displayed text.
    pub span: Span,
    /// Start position.
    pub start: Location,
    /// Description.
    pub text: String,
}

/// Fix in terms of the file.
#[derive(Clone, Debug)]
pub struct FileFix {
    /// `true` if the program's results stay the same.
    pub safe: bool,
    /// Description.
    pub title: String,
    /// Edits.
    pub edits: Vec<Edit>,
}

/// Part that could not be read.
#[derive(Clone, Debug)]
pub struct Problem {
    /// Position, if there is a single one.
    pub start: Option<Location>,
    /// Message.
    pub message: String,
    /// `true` if nothing in the file was checked.
    pub fatal: bool,
}

/// Error that prevented the check.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A path could not be read.
    #[error("cannot read `{}`", path.display())]
    Path {
        /// Path.
        path: PathBuf,
        /// Cause.
        source: std::io::Error,
    },
    /// Invalid settings.
    #[error(transparent)]
    Config(#[from] crate::config::ConfigError),
    /// A thread could not be started.
    #[error("cannot start a thread to read with")]
    Thread(#[source] std::io::Error),
}

/// File that is read and parsed, before its rules run.
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
    let parsed = parallel_map(&inputs, threads, |input| parse_file(input, &library))?;
    let mut parsed: Vec<Parsed> = parsed.into_iter().flatten().collect();
    let mut projects = Projects::from_files(&parsed);
    // What other files give to functions is known now: such a file is walked once more.
    let informed = parallel_map(&parsed, threads, |file| {
        let calls = &projects.of_file(&file.path).calls;
        let is_informed = file.parts.iter().any(|(_, facts)| calls.inform(&file.path, facts));
        is_informed.then(|| parse_text(&file.path, &file.text, &library, Some(calls)))
    })?;
    if informed.iter().any(Option::is_some) {
        for (file, again) in parsed.iter_mut().zip(informed) {
            if let Some(again) = again {
                *file = again;
            }
        }
        projects = Projects::from_files(&parsed);
    }
    let files = parallel_map(&parsed, threads, |file| {
        judge(file, config, projects.of_file(&file.path), || projects.torch(&file.path))
    })?;
    let files =
        files.into_iter().filter(|file| !file.findings.is_empty() || !file.problems.is_empty()).collect();
    // Dropping syntax trees takes time, so it is done on a thread that is not waited for.
    let taken_down = std::thread::Builder::new().stack_size(STACK).spawn(move || drop((parsed, library)));
    drop(taken_down);
    Ok(Report { files, read })
}

/// Checks a text that need not exist as a file: `path` is its nominal location.
pub fn check_source(path: &Path, text: &str, config: &Config) -> Result<Source, Error> {
    let inputs = [(path.to_owned(), Arc::<str>::from(text))];
    let library = Library::default();
    let mut found = parallel_map(&inputs, 1, |(path, text)| {
        let parsed = parse_text(path, text, &library, None);
        let mut project = Project::default();
        parsed.parts.iter().for_each(|(_, facts)| project.add(path, facts));
        // An editor asks at every change, and few texts have a finding that depends on it.
        judge(&parsed, config, &project, || {
            let (folder, root) = Projects::default().folder_and_root(path);
            Requirements::default().of_folder(&folder, &root)
        })
    })?;
    Ok(found.pop().unwrap_or_else(|| Source {
        path: path.to_owned(),
        text: text.into(),
        findings: Vec::new(),
        problems: Vec::new(),
    }))
}

/// Facts that the files of each project share.
#[derive(Default)]
struct Projects {
    /// Project root of each folder; empty for folders outside of any project.
    roots: HashMap<PathBuf, PathBuf>,
    by_root: HashMap<PathBuf, Project>,
    none: Project,
    /// Allowed releases for each folder.
    torch: HashMap<PathBuf, AllowedTorch>,
}

impl Projects {
    fn from_files(files: &[Parsed]) -> Self {
        let mut all = Self::default();
        let mut requirements = Requirements::default();
        for file in files {
            let (folder, root) = all.folder_and_root(&file.path);
            let torch = requirements.of_folder(&folder, &root);
            all.torch.insert(folder, torch);
            let project = all.by_root.entry(root).or_default();
            file.parts.iter().for_each(|(_, facts)| project.add(&file.path, facts));
        }
        all
    }

    fn of_file(&self, path: &Path) -> &Project {
        let root = self.roots.get(&folder_of(path));
        root.and_then(|root| self.by_root.get(root)).unwrap_or(&self.none)
    }

    fn torch(&self, path: &Path) -> AllowedTorch {
        self.torch.get(&folder_of(path)).copied().unwrap_or_default()
    }

    fn folder_and_root(&mut self, path: &Path) -> (PathBuf, PathBuf) {
        let folder = folder_of(path);
        let root = self.root(&folder);
        (folder, root)
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

/// Folder of a file as an absolute path.
fn folder_of(path: &Path) -> PathBuf {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned())
}

/// Maps items in parallel, on threads with a stack for deep syntax trees.
fn parallel_map<T: Sync, R: Send>(
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
        // A file with another declared encoding is rare, and seldom about training.
        return if input.named { failed("it is not UTF-8 text".to_owned()) } else { None };
    };
    if !is_relevant(&text) {
        return None;
    }
    Some(parse_text(&input.path, &text.into(), library, None))
}

/// `calls` are those by other files, if they are known already.
fn parse_text(path: &Path, text: &Arc<str>, library: &Library, calls: Option<&Calls>) -> Parsed {
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
    let modules = match calls {
        Some(calls) => library.imports_of(path, calls),
        None => library.imports_from(folder),
    };
    let known = if format == Format::Python { library.parsed(path, text) } else { None };
    for snippet in found {
        let before = parsed.problems.len();
        let known = known.as_ref().map(|known| known.source());
        let read = || parse_snippet(&mut parsed, snippet, known, &modules);
        // A panic in one file must not affect the others.
        if std::panic::catch_unwind(std::panic::AssertUnwindSafe(read)).is_err() {
            parsed.problems.truncate(before);
            parsed.problems.push(fault());
        }
    }
    parsed
}

/// Problem that reports a panic of the check itself.
fn fault() -> Problem {
    let message =
        "the check failed on this file: this is a fault of memfit, please report it with the file".to_owned();
    Problem { start: None, message, fatal: true }
}

fn document_problem(error: &DocumentError) -> Problem {
    Problem { start: None, message: error.to_string(), fatal: true }
}

/// `known` is the parsed text, if it exists already.
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

fn judge(file: &Parsed, config: &Config, project: &Project, torch: impl Fn() -> AllowedTorch) -> Source {
    let torch: LazyTorch<'_> = LazyCell::new(&torch);
    let lines = OnceCell::new();
    let mut findings = Vec::new();
    let mut problems = file.problems.clone();
    for (snippet, facts) in &file.parts {
        let context = Context { facts, file: &file.path, project, torch: &torch };
        let judged = || judge_snippet(file, snippet, &context, &lines, config);
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
    context: &Context<'_>,
    lines: &OnceCell<LineIndex>,
    config: &Config,
) -> Vec<Checked> {
    let facts = context.facts;
    let mut found: Vec<Finding> = Vec::new();
    let mut severities: Vec<(&'static str, Severity)> = Vec::new();
    for rule in rules::all() {
        let Some(severity) = config.severity(rule) else { continue };
        severities.push((rule.name, severity));
        (rule.check)(context, &mut Findings { rule, found: &mut found });
    }
    // Most texts have no findings, so their lines need not be indexed.
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
            let severity = if finding.is_note { severity.min(Severity::Note) } else { severity };
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
                is_note: false,
            };
            checked.push(place(file, snippet, lines, finding, severity));
        }
    }
    checked.sort_by_key(|finding| (finding.shown.span, finding.rule));
    checked
}

/// Pseudo-rule of unnecessary suppressions.
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
    // Displayed text: the file itself, or a notebook's code.
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
