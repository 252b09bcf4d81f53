//! What a card achieves, in the units of the estimates: operations and bytes a nanosecond.

use memfit_devices::{Device, HostLinkKind};

/// The type in which a product of matrices is computed.
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

/// A card's speeds.
#[derive(Clone, Debug)]
pub struct Speeds {
    /// Operations a nanosecond of the whole card, in large products.
    f64: f64,
    f32: f64,
    tf32: f64,
    f16: f64,
    bf16: f64,
    f8: f64,
    f4: f64,
    i8: f64,
    /// Bytes a nanosecond of the card's memory.
    pub memory: f64,
    /// Bytes of its second-level cache.
    pub cache: f64,
    /// Its multiprocessors.
    pub multiprocessors: f64,
    /// Bytes a nanosecond to and from page-locked memory of the host.
    pub host: f64,
    /// Bytes a nanosecond between pageable memory and the driver's buffers.
    pub staging: f64,
    /// Bytes a nanosecond to and from other cards, in collectives.
    pub peers: f64,
    /// Instructions of whole warps a nanosecond.
    pub instructions: f64,
    /// Loads of whole warps from the first-level caches a nanosecond, each from its own bank.
    pub lookups: f64,
    /// Nanoseconds of the shortest kernel.
    pub launch: f64,
    /// Compute capability as in `sm_89`.
    pub version: u32,
}

impl Speeds {
    /// From the catalogue's entry.
    pub fn of(device: &Device) -> Self {
        let (rates, achieved) = (&device.rates, &device.achieved);
        // What was measured on the machine's own card needs no share of a peak.
        let seen = &achieved.measured;
        let or = |measured: Option<u64>, known: f64| measured.map_or(known, |rate| rate as f64 / 1e9);
        let version = device.compute_capability.sm_version();
        let tensor_cores = version >= 70 && rates.fp16 > 3 * rates.fp32 || rates.tf32.is_some();
        let tensor = |rate: u64| rate as f64 * achieved.tensor.factor() / 1e9;
        let ordinary = |rate: u64| rate as f64 * achieved.ordinary.factor() / 1e9;
        let f32 = or(seen.fp32, ordinary(rates.fp32));
        let f16 = or(seen.fp16, if tensor_cores { tensor(rates.fp16) } else { ordinary(rates.fp16) });
        // Without a path of its own, a type is converted: bfloat16 before Ampere is computed in single
        // precision.
        let bf16 = or(seen.bf16, rates.bf16.map_or(f32, tensor));
        let f8 = or(seen.fp8, rates.fp8.map_or(bf16, tensor));
        let peers = match device.peer_link {
            Some(link) => link.bandwidth as f64 * achieved.peer_link.factor(),
            // Over the host's link, through the host's memory or a switch.
            None => device.host_link.bandwidth as f64 * achieved.host_link.factor() * 0.8,
        };
        let staging = match device.host_link.kind {
            // The card reads the host's pages by itself.
            HostLinkKind::NvlinkC2c => f64::INFINITY,
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
            host: device.host_link.bandwidth as f64 * achieved.host_link.factor() / 1e9,
            staging,
            peers: or(seen.peers, peers / 1e9),
            // A lane's multiply-add is two operations of one instruction.
            instructions: f32 / 64.0,
            // The loads of one warp a cycle on each multiprocessor.
            lookups: f64::from(device.sm_count) * f64::from(device.sm_clock_khz) / 1e6
                * achieved.ordinary.factor(),
            launch: f64::from(achieved.launch_ns),
            version,
        }
    }

    /// Operations a nanosecond.
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

    /// Nanoseconds to move bytes through the card's memory, at a share of what long copies achieve. What fits
    /// into the cache twice over has mostly been left there by the kernel before.
    pub fn traffic(&self, bytes: f64, share: f64) -> f64 {
        const CACHED: f64 = 2.0;
        let faster = if bytes * 2.0 <= self.cache { CACHED } else { 1.0 };
        bytes / (self.memory * share.max(0.01) * faster)
    }
}

#[cfg(test)]
pub(crate) fn of_card(name: &str) -> Speeds {
    Speeds::of(memfit_devices::Catalogue::builtin().unwrap().find(name).unwrap())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_card_of_the_catalogue_has_speeds() {
        for device in memfit_devices::Catalogue::builtin().unwrap().devices() {
            let speeds = Speeds::of(device);
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
        let (turing, ampere) = (of_card("t4"), of_card("a100-80gb"));
        for math in [Math::Bf16, Math::Tf32] {
            assert!((turing.rate(math) - turing.rate(Math::F32)).abs() < 1e-9, "{math:?}");
        }
        assert!(ampere.rate(Math::Bf16) > 10.0 * ampere.rate(Math::F32));
        let faster = |card: &Speeds| card.rate(Math::F16) > 2.0 * card.rate(Math::F32);
        assert!(faster(&turing) && faster(&ampere) && !faster(&of_card("gtx-1080-ti")));
    }
}
