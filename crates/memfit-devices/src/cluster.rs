//! The links of a device to others: its own, or those that the user named.

use crate::device::{Device, HostLinkKind};
use crate::link::{Cluster, Link, LinkError, LinkPlace, LinkSpeed, find_link};

/// Number of GPUs of a machine if nothing else is known.
const USUAL_MACHINE: u32 = 8;
/// Network between machines if the user names none.
const USUAL_NETWORK: &str = "ib-400";

impl Device {
    /// Returns the device with the links that the user named, in machines of `per_machine` GPUs.
    pub fn linked(mut self, names: &[String], per_machine: u32, machines: u32) -> Result<Self, LinkError> {
        let (mut within, mut between): (Option<&Link>, Option<&Link>) = (None, None);
        for name in names {
            let link = find_link(name)?;
            let place = match link.place {
                LinkPlace::Machine => &mut within,
                LinkPlace::Network => &mut between,
            };
            if let Some(first) = place.replace(link) {
                return Err(LinkError::Twice { first: first.name.clone(), second: link.name.clone() });
            }
        }
        if let Some(link) = between.filter(|_| machines < 2) {
            return Err(LinkError::OneMachine { name: link.name.clone() });
        }
        match within.map(|link| link.name.as_str()) {
            Some("nvlink") if self.peer_link.is_none() => {
                return Err(LinkError::NoNvlink { device: self.name });
            }
            Some("pcie") => {
                self.peer_link = None;
                // The measured rate was that of the GPU's own link.
                self.achieved.measured.peers = None;
            }
            _ => {}
        }
        let mut cluster = self.cluster_of(per_machine);
        if let Some(link) = between {
            cluster.between = link.network_share(per_machine);
        }
        self.cluster = Some(cluster);
        Ok(self)
    }

    /// Connections of the device: as set by [`Device::linked`], otherwise those of a typical machine.
    pub fn connections(&self) -> Cluster {
        self.cluster.unwrap_or_else(|| self.cluster_of(USUAL_MACHINE))
    }

    fn cluster_of(&self, per_machine: u32) -> Cluster {
        let achieved = &self.achieved;
        let (name, rate) = if let Some(link) = self.peer_link {
            ("nvlink", link.bandwidth as f64 * achieved.peer_link.factor())
        } else {
            let share = match self.host_link.kind {
                HostLinkKind::Pcie { .. } => find_link("pcie").map_or(1.0, |link| link.achieved.factor()),
                HostLinkKind::NvlinkC2c | HostLinkKind::Shared => achieved.host_link.factor(),
            };
            ("pcie", self.host_link.bandwidth as f64 * share)
        };
        let speed = |name: &str, bandwidth: f64| {
            let (hop_ns, tree_ns) =
                find_link(name).map_or(([0; 3], [0; 2]), |link| (link.hop_ns, link.tree_ns));
            LinkSpeed { bandwidth: bandwidth as u64, hop_ns, tree_ns }
        };
        let rate = achieved.measured.peers.map_or(rate, |measured| measured as f64);
        let between = find_link(USUAL_NETWORK).map(|link| link.network_share(per_machine));
        Cluster {
            per_machine: per_machine.max(1),
            within: speed(name, rate),
            between: between.unwrap_or_else(|_| speed(name, rate)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Catalogue;
    use crate::link::links;

    fn device(name: &str) -> Device {
        Catalogue::builtin().unwrap().find(name).unwrap().clone()
    }

    fn linked(name: &str, links: &[&str], machines: u32) -> Result<Cluster, LinkError> {
        let links: Vec<String> = links.iter().map(|&link| link.to_owned()).collect();
        device(name).linked(&links, 8, machines).map(|device| device.connections())
    }

    #[test]
    fn every_link_has_figures_and_a_source() {
        assert!(links().len() >= 8, "the data file is read");
        for link in links() {
            assert!(!link.source.is_empty(), "{}", link.name);
            assert!(link.hop_ns.is_sorted() && link.hop_ns[0] > 0, "{}", link.name);
            assert_eq!(link.gbps.is_none(), link.place == LinkPlace::Machine, "{}", link.name);
        }
    }

    #[test]
    fn links_replace_those_of_the_gpu() {
        let own = linked("h100-sxm", &[], 1).unwrap();
        let pcie = linked("h100-sxm", &["pcie"], 1).unwrap();
        assert!(own.within.bandwidth > 7 * pcie.within.bandwidth);
        assert!(own.within.hop_ns[2] < pcie.within.hop_ns[2]);
        let slow = linked("h100-sxm", &["ethernet-25"], 2).unwrap();
        let fast = linked("h100-sxm", &["ib-400"], 2).unwrap();
        assert_eq!(slow.within, fast.within);
        // Eight GPUs share the slow adapter, and each has a fast one.
        assert!(fast.between.bandwidth > 100 * slow.between.bandwidth);
    }

    #[test]
    fn wrong_links_are_told_apart() {
        assert!(matches!(linked("h100-sxm", &["token-ring"], 1), Err(LinkError::Unknown { .. })));
        assert!(matches!(linked("l4", &["nvlink"], 1), Err(LinkError::NoNvlink { .. })));
        assert!(matches!(linked("h100-sxm", &["nvlink", "pcie"], 1), Err(LinkError::Twice { .. })));
        assert!(matches!(linked("h100-sxm", &["ib-400"], 1), Err(LinkError::OneMachine { .. })));
        let hint = linked("h100-sxm", &["token-ring"], 1).unwrap_err().hint();
        assert!(hint.contains("ethernet-100"), "{hint}");
    }
}
