//! Collective operations, as rings over the links between cards.

use memfit_channel::WorkKind;

use memfit_kernels::cost::{Speeds, Work};

/// What the ranks do together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Collective {
    AllReduce,
    AllGather,
    ReduceScatter,
    AllToAll,
    Broadcast,
    Reduce,
    /// One rank to one other.
    Send,
}

/// Cards of one machine; more ranks than these talk over a network.
const MACHINE: f64 = 8.0;
/// Bytes a nanosecond of one card over the network: 400 Gbit/s, of which 85 % arrive.
const NETWORK: f64 = 42.0;
/// Nanoseconds from the launch of a collective to its first byte, and of each hop within a machine and
/// without.
const START: f64 = 12_000.0;
const HOP: f64 = 1_500.0;
const FAR_HOP: f64 = 6_000.0;

/// How long `ranks` cards take for it. `bytes` are those of the whole buffer: what each rank reduces, gathers
/// in all, or scatters in all.
pub(crate) fn work(what: Collective, bytes: u64, ranks: u32, speeds: &Speeds) -> Work {
    let (bytes, ranks) = (bytes as f64, f64::from(ranks.max(1)));
    if ranks < 2.0 {
        // With itself, a rank copies at the most.
        return Work::new(WorkKind::Memory, speeds.launch + speeds.traffic(2.0 * bytes, 0.9));
    }
    let far = ranks > MACHINE;
    let bandwidth = if far { speeds.peers.min(NETWORK) } else { speeds.peers };
    let hop = if far { FAR_HOP } else { HOP };
    let others = ranks - 1.0;
    // What passes over each card's link, and in how many hops.
    let (moved, hops) = match what {
        Collective::AllReduce => (2.0 * bytes * others / ranks, 2.0 * others),
        Collective::AllGather | Collective::ReduceScatter => (bytes * others / ranks, others),
        Collective::AllToAll => (bytes * others / ranks, 1.0),
        Collective::Broadcast | Collective::Reduce => (bytes, others),
        Collective::Send => (bytes, 1.0),
    };
    // Small messages go over a tree.
    let hops = hops.min(4.0 * ranks.log2().ceil());
    Work::new(WorkKind::Communication, START + hops * hop + moved / bandwidth)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::of_card;

    #[test]
    fn bus_bandwidth_is_what_nccl_tests_show() {
        let bytes = 1_u64 << 30;
        for (card, at_least, at_most) in
            [("a100-80gb", 210.0, 245.0), ("h100", 320.0, 370.0), ("rtx-4090", 15.0, 25.0)]
        {
            let speeds = of_card(card);
            for (what, factor) in [(Collective::AllReduce, 1.75), (Collective::AllGather, 0.875)] {
                let time = work(what, bytes, 8, &speeds).length as f64;
                let bus = factor * bytes as f64 / time;
                assert!((at_least..at_most).contains(&bus), "{card}: {what:?} at {bus} GB/s");
            }
        }
    }

    #[test]
    fn more_ranks_and_small_messages_are_bound_by_their_hops() {
        let speeds = of_card("h100");
        let of = |bytes, ranks| work(Collective::AllReduce, bytes, ranks, &speeds).length;
        assert!((10_000..60_000).contains(&of(1024, 8)), "{}", of(1024, 8));
        assert!(of(1 << 30, 16) > 3 * of(1 << 30, 8), "a network is slower than NVLink");
        assert!(of(1024, 1024) < 1_000_000, "over a tree");
        assert!(of(1024, 1) < 10_000);
    }
}
