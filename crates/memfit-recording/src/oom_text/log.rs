//! Search for messages in a log: removes colours and rank prefixes, joins broken lines, collects tracebacks.

use std::collections::HashMap;
use std::io::{self, BufRead};

use super::prefix::{Speaker, split_speaker};
use super::{Elsewhere, LogFrame, OomKind, OomText, beginnings, message};

/// Longest line that is searched as a whole.
const MAX_LINE_BYTES: usize = 1 << 20;
/// Maximum number of lines that a message may be broken into.
const MAX_MESSAGE_LINES: usize = 24;
/// Maximum number of messages kept, since a log may repeat one for hours.
const MAX_MESSAGES: usize = 4096;
/// Maximum number of frames kept of a traceback, the innermost ones.
const MAX_FRAMES: usize = 256;
/// Maximum number of ranks whose tracebacks are followed at a time.
const MAX_RANKS: usize = 65_536;

/// Finds all out-of-memory errors in a text, in order. A message that the same rank repeats is returned once.
pub fn find(text: impl BufRead) -> io::Result<Vec<OomText>> {
    search(text).map(|searched| searched.found)
}

/// Result of a search.
pub(crate) struct Searched {
    /// All errors, in order.
    pub(crate) found: Vec<OomText>,
    /// Number of lines searched.
    pub(crate) lines: u64,
    /// First error of another kind of memory, with its line.
    pub(crate) elsewhere: Option<(Elsewhere, u64)>,
}

/// Finds all errors as [`find`] does, and what else the text has to say about memory.
pub(crate) fn search(mut text: impl BufRead) -> io::Result<Searched> {
    let mut search = Search::default();
    let mut raw = Vec::new();
    loop {
        raw.clear();
        if read_line(&mut text, &mut raw)? == 0 {
            break;
        }
        let whole = String::from_utf8_lossy(&raw);
        let plain = without_colours(&whole);
        search.number += 1;
        // Progress bars separate their updates by carriage returns within one line.
        for part in plain.split('\r').filter(|part| !part.trim().is_empty()) {
            search.process_line(part.trim_end());
        }
        if plain.trim().is_empty() {
            search.end_message();
        }
    }
    search.end_message();
    search.end_traceback();
    Ok(Searched { found: search.found, lines: search.number, elsewhere: search.elsewhere })
}

/// Reads one line and drops the part beyond the maximum length. Returns the number of bytes consumed.
fn read_line(text: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<u64> {
    let mut taken = 0;
    loop {
        let available = text.fill_buf()?;
        if available.is_empty() {
            return Ok(taken);
        }
        let end = available.iter().position(|byte| *byte == b'\n');
        let length = end.map_or(available.len(), |end| end + 1);
        let room = MAX_LINE_BYTES.saturating_sub(line.len());
        line.extend_from_slice(&available[..length.min(room)]);
        text.consume(length);
        taken += length as u64;
        if end.is_some() {
            return Ok(taken);
        }
    }
}

/// Removes terminal escape sequences: colours, links and titles.
fn without_colours(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\u{1b}') {
        plain.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        rest = match after.as_bytes().first() {
            Some(b'[') => {
                let end = after.bytes().skip(1).position(|byte| (0x40..=0x7e).contains(&byte));
                end.and_then(|end| after.get(end + 2..)).unwrap_or("")
            }
            Some(b']') => {
                let end = after.find(['\u{7}', '\u{1b}']);
                end.and_then(|end| after.get(end + 1..)).unwrap_or("").trim_start_matches('\\')
            }
            _ => after,
        };
    }
    plain.push_str(rest);
    plain
}

#[derive(Default)]
struct Search {
    number: u64,
    found: Vec<OomText>,
    elsewhere: Option<(Elsewhere, u64)>,
    /// Rank of the entry in torchrun's summary of failed processes that is being read.
    summary_rank: Option<u32>,
    /// Unfinished tracebacks by process.
    tracebacks: HashMap<Speaker, Vec<LogFrame>>,
    /// Message that may continue on the next line, with the parts collected so far.
    open: Option<Open>,
}

struct Open {
    kind: OomKind,
    message: String,
    line: u64,
    speaker: Speaker,
    parts: usize,
}

impl Open {
    /// Returns `true` if a line of a process may continue this message. The lines of a broken message carry
    /// the prefix of the first one, or none.
    fn continues(&self, speaker: Speaker, line: &str) -> bool {
        (self.speaker == speaker || speaker == Speaker::default())
            && self.parts < MAX_MESSAGE_LINES
            && !message::is_whole(self.kind, &self.message)
            && !is_traceback(line)
            && (!message::is_bare(&self.message) || line.starts_with("Tried to allocate"))
    }
}

impl Search {
    fn process_line(&mut self, line: &str) {
        let (speaker, line) = split_speaker(line);
        // Some loggers draw a box around tracebacks.
        let line =
            line.trim_matches(|character: char| "│╭╰─╮╯|".contains(character) || character.is_whitespace());
        let is_rest = self
            .open
            .as_ref()
            .is_some_and(|open| message::is_bare(&open.message) && open.continues(speaker, line));
        if let Some((at, kind)) = beginnings::find(line).filter(|_| !is_rest) {
            self.end_message();
            let start = if kind == OomKind::CudaMallocAsync {
                line.find("Allocation on device").unwrap_or(at)
            } else {
                message_start(kind, line, at)
            };
            let message = line[start..].to_owned();
            self.open = Some(Open { kind, message, line: self.number, speaker, parts: 1 });
        } else if let Some(open) = self.open.as_mut().filter(|open| open.continues(speaker, line)) {
            open.parts += 1;
            open.message.push(' ');
            open.message.push_str(line.trim_start());
        } else {
            // The lines of other processes may come between those of a broken message.
            if self.open.as_ref().is_some_and(|open| open.speaker == speaker) {
                self.end_message();
            }
            if self.elsewhere.is_none() {
                self.elsewhere = beginnings::find_elsewhere(line).map(|what| (what, self.number));
            }
            self.summary_rank = message::rank_of_summary(line).or(self.summary_rank);
            self.process_traceback(speaker, line);
            return;
        }
        if self.open.as_ref().is_some_and(|open| message::is_whole(open.kind, &open.message)) {
            self.end_message();
        }
    }

    fn end_message(&mut self) {
        let Some(Open { kind, message, line, speaker, .. }) = self.open.take() else { return };
        let rank = speaker.rank.or(self.summary_rank.take_if(|_| kind.is_of_host()));
        let message = message.split_whitespace().collect::<Vec<_>>().join(" ");
        let message = without_trailer(&message).to_owned();
        let frames = self.tracebacks.remove(&speaker).unwrap_or_default();
        // The launcher reports the end of a process more than once.
        let process = message::process(&message).filter(|_| kind.is_of_host());
        if process.is_some() && !message.contains("exited unexpectedly") {
            let reported =
                |found: &&mut OomText| found.kind == kind && message::process(&found.message) == process;
            if let Some(found) = self.found.iter_mut().find(reported) {
                found.rank = found.rank.or(rank);
                return;
            }
        }
        let same = self.found.iter_mut().find(|found| found.rank == rank && found.message == message);
        if let Some(same) = same {
            same.count += 1;
            if same.frames.is_empty() {
                same.frames = frames;
            }
            return;
        }
        if self.found.len() < MAX_MESSAGES {
            let figures = message::figures(kind, &message);
            // The parent's report of a worker's end follows the reason: its traceback has the script's lines.
            if let Some(reason) = self.found.last_mut().filter(|last| {
                message.contains("exited unexpectedly") && last.kind.is_of_host() && last.rank == rank
            }) {
                reason.frames = frames;
                return;
            }
            let advice = message::advice(&message);
            self.found.push(OomText {
                kind,
                message,
                line,
                rank,
                is_of_server: speaker.is_server,
                count: 1,
                figures,
                advice,
                frames,
            });
        }
    }

    /// Gives a traceback that the log breaks off to the loader worker's end that caused it.
    fn end_traceback(&mut self) {
        let of_loader = |last: &&mut OomText| last.message.contains("DataLoader worker");
        if let Some(last) = self.found.last_mut().filter(of_loader) {
            let mut tracebacks = self.tracebacks.iter();
            if let Some((_, frames)) = tracebacks.find(|(speaker, _)| speaker.rank == last.rank) {
                last.frames.clone_from(frames);
            }
        }
    }

    fn process_traceback(&mut self, rank: Speaker, line: &str) {
        if line.contains("Traceback (most recent call last)") {
            self.tracebacks.remove(&rank);
        } else if let Some(number) = arrow(line) {
            // Older versions of IPython print the line number below the file name.
            let last = self.tracebacks.get_mut(&rank).and_then(|frames| frames.last_mut());
            if let Some(last) = last.filter(|last| last.line == 0) {
                last.line = number;
            }
        } else if let Some(frame) = frame(line)
            && (self.tracebacks.len() < MAX_RANKS || self.tracebacks.contains_key(&rank))
        {
            let frames = self.tracebacks.entry(rank).or_default();
            if frames.len() == MAX_FRAMES {
                frames.remove(0);
            }
            frames.push(frame);
        }
    }
}

/// Returns where a message starts that was recognised at `at`. A library's message may start earlier: after
/// the error's class name.
fn message_start(kind: OomKind, line: &str, at: usize) -> usize {
    if matches!(kind, OomKind::CachingAllocator | OomKind::FractionExceeded | OomKind::Absurd) {
        return at;
    }
    line[..at].rfind("Error: ").map_or(0, |error| error + "Error: ".len()).min(at)
}

/// Cuts off text that a logger appended to the message on the same line, such as quotes and braces.
fn without_trailer(message: &str) -> &str {
    let message = message.trim_end_matches(['"', '\'', '}', ')', ',', ']']);
    let mut end = message.len().min(4096);
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    &message[..end]
}

/// Returns `true` for a line of a traceback, which ends a message.
fn is_traceback(line: &str) -> bool {
    line.starts_with("Traceback (most recent call last)") || python_frame(line).is_some()
}

/// Parses `File "train.py", line 3, in main`, which a logger may have put behind a time and a name.
fn python_frame(line: &str) -> Option<(&str, &str)> {
    let (before, rest) = line.split_once("File \"")?;
    if before.contains('"') {
        return None;
    }
    rest.split_once("\", line ")
}

/// Parses a traceback line, in the format of Python or of IPython.
fn frame(line: &str) -> Option<LogFrame> {
    let line = line.trim_start();
    if let Some((file, rest)) = python_frame(line) {
        let digits = rest.find(|character: char| !character.is_ascii_digit()).unwrap_or(rest.len());
        let function = rest[digits..].strip_prefix(", in ").unwrap_or("");
        return Some(LogFrame {
            file: file.to_owned(),
            line: rest[..digits].parse().ok()?,
            function: function.trim().to_owned(),
        });
    }
    if let Some(rest) = line.strip_prefix("File ") {
        let (place, function) = rest.split_once(", in ").unwrap_or((rest, ""));
        let (file, line) = place.rsplit_once(':')?;
        let function = function.split('(').next().unwrap_or("").trim().to_owned();
        return Some(LogFrame { file: file.to_owned(), line: line.trim().parse().ok()?, function });
    }
    if line.starts_with("Cell In") || line.starts_with("Input In") {
        let (cell, rest) = line.split_once("line ").unwrap_or((line, "0"));
        let digits = rest.find(|character: char| !character.is_ascii_digit()).unwrap_or(rest.len());
        let cell = cell.trim_end_matches([',', ' ']);
        let function = rest[digits..].split_once(", in ").map_or("", |(_, function)| function);
        return Some(LogFrame {
            file: cell.to_owned(),
            line: rest[..digits].parse().ok()?,
            function: function.split('(').next().unwrap_or("").to_owned(),
        });
    }
    // Older versions of IPython: `<ipython-input-3-abc> in step(x)`, `~/train.py in forward(self, x)`. Colab
    // makes the file a link.
    let (file, function) = line.split_once(" in ")?;
    let link = file.strip_prefix('[').and_then(|link| link.split_once("](http"));
    let file = link.map_or(file, |(file, _)| file);
    let is_file = std::path::Path::new(file).extension().is_some_and(|extension| extension == "py");
    if is_file && !file.contains(' ') || file.starts_with("<ipython-input-") {
        let function = function.split('(').next().unwrap_or("").trim().to_owned();
        return Some(LogFrame { file: file.to_owned(), line: 0, function });
    }
    None
}

/// Parses the line number that IPython marks with an arrow (`----> 7 loss.backward()`).
fn arrow(line: &str) -> Option<u32> {
    let rest = line.trim_start().trim_start_matches('-').strip_prefix('>')?.trim_start();
    let digits = rest.find(|character: char| !character.is_ascii_digit()).unwrap_or(rest.len());
    rest[..digits].parse().ok()
}
