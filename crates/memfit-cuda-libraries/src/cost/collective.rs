//! Collective operations, as rings over the links between devices.

use memfit_channel::WorkKind;

use memfit_kernels::cost::{Speeds, Work};

/// Kind of communication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Collective {
    AllReduce,
    AllGather,
    ReduceScatter,
    AllToAll,
    Broadcast,
    Reduce,
    /// Point to point: one rank to another.
    Send,
}

/// Devices per machine; more ranks than these communicate over a network.
const DEVICES_PER_MACHINE: f64 = 8.0;
/// Network bandwidth of one device, in bytes per nanosecond: 400 Gbit/s at 85 % efficiency.
const NETWORK_BANDWIDTH: f64 = 42.0;
/// Nanoseconds from the launch of a collective to its first byte; of a hop within a machine; of a hop between
/// machines.
const START_NANOSECONDS: f64 = 12_000.0;
const HOP_NANOSECONDS: f64 = 1_500.0;
const FAR_HOP_NANOSECONDS: f64 = 6_000.0;

/// Duration of a collective over `ranks` devices. `bytes` is the size of the whole buffer: the one each rank
/// reduces, gathers in total, or scatters in total.
pub(crate) fn work(what: Collective, bytes: u64, ranks: u32, speeds: &Speeds) -> Work {
    let (bytes, ranks) = (bytes as f64, f64::from(ranks.max(1)));
    if ranks < 2.0 {
        // A single rank copies at most.
        return Work::new(WorkKind::Memory, speeds.launch + speeds.traffic(2.0 * bytes, 0.9));
    }
    let far = ranks > DEVICES_PER_MACHINE;
    let bandwidth = if far { speeds.peers.min(NETWORK_BANDWIDTH) } else { speeds.peers };
    let hop = if far { FAR_HOP_NANOSECONDS } else { HOP_NANOSECONDS };
    let others = ranks - 1.0;
    // Bytes that pass over each device's link, and the number of hops.
    let (moved, hops) = match what {
        Collective::AllReduce => (2.0 * bytes * others / ranks, 2.0 * others),
        Collective::AllGather | Collective::ReduceScatter => (bytes * others / ranks, others),
        Collective::AllToAll => (bytes * others / ranks, 1.0),
        Collective::Broadcast | Collective::Reduce => (bytes, others),
        Collective::Send => (bytes, 1.0),
    };
    // Small messages are sent over a tree.
    let hops = hops.min(4.0 * ranks.log2().ceil());
    Work::new(WorkKind::Communication, START_NANOSECONDS + hops * hop + moved / bandwidth)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::card_speeds;

    #[test]
    fn bus_bandwidth_is_what_nccl_tests_show() {
        let bytes = 1_u64 << 30;
        for (card, at_least, at_most) in
            [("a100-80gb", 210.0, 245.0), ("h100", 320.0, 370.0), ("rtx-4090", 15.0, 25.0)]
        {
            let speeds = card_speeds(card);
            for (what, factor) in [(Collective::AllReduce, 1.75), (Collective::AllGather, 0.875)] {
                let time = work(what, bytes, 8, &speeds).length as f64;
                let bus = factor * bytes as f64 / time;
                assert!((at_least..at_most).contains(&bus), "{card}: {what:?} at {bus} GB/s");
            }
        }
    }

    #[test]
    fn more_ranks_and_small_messages_are_bound_by_their_hops() {
        let speeds = card_speeds("h100");
        let of = |bytes, ranks| work(Collective::AllReduce, bytes, ranks, &speeds).length;
        assert!((10_000..60_000).contains(&of(1024, 8)), "{}", of(1024, 8));
        assert!(of(1 << 30, 16) > 3 * of(1 << 30, 8), "a network is slower than NVLink");
        assert!(of(1024, 1024) < 1_000_000, "over a tree");
        assert!(of(1024, 1) < 10_000);
    }
}
