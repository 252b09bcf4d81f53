//! Search for messages in a log: removes colours and rank prefixes, joins broken lines, collects tracebacks.

use std::collections::HashMap;
use std::io::{self, BufRead};

use super::{LogFrame, OomKind, OomText, message};

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
    find_counting(text).map(|(found, _)| found)
}

/// Finds all errors as [`find`] does, and counts the lines searched.
pub(crate) fn find_counting(mut text: impl BufRead) -> io::Result<(Vec<OomText>, u64)> {
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
    Ok((search.found, search.number))
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
    /// Unfinished tracebacks by rank.
    tracebacks: HashMap<Option<u32>, Vec<LogFrame>>,
    /// Message that may continue on the next line, with the parts collected so far.
    open: Option<Open>,
}

struct Open {
    kind: OomKind,
    message: String,
    line: u64,
    rank: Option<u32>,
    parts: usize,
}

impl Search {
    fn process_line(&mut self, line: &str) {
        let (rank, line) = rank_of(line);
        // Some loggers draw a box around tracebacks.
        let line =
            line.trim_matches(|character: char| "│╭╰─╮╯|".contains(character) || character.is_whitespace());
        if let Some((at, kind)) = message::find_beginning(line) {
            self.end_message();
            let start = if kind == OomKind::CudaMallocAsync {
                line.find("Allocation on device").unwrap_or(at)
            } else {
                message_start(kind, line, at)
            };
            self.open =
                Some(Open { kind, message: line[start..].to_owned(), line: self.number, rank, parts: 1 });
        } else if let Some(open) = &mut self.open
            && open.rank == rank
            && open.parts < MAX_MESSAGE_LINES
            && !message::is_whole(open.kind, &open.message)
        {
            open.parts += 1;
            open.message.push(' ');
            open.message.push_str(line.trim_start());
        } else {
            self.process_traceback(rank, line);
            return;
        }
        if self.open.as_ref().is_some_and(|open| message::is_whole(open.kind, &open.message)) {
            self.end_message();
        }
    }

    fn end_message(&mut self) {
        let Some(Open { kind, message, line, rank, .. }) = self.open.take() else { return };
        let message = message.split_whitespace().collect::<Vec<_>>().join(" ");
        let message = without_trailer(&message).to_owned();
        let frames = self.tracebacks.remove(&rank).unwrap_or_default();
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
            let advice = message::advice(&message);
            self.found.push(OomText { kind, message, line, rank, count: 1, figures, advice, frames });
        }
    }

    fn process_traceback(&mut self, rank: Option<u32>, line: &str) {
        if line.starts_with("Traceback (most recent call last)") {
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

/// Splits a rank prefix from a line.
fn rank_of(line: &str) -> (Option<u32>, &str) {
    let trimmed = line.trim_start();
    // `[rank3]: …` of PyTorch, `[default3]:…` of torchrun, `[Rank 3] …`.
    for opening in ["[rank", "[Rank ", "[RANK ", "[default", "[RANK", "[Rank"] {
        if let Some((digits, rest)) = trimmed.strip_prefix(opening).and_then(|rest| rest.split_once(']'))
            && let Ok(rank) = digits.trim().parse()
        {
            return (Some(rank), rest.strip_prefix(':').unwrap_or(rest));
        }
    }
    // `[1,3]<stderr>:…` of mpirun.
    if let Some((pair, rest)) = trimmed.strip_prefix('[').and_then(|rest| rest.split_once("]<std"))
        && let Some(Ok(rank)) = pair.split_once(',').map(|(_, rank)| rank.trim().parse())
    {
        return (Some(rank), rest.split_once(">:").map_or(rest, |(_, rest)| rest));
    }
    // `3: …` of `srun --label`.
    if let Some((digits, rest)) = trimmed.split_once(": ")
        && digits.len() <= 5
        && let Ok(rank) = digits.parse()
    {
        return (Some(rank), rest);
    }
    (None, line)
}

/// Parses a traceback line, in the format of Python or of IPython.
fn frame(line: &str) -> Option<LogFrame> {
    let line = line.trim_start();
    if let Some(rest) = line.strip_prefix("File \"") {
        let (file, rest) = rest.split_once("\", line ")?;
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
    // Older versions of IPython: `<ipython-input-3-abc> in step(x)`, `~/train.py in forward(self, x)`.
    let (file, function) = line.split_once(" in ")?;
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
