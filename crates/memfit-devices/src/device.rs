//! `Device`: properties of a GPU, as the CUDA driver and PyTorch see it.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::bytes::Bytes;
use crate::link::Cluster;
use crate::outside::OutsideMeasurement;
use crate::speed::Achieved;

/// A GPU.
///
/// [`Device::sources`] has the source of every figure, under the key that [`Device::source_of`] uses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Device {
    /// Id in this catalogue: lower case, words joined by hyphens.
    pub id: String,
    /// Name that the driver reports (`torch.cuda.get_device_name()`).
    pub name: String,
    /// Other names that find this device.
    pub aliases: Vec<String>,
    /// Name of the architecture, such as "Ada Lovelace".
    pub architecture: String,
    /// Market segment.
    pub class: Class,
    /// Compute capability.
    pub compute_capability: ComputeCapability,
    /// Total memory that the driver reports (`torch.cuda.get_device_properties().total_memory`).
    pub memory: Bytes,
    /// Range of total memory that drivers and board makers have been observed to report.
    pub memory_seen: Range,
    /// Nominal memory: the size that is advertised and printed on the box, in binary units.
    pub box_memory: Bytes,
    /// Number of streaming multiprocessors.
    pub sm_count: u32,
    /// Multiprocessors of each graphics processing cluster (GPC): those of which the blocks of a thread block
    /// cluster may run together. Empty before Hopper, and where it is unknown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sms_per_gpc: Vec<u32>,
    /// Limits of each multiprocessor.
    pub sm: SmLimits,
    /// Size of the L2 cache.
    pub l2_cache: Bytes,
    /// Maximum clock of the multiprocessors in kHz (`cudaDevAttrClockRate`).
    pub sm_clock_khz: u32,
    /// Memory clock in kHz (`cudaDevAttrMemoryClockRate`): data is transferred twice per cycle.
    pub memory_clock_khz: u32,
    /// Width of the memory bus in bits.
    pub memory_bus_bits: u32,
    /// Memory bandwidth in bytes per second.
    pub memory_bandwidth: u64,
    /// Rates of dense matrix products.
    pub rates: Rates,
    /// Shares of the rates and bandwidths that real work reaches.
    pub achieved: Achieved,
    /// Link to host memory.
    pub host_link: HostLink,
    /// Direct link to the other GPUs of the machine, besides the host link; `None` if there is none.
    pub peer_link: Option<PeerLink>,
    /// Links to other GPUs and machines, if the user named some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<Cluster>,
    /// PCI device id (the vendor is 0x10de); 0 if unknown.
    pub pci_device_id: u16,
    /// `true` if ECC is enabled by default.
    pub ecc: bool,
    /// Measurements outside PyTorch's allocator, if the device was calibrated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outside: Option<OutsideMeasurement>,
    /// Sources of the figures, by the keys that [`Device::source_of`] uses.
    pub sources: BTreeMap<String, String>,
}

impl Device {
    /// Returns the device with another amount of memory.
    #[must_use]
    pub fn with_memory(mut self, memory: Bytes) -> Self {
        self.memory = memory;
        self.memory_seen = Range { low: memory, high: memory };
        self.sources.insert("memory".to_owned(), "set by the user".to_owned());
        self
    }

    /// Source of the figure in the named field; `None` for fields that only name the device.
    pub fn source_of(&self, field: &str) -> Option<&str> {
        self.sources.get(source_key(field)?).map(String::as_str)
    }

    /// Returns `true` if the GPU has no memory of its own, so that the host's use of memory counts against
    /// [`Device::memory`], too.
    pub fn shares_host_memory(&self) -> bool {
        self.host_link.kind == HostLinkKind::Shared
    }

    /// Maximum resident threads on the whole device.
    pub fn resident_threads(&self) -> u64 {
        u64::from(self.sm_count) * u64::from(self.sm.max_threads)
    }
}

/// Key in `sources` for a field of [`Device`].
pub(crate) fn source_key(field: &str) -> Option<&'static str> {
    Some(match field {
        "memory" | "memory_seen" => "memory",
        "box_memory" | "sm_count" | "sms_per_gpc" | "l2_cache" | "memory_bus_bits" | "memory_bandwidth"
        | "ecc" => "board",
        "sm_clock_khz" | "memory_clock_khz" => "clocks",
        "compute_capability" | "sm" => "capability",
        "rates" => "rates",
        "achieved" => "achieved",
        "host_link" | "peer_link" => "links",
        "pci_device_id" => "pci",
        _ => return None,
    })
}

/// Market segment of a GPU; decides, among others, how fast tensor cores accumulate in fp32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Class {
    /// GeForce and TITAN desktop GPUs.
    Desktop,
    /// Laptop GPUs, whose clocks depend on the power limit that the maker sets.
    Laptop,
    /// RTX and Quadro workstation GPUs.
    Workstation,
    /// Server GPUs and modules.
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
    /// Major version.
    pub major: u32,
    /// Minor version.
    pub minor: u32,
}

impl ComputeCapability {
    /// Ten times the major version plus the minor: 89 for 8.9, as in `sm_89`.
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

/// Limits of a streaming multiprocessor, the same for all devices of a compute capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SmLimits {
    /// Maximum resident threads.
    pub max_threads: u32,
    /// Maximum resident blocks.
    pub max_blocks: u32,
    /// Maximum threads per block.
    pub max_threads_per_block: u32,
    /// Threads per warp.
    pub warp_size: u32,
    /// Number of 32-bit registers.
    pub registers: u32,
    /// Maximum 32-bit registers per block.
    pub registers_per_block: u32,
    /// Shared memory of the multiprocessor.
    pub shared_memory: Bytes,
    /// Shared memory per block without opt-in.
    pub shared_memory_per_block: Bytes,
    /// Shared memory per block with the kernel's opt-in.
    pub shared_memory_per_block_optin: Bytes,
    /// Shared memory that the system reserves in each block.
    pub reserved_shared_memory_per_block: Bytes,
}

/// Rates of dense matrix products in operations per second (a multiply-add is two), accumulating in fp32, or
/// in int32 for int8 and in fp64 for fp64. `None` if the device has no path for the type that is faster than
/// converting it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rates {
    /// Double precision, on tensor cores if they support it.
    pub fp64: u64,
    /// Single precision, without tensor cores.
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

/// Link between the device and host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostLink {
    /// Kind of link.
    #[serde(flatten)]
    pub kind: HostLinkKind,
    /// Bytes per second in one direction, by the link's specification (real transfers reach less: see
    /// measurements).
    pub bandwidth: u64,
}

/// Kinds of host link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum HostLinkKind {
    /// PCI Express.
    Pcie {
        /// PCIe generation.
        generation: u32,
        /// Number of lanes.
        lanes: u32,
    },
    /// NVLink-C2C to a Grace CPU.
    NvlinkC2c,
    /// None: processor and GPU use the same memory.
    Shared,
}

impl fmt::Display for HostLinkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pcie { generation, lanes } => f.pad(&format!("PCIe {generation}.0 x{lanes}")),
            Self::NvlinkC2c => f.pad("NVLink-C2C"),
            Self::Shared => f.pad("shared memory"),
        }
    }
}

/// NVLink to the machine's other GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerLink {
    /// NVLink generation.
    pub generation: u32,
    /// Bytes per second in one direction, over all links together.
    pub bandwidth: u64,
}

/// A range of sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Range {
    /// Minimum.
    pub low: Bytes,
    /// Maximum.
    pub high: Bytes,
}
