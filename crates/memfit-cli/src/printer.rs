//! The one place that owns all output.
//!
//! The answer goes to standard output, everything else to standard error. Commands never print; they hand
//! text with styles to a [`Printer`], which knows whether anyone can see colours and progress. A reader that
//! goes away early (`memfit gpus | head -1`) is no error.

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
    /// On terminals, unless `NO_COLOR` is set; anywhere if `FORCE_COLOR` is.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

impl Colour {
    fn choice(self, stream: &dyn AsStream) -> ColorChoice {
        let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty() && value != "0");
        match self {
            Self::Always => ColorChoice::Always,
            Self::Auto if std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty()) => {
                ColorChoice::Never
            }
            Self::Auto if set("FORCE_COLOR") || set("CLICOLOR_FORCE") => ColorChoice::Always,
            Self::Auto if stream.terminal() && !dumb_terminal() => ColorChoice::Always,
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

/// All output goes through here.
#[derive(Debug)]
pub struct Printer {
    colour: Colour,
    quiet: bool,
    /// Shared by all progress of the command: a log gets no line for each of many short runs.
    pace: Arc<Mutex<Pace>>,
}

impl Printer {
    /// A printer with the user's wishes.
    pub fn new(colour: Colour, quiet: bool) -> Self {
        Self { colour, quiet, pace: Arc::default() }
    }

    /// The medium that texts are laid out for.
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

    /// The answer that a program takes as it is, as `patch` does; a terminal is shown what can be seen of it.
    pub fn verbatim(&self, text: &str) {
        if io::stdout().is_terminal() {
            return self.answer(text);
        }
        let mut out = io::stdout().lock();
        note_loss(out.write_all(text.as_bytes()).and_then(|()| out.flush()));
    }

    /// The answer, for programs.
    pub fn json(&self, value: &impl Serialize) -> Result<(), CliError> {
        let text = to_json(value)?;
        let mut out = io::stdout().lock();
        note_loss(out.write_all(text.as_bytes()).and_then(|()| out.flush()));
        Ok(())
    }

    /// One of several answers, for programs: a line each.
    pub fn json_line(&self, value: &impl Serialize) -> Result<(), CliError> {
        let mut text = serde_json::to_string(value).map_err(CliError::Json)?;
        text.push('\n');
        let mut out = io::stdout().lock();
        note_loss(out.write_all(text.as_bytes()).and_then(|()| out.flush()));
        Ok(())
    }

    /// An answer that changes: drawn in place on a terminal, one below the other elsewhere.
    pub fn screen(&self) -> Screen {
        let in_place = io::stdout().is_terminal() && !dumb_terminal();
        Screen { in_place, colour: self.colour, lines: 0, any: false }
    }

    /// Something worth knowing beside the answer.
    pub fn remark(&self, text: &str) {
        if !self.quiet {
            self.stderr(&format!("{text}\n"));
        }
    }

    /// Something that may surprise.
    pub fn warning(&self, text: &str) {
        self.stderr(&format!("{} {text}\n", paint(WARNING, "warning:")));
    }

    /// An error with its causes and what to do about it.
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

    /// Starts a progress line unless the user asked for silence: redrawn in place on a terminal, and in a log
    /// a line of its own now and then.
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

/// The error with which an answer could not be written, as the system's number; 0 for none.
static LOST: AtomicI32 = AtomicI32::new(0);

/// Notes that an answer could not be written. A reader that has gone away is content with what it has.
fn note_loss(written: io::Result<()>) {
    if let Err(error) = written
        && error.kind() != io::ErrorKind::BrokenPipe
    {
        LOST.store(error.raw_os_error().unwrap_or(-1), Ordering::Relaxed);
    }
}

/// The error with which an answer could not be written, if one could not.
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

/// JSON as all documents have it: indented, with a line's end at the end.
pub(crate) fn to_json(value: &impl Serialize) -> Result<String, CliError> {
    let mut text = serde_json::to_string_pretty(value).map_err(CliError::Json)?;
    text.push('\n');
    Ok(text)
}

/// `true` if the locale shows more than ASCII. Containers have no locale at all, and can.
fn unicode() -> bool {
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"]
        .iter()
        .find_map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()));
    locale.is_none_or(|locale| {
        let locale = locale.to_ascii_lowercase();
        locale.contains("utf-8") || locale.contains("utf8")
    })
}

/// An answer that is drawn again and again.
#[derive(Debug)]
pub struct Screen {
    in_place: bool,
    colour: Colour,
    /// Lines of the last drawing that the terminal still shows.
    lines: usize,
    any: bool,
}

impl Screen {
    /// Draws it anew. What would not fit on the terminal is left out at its end.
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
            // Up to the first line of the last drawing, and nothing left from there on: no style, so it goes
            // around what strips styles.
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

/// To the beginning of the terminal's line, and nothing left of it.
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

/// When a log gets its next line of progress: after a second, and then ever more rarely.
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

    /// `true` if a line is due after this time.
    fn is_due(&mut self, elapsed: Duration) -> bool {
        let due = elapsed >= self.next;
        if due {
            self.next = elapsed + elapsed.min(Self::MAX_INTERVAL);
        }
        due
    }
}

/// The progress of something that takes long, on standard error.
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
                // Erasing is no style: it happens with and without colour, so it goes around what strips
                // styles.
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
}
