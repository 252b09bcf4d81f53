//! Edits of notebooks: the code changes as specified by the edits, and every byte of the file outside changed
//! lines stays.

#![allow(
    clippy::unwrap_used,
    clippy::format_push_string,
    clippy::struct_excessive_bools,
    reason = "a panic fails the test"
)]

use std::sync::Arc;

use memfit_source::document::{Format, Snippet, snippets};
use memfit_source::{Edit, EditError, Span, edit};
use proptest::prelude::*;
use serde_json::Value;

/// Style in which a program writes notebooks.
#[derive(Clone, Debug)]
struct Style {
    /// Indentation in spaces; `None` for a single line.
    indent: Option<usize>,
    /// `true` if non-ASCII characters are escaped.
    ascii: bool,
    /// `true` if sources are lists of lines.
    listed: bool,
    /// `true` if `/` is escaped.
    slashes: bool,
    /// `true` if the file ends with a line end.
    ends: bool,
}

impl Style {
    fn string(&self, text: &str) -> String {
        let mut quoted = Value::from(text).to_string();
        if self.slashes {
            quoted = quoted.replace('/', "\\/");
        }
        if self.ascii {
            let mut escaped = String::new();
            for character in quoted.chars() {
                if character.is_ascii() {
                    escaped.push(character);
                } else {
                    for unit in character.encode_utf16(&mut [0; 2]) {
                        escaped.push_str(&format!("\\u{unit:04X}"));
                    }
                }
            }
            quoted = escaped;
        }
        quoted
    }

    fn line(&self, level: usize) -> String {
        self.indent.map_or_else(String::new, |spaces| format!("\n{}", " ".repeat(spaces * level)))
    }

    fn source(&self, text: &str) -> String {
        if !self.listed {
            return self.string(text);
        }
        let lines: Vec<String> = text.split_inclusive('\n').map(|line| self.string(line)).collect();
        if lines.is_empty() {
            return "[]".to_owned();
        }
        let between = format!(",{}", self.line(4));
        format!("[{}{}{}]", self.line(4), lines.join(&between), self.line(3))
    }

    /// Writes a notebook with a Markdown cell between the code cells.
    fn notebook(&self, cells: &[String]) -> String {
        let mut file = format!("{{{}\"cells\": [", self.line(1));
        for (index, cell) in cells.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            let (line, source) = (self.line(3), self.source(cell));
            let outputs = self.string("é/\n");
            file.push_str(&format!(
                "{comma}{0}{{{line}\"source\": {source},{line}\"outputs\": [{outputs}],{line}\"cell_type\": \"code\"{0}}},\
                 {0}{{\"cell_type\":\"markdown\",  \"source\": \"# x = 1\"}}",
                self.line(2)
            ));
        }
        file.push_str(&format!("{}],{}\"nbformat\": 4{}}}", self.line(1), self.line(1), self.line(0)));
        if self.ends {
            file.push('\n');
        }
        file
    }
}

fn style() -> impl Strategy<Value = Style> {
    let indent = prop_oneof![Just(None), Just(Some(1)), Just(Some(2)), Just(Some(4))];
    (indent, any::<[bool; 4]>()).prop_map(|(indent, [ascii, listed, slashes, ends])| Style {
        indent,
        ascii,
        listed,
        slashes,
        ends,
    })
}

const LINES: &[&str] =
    &["x = 1", "", "    y = \"a\\n\"", "print('é 𝄞')", "\tz = a / b  # c", "\u{c}w = '\\\\'"];

fn cell() -> impl Strategy<Value = String> {
    (proptest::collection::vec(0..LINES.len(), 0..6), any::<bool>()).prop_map(|(lines, ends)| {
        let lines: Vec<&str> = lines.into_iter().map(|line| LINES[line]).collect();
        let end = if ends && !lines.is_empty() { "\n" } else { "" };
        lines.join("\n") + end
    })
}

fn code(file: &str) -> Option<Snippet> {
    snippets(&Arc::from(file), Format::Notebook).unwrap().pop()
}

/// Sources of the code cells.
fn sources(file: &str) -> Vec<String> {
    let notebook: Value = serde_json::from_str(file).unwrap();
    let cells = notebook["cells"].as_array().unwrap().iter();
    cells
        .filter(|cell| cell["cell_type"] == "code")
        .map(|cell| match &cell["source"] {
            Value::Array(lines) => lines.iter().map(|line| line.as_str().unwrap()).collect(),
            other => other.as_str().unwrap().to_owned(),
        })
        .collect()
}

/// Applies an edit to a cell's text. The span counts from the cell's start and may include the line end that
/// the cell does not have.
fn expected(cell: &str, edit: &Edit) -> String {
    let whole = if cell.ends_with('\n') { cell.to_owned() } else { format!("{cell}\n") };
    let mut text = edit::apply(&whole, std::slice::from_ref(edit)).unwrap();
    if !cell.ends_with('\n') && text.ends_with('\n') {
        text.pop();
    }
    text
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn an_edit_of_a_cell_changes_its_lines_and_nothing_else(
        style in style(),
        cells in proptest::collection::vec(cell(), 1..4),
        (which, from, to) in (any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<prop::sample::Index>()),
        whole_lines in any::<bool>(),
        text in prop_oneof![Just(""), Just("a\n"), Just("    b = \"é\"\n    c\n"), Just("d"), Just("\\")],
    ) {
        let file = style.notebook(&cells);
        prop_assert_eq!(&sources(&file), &cells);
        let snippet = code(&file).unwrap();
        let which = which.index(cells.len());
        let start: usize = cells[..which].iter().map(|cell| cell.len() + usize::from(!cell.ends_with('\n'))).sum();
        // Possible boundaries of an edit, including the one after the last line.
        let own = if cells[which].ends_with('\n') { cells[which].clone() } else { format!("{}\n", cells[which]) };
        // Within a line, the last boundary is the cell's own end.
        let end = own.len() - usize::from(!whole_lines);
        let places: Vec<usize> = (0..=end)
            .filter(|at| own.is_char_boundary(*at))
            .filter(|at| !whole_lines || *at == 0 || own.as_bytes()[at - 1] == b'\n')
            .collect();
        let (from, to) = (places[from.index(places.len())], places[to.index(places.len())]);
        let inside = Edit::replace(Span::new(from.min(to) as u32, from.max(to) as u32), text);
        let moved = Span::new(inside.span.start + start as u32, inside.span.end + start as u32);
        let edits = [Edit::replace(moved, text)];
        let about = Span::empty(start as u32);
        let changed = edit::apply(&file, &snippet.file_edits(&edits, about, &file).unwrap()).unwrap();

        let mut wanted = cells.clone();
        wanted[which] = expected(&cells[which], &inside);
        prop_assert_eq!(&sources(&changed), &wanted, "{}\n{}", &file, &changed);
        // The same program would have written these bytes.
        if inside.text.is_ascii() || !style.ascii {
            let escapes = style.slashes && text.contains('/');
            if !escapes && !wanted[which].is_empty() && !cells[which].is_empty() {
                prop_assert_eq!(changed.to_lowercase(), style.notebook(&wanted).to_lowercase());
            }
        }
    }
}

#[test]
fn an_edit_across_cells_is_refused() {
    let style = Style { indent: Some(1), ascii: false, listed: true, slashes: false, ends: true };
    let file = style.notebook(&["x = 1\ny = 2".to_owned(), "z = 3".to_owned()]);
    let snippet = code(&file).unwrap();
    let edits = [Edit::delete(Span::new(6, 14))];
    assert_eq!(snippet.file_edits(&edits, Span::empty(6), &file), Err(EditError::AcrossCells));
}

#[test]
fn strings_that_hold_several_lines_or_parts_of_one_are_written_a_line_each_where_they_change() {
    let table = [
        (r#"["a\nb\n", "c"]"#, "b", "B\n", r#"["a\n", "B\n", "\n", "c"]"#),
        (r#"["a", "b\n", "c"]"#, "ab\n", "", r#"["c"]"#),
        (r#"["a\n", "b\n", "c"]"#, "c\n", "", r#"["a\n", "b"]"#),
        (r#"["a\n"]"#, "a\n", "", "[]"),
        (r#"["a"]"#, "a\n", "", "[]"),
        (r#""a\nb""#, "b\n", "", r#""a""#),
        (r#""\u0061\nb\n""#, "b\n", "", r#""\u0061\n""#),
        (r#"["\u0061\n", "b\n"]"#, "b\n", "", r#"["\u0061\n"]"#),
    ];
    for (source, old, new, expected) in table {
        let file = |source: &str| format!(r#"{{"cells": [{{"cell_type": "code", "source": {source}}}]}}"#);
        let text = file(source);
        let snippet = code(&text).unwrap();
        let at = snippet.text.find(old).unwrap() as u32;
        let edits = [Edit::replace(Span::new(at, at + old.len() as u32), new)];
        let changed =
            edit::apply(&text, &snippet.file_edits(&edits, Span::empty(at), &text).unwrap()).unwrap();
        assert_eq!(changed, file(expected), "{source}");
    }
}
