//! What is given to be explained: a track, and what is known of the card that it was recorded on.

use memfit_allocator::Given;
use memfit_recording::Track;

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
}

/// Another process on the card.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OtherProcess {
    /// Its id.
    pub pid: u32,
    /// What its allocator held, where that is known.
    pub reserved: u64,
    /// What it held in all.
    pub bytes: u64,
}

impl Card {
    /// What other processes held.
    pub fn others_total(&self) -> u64 {
        self.others.iter().map(|other| other.bytes).sum()
    }
}
