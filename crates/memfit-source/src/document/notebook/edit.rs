//! Translates edits of a notebook's code to edits of its file. Changed lines are rewritten, one JSON string a
//! line as the format prescribes; every other byte stays.

use std::fmt::Write as _;

use super::{CellSource, Map};
use crate::edit::{Edit, EditError};
use crate::position::Span;

/// Lines as JSON strings without their quotes, each with the length of the escape sequence of its line end.
#[derive(Debug, Default)]
struct Lines {
    done: Vec<(String, usize)>,
    open: String,
    /// `true` if non-ASCII characters are written as escape sequences.
    is_ascii: bool,
}

impl Lines {
    fn end(&mut self, escape: usize) {
        self.done.push((std::mem::take(&mut self.open), escape));
    }

    /// Copies unchanged text from the file.
    fn keep(&mut self, map: &Map, span: Span, code: &str, file: &str) {
        let first = map.pieces.partition_point(|piece| piece.code.end <= span.start);
        for piece in map.pieces[first..].iter().take_while(|piece| piece.code.start < span.end) {
            let kept = Span::new(piece.code.start.max(span.start), piece.code.end.min(span.end));
            let raw = Span::new(piece.place(kept.start), piece.place(kept.end));
            self.open.push_str(raw.slice(file));
            if piece.escaped && kept.slice(code) == "\n" {
                self.end(raw.slice(file).len());
            }
        }
    }

    /// Appends new text.
    fn write(&mut self, text: &str) {
        for character in text.chars() {
            match character {
                '\n' => {
                    self.open.push_str("\\n");
                    self.end(2);
                }
                '"' => self.open.push_str("\\\""),
                '\\' => self.open.push_str("\\\\"),
                '\t' => self.open.push_str("\\t"),
                '\r' => self.open.push_str("\\r"),
                _ if character < ' ' || (self.is_ascii && !character.is_ascii()) => {
                    for unit in character.encode_utf16(&mut [0; 2]) {
                        let _ = write!(self.open, "\\u{unit:04x}");
                    }
                }
                _ => self.open.push(character),
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.done.is_empty() && self.open.is_empty()
    }

    /// Removes the last line end, since cells usually end without one.
    fn without_last_end(&mut self) {
        if self.open.is_empty()
            && let Some((mut line, escape)) = self.done.pop()
        {
            line.truncate(line.len() - escape);
            self.open = line;
        }
    }

    fn into_lines(mut self) -> Vec<String> {
        if !self.open.is_empty() {
            self.end(0);
        }
        self.done.into_iter().map(|(line, _)| line).collect()
    }
}

/// Edit within a cell.
#[derive(Debug)]
struct CellEdit {
    edit: Edit,
    /// `true` if it covered the line end after the last line, which the cell does not contain.
    with_end: bool,
}

impl Map {
    /// Translates edits of the code to edits of the file. `about` is the span of the finding; it decides
    /// between the end of a cell and the beginning of the next.
    pub(in super::super) fn edits(
        &self,
        edits: &[Edit],
        about: Span,
        code: &str,
        file: &str,
    ) -> Result<Vec<Edit>, EditError> {
        let mut by_cell: Vec<(usize, Vec<CellEdit>)> = Vec::new();
        for edit in edits {
            let (cell, edit) = self.locate_in_cell(edit, about, code)?;
            match by_cell.iter_mut().find(|(known, _)| *known == cell) {
                Some((_, known)) => known.push(edit),
                None => by_cell.push((cell, vec![edit])),
            }
        }
        let mut changed = Vec::new();
        for (cell, mut edits) in by_cell {
            edits.sort_by(|a, b| a.edit.cmp(&b.edit));
            self.cell_edits(&self.cells[cell], &edits, code, file, &mut changed)?;
        }
        changed.sort();
        Ok(changed)
    }

    /// Finds the cell of an edit, and removes the trailing line end that no cell has.
    fn locate_in_cell(&self, edit: &Edit, about: Span, code: &str) -> Result<(usize, CellEdit), EditError> {
        let whole = |index: usize| {
            let end = self.cells.get(index + 1).map_or(code.len() as u32, |next| next.code.start);
            Span::new(self.cells[index].code.start, end)
        };
        let span = edit.span;
        let fits = |index: &usize| whole(*index).contains(span);
        let own = (0..self.cells.len()).find(|index| {
            let cell = whole(*index);
            cell.start <= about.start && about.start < cell.end.max(cell.start + 1)
        });
        let index = own.filter(fits).or_else(|| (0..self.cells.len()).rev().find(fits));
        let Some(index) = index else { return Err(EditError::AcrossCells) };
        let cell = self.cells[index].code;
        let mut edit = edit.clone();
        let with_end = edit.span.end > cell.end;
        if with_end {
            // After the last line, which has no line end in the file.
            if edit.span.start > cell.end {
                edit.text.insert(0, '\n');
            }
            edit.span = Span::new(edit.span.start.min(cell.end), cell.end);
        }
        Ok((index, CellEdit { edit, with_end }))
    }

    fn cell_edits(
        &self,
        cell: &CellSource,
        edits: &[CellEdit],
        code: &str,
        file: &str,
        changed: &mut Vec<Edit>,
    ) -> Result<(), EditError> {
        let Some(last) = cell.strings.len().checked_sub(1) else {
            changed.push(empty_source_edit(cell, edits));
            return Ok(());
        };
        let string_at = |offset: u32| {
            cell.strings.partition_point(|(start, _)| *start <= offset).saturating_sub(1).min(last)
        };
        // Ranges of strings that the edits touch, merged where they meet.
        let mut regions: Vec<(usize, usize, Vec<&CellEdit>)> = Vec::new();
        for one in edits {
            let edit = &one.edit;
            let mut first = string_at(edit.span.start);
            let mut end = string_at(edit.span.end.max(edit.span.start + 1) - 1);
            // A line that loses its end continues with the next.
            let ends = edit.text.ends_with('\n')
                || (edit.text.is_empty() && edit.span.start == cell.strings[first].0);
            let to_the_end = cell.strings.get(end + 1).is_some_and(|(next, _)| *next == edit.span.end);
            if to_the_end && !ends && edit.span.end > edit.span.start {
                end += 1;
            }
            // Without its last line, a cell ends at the line before.
            if end == last && edit.span.start == cell.strings[first].0 && first > 0 {
                first -= 1;
            }
            match regions.last_mut() {
                Some((_, known, edits)) if first <= *known + 1 => {
                    *known = end.max(*known);
                    edits.push(one);
                }
                _ => regions.push((first, end, vec![one])),
            }
        }
        for (first, end, edits) in regions {
            let start = cell.strings[first].0;
            let stop = cell.strings.get(end + 1).map_or(cell.code.end, |(start, _)| *start);
            let raw = cell.source.slice(file);
            let mut lines = Lines { is_ascii: raw.is_ascii() && raw.contains("\\u"), ..Lines::default() };
            let mut at = start;
            for CellEdit { edit, .. } in &edits {
                if edit.span.start < at {
                    return Err(EditError::Overlap);
                }
                lines.keep(self, Span::new(at, edit.span.start), code, file);
                lines.write(&edit.text);
                at = edit.span.end;
            }
            lines.keep(self, Span::new(at, stop), code, file);
            if edits.iter().any(|edit| edit.with_end) {
                lines.without_last_end();
            }
            changed.push(if cell.is_list {
                list_edit(cell, first, end, lines, file)
            } else {
                self.string_edit(cell, &lines.into_lines().concat(), file)
            });
        }
        Ok(())
    }

    /// Edit of a source that is one string: the common prefix and suffix stay.
    fn string_edit(&self, cell: &CellSource, after: &str, file: &str) -> Edit {
        let quoted = cell.source;
        let inner = Span::new(quoted.start + 1, quoted.end - 1);
        let before = inner.slice(file);
        let same = |a: &[u8], b: &[u8]| a.iter().zip(b).take_while(|(a, b)| a == b).count();
        let head = same(before.as_bytes(), after.as_bytes());
        // Both cuts fall on boundaries of characters and escape sequences in both texts.
        let boundaries = || {
            let first = self.pieces.partition_point(|piece| piece.file.start < inner.start);
            self.pieces[first..].iter().take_while(|piece| piece.file.end <= inner.end).flat_map(|piece| {
                let all = piece.file.start..piece.file.end;
                let only = piece.file.start..piece.file.start + 1;
                if piece.escaped { only } else { all }
            })
        };
        let is_cut = |at: u32| !file.is_char_boundary(at as usize);
        let start = boundaries()
            .filter(|at| *at <= inner.start + head as u32 && !is_cut(*at))
            .last()
            .unwrap_or(inner.start);
        let kept = (start - inner.start) as usize;
        let reversed = |text: &str| text.bytes().rev().collect::<Vec<_>>();
        let tail = same(&reversed(&before[kept..]), &reversed(&after[kept..]));
        let end = boundaries()
            .chain([inner.end])
            .find(|at| *at >= start && *at >= inner.end - tail as u32 && !is_cut(*at))
            .unwrap_or(inner.end);
        let text = &after[kept..after.len() - (inner.end - end) as usize];
        Edit::replace(Span::new(start, end), text)
    }
}

/// Edit of an empty source.
fn empty_source_edit(cell: &CellSource, edits: &[CellEdit]) -> Edit {
    let mut lines = Lines::default();
    for one in edits {
        lines.write(&one.edit.text);
    }
    if edits.iter().any(|edit| edit.with_end) {
        lines.without_last_end();
    }
    let strings: Vec<String> = lines.into_lines().iter().map(|line| format!("\"{line}\"")).collect();
    Edit::replace(cell.source, format!("[{}]", strings.join(", ")))
}

/// Edit of a source that is a list of strings.
fn list_edit(cell: &CellSource, first: usize, end: usize, lines: Lines, file: &str) -> Edit {
    let string = |index: usize| cell.strings[index].1;
    if lines.is_empty() {
        // The comma is removed with the string.
        return match (first.checked_sub(1), cell.strings.get(end + 1)) {
            (_, Some((_, next))) => Edit::delete(Span::new(string(first).start, next.start)),
            (Some(before), None) => Edit::delete(Span::new(string(before).end, string(end).end)),
            (None, None) => Edit::replace(cell.source, "[]"),
        };
    }
    let between = match cell.strings.as_slice() {
        [(_, one), (_, two), ..] => Span::new(one.end, two.start).slice(file).to_owned(),
        _ => format!(",{}", Span::new(cell.source.start + 1, string(0).start).slice(file)),
    };
    let strings: Vec<String> = lines.into_lines().iter().map(|line| format!("\"{line}\"")).collect();
    Edit::replace(Span::new(string(first).start, string(end).end), strings.join(&between))
}
