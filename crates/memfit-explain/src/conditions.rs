//! The conditions under which a recording was made: the card, the release and the settings.

use memfit_allocator::{Given, Release, Settings};
use memfit_recording::{Origin, Track, find_oom_texts};

use crate::case::Card;
use crate::from_text::{card_of, refused_to_training, worker_in};

/// The assumed memory of a card that neither the recording nor a message describes: more than any card has.
const UNKNOWN_CAPACITY: u64 = 256 << 30;

/// The conditions under which a track was recorded.
#[derive(Clone, Debug)]
pub struct Conditions {
    /// The part that a replay has to know.
    pub given: Given,
    /// The allocator's settings as a text.
    pub alloc_conf: String,
    /// PyTorch's own message about the card: the memory that was left on it, and the other processes.
    pub card: Card,
}

impl Conditions {
    /// The conditions of a track; `torch` overrides the recorded release.
    pub fn of_track(origin: &Origin, track: &Track, torch: Option<Release>) -> Self {
        let release = origin.torch.as_deref().and_then(|torch| torch.parse::<Release>().ok());
        let release = torch.or(release).unwrap_or_default();
        let traced = track.settings.as_ref().map(|settings| settings.text.clone());
        let alloc_conf = traced.or_else(|| origin.alloc_conf.clone()).unwrap_or_default();
        let settings = Settings::parse(&alloc_conf, release).unwrap_or_default();
        let given = Given { settings, release, capacity: origin.capacity.unwrap_or(UNKNOWN_CAPACITY) };
        let message = origin.oom.as_deref().unwrap_or_default();
        let texts = find_oom_texts(message.as_bytes()).unwrap_or_default();
        let mut card = texts.last().map(card_of).unwrap_or_default();
        let of_another = origin.oom_process.is_some_and(|process| process != track.pid);
        if let Some(refused) = &mut card.refused {
            refused.worker = worker_in(message);
        } else if of_another {
            card.refused = texts.last().and_then(refused_to_training);
        }
        Self { given, alloc_conf, card }
    }
}
