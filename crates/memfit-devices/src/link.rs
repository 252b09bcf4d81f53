//! Links between GPUs: within a machine and between machines, with the speeds that collectives reach.

use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

use crate::device::{Device, HostLinkKind};
use crate::speed::Share;

const LINKS: &str = include_str!("../data/links.toml");
/// GPUs of a machine if nothing else is known.
const USUAL_MACHINE: u32 = 8;
/// Network between machines if the user names none.
const USUAL_NETWORK: &str = "ib-400";

/// Kind of link in the catalogue.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Name for `--link`.
    pub name: String,
    /// What it connects.
    pub place: LinkPlace,
    /// Owner of an adapter.
    pub per: LinkOwner,
    /// Gigabytes per second in one direction; `None` if the GPU's entry has it.
    pub gbps: Option<f64>,
    /// Shares of that in long collectives.
    pub achieved: Share,
    /// Nanoseconds of a ring's step with NCCL's protocols LL, LL128 and Simple.
    pub hop_ns: [u32; 3],
    /// Nanoseconds of a tree's step with LL and LL128.
    pub tree_ns: [u32; 2],
    /// Source of the figures.
    pub source: String,
}

/// What a link connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LinkPlace {
    /// GPUs of one machine.
    Machine,
    /// Machines.
    Network,
}

/// Owner of a link's adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LinkOwner {
    /// Each GPU has one.
    Gpu,
    /// The GPUs of a machine share one.
    Machine,
}

/// Reason why links cannot be used together, or with a GPU.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// No such link.
    #[error("no link is called `{name}`")]
    Unknown {
        /// Requested name.
        name: String,
    },
    /// The GPU lacks the link.
    #[error("the {device} has no NVLink to other GPUs")]
    NoNvlink {
        /// GPU.
        device: String,
    },
    /// Two links for the same purpose.
    #[error("`{first}` and `{second}` connect the same GPUs")]
    Twice {
        /// One.
        first: String,
        /// The other.
        second: String,
    },
    /// A network without a second machine.
    #[error("`{name}` connects machines, and there is one")]
    OneMachine {
        /// The network.
        name: String,
    },
}

impl LinkError {
    /// Advice for the user.
    pub fn hint(&self) -> String {
        match self {
            Self::Unknown { .. } => {
                let names: Vec<&str> = links().iter().map(|link| link.name.as_str()).collect();
                format!("the links are {}", names.join(", "))
            }
            Self::NoNvlink { .. } => "`--link pcie` is its link; `memfit gpus NAME` shows it".to_owned(),
            Self::Twice { .. } => {
                "name at most one link within a machine and one between machines".to_owned()
            }
            Self::OneMachine { .. } => "`--nodes M` says how many machines there are".to_owned(),
        }
    }
}

/// All links of the catalogue.
pub fn links() -> &'static [Link] {
    #[derive(Deserialize)]
    struct File {
        link: Vec<Link>,
    }
    static ALL: LazyLock<Vec<Link>> =
        LazyLock::new(|| toml::from_str::<File>(LINKS).map(|file| file.link).unwrap_or_default());
    &ALL
}

/// Finds a link by name.
pub fn find_link(name: &str) -> Result<&'static Link, LinkError> {
    let known = links().iter().find(|link| link.name.eq_ignore_ascii_case(name));
    known.ok_or_else(|| LinkError::Unknown { name: name.to_owned() })
}

/// Speed of a link as one GPU sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkSpeed {
    /// Bytes per second in one direction that collectives reach.
    pub bandwidth: u64,
    /// Nanoseconds of a ring's step with NCCL's protocols LL, LL128 and Simple.
    pub hop_ns: [u32; 3],
    /// Nanoseconds of a tree's step with LL and LL128.
    pub tree_ns: [u32; 2],
}

/// Connections of a GPU to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cluster {
    /// GPUs of a machine.
    pub per_machine: u32,
    /// Link to GPUs of the same machine.
    pub within: LinkSpeed,
    /// This GPU's share of the network.
    pub between: LinkSpeed,
}

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
                // A measured rate was that of the GPU's own link.
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

    /// Connections of the device: as set by [`Device::linked`], else those of a usual machine.
    pub fn connections(&self) -> Cluster {
        self.cluster.unwrap_or_else(|| self.cluster_of(USUAL_MACHINE))
    }

    fn cluster_of(&self, per_machine: u32) -> Cluster {
        let achieved = &self.achieved;
        let (name, rate) = if let Some(link) = self.peer_link {
            ("nvlink", link.bandwidth as f64 * achieved.peer_link.factor())
        } else {
            let share = match self.host_link.kind {
                HostLinkKind::Pcie { .. } => known("pcie").map_or(1.0, |link| link.achieved.factor()),
                HostLinkKind::NvlinkC2c => achieved.host_link.factor(),
            };
            ("pcie", self.host_link.bandwidth as f64 * share)
        };
        let speed = |name: &str, bandwidth: f64| {
            let (hop_ns, tree_ns) = known(name).map_or(([0; 3], [0; 2]), |link| (link.hop_ns, link.tree_ns));
            LinkSpeed { bandwidth: bandwidth as u64, hop_ns, tree_ns }
        };
        let rate = achieved.measured.peers.map_or(rate, |measured| measured as f64);
        let between = known(USUAL_NETWORK).map(|link| link.network_share(per_machine));
        Cluster {
            per_machine: per_machine.max(1),
            within: speed(name, rate),
            between: between.unwrap_or_else(|| speed(name, rate)),
        }
    }
}

fn known(name: &str) -> Option<&'static Link> {
    links().iter().find(|link| link.name == name)
}

impl Link {
    /// One GPU's share of a network.
    fn network_share(&self, per_machine: u32) -> LinkSpeed {
        let owners = match self.per {
            LinkOwner::Gpu => 1.0,
            LinkOwner::Machine => f64::from(per_machine.max(1)),
        };
        LinkSpeed {
            bandwidth: (self.gbps.unwrap_or_default() * 1e9 * self.achieved.factor() / owners) as u64,
            hop_ns: self.hop_ns,
            tree_ns: self.tree_ns,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Catalogue;

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
