//! Where blocks were asked for, and for whom: the stacks, frames and texts that one lane refers to, numbered
//! anew.

use std::collections::HashMap;

use crate::columns::Columns;

/// A frame: function, file and line. Texts are rows of [`Places::texts`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Frame {
    pub(crate) function: u32,
    pub(crate) file: u32,
    pub(crate) line: u32,
}

/// The stacks of a lane. Row 0 of texts and of stacks is empty.
#[derive(Clone, Debug)]
pub struct Places {
    texts: Vec<String>,
    text_rows: HashMap<String, u32>,
    frames: Vec<Frame>,
    /// Whose code each frame is.
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
    /// The row of a text, which is kept if it is new.
    pub fn text(&mut self, text: &str) -> u32 {
        if let Some(&row) = self.text_rows.get(text) {
            return row;
        }
        let row = self.texts.len() as u32;
        self.texts.push(text.to_owned());
        self.text_rows.insert(text.to_owned(), row);
        row
    }

    /// The row of a stack of (function, file, line), innermost first.
    pub fn stack<'a>(&mut self, frames: impl IntoIterator<Item = (&'a str, &'a str, u32)>) -> u32 {
        let mut rows = Vec::new();
        for (function, file, line) in frames {
            let frame = Frame { function: self.text(function), file: self.text(file), line };
            let next = self.frames.len() as u32;
            let row = *self.frame_rows.entry(frame).or_insert(next);
            if row == next {
                self.frames.push(frame);
                self.sides.push(Side::of(file));
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

    /// A text.
    pub fn name(&self, row: u32) -> &str {
        self.texts.get(row as usize).map_or("", String::as_str)
    }

    /// The line that speaks for a stack: the innermost one of the user's own code, else the innermost that is
    /// Python.
    pub fn line(&self, stack: u32) -> Option<(&str, u32)> {
        let frame = self.frames.get(self.speaker(self.stacks.get(stack as usize)?)? as usize)?;
        Some((self.name(frame.file), frame.line))
    }

    fn speaker(&self, stack: &[u32]) -> Option<u32> {
        let first = |side: Side| stack.iter().find(|row| self.sides[**row as usize] == side).copied();
        first(Side::Own).or_else(|| first(Side::Library))
    }

    /// The section of the texts and stacks. What speaks for a stack is worked out here: the page need not
    /// know what a library is.
    pub(crate) fn section(&self) -> Vec<u8> {
        let mut columns = Columns::default();
        columns.plain([self.frames.len() as u64, self.stacks.len() as u64]);
        columns.plain(self.frames.iter().map(|frame| u64::from(frame.function)));
        columns.plain(self.frames.iter().map(|frame| u64::from(frame.file)));
        columns.plain(self.frames.iter().map(|frame| u64::from(frame.line)));
        columns.plain(self.sides.iter().map(|side| u64::from(*side == Side::Own)));
        columns.plain(self.stacks.iter().map(|stack| stack.len() as u64));
        columns
            .plain(self.stacks.iter().map(|stack| self.speaker(stack).map_or(0, |row| u64::from(row) + 1)));
        columns.plain([self.stacks.iter().map(|stack| stack.len() as u64).sum()]);
        columns.near(self.stacks.iter().flatten().map(|row| u64::from(*row)));
        columns.rest(&serde_json::to_vec(&self.texts).unwrap_or_default());
        columns.pack()
    }
}

/// Whose code a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// The user's.
    Own,
    /// An installed package's, or the interpreter's.
    Library,
    /// Not Python at all.
    Native,
}

impl Side {
    fn of(file: &str) -> Self {
        const INSTALLED: [&str; 4] = ["/site-packages/", "/dist-packages/", "/lib/python3", "torch/"];
        const INTERPRETER: [&str; 3] = ["<frozen", "<string>", "<eval"];
        let extension = file.rsplit_once('.').map_or("", |(_, extension)| extension);
        // Notebooks' cells have no extension, and native frames name a library's source or nothing.
        if !extension.eq_ignore_ascii_case("py") && !file.starts_with('<') && !file.contains("ipython-input")
        {
            Self::Native
        } else if INTERPRETER.iter().any(|start| file.starts_with(start))
            || INSTALLED.iter().any(|part| file.contains(part))
        {
            Self::Library
        } else {
            Self::Own
        }
    }
}

impl Places {
    /// Gives every text another name by what it stands for, and renumbers the lines of frames, keeping the
    /// order in which they are met: what was one line stays one line, and nothing says which. PyTorch's
    /// own files and functions keep their names.
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
                // A name that both PyTorch and the user have is the user's.
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

/// What a text stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Role {
    File,
    Function,
    TorchFunction,
    Module,
    Mark,
}

/// A path within PyTorch's own package.
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
