//! Links between GPUs: within a machine and between machines, with the speeds that collectives reach.

use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

use crate::speed::Share;

const LINKS: &str = include_str!("../data/links.toml");

/// Kind of link in the catalogue.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Name for `--link`.
    pub name: String,
    /// Endpoints.
    pub place: LinkPlace,
    /// Owner of an adapter.
    pub per: LinkOwner,
    /// Gigabytes per second in one direction; `None` if the GPU's entry has it.
    pub gbps: Option<f64>,
    /// Fraction of that speed that long collectives reach.
    pub achieved: Share,
    /// Latency of a step of the ring algorithm with NCCL's protocols LL, LL128 and Simple, in nanoseconds.
    pub hop_ns: [u32; 3],
    /// Latency of a step of the tree algorithm with LL and LL128, in nanoseconds.
    pub tree_ns: [u32; 2],
    /// Source of the figures.
    pub source: String,
}

/// Endpoints of a link.
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
    #[error("`{name}` connects machines, but there is only one")]
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
            Self::NoNvlink { .. } => {
                "use `--link pcie`; `memfit gpus NAME` shows the links of a GPU".to_owned()
            }
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
    /// Latency of a step of the ring algorithm with NCCL's protocols LL, LL128 and Simple, in nanoseconds.
    pub hop_ns: [u32; 3],
    /// Latency of a step of the tree algorithm with LL and LL128, in nanoseconds.
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

impl Link {
    /// One GPU's share of a network.
    pub(crate) fn network_share(&self, per_machine: u32) -> LinkSpeed {
        let sharers = match self.per {
            LinkOwner::Gpu => 1.0,
            LinkOwner::Machine => f64::from(per_machine.max(1)),
        };
        LinkSpeed {
            bandwidth: (self.gbps.unwrap_or_default() * 1e9 * self.achieved.factor() / sharers) as u64,
            hop_ns: self.hop_ns,
            tree_ns: self.tree_ns,
        }
    }
}
