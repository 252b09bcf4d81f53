//! Speeds that a device reaches, in the units of the estimates: operations and bytes per nanosecond.

use memfit_devices::{Device, HostLinkKind, LinkSpeed};

/// Arithmetic of a matrix product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Math {
    /// Double precision.
    F64,
    /// Single precision, without tensor cores.
    F32,
    /// Single precision on tensor cores.
    Tf32,
    /// Half precision.
    F16,
    /// bfloat16.
    Bf16,
    /// Eight bits, floating-point.
    F8,
    /// Four bits, floating-point.
    F4,
    /// Eight bits, integers.
    I8,
}

/// Speeds of a device.
#[derive(Clone, Debug)]
pub struct Speeds {
    /// Operations per nanosecond of the whole device, in large products.
    f64: f64,
    f32: f64,
    tf32: f64,
    f16: f64,
    bf16: f64,
    f8: f64,
    f4: f64,
    i8: f64,
    /// Memory bandwidth in bytes per nanosecond.
    pub memory: f64,
    /// Size of its second-level cache in bytes.
    pub cache: f64,
    /// Number of its multiprocessors.
    pub multiprocessors: f64,
    /// Clock cycles per nanosecond, summed over its multiprocessors.
    pub cycles: f64,
    /// Bytes per nanosecond to and from page-locked host memory.
    pub host: f64,
    /// Bytes per nanosecond between pageable memory and the driver's staging buffers.
    pub staging: f64,
    /// Bytes per nanosecond to and from other devices, in collectives.
    pub peers: f64,
    /// Links to other devices and machines.
    pub network: Network,
    /// Warp instructions per nanosecond.
    pub instructions: f64,
    /// Warp loads per nanosecond from the first-level caches, without bank conflicts.
    pub lookups: f64,
    /// Nanoseconds of the shortest kernel.
    pub launch: f64,
    /// Compute capability, as 89 for `sm_89`.
    pub version: u32,
}

/// Links between devices.
#[derive(Clone, Debug)]
pub struct Network {
    /// Devices per machine.
    pub per_machine: u32,
    /// One device's share of the network between machines, in bytes per nanosecond.
    pub bandwidth: f64,
    /// Steps within a machine.
    pub within: Steps,
    /// Steps between machines.
    pub between: Steps,
}

/// Nanoseconds of a collective's steps.
#[derive(Clone, Copy, Debug)]
pub struct Steps {
    /// Of a ring, with the protocols LL, LL128 and Simple.
    pub hop: [f64; 3],
    /// Of a tree, with LL and LL128.
    pub tree: [f64; 2],
}

impl Steps {
    fn from_link(link: &LinkSpeed) -> Self {
        Self { hop: link.hop_ns.map(f64::from), tree: link.tree_ns.map(f64::from) }
    }
}

impl Speeds {
    /// Derives the speeds from a catalogue entry.
    pub fn from_device(device: &Device) -> Self {
        let (rates, achieved) = (&device.rates, &device.achieved);
        // A rate measured on the machine's own device needs no share of a peak.
        let seen = &achieved.measured;
        let or = |measured: Option<u64>, known: f64| measured.map_or(known, |rate| rate as f64 / 1e9);
        let version = device.compute_capability.sm_version();
        let tensor_cores = version >= 70 && rates.fp16 > 3 * rates.fp32 || rates.tf32.is_some();
        let tensor = |rate: u64| rate as f64 * achieved.tensor.factor() / 1e9;
        let ordinary = |rate: u64| rate as f64 * achieved.ordinary.factor() / 1e9;
        let f32 = or(seen.fp32, ordinary(rates.fp32));
        let f16 = or(seen.fp16, if tensor_cores { tensor(rates.fp16) } else { ordinary(rates.fp16) });
        // A type without its own hardware path is converted: bfloat16 before Ampere is computed in single
        // precision.
        let bf16 = or(seen.bf16, rates.bf16.map_or(f32, tensor));
        let f8 = or(seen.fp8, rates.fp8.map_or(bf16, tensor));
        let connections = device.connections();
        let staging = match device.host_link.kind {
            // The device reads host pages directly.
            HostLinkKind::NvlinkC2c | HostLinkKind::Shared => f64::INFINITY,
            _ => achieved.staging as f64 / 1e9,
        };
        Self {
            f64: or(seen.fp64, ordinary(rates.fp64)),
            f32,
            tf32: or(seen.tf32, rates.tf32.map_or(f32, tensor)),
            f16,
            bf16,
            f8,
            f4: rates.fp4.map_or(f8, tensor),
            i8: or(seen.int8, rates.int8.map_or(f32, tensor)),
            memory: device.memory_bandwidth as f64 * achieved.memory.factor() / 1e9,
            cache: device.l2_cache.get() as f64,
            multiprocessors: f64::from(device.sm_count.max(1)),
            cycles: f64::from(device.sm_count.max(1)) * f64::from(device.sm_clock_khz.max(1)) / 1e6,
            host: device.host_link.bandwidth as f64 * achieved.host_link.factor() / 1e9,
            staging,
            peers: connections.within.bandwidth as f64 / 1e9,
            network: Network {
                per_machine: connections.per_machine,
                bandwidth: connections.between.bandwidth as f64 / 1e9,
                within: Steps::from_link(&connections.within),
                between: Steps::from_link(&connections.between),
            },
            // A lane's multiply-add is two operations of one instruction.
            instructions: f32 / 64.0,
            // One warp's loads per cycle on each multiprocessor.
            lookups: f64::from(device.sm_count) * f64::from(device.sm_clock_khz) / 1e6
                * achieved.ordinary.factor(),
            launch: f64::from(achieved.launch_ns),
            version,
        }
    }

    /// Operations per nanosecond.
    pub fn rate(&self, math: Math) -> f64 {
        let rate = match math {
            Math::F64 => self.f64,
            Math::F32 => self.f32,
            Math::Tf32 => self.tf32,
            Math::F16 => self.f16,
            Math::Bf16 => self.bf16,
            Math::F8 => self.f8,
            Math::F4 => self.f4,
            Math::I8 => self.i8,
        };
        rate.max(1e-3)
    }

    /// Nanoseconds to move bytes through device memory, at a share of the bandwidth of long copies. Data that
    /// fits into the cache twice over was mostly left there by the kernel before.
    pub fn traffic(&self, bytes: f64, share: f64) -> f64 {
        /// Speed of the cache relative to memory.
        /// Source: 5,120 bytes a clock on an A100 (NVIDIA's whitepaper), rounded down.
        const CACHED: f64 = 2.0;
        let faster = if bytes * 2.0 <= self.cache { CACHED } else { 1.0 };
        bytes / (self.memory * share * faster)
    }

    /// Nanoseconds of a kernel whose blocks load, compute and store one after the other: the time of the
    /// multiprocessors, which handle `rate` bytes per cycle each, adds to that of the memory.
    pub fn serial(&self, bytes: f64, rate: f64) -> f64 {
        self.traffic(bytes, 1.0) + bytes / (rate * self.cycles)
    }
}

#[cfg(test)]
pub(crate) fn card_speeds(name: &str) -> Speeds {
    Speeds::from_device(memfit_devices::Catalogue::builtin().unwrap().find(name).unwrap())
}

/// Speeds of a card whose large products reach these rates, in operations per second.
#[cfg(test)]
pub(crate) fn speeds_at(name: &str, single: f64, tensor: f64) -> Speeds {
    let mut device = memfit_devices::Catalogue::builtin().unwrap().find(name).unwrap().clone();
    device.achieved.measured.fp32 = Some(single as u64);
    device.achieved.measured.fp16 = Some(tensor as u64);
    Speeds::from_device(&device)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_card_of_the_catalogue_has_speeds() {
        for device in memfit_devices::Catalogue::builtin().unwrap().devices() {
            let speeds = Speeds::from_device(device);
            let all = [Math::F64, Math::F32, Math::Tf32, Math::F16, Math::Bf16, Math::F8, Math::F4, Math::I8];
            for math in all {
                let peak = speeds.rate(math);
                assert!(peak.is_finite() && (0.01..2e7).contains(&peak), "{}: {math:?} {peak}", device.id);
            }
            assert!(speeds.rate(Math::F16) >= 0.9 * speeds.rate(Math::F32), "{}", device.id);
            assert!(speeds.memory > speeds.host, "{}: memory is faster than the link", device.id);
        }
    }

    #[test]
    fn a_type_without_a_path_of_its_own_is_converted() {
        let (turing, ampere) = (card_speeds("t4"), card_speeds("a100-80gb"));
        for math in [Math::Bf16, Math::Tf32] {
            assert!((turing.rate(math) - turing.rate(Math::F32)).abs() < 1e-9, "{math:?}");
        }
        assert!(ampere.rate(Math::Bf16) > 10.0 * ampere.rate(Math::F32));
        let faster = |card: &Speeds| card.rate(Math::F16) > 2.0 * card.rate(Math::F32);
        assert!(faster(&turing) && faster(&ampere) && !faster(&card_speeds("gtx-1080-ti")));
    }
}
