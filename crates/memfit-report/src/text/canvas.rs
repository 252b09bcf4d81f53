//! Width, colours, bars and line wrapping, shared by all texts.

use anstyle::{AnsiColor, Style};
use memfit_vocabulary::one_line;

use crate::wire::Problem;

/// The output medium of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Canvas {
    /// Columns.
    pub width: usize,
    /// `true` if characters beyond ASCII can be displayed.
    pub unicode: bool,
}

/// Wraps a text in a style's codes.
pub fn paint(style: Style, text: &str) -> String {
    format!("{style}{text}{style:#}")
}

pub(super) const BOLD: Style = Style::new().bold();
pub(super) const DIM: Style = Style::new().dimmed();
pub(super) const GOOD: Style = AnsiColor::Green.on_default().bold();
pub(super) const BAD: Style = AnsiColor::Red.on_default().bold();
pub(super) const DOUBT: Style = AnsiColor::Yellow.on_default().bold();
pub(super) const ADVICE: Style = AnsiColor::Cyan.on_default().bold();

impl Canvas {
    /// Minimum and maximum width of text layouts.
    const WIDTHS: std::ops::RangeInclusive<usize> = 60..=120;

    /// The number of columns used, limited so that tables do not break and lines stay readable.
    pub(super) fn columns(self) -> usize {
        self.width.clamp(*Self::WIDTHS.start(), *Self::WIDTHS.end())
    }

    /// Separator between the parts of a line.
    pub(super) fn dot(self) -> &'static str {
        if self.unicode { " · " } else { ", " }
    }

    /// Draws the segment from `start` to `end` of a bar that is `cells` wide and represents `whole`.
    ///
    /// A segment that is not empty is visible, however small.
    pub(super) fn bar(self, start: u64, end: u64, whole: u64, cells: usize) -> String {
        if whole == 0 || end <= start {
            return String::new();
        }
        let eighths = |value: u64| {
            let position = u128::from(value.min(whole)) * (cells as u128 * 8) / u128::from(whole);
            usize::try_from(position).unwrap_or(cells * 8)
        };
        let first = (eighths(start) / 8).min(cells - 1);
        let last = eighths(end).max(first * 8 + 1);
        let length = last - first * 8;
        let mut bar = " ".repeat(first);
        if self.unicode {
            bar.push_str(&"█".repeat(length / 8));
            bar.extend(["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"].get(length % 8).copied());
        } else {
            bar.push_str(&"#".repeat(length.div_ceil(8)));
        }
        bar
    }

    /// Reason why there is no answer, with its hint.
    pub(super) fn problem(self, problem: &Problem) -> String {
        let mut out = self.wrapped("  ", Style::new(), &problem.message);
        if let Some(hint) = &problem.hint {
            out.push_str(&self.wrapped("hint: ", ADVICE, hint));
        }
        out
    }

    /// Wraps `text` in lines; the first begins with `first`, the others with as many spaces.
    pub(super) fn wrapped(self, first: &str, first_style: Style, text: &str) -> String {
        let indent = first.chars().count();
        let room = self.columns().saturating_sub(indent).max(20);
        let mut lines: Vec<String> = Vec::new();
        for paragraph in text.lines() {
            let paragraph = &one_line(paragraph);
            let mut line = String::new();
            for word in words(paragraph) {
                if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > room {
                    lines.push(std::mem::take(&mut line));
                }
                if !line.is_empty() {
                    line.push(' ');
                }
                line.push_str(&word);
            }
            lines.push(line);
        }
        let mut out = paint(first_style, first);
        out.push_str(&lines.join(&format!("\n{}", " ".repeat(indent))));
        out.push('\n');
        out
    }

    /// Mark for text that is left out.
    const fn gap(self) -> &'static str {
        if self.unicode { "…" } else { "..." }
    }

    /// Cuts the end of a text that is longer than `room`: of code, the beginning says most.
    pub(super) fn cut(self, text: &str, room: usize) -> String {
        let text = one_line(text);
        if text.chars().count() <= room {
            return text.into_owned();
        }
        let gap = self.gap();
        let kept: String = text.chars().take(room.saturating_sub(gap.chars().count())).collect();
        kept + gap
    }

    /// Shortens `text` to at most `room` characters by cutting out its middle.
    pub(super) fn shortened(self, text: &str, room: usize) -> String {
        let text = &one_line(text);
        let count = text.chars().count();
        if count <= room {
            return text.clone().into_owned();
        }
        let gap = self.gap();
        let keep = room.saturating_sub(gap.chars().count());
        let head: String = text.chars().take(keep / 2).collect();
        let tail: String = text.chars().skip(count - (keep - keep / 2)).collect();
        format!("{head}{gap}{tail}")
    }
}

/// The words of a text; a number and its unit count as one.
fn words(text: &str) -> Vec<String> {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "GB/s", "MHz"];
    let mut words: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        let bare = word.trim_end_matches([',', ';', '.', ':', ')']);
        match words.last_mut() {
            Some(last) if UNITS.contains(&bare) && last.ends_with(|c: char| c.is_ascii_digit()) => {
                last.push(' ');
                last.push_str(word);
            }
            _ => words.push(word.to_owned()),
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    const WIDE: Canvas = Canvas { width: 80, unicode: true };

    #[test]
    fn a_bar_never_leaves_its_cells_and_never_vanishes() {
        for whole in [1_u64, 7, 1000, u64::MAX] {
            for (start, end) in
                [(0, 1), (0, whole), (whole - 1, whole), (whole / 2, whole / 2 + 1), (0, u64::MAX)]
            {
                let bar = WIDE.bar(start, end, whole, 10);
                assert!(bar.chars().count() <= 10, "{bar:?} for {start}..{end} of {whole}");
                assert!(!bar.trim().is_empty(), "nothing seen for {start}..{end} of {whole}");
            }
        }
        assert_eq!(WIDE.bar(5, 5, 10, 10), "");
        assert_eq!(WIDE.bar(0, 10, 10, 4), "████");
        assert_eq!(WIDE.bar(5, 10, 10, 4), "  ██");
        assert_eq!(Canvas { unicode: false, ..WIDE }.bar(0, 1, 100, 4), "#");
    }

    #[test]
    fn wrapping_keeps_every_word_and_the_width() {
        let text = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen";
        let wrapped = Canvas { width: 60, unicode: true }.wrapped("note: ", Style::new(), text);
        assert!(wrapped.lines().count() > 1);
        assert!(wrapped.lines().all(|line| line.chars().count() <= 60));
        let words: Vec<_> = wrapped.split_whitespace().skip(1).collect();
        assert_eq!(words.join(" "), text);
    }

    #[test]
    fn a_number_stays_with_its_unit() {
        assert_eq!(words("at most 12.32 GiB, or so"), ["at", "most", "12.32 GiB,", "or", "so"]);
        assert_eq!(words("B follows A B"), ["B", "follows", "A", "B"]);
    }

    #[test]
    fn shortening_keeps_both_ends() {
        assert_eq!(WIDE.shortened("encoder.layer.11.attention", 11), "encod…ntion");
        assert_eq!(WIDE.shortened("short", 11), "short");
    }

    #[test]
    fn nothing_of_a_name_moves_the_cursor() {
        let canvas = Canvas { width: 80, unicode: true };
        for evil in ["a\r\nFITS", "a\u{1b}[2J", "a\u{9b}2J", "a\u{7}", "\u{202e}yp.niart"] {
            let shown = canvas.shortened(evil, 40);
            assert!(!shown.contains(memfit_vocabulary::acts), "{shown:?}");
            let wrapped = canvas.wrapped("  ", Style::new(), evil);
            assert!(!wrapped.contains(|c| c != '\n' && memfit_vocabulary::acts(c)), "{wrapped:?}");
        }
    }
}
