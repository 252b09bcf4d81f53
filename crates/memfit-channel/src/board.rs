//! Boards: files in the run directory on which the processes of a run post short notes to each other.
//!
//! Whole notes are appended, each in one call, so writers need no lock among themselves. Anyone can read a
//! board from the start. A writer that is killed may leave a torn note, which readers skip.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
    os::unix::fs::FileExt,
};

use crate::{RunDir, hash};

/// Maximum bytes of a note; longer ones are refused.
pub const MAX_NOTE_BYTES: usize = 1 << 20;
/// Size in bytes at which a board takes no more notes.
const MAX_BOARD_BYTES: u64 = 256 << 20;

const MAGIC: u64 = u64::from_le_bytes(*b"memfitNT");
/// Bytes before the text: the magic, the length, the four words of the head.
const HEAD_BYTES: usize = 48;
/// Bytes after the text: the checksum.
const CHECKSUM_BYTES: usize = 8;
/// Bytes of a board that are read at a time; more than the longest note.
const READ_BYTES: usize = 2 * MAX_NOTE_BYTES;

/// A note that one process left for the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Subject of the note, as writer and reader agree.
    pub head: [u64; 4],
    /// Contents of the note.
    pub text: Vec<u8>,
}

/// One process's view of a board.
#[derive(Debug)]
pub struct Board {
    file: File,
    /// Offset of the first note that was not read yet.
    read: u64,
}

impl Board {
    /// Opens the board of this name, creating it if this process is the first.
    pub fn open(run_dir: &RunDir, name: u64) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).append(true).create(true).open(run_dir.board(name))?;
        Ok(Self { file, read: 0 })
    }

    /// Posts a note. Returns `false` without writing if the note is too long, or the board full.
    pub fn post(&mut self, head: [u64; 4], text: &[u8]) -> io::Result<bool> {
        if text.len() > MAX_NOTE_BYTES || self.file.metadata()?.len() > MAX_BOARD_BYTES {
            return Ok(false);
        }
        let mut note = Vec::with_capacity(HEAD_BYTES + text.len() + CHECKSUM_BYTES);
        let words = [MAGIC, text.len() as u64, head[0], head[1], head[2], head[3]];
        for word in words {
            note.extend_from_slice(&word.to_le_bytes());
        }
        note.extend_from_slice(text);
        note.extend_from_slice(&hash(&note).to_le_bytes());
        self.file.write_all(&note)?;
        Ok(true)
    }

    /// Returns the notes posted since the last call, in order, including this process's own.
    pub fn read_new(&mut self) -> io::Result<Vec<Note>> {
        let mut notes = Vec::new();
        loop {
            let length = self.file.metadata()?.len();
            let portion =
                usize::try_from(length.saturating_sub(self.read)).unwrap_or(READ_BYTES).min(READ_BYTES);
            let mut bytes = vec![0; portion];
            let mut filled = 0;
            while filled < portion {
                match self.file.read_at(&mut bytes[filled..], self.read + filled as u64)? {
                    0 => break,
                    more => filled += more,
                }
            }
            let consumed = parse_notes(&bytes[..filled], &mut notes);
            self.read += consumed as u64;
            // A portion without a single whole note is garbage from a killed writer.
            if consumed == 0 && filled == READ_BYTES {
                self.read += (READ_BYTES - MAX_NOTE_BYTES - HEAD_BYTES - CHECKSUM_BYTES) as u64;
            } else if consumed == 0 || filled < READ_BYTES {
                return Ok(notes);
            }
        }
    }
}

/// Reads the complete notes at the front of `bytes`; returns the number of bytes consumed, torn notes
/// included.
fn parse_notes(bytes: &[u8], notes: &mut Vec<Note>) -> usize {
    let mut taken = 0;
    let mut at = 0;
    while at + HEAD_BYTES + CHECKSUM_BYTES <= bytes.len() {
        match parse_note(&bytes[at..]) {
            Some((note, length)) => {
                notes.push(note);
                at += length;
                taken = at;
            }
            // Torn or incomplete. It is torn if a complete note follows, since notes are appended one after
            // the other.
            None => at += 1,
        }
    }
    taken
}

/// Reads the note at the start of `bytes`, with its length; `None` if it is incomplete.
fn parse_note(bytes: &[u8]) -> Option<(Note, usize)> {
    let word = |index: usize| Some(u64::from_le_bytes(*bytes.get(index * 8..)?.first_chunk()?));
    if word(0)? != MAGIC {
        return None;
    }
    let length = usize::try_from(word(1)?).ok().filter(|length| *length <= MAX_NOTE_BYTES)?;
    let text = bytes.get(HEAD_BYTES..HEAD_BYTES + length)?;
    let sum = u64::from_le_bytes(*bytes.get(HEAD_BYTES + length..)?.first_chunk()?);
    (sum == hash(&bytes[..HEAD_BYTES + length])).then_some(())?;
    let head = [word(2)?, word(3)?, word(4)?, word(5)?];
    Some((Note { head, text: text.to_vec() }, HEAD_BYTES + length + CHECKSUM_BYTES))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    struct Folder(RunDir);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("memfit-board-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&path).unwrap();
            Self(RunDir::new(path))
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(self.0.path());
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// With any interleaving of writers and torn notes, every reader gets all whole notes, in order.
        #[test]
        fn readers_get_complete_messages_in_order(
            steps in proptest::collection::vec((0..3usize, proptest::collection::vec(any::<u8>(), 0..200), any::<bool>()), 1..40),
        ) {
            let folder = Folder::new("whole");
            let _ = std::fs::remove_file(folder.0.board(7));
            let mut writers: Vec<Board> = (0..3).map(|_| Board::open(&folder.0, 7).unwrap()).collect();
            let mut reader = Board::open(&folder.0, 7).unwrap();
            let (mut wanted, mut seen) = (Vec::new(), Vec::new());
            for (index, (writer, text, torn)) in steps.into_iter().enumerate() {
                let head = [index as u64, writer as u64, 0, u64::MAX];
                if torn {
                    // A killed writer's note: its front, with a length that exceeds the rest.
                    let mut part = [MAGIC, 150, 1, 2].iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
                    part.extend_from_slice(&text[..text.len().min(40)]);
                    writers[writer].file.write_all(&part).unwrap();
                } else {
                    prop_assert!(writers[writer].post(head, &text).unwrap());
                    wanted.push(Note { head, text });
                }
                if index % 3 == 0 {
                    seen.extend(reader.read_new().unwrap());
                }
            }
            writers[0].post([9; 4], b"end").unwrap();
            wanted.push(Note { head: [9; 4], text: b"end".to_vec() });
            seen.extend(reader.read_new().unwrap());
            prop_assert_eq!(&seen, &wanted);
            prop_assert_eq!(writers[2].read_new().unwrap(), wanted, "from the start");
        }
    }

    #[test]
    fn long_notes_come_whole_and_too_long_ones_not_at_all() {
        let folder = Folder::new("long");
        let mut board = Board::open(&folder.0, 1).unwrap();
        let text = vec![7; MAX_NOTE_BYTES];
        for _ in 0..5 {
            assert!(board.post([1; 4], &text).unwrap());
        }
        assert!(!board.post([1; 4], &vec![7; MAX_NOTE_BYTES + 1]).unwrap());
        assert_eq!(board.read_new().unwrap().iter().filter(|note| note.text == text).count(), 5);
        assert!(board.read_new().unwrap().is_empty());
    }
}
