//! Conditions of a recording: GPU, PyTorch release and allocator settings.

use memfit_allocator::{Release, ReplayConditions, Settings};
use memfit_recording::{Origin, Track, find_oom_texts};

use crate::case::Card;
use crate::from_text::{card_from_text, training_refusal, worker_number};

/// Capacity assumed for an unknown GPU: more than any GPU has.
const UNKNOWN_CAPACITY: u64 = 256 << 30;

/// Conditions under which a track was recorded.
#[derive(Clone, Debug)]
pub struct Conditions {
    /// Conditions that a replay needs.
    pub given: ReplayConditions,
    /// Allocator settings as a text.
    pub alloc_conf: String,
    /// Facts about the GPU from PyTorch's own message: free memory and other processes.
    pub card: Card,
}

impl Conditions {
    /// Determines the conditions of a track; `torch` overrides the recorded release.
    pub fn from_track(origin: &Origin, track: &Track, torch: Option<Release>) -> Self {
        let release = origin.torch.as_deref().and_then(|torch| torch.parse::<Release>().ok());
        let release = torch.or(release).unwrap_or_default();
        let traced = track.settings.as_ref().map(|settings| settings.text.clone());
        let alloc_conf = traced.or_else(|| origin.alloc_conf.clone()).unwrap_or_default();
        let settings = Settings::parse(&alloc_conf, release).unwrap_or_default();
        let given =
            ReplayConditions { settings, release, capacity: origin.capacity.unwrap_or(UNKNOWN_CAPACITY) };
        let message = origin.oom.as_deref().unwrap_or_default();
        let texts = find_oom_texts(message.as_bytes()).unwrap_or_default();
        let mut card = texts.last().map(card_from_text).unwrap_or_default();
        let of_another = origin.oom_process.is_some_and(|process| process != track.pid);
        if let Some(refused) = &mut card.refused {
            refused.worker = worker_number(message);
        } else if of_another {
            card.refused = texts.last().and_then(training_refusal);
        }
        Self { given, alloc_conf, card }
    }
}
