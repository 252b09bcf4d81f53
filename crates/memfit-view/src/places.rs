//! Allocation sites of a lane: its stacks, frames and texts, renumbered.

use std::collections::HashMap;

use memfit_vocabulary::is_user_file;

use crate::columns::Columns;

/// Frame: function, file and line. Texts are rows of [`Places::texts`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Frame {
    pub(crate) function: u32,
    pub(crate) file: u32,
    pub(crate) line: u32,
}

/// Stacks of a lane. Row 0 of texts and of stacks is empty.
#[derive(Clone, Debug)]
pub struct Places {
    texts: Vec<String>,
    text_rows: HashMap<String, u32>,
    frames: Vec<Frame>,
    /// Code owner of each frame.
    sides: Vec<Side>,
    frame_rows: HashMap<Frame, u32>,
    /// Rows of frames, innermost first.
    stacks: Vec<Vec<u32>>,
    stack_rows: HashMap<Vec<u32>, u32>,
}

impl Default for Places {
    fn default() -> Self {
        Self {
            texts: vec![String::new()],
            text_rows: HashMap::from([(String::new(), 0)]),
            frames: Vec::new(),
            sides: Vec::new(),
            frame_rows: HashMap::new(),
            stacks: vec![Vec::new()],
            stack_rows: HashMap::from([(Vec::new(), 0)]),
        }
    }
}

impl Places {
    /// Row of a text; a new text is added.
    pub fn text(&mut self, text: &str) -> u32 {
        if let Some(&row) = self.text_rows.get(text) {
            return row;
        }
        let row = self.texts.len() as u32;
        self.texts.push(text.to_owned());
        self.text_rows.insert(text.to_owned(), row);
        row
    }

    /// Row of a stack of (function, file, line), innermost first; a new stack is added.
    pub fn stack<'a>(&mut self, frames: impl IntoIterator<Item = (&'a str, &'a str, u32)>) -> u32 {
        let mut rows = Vec::new();
        for (function, file, line) in frames {
            let frame = Frame { function: self.text(function), file: self.text(file), line };
            let next = self.frames.len() as u32;
            let row = *self.frame_rows.entry(frame).or_insert(next);
            if row == next {
                self.frames.push(frame);
                self.sides.push(Side::from_file(file));
            }
            rows.push(row);
        }
        if let Some(&row) = self.stack_rows.get(&rows) {
            return row;
        }
        let row = self.stacks.len() as u32;
        self.stack_rows.insert(rows.clone(), row);
        self.stacks.push(rows);
        row
    }

    /// Text of a row.
    pub fn name(&self, row: u32) -> &str {
        self.texts.get(row as usize).map_or("", String::as_str)
    }

    /// Representative line of a stack: the innermost line of user code, or else the innermost Python line.
    pub fn line(&self, stack: u32) -> Option<(&str, u32)> {
        let frame = self.frames.get(self.speaker(self.stacks.get(stack as usize)?)? as usize)?;
        Some((self.name(frame.file), frame.line))
    }

    fn speaker(&self, stack: &[u32]) -> Option<u32> {
        let first = |side: Side| stack.iter().find(|row| self.sides[**row as usize] == side).copied();
        first(Side::Own).or_else(|| first(Side::Library))
    }

    /// Section of the texts and stacks, with the representative line of each stack, so that the page need not
    /// know which files are libraries.
    pub(crate) fn section(&self) -> Vec<u8> {
        let mut columns = Columns::default();
        columns.numbers([self.frames.len() as u64, self.stacks.len() as u64]);
        columns.numbers(self.frames.iter().map(|frame| u64::from(frame.function)));
        columns.numbers(self.frames.iter().map(|frame| u64::from(frame.file)));
        columns.numbers(self.frames.iter().map(|frame| u64::from(frame.line)));
        columns.numbers(self.sides.iter().map(|side| u64::from(*side == Side::Own)));
        columns.numbers(self.stacks.iter().map(|stack| stack.len() as u64));
        columns
            .numbers(self.stacks.iter().map(|stack| self.speaker(stack).map_or(0, |row| u64::from(row) + 1)));
        columns.numbers([self.stacks.iter().map(|stack| stack.len() as u64).sum()]);
        columns.deltas(self.stacks.iter().flatten().map(|row| u64::from(*row)));
        columns.rest(&serde_json::to_vec(&self.texts).unwrap_or_default());
        columns.pack()
    }
}

/// Owner of a frame's code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// The user.
    Own,
    /// An installed package, or the interpreter.
    Library,
    /// Native code.
    Native,
}

impl Side {
    fn from_file(file: &str) -> Self {
        let extension = file.rsplit_once('.').map_or("", |(_, extension)| extension);
        if is_user_file(file) {
            Self::Own
        } else if extension.eq_ignore_ascii_case("py") || file.starts_with('<') {
            Self::Library
        } else {
            Self::Native
        }
    }
}

impl Places {
    /// Renames every text by its role and renumbers the lines of frames in order of first use: equal lines
    /// stay equal, and the original numbers are lost. PyTorch's own files and functions keep their names.
    pub(crate) fn rename(
        &mut self,
        mut named: impl FnMut(Role, &str) -> String,
        other: impl Fn(u32) -> Role,
    ) {
        let mut roles: Vec<Role> = (0..self.texts.len() as u32).map(other).collect();
        for frame in &self.frames {
            let file = self.texts[frame.file as usize].as_str();
            let of_torch = torch_path(file).is_some();
            roles[frame.file as usize] = Role::File;
            if roles[frame.function as usize] != Role::File {
                // A name used by both PyTorch and the user counts as the user's.
                let known = of_torch && roles[frame.function as usize] != Role::Function;
                roles[frame.function as usize] = if known { Role::TorchFunction } else { Role::Function };
            }
        }
        let mut lines: HashMap<u32, Vec<u32>> = HashMap::new();
        for frame in &mut self.frames {
            if torch_path(&self.texts[frame.file as usize]).is_none() {
                let known = lines.entry(frame.file).or_default();
                let place = known.iter().position(|line| *line == frame.line).unwrap_or_else(|| {
                    known.push(frame.line);
                    known.len() - 1
                });
                frame.line = place as u32 + 1;
            }
        }
        for (text, role) in self.texts.iter_mut().zip(roles).skip(1) {
            *text = named(role, text);
        }
        self.text_rows.clear();
        self.frame_rows.clear();
        self.stack_rows.clear();
    }
}

/// Role of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Role {
    File,
    Function,
    TorchFunction,
    Module,
    Mark,
}

/// Path within PyTorch's own package.
pub(crate) fn torch_path(file: &str) -> Option<&str> {
    let (_, path) = file.rsplit_once("-packages/")?;
    path.starts_with("torch/").then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_users_own_line_speaks_for_a_stack() {
        let mut places = Places::default();
        let library = ("forward", "/env/lib/python3.11/site-packages/torch/nn/modules/linear.py", 134);
        let own = ("forward", "/home/me/net.py", 20);
        let native = ("at::empty", "??", 0);
        let cases = [
            (vec![native, library, own, ("main", "/home/me/train.py", 9)], Some(("/home/me/net.py", 20))),
            (vec![native, library], Some((library.1, 134))),
            (vec![native], None),
            (vec![], None),
            // The probe of `memfit run` adds frames between a script and PyTorch.
            (
                vec![library, ("run", "/run/memfit-1/memfit_probe/small.py", 247), own],
                Some(("/home/me/net.py", 20)),
            ),
            (vec![("<module>", "/tmp/ipython-input-3", 7)], Some(("/tmp/ipython-input-3", 7))),
        ];
        for (stack, line) in cases {
            let row = places.stack(stack.clone());
            assert_eq!(places.line(row), line, "{stack:?}");
            assert_eq!(places.stack(stack), row, "each is kept once");
        }
        assert_eq!(places.line(99), None);
    }
}
