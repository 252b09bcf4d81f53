//! Formats of the data files, and their conversion to [`Device`]s.
//!
//! A device's entry has only its own figures. Figures shared by all devices of a compute capability, and the
//! throughput of a multiprocessor per clock, are stated once in `architectures.toml`.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::bytes::Bytes;
use crate::device::{
    Class, ComputeCapability, Device, HostLink, HostLinkKind, PeerLink, Range, Rates, SmLimits,
};
use crate::speed::{Achieved, Measured, Share};

/// Contents of `architectures.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Architectures {
    pub(crate) capability: Vec<Capability>,
    pub(crate) throughput: BTreeMap<String, Throughput>,
    pub(crate) links: Links,
    pub(crate) references: BTreeMap<String, String>,
}

/// Figures shared by all devices of one compute capability.
#[derive(Debug, Deserialize)]
pub(crate) struct Capability {
    pub(crate) version: ComputeCapability,
    pub(crate) name: String,
    #[serde(flatten)]
    pub(crate) sm: SmLimits,
    pub(crate) source: String,
}

/// Operations of one multiprocessor per clock, by type.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Throughput {
    fp64: u64,
    fp32: u64,
    tf32: Option<u64>,
    fp16: u64,
    bf16: Option<u64>,
    fp8: Option<u64>,
    fp4: Option<u64>,
    int8: Option<u64>,
    source: String,
    /// Shares of the peaks that large work reaches, in thousandths.
    tensor: Share,
    ordinary: Share,
    memory: Share,
    achieved_source: String,
}

/// Figures shared by all devices.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Links {
    host_link: Share,
    peer_link: Share,
    staging_gbps: f64,
    launch_ns: u32,
    source: String,
}

/// A `[[card]]` entry.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Card {
    pub(crate) id: String,
    name: String,
    #[serde(default)]
    aliases: Vec<String>,
    class: Class,
    compute_capability: ComputeCapability,
    throughput: String,
    memory: Bytes,
    memory_seen: Option<[Bytes; 2]>,
    /// Nominal memory: the size that is advertised and printed on the box.
    box_memory: Bytes,
    sm_count: u32,
    l2_cache: Bytes,
    sm_clock_mhz: f64,
    memory_clock_mhz: f64,
    memory_bus_bits: u32,
    memory_bandwidth_gbps: f64,
    host_link: String,
    peer_link: Option<CardPeerLink>,
    pci_device_id: u16,
    ecc: bool,
    /// Published rates in units of 10¹² operations per second, if they differ from those computed from the
    /// clock.
    rates: Option<CardRates>,
    #[serde(default)]
    sources: BTreeMap<String, String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CardPeerLink {
    generation: u32,
    gbps: f64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CardRates {
    fp64: Option<f64>,
    fp32: Option<f64>,
    tf32: Option<f64>,
    fp16: Option<f64>,
    bf16: Option<f64>,
    fp8: Option<f64>,
    fp4: Option<f64>,
    int8: Option<f64>,
}

/// Compute capability of the GPUs of which the spread of multiprocessors is known.
const HOPPER: u32 = 9;
/// NVIDIA H100 Tensor Core GPU Architecture, "H100 GPU Architecture In-Depth": up to 8 clusters of 9 pairs.
const GPCS: u32 = 8;
const MAX_SMS_PER_GPC: u32 = 18;
/// 132 multiprocessors, as cuDNN 9.19 measured them on an H200. Clusters of 8 blocks then use 120 of them,
/// which was also seen on an H100 (NVIDIA/cutlass issue 1921, accel-sim/gpu-app-collection pull request 87).
const SEEN: [u32; 12] = [18, 18, 16, 16, 16, 16, 16, 8, 2, 2, 2, 2];

/// Multiprocessors of each cluster: as seen on a GPU with as many, or spread evenly in pairs; none for a GPU
/// that no such chip can be. The disabled pairs differ from device to device.
fn spread(sm_count: u32) -> Vec<u32> {
    if SEEN.iter().sum::<u32>() == sm_count {
        return SEEN.to_vec();
    }
    let pairs = sm_count / 2;
    let even: Vec<u32> =
        (0..GPCS).map(|index| 2 * (pairs / GPCS + u32::from(index < pairs % GPCS))).collect();
    if even.iter().all(|sms| (1..=MAX_SMS_PER_GPC).contains(sms)) { even } else { Vec::new() }
}

impl Card {
    /// Builds the device, or returns the problem with the entry.
    pub(crate) fn resolve(self, architectures: &Architectures) -> Result<Device, String> {
        let capability = architectures
            .capability
            .iter()
            .find(|capability| capability.version == self.compute_capability)
            .ok_or_else(|| {
                format!("compute capability {} is not in the catalogue", self.compute_capability)
            })?;
        let throughput = architectures.throughput.get(&self.throughput).ok_or_else(|| {
            let known: Vec<_> = architectures.throughput.keys().map(String::as_str).collect();
            format!("throughput `{}` is not one of: {}", self.throughput, known.join(", "))
        })?;
        let sm_clock_khz = khz("sm_clock_mhz", self.sm_clock_mhz)?;
        if !(1..=1024).contains(&self.sm_count) {
            return Err(format!("sm_count = {} is not between 1 and 1024", self.sm_count));
        }
        let sms_per_gpc = match self.compute_capability.major {
            HOPPER => spread(self.sm_count),
            _ => Vec::new(),
        };
        let clocks_a_second = u64::from(self.sm_count) * u64::from(sm_clock_khz) * 1000;
        let [low, high] = self.memory_seen.unwrap_or([self.memory; 2]);
        if !(low <= self.memory && self.memory <= high) {
            return Err(format!("memory {} is outside memory_seen, {low} to {high}", self.memory));
        }
        let mut sources = cite(self.sources, &architectures.references);
        sources.entry("capability".to_owned()).or_insert_with(|| capability.source.clone());
        sources.entry("rates".to_owned()).or_insert_with(|| throughput.source.clone());
        sources.entry("achieved".to_owned()).or_insert_with(|| {
            format!("{}; links: {}", throughput.achieved_source, architectures.links.source)
        });
        let memory_bandwidth = giga("memory_bandwidth_gbps", self.memory_bandwidth_gbps)?;
        Ok(Device {
            id: self.id,
            name: self.name,
            aliases: self.aliases,
            architecture: capability.name.clone(),
            class: self.class,
            compute_capability: self.compute_capability,
            memory: self.memory,
            memory_seen: Range { low, high },
            box_memory: self.box_memory,
            sm_count: self.sm_count,
            sms_per_gpc,
            sm: capability.sm,
            l2_cache: self.l2_cache,
            sm_clock_khz,
            memory_clock_khz: khz("memory_clock_mhz", self.memory_clock_mhz)?,
            memory_bus_bits: self.memory_bus_bits,
            memory_bandwidth,
            rates: rates(throughput, clocks_a_second, self.rates.as_ref())?,
            achieved: Achieved {
                tensor: throughput.tensor,
                ordinary: throughput.ordinary,
                memory: throughput.memory,
                host_link: architectures.links.host_link,
                peer_link: architectures.links.peer_link,
                staging: giga("staging_gbps", architectures.links.staging_gbps)?,
                launch_ns: architectures.links.launch_ns,
                measured: Measured::default(),
            },
            host_link: host_link(&self.host_link, memory_bandwidth)?,
            peer_link: self
                .peer_link
                .map(|link| {
                    let bandwidth = giga("peer_link.gbps", link.gbps)?;
                    Ok::<_, String>(PeerLink { generation: link.generation, bandwidth })
                })
                .transpose()?,
            cluster: None,
            pci_device_id: self.pci_device_id,
            ecc: self.ecc,
            outside: None,
            sources,
        })
    }
}

fn rates(throughput: &Throughput, clocks: u64, published: Option<&CardRates>) -> Result<Rates, String> {
    let pick = |per_clock: Option<u64>, given: Option<f64>| -> Result<Option<u64>, String> {
        match given {
            Some(tera) => scaled("rates", tera, 1e12).map(Some),
            None => Ok(per_clock.map(|operations| operations * clocks)),
        }
    };
    let given = |field: fn(&CardRates) -> Option<f64>| published.and_then(field);
    let must = |per_clock: u64, tera: Option<f64>| match tera {
        Some(tera) => scaled("rates", tera, 1e12),
        None => Ok(per_clock * clocks),
    };
    Ok(Rates {
        fp64: must(throughput.fp64, given(|rates| rates.fp64))?,
        fp32: must(throughput.fp32, given(|rates| rates.fp32))?,
        tf32: pick(throughput.tf32, given(|rates| rates.tf32))?,
        fp16: must(throughput.fp16, given(|rates| rates.fp16))?,
        bf16: pick(throughput.bf16, given(|rates| rates.bf16))?,
        fp8: pick(throughput.fp8, given(|rates| rates.fp8))?,
        fp4: pick(throughput.fp4, given(|rates| rates.fp4))?,
        int8: pick(throughput.int8, given(|rates| rates.int8))?,
    })
}

/// Expands sources: keys of the table of references, alone or before a colon and a remark.
fn cite(
    sources: BTreeMap<String, String>,
    references: &BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let expand = |text: String| match references.get(&text) {
        Some(reference) => reference.clone(),
        None => match text.split_once(": ") {
            Some((key, remark)) if references.contains_key(key) => format!("{}: {remark}", references[key]),
            _ => text,
        },
    };
    sources.into_iter().map(|(key, text)| (key, expand(text))).collect()
}

/// Parses `"pcie 4 x16"`, `"nvlink-c2c"` or `"shared"`.
fn host_link(text: &str, memory_bandwidth: u64) -> Result<HostLink, String> {
    let malformed =
        || format!("host_link `{text}` is neither like \"pcie 4 x16\", nor \"nvlink-c2c\", nor \"shared\"");
    if text == "shared" {
        // A copy reads and writes the same memory.
        return Ok(HostLink { kind: HostLinkKind::Shared, bandwidth: memory_bandwidth / 2 });
    }
    if text == "nvlink-c2c" {
        // 900 GB/s over both directions.
        return Ok(HostLink { kind: HostLinkKind::NvlinkC2c, bandwidth: 450_000_000_000 });
    }
    let mut words = text.split_whitespace();
    let (Some("pcie"), Some(generation), Some(lanes), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(malformed());
    };
    let generation: u32 = generation.parse().map_err(|_| malformed())?;
    let lanes: u32 = lanes.strip_prefix('x').and_then(|n| n.parse().ok()).ok_or_else(malformed)?;
    if !(1..=32).contains(&lanes) {
        return Err(malformed());
    }
    let lane = pcie_lane_bandwidth(generation).ok_or_else(malformed)?;
    Ok(HostLink { kind: HostLinkKind::Pcie { generation, lanes }, bandwidth: lane * u64::from(lanes) })
}

/// Bytes per second of one lane in one direction after line coding (8b/10b up to generation 2, 128b/130b from
/// 3).
fn pcie_lane_bandwidth(generation: u32) -> Option<u64> {
    Some(match generation {
        1 => 250_000_000,
        2 => 500_000_000,
        3 => 984_615_385,
        4 => 1_969_230_769,
        5 => 3_938_461_538,
        // Generation 6 transfers flits: 64 GT/s of raw bits, 242 of 256 bytes of each flit.
        6 => 7_562_500_000,
        _ => return None,
    })
}

fn khz(field: &str, mhz: f64) -> Result<u32, String> {
    const MAX_MHZ: f64 = 100_000.0;
    if mhz > MAX_MHZ {
        return Err(format!("{field} = {mhz} is not a clock in MHz"));
    }
    let khz = scaled(field, mhz, 1e3)?;
    u32::try_from(khz).map_err(|_| format!("{field} = {mhz} is not a clock in MHz"))
}

fn giga(field: &str, value: f64) -> Result<u64, String> {
    scaled(field, value, 1e9)
}

fn scaled(field: &str, value: f64, unit: f64) -> Result<u64, String> {
    if value.is_finite() && value > 0.0 && value * unit < 1e18 {
        Ok((value * unit).round() as u64)
    } else {
        Err(format!("{field} = {value} has to be greater than 0 and less than {:e}", 1e18 / unit))
    }
}
