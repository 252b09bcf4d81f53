//! What a communicator takes of its card, outside PyTorch's allocator.
//!
//! Since 2.22 NCCL connects ranks when an algorithm is first used: rings for gathering and scattering, trees
//! (and multicast) for reducing to all, a link for each peer that is sent to. Each connection has a buffer
//! for each of NCCL's three protocols (`src/include/device.h`, `src/transport/*.cc` of NCCL): low-latency
//! lines of 512 KiB, low-latency lines of 128 bytes of 4.69 MiB, and `NCCL_BUFFSIZE`, 4 MiB unless the
//! environment says otherwise; and that on each channel. The catalogue's interval is what was seen of a
//! communicator after its first reduction to all; this file says which part of it comes when.

use std::sync::{Mutex, PoisonError};

use memfit_devices::{Bytes, Interval};

use super::communicator::Place;
use memfit_cuda::card;

/// Low-latency buffers of one connection: 8 lines × 512 threads × 8 steps × 16 bytes, and 120 elements × 640
/// threads × 8 steps × 8 bytes.
const LOW_LATENCY: u64 = (8 * 512 * 8 * 16) + (120 * 640 * 8 * 8);
/// `NCCL_BUFFSIZE` unless it is set.
const SIMPLE: u64 = 4 << 20;
/// Channels of a communicator over NVLink and over PCI Express, as the catalogue's typical figures stand for.
const CHANNELS: (u64, u64) = (24, 4);

/// What is connected for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Use {
    /// Gathering, scattering, broadcasting: rings.
    Ring,
    /// Reducing to all: trees as well.
    Tree,
    /// Sending to a rank, and receiving from it.
    Peer(i32),
}

impl Use {
    /// The part of the catalogue's interval that it takes, in hundredths. A ring has one buffer to receive
    /// into on each channel, a chain of a tree has two more; for sending, NCCL has as many channels to
    /// each peer as a card's links can feed.
    fn share(self) -> u64 {
        match self {
            Self::Ring => 40,
            Self::Tree => 50,
            Self::Peer(_) => 33,
        }
    }
}

/// What it takes from the start, in hundredths.
const START: u64 = 10;

/// What a communicator has booked.
pub(super) struct Buffers {
    place: Place,
    /// The whole of it after a first reduction to all.
    whole: Interval,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    uses: Vec<Use>,
    booked: Vec<Interval>,
}

impl Buffers {
    /// Books what a communicator takes from the start; nothing where there is no such card, or no room on it.
    pub(super) fn new(place: Place) -> Option<Self> {
        let seen = card::communicator_overhead(place.card)?;
        let variable = |name: &str| std::env::var(name).ok().and_then(|text| parse_size(&text));
        let whole = scaled(seen, card::has_peer_link(place.card), variable);
        let buffers = Self { place, whole, state: Mutex::default() };
        buffers.book(START).then_some(buffers)
    }

    /// Connects for a use, the first time. False where there is no room.
    pub(super) fn connect(&self, wanted: Use) -> bool {
        if self.place.size < 2 {
            return true;
        }
        {
            let mut state = self.state();
            if state.uses.contains(&wanted) {
                return true;
            }
            state.uses.push(wanted);
        }
        self.book(wanted.share())
    }

    fn book(&self, hundredths: u64) -> bool {
        let size = self.whole.map(|bytes| Bytes::new(bytes.get() / 100 * hundredths));
        let booked = card::book_communication(self.place.card, size);
        if booked {
            self.state().booked.push(size);
        }
        booked
    }

    /// What is booked now, by the best single guess.
    pub(super) fn size(&self) -> u64 {
        self.state().booked.iter().map(|size| size.typical.get()).sum()
    }

    /// Gives everything back.
    pub(super) fn give_back(&self) {
        for size in std::mem::take(&mut *self.state()).booked {
            card::unbook_communication(self.place.card, size);
        }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What was seen with NCCL's defaults, as it is with what the environment sets.
fn scaled(seen: Interval, peer_link: bool, variable: impl Fn(&str) -> Option<u64>) -> Interval {
    let usual = if peer_link { CHANNELS.0 } else { CHANNELS.1 };
    let least = variable("NCCL_MIN_NCHANNELS").or_else(|| variable("NCCL_MIN_CTAS")).unwrap_or(0).min(64);
    let most = variable("NCCL_MAX_NCHANNELS").or_else(|| variable("NCCL_MAX_CTAS")).unwrap_or(64);
    let channels = usual.min(most.max(1)).max(least);
    let buffer = LOW_LATENCY + variable("NCCL_BUFFSIZE").unwrap_or(SIMPLE);
    seen.map(|bytes| {
        let wide = u128::from(bytes.get()) * u128::from(buffer) * u128::from(channels);
        u64::try_from(wide / u128::from(LOW_LATENCY + SIMPLE) / u128::from(usual)).map_or(bytes, Bytes::new)
    })
}

/// A number as NCCL reads it from the environment.
fn parse_size(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_environment_sets_scales_what_was_seen() {
        let (low, typical) = (Bytes::from_mib(100), Bytes::from_mib(600));
        let seen = Interval { low, typical, high: Bytes::from_mib(1200) };
        let with = |settings: &[(&str, u64)], peer_link| {
            let find =
                |name: &str| settings.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
            scaled(seen, peer_link, find)
        };
        assert_eq!(with(&[], true), seen);
        assert_eq!(with(&[], false), seen);
        assert_eq!(
            with(&[("NCCL_MAX_NCHANNELS", 6)], true).typical,
            Bytes::from_mib(150),
            "a quarter of the channels"
        );
        assert_eq!(with(&[("NCCL_MAX_NCHANNELS", 6)], false), seen, "fewer than that are used anyway");
        assert_eq!(with(&[("NCCL_MIN_NCHANNELS", 8)], false).typical, Bytes::from_mib(1200));
        let doubled = with(&[("NCCL_BUFFSIZE", 2 * SIMPLE)], true);
        assert!((typical..typical * 2).contains(&doubled.typical));
        assert!(
            with(&[("NCCL_BUFFSIZE", u64::MAX >> 4), ("NCCL_MIN_NCHANNELS", u64::MAX)], true).high
                > Bytes::ZERO
        );
    }
}
