//! Device memory of a communicator, outside PyTorch's allocator.
//!
//! Since 2.22, NCCL connects ranks when an algorithm is first used: rings for gather and scatter, trees (and
//! multicast) for all-reduce, a link for each point-to-point peer. Each connection has a buffer for each of
//! NCCL's three protocols (`src/include/device.h`, `src/transport/*.cc` of NCCL) on each channel: low-latency
//! lines of 512 KiB, low-latency lines of 128 bytes of 4.69 MiB, and `NCCL_BUFFSIZE`, 4 MiB unless the
//! environment says otherwise. The catalogue's interval was observed on communicators after their first
//! all-reduce; this file divides it among their uses.

use std::sync::{Mutex, PoisonError};

use memfit_devices::{Bytes, Interval};

use super::communicator::RankPosition;
use memfit_cuda::card;

/// Low-latency buffers of one connection, in bytes: 8 lines × 512 threads × 8 steps × 16 bytes, and 120
/// elements × 640 threads × 8 steps × 8 bytes.
const LOW_LATENCY_BYTES: u64 = (8 * 512 * 8 * 16) + (120 * 640 * 8 * 8);
/// Default of `NCCL_BUFFSIZE`.
const DEFAULT_BUFFSIZE: u64 = 4 << 20;
/// Channels of a communicator over NVLink and over PCI Express that the catalogue's typical figures assume.
const DEFAULT_CHANNELS: (u64, u64) = (24, 4);

/// Use that a communicator connects ranks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Use {
    /// Gather, scatter, broadcast: rings.
    Ring,
    /// All-reduce: trees as well.
    Tree,
    /// Point to point with a rank.
    Peer(i32),
}

impl Use {
    /// Share of the catalogue's interval, in hundredths. A ring has one receive buffer per channel, a chain
    /// of a tree has two more; point to point, NCCL uses as many channels to each peer as a device's links
    /// can feed.
    fn share(self) -> u64 {
        match self {
            Self::Ring => 40,
            Self::Tree => 50,
            Self::Peer(_) => 33,
        }
    }
}

/// Share that is taken at creation, in hundredths.
const START_SHARE: u64 = 10;

/// Memory that a communicator has reserved.
pub(super) struct Buffers {
    position: RankPosition,
    /// Total after a first all-reduce.
    whole: Interval,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    uses: Vec<Use>,
    booked: Vec<Interval>,
}

impl Buffers {
    /// Reserves the memory taken at creation; `None` if there is no such device or not enough memory on it.
    pub(super) fn new(position: RankPosition) -> Option<Self> {
        let seen = card::communicator_overhead(position.card)?;
        let variable = |name: &str| std::env::var(name).ok().and_then(|text| parse_size(&text));
        let whole = scaled(seen, card::has_peer_link(position.card), variable);
        let buffers = Self { position, whole, state: Mutex::default() };
        buffers.book(START_SHARE).then_some(buffers)
    }

    /// Connects for a use, the first time. Returns `false` if there is not enough memory.
    pub(super) fn connect(&self, wanted: Use) -> bool {
        if self.position.size < 2 {
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
        let booked = card::book_communication(self.position.card, size);
        if booked {
            self.state().booked.push(size);
        }
        booked
    }

    /// Bytes reserved now, by the typical estimate.
    pub(super) fn size(&self) -> u64 {
        self.state().booked.iter().map(|size| size.typical.get()).sum()
    }

    /// Releases everything.
    pub(super) fn give_back(&self) {
        for size in std::mem::take(&mut *self.state()).booked {
            card::unbook_communication(self.position.card, size);
        }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Scales the observation, made with NCCL's defaults, to the settings in the environment.
fn scaled(seen: Interval, peer_link: bool, variable: impl Fn(&str) -> Option<u64>) -> Interval {
    let usual = if peer_link { DEFAULT_CHANNELS.0 } else { DEFAULT_CHANNELS.1 };
    let least = variable("NCCL_MIN_NCHANNELS").or_else(|| variable("NCCL_MIN_CTAS")).unwrap_or(0).min(64);
    let most = variable("NCCL_MAX_NCHANNELS").or_else(|| variable("NCCL_MAX_CTAS")).unwrap_or(64);
    let channels = usual.min(most.max(1)).max(least);
    let buffer = LOW_LATENCY_BYTES + variable("NCCL_BUFFSIZE").unwrap_or(DEFAULT_BUFFSIZE);
    seen.map(|bytes| {
        let wide = u128::from(bytes.get()) * u128::from(buffer) * u128::from(channels);
        u64::try_from(wide / u128::from(LOW_LATENCY_BYTES + DEFAULT_BUFFSIZE) / u128::from(usual))
            .map_or(bytes, Bytes::new)
    })
}

/// Parses a number as NCCL reads it from the environment.
fn parse_size(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn environment_settings_scale_the_measured_buffers() {
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
        let doubled = with(&[("NCCL_BUFFSIZE", 2 * DEFAULT_BUFFSIZE)], true);
        assert!((typical..typical * 2).contains(&doubled.typical));
        assert!(
            with(&[("NCCL_BUFFSIZE", u64::MAX >> 4), ("NCCL_MIN_NCHANNELS", u64::MAX)], true).high
                > Bytes::ZERO
        );
    }
}
