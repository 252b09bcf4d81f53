//! What a recording says of the card, the release and the settings that it was made with.

use memfit_allocator::{Given, Release, Settings};
use memfit_explain::{Card, card_of, refused_to_training, worker_in};
use memfit_recording::{Origin, Track, find_oom_texts};

/// Where neither the recording nor a message tells of the card's memory: more than any card has.
const UNTOLD: u64 = 256 << 30;

/// What a recording says of how it came about.
pub(crate) struct Facts {
    /// What a replay has to know.
    pub(crate) given: Given,
    /// The settings as a text.
    pub(crate) alloc_conf: String,
    /// What PyTorch's own message tells of the card: what was left on it, and who else was there.
    pub(crate) told: Card,
}

/// The facts of a track; `torch` is the release that was asked for.
pub(crate) fn of(origin: &Origin, track: &Track, torch: Option<Release>) -> Facts {
    let release = origin.torch.as_deref().and_then(|torch| torch.parse::<Release>().ok());
    let release = torch.or(release).unwrap_or_default();
    let traced = track.settings.as_ref().map(|settings| settings.text.clone());
    let alloc_conf = traced.or_else(|| origin.alloc_conf.clone()).unwrap_or_default();
    let settings = Settings::parse(&alloc_conf, release).unwrap_or_default();
    let given = Given { settings, release, capacity: origin.capacity.unwrap_or(UNTOLD) };
    let message = origin.oom.as_deref().unwrap_or_default();
    let texts = find_oom_texts(message.as_bytes()).unwrap_or_default();
    let mut told = texts.last().map(card_of).unwrap_or_default();
    let of_another = origin.oom_process.is_some_and(|process| process != track.pid);
    if let Some(refused) = &mut told.refused {
        refused.worker = worker_in(message);
    } else if of_another {
        told.refused = texts.last().and_then(refused_to_training);
    }
    Facts { given, alloc_conf, told }
}
