//! Duration of collective operations, by NCCL's own model of its algorithms and protocols.
//!
//! NCCL estimates each combination of algorithm and protocol from a latency (a base, and a time per step for
//! the kind of link) and a bandwidth, and runs the fastest (`src/graph/tuning.cc`). The figures of links come
//! from the catalogue of devices.

use memfit_channel::WorkKind;

use super::speeds::Network;
use super::{Speeds, Work, shares};

/// Kind of communication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collective {
    /// Sums, all of which every rank receives.
    AllReduce,
    /// The parts of all ranks, for each.
    AllGather,
    /// Sums, of which every rank receives a part.
    ReduceScatter,
    /// A part from each rank to each other.
    AllToAll,
    /// One rank's buffer, for all.
    Broadcast,
    /// Sums, for one rank.
    Reduce,
    /// Point to point: one rank to another.
    Send,
}

/// Members of a communicator, and their locations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// Number of ranks.
    pub ranks: u32,
    /// Ranks on each machine; `None` if they fill one machine after the other.
    pub per_machine: Option<u32>,
}

impl Group {
    /// Ranks on each machine, and the number of machines.
    fn machines(self, network: &Network) -> (f64, f64) {
        let together = self.per_machine.unwrap_or(network.per_machine).clamp(1, self.ranks.max(1));
        (f64::from(together), f64::from(self.ranks.div_ceil(together)))
    }
}

/// NCCL's protocols: LL, LL128 and Simple.
struct Protocol {
    /// Nanoseconds until a ring's first step, and a tree's; `None` if trees are not modelled with it.
    base: f64,
    tree_base: Option<f64>,
    /// Share of the bandwidth.
    share: f64,
    /// Index of its steps in the catalogue.
    step: usize,
}

/// Source: `baseLat` and the factors of `busBw` in NCCL's src/graph/tuning.cc.
const PROTOCOLS: [Protocol; 3] = [
    Protocol { base: 3_600.0, tree_base: Some(4_400.0), share: 0.25, step: 0 },
    Protocol { base: 10_000.0, tree_base: Some(4_400.0), share: 0.92, step: 1 },
    Protocol { base: 8_400.0, tree_base: None, share: 1.0, step: 2 },
];
/// Share of a ring's bandwidth that a tree reaches.
/// Source: the factor of `busBw` for trees in NCCL's src/graph/tuning.cc.
const TREE_SHARE: f64 = 0.9;

/// Duration of a collective over a group. `bytes` is the size of the whole buffer: the one each rank
/// reduces, gathers in total, or scatters in total.
pub fn work(what: Collective, bytes: u64, group: Group, speeds: &Speeds) -> Work {
    let (bytes, ranks) = (bytes as f64, f64::from(group.ranks.max(1)));
    if ranks < 2.0 {
        // A single rank only copies.
        return Work::new(WorkKind::Memory, speeds.launch + speeds.traffic(2.0 * bytes, shares::ELEMENTWISE));
    }
    let network = &speeds.network;
    let (together, machines) = group.machines(network);
    // A ring enters and leaves a machine through the adapters of all members there.
    let bandwidth =
        if machines > 1.0 { speeds.peers.min(together * network.bandwidth) } else { speeds.peers };
    let others = ranks - 1.0;
    // Bytes that pass over each device's link, and the steps of a ring, some of which cross machines.
    let (moved, rounds) = match what {
        Collective::AllReduce => (2.0 * bytes * others / ranks, 2.0),
        Collective::AllGather | Collective::ReduceScatter => (bytes * others / ranks, 1.0),
        Collective::AllToAll => (bytes * others / ranks, 1.0 / others),
        Collective::Broadcast | Collective::Reduce => (bytes, 1.0),
        Collective::Send => (bytes, 1.0 / others),
    };
    let far = rounds * (machines - 1.0);
    let near = rounds * others - far;
    let ring = |protocol: &Protocol| {
        let steps = near * network.within.hop[protocol.step] + far * network.between.hop[protocol.step];
        protocol.base + steps + moved / (bandwidth * protocol.share)
    };
    let tree = |protocol: &Protocol| {
        let base = protocol.tree_base.filter(|_| what == Collective::AllReduce)?;
        let near = (together - 1.0) * network.within.tree[protocol.step];
        let far = machines.log2() * network.between.tree[protocol.step];
        Some(base + 2.0 * (near + far) + 2.0 * bytes / (bandwidth * protocol.share * TREE_SHARE))
    };
    let fastest = PROTOCOLS
        .iter()
        .flat_map(|protocol| std::iter::once(ring(protocol)).chain(tree(protocol)))
        .fold(f64::INFINITY, f64::min);
    Work::new(WorkKind::Communication, speeds.launch + fastest)
}

#[cfg(test)]
mod tests {
    use memfit_devices::Catalogue;

    use super::*;
    use crate::cost::speeds::card_speeds;

    const fn together(ranks: u32) -> Group {
        Group { ranks, per_machine: None }
    }

    fn linked(card: &str, links: &[&str], machines: u32) -> Speeds {
        let links: Vec<String> = links.iter().map(|&link| link.to_owned()).collect();
        let device = Catalogue::builtin().unwrap().find(card).unwrap().clone();
        Speeds::from_device(&device.linked(&links, 8, machines).unwrap())
    }

    #[test]
    fn bus_bandwidth_is_what_nccl_tests_show() {
        // Published runs of nccl-tests with large buffers; between machines, 24 GB/s for each 200 Gbit/s
        // adapter (github.com/NVIDIA/nccl-tests/issues/119).
        let bytes = 1_u64 << 32;
        for (card, links, machines, at_least, at_most) in [
            ("a100-80gb", &[][..], 1, 210.0, 245.0),
            ("h100-sxm", &[], 1, 320.0, 370.0),
            ("h100-sxm", &["pcie"], 1, 35.0, 45.0),
            ("rtx-4090", &[], 1, 15.0, 25.0),
            ("a100-80gb", &["ib-200"], 2, 180.0, 200.0),
            ("h100-sxm", &["ib-400"], 2, 320.0, 370.0),
            ("h100-sxm", &["ethernet-100"], 2, 7.0, 12.0),
        ] {
            let speeds = linked(card, links, machines);
            let ranks = 8 * machines;
            let part = f64::from(ranks - 1) / f64::from(ranks);
            for (what, factor) in [
                (Collective::AllReduce, 2.0 * part),
                (Collective::AllGather, part),
                (Collective::ReduceScatter, part),
            ] {
                let time = work(what, bytes, together(ranks), &speeds).length as f64;
                let bus = factor * bytes as f64 / time;
                assert!((at_least..at_most).contains(&bus), "{card} {links:?}: {what:?} at {bus} GB/s");
            }
        }
    }

    #[test]
    fn small_messages_are_bound_by_their_steps() {
        let speeds = card_speeds("h100-sxm");
        let of = |what, bytes, group| work(what, bytes, group, &speeds).length;
        assert!((5_000..40_000).contains(&of(Collective::AllReduce, 1024, together(8))));
        // A tree for reductions; a ring for gathers, whose steps grow with the ranks.
        let reduced = of(Collective::AllReduce, 1024, together(1024));
        let gathered = of(Collective::AllGather, 1 << 20, together(1024));
        assert!(reduced < 200_000, "{reduced}");
        assert!(gathered > 3 * reduced, "{gathered}");
        assert!(of(Collective::AllReduce, 1024, together(1)) < 10_000);
        assert!(of(Collective::Send, 1024, together(8)) < of(Collective::AllGather, 1024, together(8)));
    }

    #[test]
    fn a_groups_place_decides_its_link() {
        let speeds = linked("h100-sxm", &["ib-400"], 4);
        let of = |group| work(Collective::AllReduce, 1 << 30, group, &speeds).length;
        let near = of(Group { ranks: 4, per_machine: Some(4) });
        let far = of(Group { ranks: 4, per_machine: Some(1) });
        // One adapter against NVLink.
        assert!(far > 6 * near, "{far} and {near}");
        assert_eq!(of(Group { ranks: 4, per_machine: None }), near);
    }

    #[test]
    fn more_bytes_never_take_less_time() {
        for card in ["rtx-4090", "h100-sxm"] {
            let speeds = card_speeds(card);
            for what in [Collective::AllReduce, Collective::AllGather, Collective::AllToAll] {
                for ranks in [2, 8, 64] {
                    let lengths: Vec<u64> = (6..34)
                        .map(|power| work(what, 1 << power, together(ranks), &speeds).length)
                        .collect();
                    assert!(lengths.is_sorted(), "{card} {what:?} {ranks}: {lengths:?}");
                }
            }
        }
    }
}
