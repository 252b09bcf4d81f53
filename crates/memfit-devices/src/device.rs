//! `Device`: what one card is, as the CUDA driver and PyTorch see it.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::bytes::Bytes;
use crate::outside::MeasuredOutside;
use crate::speed::Achieved;

/// One GPU.
///
/// Every figure's origin is in [`Device::sources`], under the key that [`Device::source_of`] gives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Device {
    /// The name in this catalogue: lower case, words joined by hyphens.
    pub id: String,
    /// The name that the driver reports (`torch.cuda.get_device_name()`).
    pub name: String,
    /// Other names that find this card.
    pub aliases: Vec<String>,
    /// The generation's name, such as "Ada Lovelace".
    pub architecture: String,
    /// What the card is built for.
    pub class: Class,
    /// Compute capability.
    pub compute_capability: ComputeCapability,
    /// Total memory as the driver gives it (`torch.cuda.get_device_properties().total_memory`).
    pub memory: Bytes,
    /// What drivers and board makers have been seen to report for this card: from the least to the most.
    pub memory_seen: Range,
    /// The number on the box, in binary units.
    pub box_memory: Bytes,
    /// Streaming multiprocessors.
    pub sm_count: u32,
    /// What each multiprocessor has and allows.
    pub sm: SmLimits,
    /// L2 cache.
    pub l2_cache: Bytes,
    /// Highest clock of the multiprocessors in kHz (`cudaDevAttrClockRate`).
    pub sm_clock_khz: u32,
    /// Clock of the memory in kHz (`cudaDevAttrMemoryClockRate`): data moves twice in each cycle.
    pub memory_clock_khz: u32,
    /// Width of the memory's bus in bits.
    pub memory_bus_bits: u32,
    /// Bandwidth of the memory in bytes a second.
    pub memory_bandwidth: u64,
    /// How fast it multiplies dense matrices.
    pub rates: Rates,
    /// What of its rates and bandwidths work achieves.
    pub achieved: Achieved,
    /// The way to the host's memory.
    pub host_link: HostLink,
    /// The direct way to the other GPUs of the machine, where there is one beside the host link.
    pub peer_link: Option<PeerLink>,
    /// PCI device id (the vendor is 0x10de); 0 where it is not known.
    pub pci_device_id: u16,
    /// Whether error correction is on as the card comes.
    pub ecc: bool,
    /// What was measured outside PyTorch's allocator, where the card was calibrated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outside: Option<MeasuredOutside>,
    /// Where the figures come from, by the keys of [`Device::source_of`].
    pub sources: BTreeMap<String, String>,
}

impl Device {
    /// The same card with another amount of memory.
    #[must_use]
    pub fn with_memory(mut self, memory: Bytes) -> Self {
        self.memory = memory;
        self.memory_seen = Range { low: memory, high: memory };
        self.sources.insert("memory".to_owned(), "set by the user".to_owned());
        self
    }

    /// Where the figure in the named field comes from; nothing for the fields that only name the card.
    pub fn source_of(&self, field: &str) -> Option<&str> {
        self.sources.get(source_key(field)?).map(String::as_str)
    }

    /// Threads that can be resident on the whole card.
    pub fn resident_threads(&self) -> u64 {
        u64::from(self.sm_count) * u64::from(self.sm.max_threads)
    }
}

/// Which key of `sources` answers for a field of [`Device`].
pub(crate) fn source_key(field: &str) -> Option<&'static str> {
    Some(match field {
        "memory" | "memory_seen" => "memory",
        "box_memory" | "sm_count" | "l2_cache" | "memory_bus_bits" | "memory_bandwidth" | "ecc" => "board",
        "sm_clock_khz" | "memory_clock_khz" => "clocks",
        "compute_capability" | "sm" => "capability",
        "rates" => "rates",
        "achieved" => "achieved",
        "host_link" | "peer_link" => "links",
        "pci_device_id" => "pci",
        _ => return None,
    })
}

/// What a card is built for; decides, among others, how fast tensor cores accumulate in fp32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Class {
    /// GeForce and TITAN cards for desktops.
    Desktop,
    /// GPUs of laptops, whose clocks depend on the power that the maker allows.
    Laptop,
    /// RTX and Quadro cards for workstations.
    Workstation,
    /// Cards and modules for servers.
    DataCenter,
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Desktop => "desktop",
            Self::Laptop => "laptop",
            Self::Workstation => "workstation",
            Self::DataCenter => "data-center",
        })
    }
}

/// A compute capability such as 8.9; serialises as the text `"8.9"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ComputeCapability {
    /// The number before the point.
    pub major: u32,
    /// The number after the point.
    pub minor: u32,
}

impl ComputeCapability {
    /// Ten times the major number plus the minor: 89 for 8.9, as in `sm_89`.
    pub const fn sm_version(self) -> u32 {
        self.major * 10 + self.minor
    }
}

impl fmt::Display for ComputeCapability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}.{}", self.major, self.minor))
    }
}

impl FromStr for ComputeCapability {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parsed = text.split_once('.').and_then(|(major, minor)| {
            let (major, minor) = (major.parse().ok()?, minor.parse().ok()?);
            (minor < 10).then_some(Self { major, minor })
        });
        parsed.ok_or_else(|| format!("`{text}` is not a compute capability such as \"8.9\""))
    }
}

impl TryFrom<String> for ComputeCapability {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<ComputeCapability> for String {
    fn from(capability: ComputeCapability) -> Self {
        capability.to_string()
    }
}

/// What each streaming multiprocessor has and allows; the same for all cards of one compute capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SmLimits {
    /// Resident threads.
    pub max_threads: u32,
    /// Resident blocks.
    pub max_blocks: u32,
    /// Threads of one block.
    pub max_threads_per_block: u32,
    /// Threads of a warp.
    pub warp_size: u32,
    /// 32-bit registers.
    pub registers: u32,
    /// 32-bit registers that one block may use.
    pub registers_per_block: u32,
    /// Shared memory of the multiprocessor.
    pub shared_memory: Bytes,
    /// Shared memory that a block gets without asking.
    pub shared_memory_per_block: Bytes,
    /// Shared memory that a block may have if the kernel opts in.
    pub shared_memory_per_block_optin: Bytes,
    /// Shared memory that the system keeps of each block's.
    pub reserved_shared_memory_per_block: Bytes,
}

/// Dense matrix multiplication, in operations a second (a multiply-add is two), accumulating in fp32, or in
/// int32 for int8 and in fp64 for fp64. Nothing where the card has no path for the type that is faster than
/// converting it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rates {
    /// Double precision, by tensor cores where they do it.
    pub fp64: u64,
    /// Single precision, by the ordinary cores.
    pub fp32: u64,
    /// TF32.
    pub tf32: Option<u64>,
    /// Half precision.
    pub fp16: u64,
    /// bfloat16.
    pub bf16: Option<u64>,
    /// 8-bit floating point.
    pub fp8: Option<u64>,
    /// 4-bit floating point.
    pub fp4: Option<u64>,
    /// 8-bit integers.
    pub int8: Option<u64>,
}

/// The way between the card and the host's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostLink {
    /// What kind of link it is.
    #[serde(flatten)]
    pub kind: HostLinkKind,
    /// Bytes a second in one direction, by the link's own specification (less arrives: see a measurement).
    pub bandwidth: u64,
}

/// Kinds of host link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum HostLinkKind {
    /// PCI Express.
    Pcie {
        /// Generation.
        generation: u32,
        /// Lanes.
        lanes: u32,
    },
    /// NVLink-C2C to a Grace CPU.
    NvlinkC2c,
}

impl fmt::Display for HostLinkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pcie { generation, lanes } => f.pad(&format!("PCIe {generation}.0 x{lanes}")),
            Self::NvlinkC2c => f.pad("NVLink-C2C"),
        }
    }
}

/// NVLink to the machine's other GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerLink {
    /// NVLink's generation.
    pub generation: u32,
    /// All links together, bytes a second in one direction.
    pub bandwidth: u64,
}

/// From the least to the most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Range {
    /// The least.
    pub low: Bytes,
    /// The most.
    pub high: Bytes,
}
