//! The owner of all output.
//!
//! The answer goes to standard output, everything else to standard error. Commands never print; they pass
//! styled text to a [`Printer`], which knows whether colours and progress can be displayed. A reader that
//! closes the pipe early (`memfit gpus | head -1`) is not an error.

use std::error::Error;
use std::fmt::Write as _;
use std::io::{self, IsTerminal as _, Write as _};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};
use clap::ValueEnum;
use memfit_report::text::{Canvas, paint};
use memfit_run::{Console, Progress};
use memfit_vocabulary::{one_line, printable};
use serde::Serialize;

use crate::{CliError, Exit, Hint as _};

const ERROR: Style = AnsiColor::Red.on_default().bold();
const HINT: Style = AnsiColor::Cyan.on_default().bold();
const WARNING: Style = AnsiColor::Yellow.on_default().bold();

/// When to use colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Colour {
    /// On terminals, unless `NO_COLOR` or `CLICOLOR=0` is set; always if `FORCE_COLOR` or `CLICOLOR_FORCE`
    /// is set.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

impl Colour {
    fn choice(self, stream: &dyn AsStream) -> ColorChoice {
        let variable = |name: &str| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
        self.choice_with(&variable, stream.terminal())
    }

    fn choice_with(self, variable: &dyn Fn(&str) -> Option<String>, terminal: bool) -> ColorChoice {
        let given = |name: &str| variable(name).filter(|value| !value.is_empty());
        let set = |name: &str| given(name).is_some_and(|value| value != "0");
        let unwanted = given("NO_COLOR").is_some();
        let forced = set("FORCE_COLOR") || set("CLICOLOR_FORCE");
        let off = given("CLICOLOR").is_some_and(|value| value == "0");
        let dumb = variable("TERM").is_none_or(|term| term == "dumb");
        match self {
            Self::Always => ColorChoice::Always,
            Self::Auto if !unwanted && (forced || (terminal && !off && !dumb)) => ColorChoice::Always,
            Self::Auto | Self::Never => ColorChoice::Never,
        }
    }
}

trait AsStream {
    fn terminal(&self) -> bool;
}

impl AsStream for io::Stdout {
    fn terminal(&self) -> bool {
        self.is_terminal()
    }
}

impl AsStream for io::Stderr {
    fn terminal(&self) -> bool {
        self.is_terminal()
    }
}

fn dumb_terminal() -> bool {
    std::env::var_os("TERM").is_none_or(|term| term == "dumb")
}

/// Prints all output.
#[derive(Debug)]
pub struct Printer {
    colour: Colour,
    quiet: bool,
    /// Shared by all progress of the command, so that a log does not get a line for each of many short runs.
    pace: Arc<Mutex<Pace>>,
}

impl Printer {
    /// Creates a printer with the user's settings.
    pub fn new(colour: Colour, quiet: bool) -> Self {
        Self { colour, quiet, pace: Arc::default() }
    }

    /// The medium for text layouts.
    pub fn canvas(&self) -> Canvas {
        let columns = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
        let terminal = || terminal_size::terminal_size().map(|(width, _)| usize::from(width.0));
        Canvas { width: columns.or_else(terminal).unwrap_or(80), unicode: unicode() }
    }

    /// The answer, for people.
    pub fn answer(&self, text: &str) {
        let stream = io::stdout();
        let mut out = AutoStream::new(stream.lock(), self.colour.choice(&stream));
        note_loss(out.write_all(printable(text).as_bytes()).and_then(|()| out.flush()));
    }

    /// Prints an answer that a program such as `patch` reads unchanged; on a terminal, control characters are
    /// escaped.
    pub fn verbatim(&self, text: &str) {
        if io::stdout().is_terminal() {
            return self.answer(text);
        }
        let mut out = io::stdout().lock();
        note_loss(out.write_all(text.as_bytes()).and_then(|()| out.flush()));
    }

    /// Prints the answer as JSON.
    pub fn json(&self, value: &impl Serialize) -> Result<(), CliError> {
        let text = to_json(value)?;
        let mut out = io::stdout().lock();
        note_loss(out.write_all(text.as_bytes()).and_then(|()| out.flush()));
        Ok(())
    }

    /// Prints one of several answers as a line of JSON.
    pub fn json_line(&self, value: &impl Serialize) -> Result<(), CliError> {
        let mut text = serde_json::to_string(value).map_err(CliError::Json)?;
        text.push('\n');
        let mut out = io::stdout().lock();
        note_loss(out.write_all(text.as_bytes()).and_then(|()| out.flush()));
        Ok(())
    }

    /// Starts an answer that changes: redrawn in place on a terminal, otherwise printed one after another.
    pub fn screen(&self) -> Screen {
        let in_place = io::stdout().is_terminal() && !dumb_terminal();
        Screen { in_place, colour: self.colour, lines: 0, any: false }
    }

    /// Prints additional information.
    pub fn remark(&self, text: &str) {
        if !self.quiet {
            self.stderr(&format!("{text}\n"));
        }
    }

    /// Prints a warning.
    pub fn warning(&self, text: &str) {
        self.stderr(&format!("{} {text}\n", paint(WARNING, "warning:")));
    }

    /// Prints an error with its causes and hints.
    pub fn error(&self, error: &CliError) -> Exit {
        let mut text = format!("{} {error}\n", paint(ERROR, "error:"));
        let mut cause = error.source();
        while let Some(error) = cause {
            for (index, line) in error.to_string().trim_end().lines().enumerate() {
                text.push_str(if index == 0 { "  because: " } else { "           " });
                text.push_str(line);
                text.push('\n');
            }
            cause = error.source();
        }
        for hint in error.hints() {
            let _ = writeln!(text, "{} {hint}", paint(HINT, "hint:"));
        }
        self.stderr(&text);
        Exit::NoAnswer
    }

    /// Prints clap's message: help and versions are answers, the rest are usage errors.
    pub fn usage(&self, error: &clap::Error) -> Exit {
        let text = error.render().ansi().to_string();
        if error.use_stderr() {
            self.stderr(&text);
            Exit::NoAnswer
        } else {
            self.answer(&text);
            Exit::Good
        }
    }

    /// Starts a progress line, unless `--quiet` is set: redrawn in place on a terminal; in a log, a new line
    /// now and then.
    pub fn progress(&self) -> ProgressLine {
        let in_place = io::stderr().is_terminal() && !dumb_terminal();
        let shown = match (self.quiet, in_place) {
            (true, _) => Shown::Nowhere,
            (false, true) => Shown::InPlace,
            (false, false) => Shown::AsLines(Arc::clone(&self.pace)),
        };
        ProgressLine { shown, colour: self.colour, drawn: false, frame: 0 }
    }

    fn stderr(&self, text: &str) {
        let stream = io::stderr();
        let mut err = AutoStream::new(stream.lock(), self.colour.choice(&stream));
        let _gone = err.write_all(printable(text).as_bytes()).and_then(|()| err.flush());
    }
}

/// Operating system's number of the error with which writing an answer failed; 0 for none.
static LOST: AtomicI32 = AtomicI32::new(0);

/// Records that an answer could not be written. A closed pipe is not an error.
fn note_loss(written: io::Result<()>) {
    if let Err(error) = written
        && error.kind() != io::ErrorKind::BrokenPipe
    {
        LOST.store(error.raw_os_error().unwrap_or(-1), Ordering::Relaxed);
    }
}

/// The error with which writing an answer failed, if it did.
pub(crate) fn lost_answer() -> Option<io::Error> {
    match LOST.swap(0, Ordering::Relaxed) {
        0 => None,
        -1 => Some(io::Error::other("it is not known why")),
        number => Some(io::Error::from_raw_os_error(number)),
    }
}

impl Console for Printer {
    fn remark(&self, text: &str) {
        Printer::remark(self, text);
    }

    fn script_output(&self, bytes: &[u8]) {
        let mut err = io::stderr().lock();
        let _gone = err.write_all(bytes).and_then(|()| err.flush());
    }

    fn progress(&self) -> Box<dyn Progress> {
        Box::new(Printer::progress(self))
    }
}

/// Formats JSON for all documents: indented, with a final line break.
pub(crate) fn to_json(value: &impl Serialize) -> Result<String, CliError> {
    let mut text = serde_json::to_string_pretty(value).map_err(CliError::Json)?;
    text.push('\n');
    Ok(text)
}

/// `true` if the locale can display more than ASCII. Containers often have no locale, and can.
fn unicode() -> bool {
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"]
        .iter()
        .find_map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()));
    locale.is_none_or(|locale| {
        let locale = locale.to_ascii_lowercase();
        locale.contains("utf-8") || locale.contains("utf8")
    })
}

/// An answer that is redrawn.
#[derive(Debug)]
pub struct Screen {
    in_place: bool,
    colour: Colour,
    /// Number of lines of the last drawing that are still on the terminal.
    lines: usize,
    any: bool,
}

impl Screen {
    /// Redraws it. Lines that do not fit on the terminal are cut off at the end.
    pub fn draw(&mut self, text: &str) {
        let stream = io::stdout();
        let choice = self.colour.choice(&stream);
        let mut out = stream.lock();
        let mut shown = text;
        if self.in_place {
            let height = terminal_size::terminal_size().map_or(24, |(_, height)| usize::from(height.0));
            let room = height.saturating_sub(1).max(1);
            if let Some((end, _)) = text.match_indices('\n').nth(room - 1) {
                shown = &text[..=end];
            }
            // Moves to the first line of the last drawing and erases from there. These are not styles, so
            // they bypass the writer that strips styles.
            let _gone = match self.lines {
                0 => Ok(()),
                lines => write!(out, "\x1b[{lines}A\r\x1b[J"),
            };
            self.lines = shown.matches('\n').count();
        } else if std::mem::replace(&mut self.any, true) {
            let _gone = out.write_all(b"\n");
        }
        let mut out = AutoStream::new(out, choice);
        note_loss(out.write_all(printable(shown).as_bytes()).and_then(|()| out.flush()));
    }
}

/// Moves to the beginning of the line and erases it.
const ERASE_LINE: &[u8] = b"\r\x1b[K";
/// Frames of the spinner.
const FRAMES: [&str; 8] = ["⠋", "⠙", "⠸", "⠴", "⠦", "⠇", "⠏", "⠛"];

/// Form of the progress display.
#[derive(Debug)]
enum Shown {
    Nowhere,
    InPlace,
    AsLines(Arc<Mutex<Pace>>),
}

/// Times of a log's progress lines: the first after a second, then at growing intervals.
#[derive(Debug)]
struct Pace {
    started: Instant,
    next: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self { started: Instant::now(), next: Self::FIRST }
    }
}

impl Pace {
    const FIRST: Duration = Duration::from_secs(1);
    const MAX_INTERVAL: Duration = Duration::from_secs(30);

    /// Returns `true` if a line is due after this time.
    fn is_due(&mut self, elapsed: Duration) -> bool {
        let due = elapsed >= self.next;
        if due {
            self.next = elapsed + elapsed.min(Self::MAX_INTERVAL);
        }
        due
    }
}

/// The progress line of a long operation, on standard error.
#[derive(Debug)]
pub struct ProgressLine {
    shown: Shown,
    colour: Colour,
    drawn: bool,
    frame: usize,
}

impl Progress for ProgressLine {
    fn is_shown(&self) -> bool {
        !matches!(self.shown, Shown::Nowhere)
    }

    fn draw(&mut self, text: &str) {
        let stream = io::stderr();
        let choice = self.colour.choice(&stream);
        match &mut self.shown {
            Shown::Nowhere => {}
            Shown::AsLines(pace) => {
                let due = pace.lock().is_ok_and(|mut pace| {
                    let elapsed = pace.started.elapsed();
                    pace.is_due(elapsed)
                });
                if due {
                    let mut err = AutoStream::new(stream.lock(), choice);
                    let _gone = writeln!(err, "{}", printable(text)).and_then(|()| err.flush());
                }
            }
            Shown::InPlace => {
                let mark = if unicode() { FRAMES[self.frame % FRAMES.len()] } else { "*" };
                self.frame += 1;
                let mut err = stream.lock();
                // Erasing is not a style: it also happens without colour, so it bypasses the writer that
                // strips styles.
                let _gone = err.write_all(ERASE_LINE);
                let mut err = AutoStream::new(err, choice);
                let _gone =
                    write!(err, "{} {}", paint(HINT, mark), one_line(text)).and_then(|()| err.flush());
                self.drawn = true;
            }
        }
    }

    fn clear(&mut self) {
        if std::mem::take(&mut self.drawn) {
            let mut err = io::stderr().lock();
            let _gone = err.write_all(ERASE_LINE).and_then(|()| err.flush());
        }
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_gets_lines_after_a_second_and_then_more_rarely() {
        let mut pace = Pace::default();
        let due: Vec<u64> =
            (0..2400).filter(|tenth| pace.is_due(Duration::from_millis(tenth * 100))).collect();
        assert_eq!(due, [10, 20, 40, 80, 160, 320, 620, 920, 1220, 1520, 1820, 2120]);
    }

    #[test]
    fn colour_is_for_terminals_and_variables_overrule_that() {
        let check = |variables: &[(&str, &str)], terminal: bool, expected: ColorChoice| {
            let variable = |name: &str| {
                let given = variables.iter().find(|(given, _)| *given == name);
                given.map_or_else(
                    || (name == "TERM").then(|| "xterm".to_owned()),
                    |(_, value)| Some((*value).to_owned()),
                )
            };
            assert_eq!(Colour::Auto.choice_with(&variable, terminal), expected, "{variables:?} {terminal}");
        };
        let (yes, no) = (ColorChoice::Always, ColorChoice::Never);
        check(&[], true, yes);
        check(&[], false, no);
        check(&[("TERM", "dumb")], true, no);
        check(&[("NO_COLOR", "1")], true, no);
        check(&[("NO_COLOR", "")], true, yes);
        check(&[("CLICOLOR", "0")], true, no);
        check(&[("CLICOLOR", "1")], false, no);
        check(&[("CLICOLOR_FORCE", "1")], false, yes);
        check(&[("CLICOLOR", "0"), ("FORCE_COLOR", "1")], false, yes);
        check(&[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")], true, no);
    }
}
