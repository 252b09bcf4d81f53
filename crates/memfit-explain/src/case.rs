//! What is given to be explained: a track, and what is known of the card that it was recorded on.

use memfit_allocator::Given;
use memfit_recording::Track;

use crate::explanation::Line;

/// What is given to be explained.
pub struct Case<'given> {
    /// What happened.
    pub track: &'given Track,
    /// The device that it is about.
    pub device: u8,
    /// What is known of the card.
    pub card: Card,
    /// The allocator's settings, and the release that it is of.
    pub given: Given,
    /// The settings as a text, where they were recorded.
    pub alloc_conf: String,
    /// The text of a source file, where it is at hand.
    pub source: &'given dyn Fn(&str) -> Option<String>,
}

/// What is known of a card.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Card {
    /// Its name.
    pub name: Option<String>,
    /// Its memory, as PyTorch sees it.
    pub capacity: Option<u64>,
    /// What the allocator could get of it when memory ran out: what it held, and what was left.
    pub limit: Option<u64>,
    /// The process's own CUDA context and libraries.
    pub own_outside: Option<u64>,
    /// What other processes held, where that is known.
    pub others: Vec<OtherProcess>,
    /// What the card had no room for, where it was not a request of PyTorch's allocator.
    pub refused: Option<Refused>,
}

/// A CUDA context, or what else CUDA itself needs beside any tensor, that the card had no room for in a
/// process that is not the one whose memory is looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refused {
    /// Whether it was the process that trains, and another's memory is looked at; else it was a worker of
    /// its loader.
    pub trains: bool,
    /// The number of the loader's worker, where it is told.
    pub worker: Option<u32>,
    /// The user's lines that touched the card there, innermost first.
    pub lines: Vec<Line>,
}

impl Refused {
    /// Who it was, for a sentence.
    pub(crate) fn who(&self) -> String {
        match self.worker {
            _ if self.trains => "the process that trains".to_owned(),
            Some(number) => format!("DataLoader worker process {number}"),
            None => "a loader worker".to_owned(),
        }
    }
}

/// What another process on the card has to do with the training.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kin {
    /// Nothing that anybody knows of.
    #[default]
    Stranger,
    /// It belongs to the same script.
    OfScript,
    /// It is a worker of the script's loader.
    LoaderWorker,
}

/// Another process on the card.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OtherProcess {
    /// Its id.
    pub pid: u32,
    /// What it is to the training.
    pub kin: Kin,
    /// Where it got the largest block that it holds, innermost first, as far as that was recorded.
    pub lines: Vec<Line>,
    /// What its allocator held, where that is known.
    pub reserved: u64,
    /// What it held in all.
    pub bytes: u64,
}

impl OtherProcess {
    /// Which it is, for a sentence.
    pub(crate) fn who(&self) -> String {
        let kin = match self.kin {
            Kin::Stranger => "",
            Kin::OfScript => " of the same script",
            Kin::LoaderWorker => ", a worker of the script's own loader,",
        };
        format!("process {}{kin}", self.pid)
    }
}

impl Card {
    /// What other processes held.
    pub fn others_total(&self) -> u64 {
        self.others.iter().map(|other| other.bytes).sum()
    }
}
