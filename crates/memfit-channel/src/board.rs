//! Boards: files in the run directory on which the processes of a run leave small notes for one another.
//!
//! A board is written by appending whole notes, each in one call, so that writers need no lock among
//! themselves; and it is read by anyone, from the start. A writer that is killed can leave a torn note
//! behind, which readers pass over.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
    os::unix::fs::FileExt,
};

use crate::{RunDir, hash};

/// A longer note is refused.
pub const LONGEST_NOTE: usize = 1 << 20;
/// A board that has grown to this takes no more notes.
const LARGEST_BOARD: u64 = 256 << 20;

const MAGIC: u64 = u64::from_le_bytes(*b"memfitNT");
/// The magic, the length, the four words of the head.
const FRONT: usize = 48;
/// The checksum behind the text.
const BACK: usize = 8;
/// What is read of a board at a time; more than the longest note.
const PORTION: usize = 2 * LONGEST_NOTE;

/// What one process left for the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// What it is about, as writer and reader agree.
    pub head: [u64; 4],
    /// What it says.
    pub text: Vec<u8>,
}

/// One process's view of a board.
#[derive(Debug)]
pub struct Board {
    file: File,
    /// Where the first note begins that was not read yet.
    read: u64,
}

impl Board {
    /// Opens the board of this name, making it if this process is the first.
    pub fn open(run_dir: &RunDir, name: u64) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).append(true).create(true).open(run_dir.board(name))?;
        Ok(Self { file, read: 0 })
    }

    /// Leaves a note. False where it is too long, or the board full: nothing was written then.
    pub fn post(&mut self, head: [u64; 4], text: &[u8]) -> io::Result<bool> {
        if text.len() > LONGEST_NOTE || self.file.metadata()?.len() > LARGEST_BOARD {
            return Ok(false);
        }
        let mut note = Vec::with_capacity(FRONT + text.len() + BACK);
        let words = [MAGIC, text.len() as u64, head[0], head[1], head[2], head[3]];
        for word in words {
            note.extend_from_slice(&word.to_le_bytes());
        }
        note.extend_from_slice(text);
        note.extend_from_slice(&hash(&note).to_le_bytes());
        self.file.write_all(&note)?;
        Ok(true)
    }

    /// The notes that have come since the last call, in order, this process's own among them.
    pub fn news(&mut self) -> io::Result<Vec<Note>> {
        let mut notes = Vec::new();
        loop {
            let length = self.file.metadata()?.len();
            let portion = usize::try_from(length.saturating_sub(self.read)).unwrap_or(PORTION).min(PORTION);
            let mut bytes = vec![0; portion];
            let mut filled = 0;
            while filled < portion {
                match self.file.read_at(&mut bytes[filled..], self.read + filled as u64)? {
                    0 => break,
                    more => filled += more,
                }
            }
            let consumed = take(&bytes[..filled], &mut notes);
            self.read += consumed as u64;
            // A whole portion without a single note in it is rubbish that a killed writer left.
            if consumed == 0 && filled == PORTION {
                self.read += (PORTION - LONGEST_NOTE - FRONT - BACK) as u64;
            } else if consumed == 0 || filled < PORTION {
                return Ok(notes);
            }
        }
    }
}

/// Takes the complete notes from the front of `bytes`; gives how many bytes they and what is torn before them
/// have.
fn take(bytes: &[u8], notes: &mut Vec<Note>) -> usize {
    let mut taken = 0;
    let mut at = 0;
    while at + FRONT + BACK <= bytes.len() {
        match note(&bytes[at..]) {
            Some((note, length)) => {
                notes.push(note);
                at += length;
                taken = at;
            }
            // Torn, or not complete yet: it is torn if a complete one follows, since writers go one after the
            // other.
            None => at += 1,
        }
    }
    taken
}

/// The note at the start of `bytes`, with its length, if it is all there.
fn note(bytes: &[u8]) -> Option<(Note, usize)> {
    let word = |index: usize| Some(u64::from_le_bytes(*bytes.get(index * 8..)?.first_chunk()?));
    if word(0)? != MAGIC {
        return None;
    }
    let length = usize::try_from(word(1)?).ok().filter(|length| *length <= LONGEST_NOTE)?;
    let text = bytes.get(FRONT..FRONT + length)?;
    let sum = u64::from_le_bytes(*bytes.get(FRONT + length..)?.first_chunk()?);
    (sum == hash(&bytes[..FRONT + length])).then_some(())?;
    let head = [word(2)?, word(3)?, word(4)?, word(5)?];
    Some((Note { head, text: text.to_vec() }, FRONT + length + BACK))
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

        /// Whatever several writers leave, with torn notes between, every reader gets all that is whole, in
        /// order.
        #[test]
        fn readers_get_what_is_whole_in_order(
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
                    // What a killed writer leaves: the front of a note, with a length that promises more.
                    let mut part = [MAGIC, 150, 1, 2].iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
                    part.extend_from_slice(&text[..text.len().min(40)]);
                    writers[writer].file.write_all(&part).unwrap();
                } else {
                    prop_assert!(writers[writer].post(head, &text).unwrap());
                    wanted.push(Note { head, text });
                }
                if index % 3 == 0 {
                    seen.extend(reader.news().unwrap());
                }
            }
            writers[0].post([9; 4], b"end").unwrap();
            wanted.push(Note { head: [9; 4], text: b"end".to_vec() });
            seen.extend(reader.news().unwrap());
            prop_assert_eq!(&seen, &wanted);
            prop_assert_eq!(writers[2].news().unwrap(), wanted, "from the start");
        }
    }

    #[test]
    fn long_notes_come_whole_and_too_long_ones_not_at_all() {
        let folder = Folder::new("long");
        let mut board = Board::open(&folder.0, 1).unwrap();
        let text = vec![7; LONGEST_NOTE];
        for _ in 0..5 {
            assert!(board.post([1; 4], &text).unwrap());
        }
        assert!(!board.post([1; 4], &vec![7; LONGEST_NOTE + 1]).unwrap());
        assert_eq!(board.news().unwrap().iter().filter(|note| note.text == text).count(), 5);
        assert!(board.news().unwrap().is_empty());
    }
}
