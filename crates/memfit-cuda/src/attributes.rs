//! Device attributes: the values that `cudaDeviceGetAttribute` and `cuDeviceGetAttribute` return. The runtime
//! and the driver use the same attribute numbers.
//!
//! Values that differ between devices come from the catalogue. Limits that all supported devices share
//! (textures, grids) come from the tables in NVIDIA's CUDA C++ Programming Guide.

use memfit_channel::identity;
use memfit_devices::{Class, HostLinkKind};

use crate::machine::Card;

/// Numbers of the attributes that this crate reads by name.
pub(crate) mod number {
    pub(crate) const MAX_THREADS_PER_BLOCK: i32 = 1;
    pub(crate) const SHARED_PER_BLOCK: i32 = 8;
    pub(crate) const WARP_SIZE: i32 = 10;
    pub(crate) const REGISTERS_PER_BLOCK: i32 = 12;
    pub(crate) const CLOCK: i32 = 13;
    pub(crate) const MULTIPROCESSORS: i32 = 16;
    pub(crate) const MEMORY_CLOCK: i32 = 36;
    pub(crate) const MAJOR: i32 = 75;
    pub(crate) const MINOR: i32 = 76;
}

/// Textures and surfaces, whose limits have been the same since compute capability 6.0.
const TEXTURES: &[(i32, i32)] = &[
    (21, 131_072),
    (22, 131_072),
    (23, 65_536),
    (24, 16_384),
    (25, 16_384),
    (26, 16_384),
    (27, 32_768),
    (28, 32_768),
    (29, 2_048),
    (42, 32_768),
    (43, 2_048),
    (44, 1),
    (45, 32_768),
    (46, 32_768),
    (47, 8_192),
    (48, 8_192),
    (49, 32_768),
    (52, 32_768),
    (53, 32_768),
    (54, 2_046),
    (55, 32_768),
    (56, 131_072),
    (57, 65_536),
    (58, 16_384),
    (59, 16_384),
    (60, 16_384),
    (61, 32_768),
    (62, 2_048),
    (63, 32_768),
    (64, 32_768),
    (65, 2_048),
    (66, 32_768),
    (67, 32_768),
    (68, 2_046),
    (69, 268_435_456),
    (70, 131_072),
    (71, 65_000),
    (72, 2_097_120),
    (73, 32_768),
    (74, 32_768),
    (77, 32_768),
];

fn clamp(value: u64) -> i32 {
    i32::try_from(value).unwrap_or(i32::MAX)
}

/// Returns the value of an attribute; `None` if the number is not an attribute.
#[allow(clippy::match_same_arms, reason = "in order of number")]
pub(crate) fn get(card: &Card, attribute: i32) -> Option<i32> {
    if let Ok(index) = TEXTURES.binary_search_by_key(&attribute, |entry| entry.0) {
        return Some(TEXTURES[index].1);
    }
    let device = &card.device;
    let sm = &device.sm;
    let capability = device.compute_capability.sm_version();
    let data_center = device.class == Class::DataCenter;
    let since = |version: u32| i32::from(capability >= version);
    let coherent = i32::from(matches!(device.host_link.kind, HostLinkKind::NvlinkC2c | HostLinkKind::Shared));
    Some(match attribute {
        number::MAX_THREADS_PER_BLOCK => sm.max_threads_per_block as i32,
        2 | 3 => 1024, // block, x and y
        4 => 64,       // block, z
        5 => i32::MAX, // grid, x
        6 | 7 => 65_535,
        number::SHARED_PER_BLOCK => clamp(sm.shared_memory_per_block.get()),
        9 => 65_536, // constant memory
        number::WARP_SIZE => sm.warp_size as i32,
        11 => i32::MAX, // pitch
        number::REGISTERS_PER_BLOCK => sm.registers_per_block as i32,
        number::CLOCK => device.sm_clock_khz as i32,
        14 => 512, // texture alignment
        15 => 1,   // copies overlap kernels
        number::MULTIPROCESSORS => device.sm_count as i32,
        17 => 0, // no display, no time limit for kernels
        18 => i32::from(device.shares_host_memory()),
        19 => 1, // maps host memory
        20 => 0, // default compute mode
        30 => 512,
        31 => 1, // concurrent kernels
        32 => i32::from(device.ecc),
        33 => identity::pci_bus(card.index) as i32, // PCI bus
        34 => 0,                                    // PCI device
        35 => 0,                                    // not TCC, which is for Windows
        number::MEMORY_CLOCK => device.memory_clock_khz as i32,
        37 => device.memory_bus_bits as i32,
        38 => clamp(device.l2_cache.get()),
        39 => sm.max_threads as i32,
        40 => {
            if data_center {
                3
            } else {
                2
            }
        } // copy engines
        41 => 1,  // unified addressing
        50 => 0,  // PCI domain
        51 => 32, // texture pitch alignment
        number::MAJOR => device.compute_capability.major as i32,
        number::MINOR => device.compute_capability.minor as i32,
        78..=80 => 1, // stream priorities, L1 for globals and locals
        81 => clamp(sm.shared_memory.get()),
        82 => sm.registers as i32,
        83 => 1, // managed memory
        84 => 0, // one GPU a board
        85 => card.index as i32,
        86 => coherent,
        87 => clamp(device.rates.fp32 / device.rates.fp64.max(1)),
        88 => coherent, // pageable memory
        89..=91 => 1,   // concurrent managed access, preemption, host pointers of registered memory
        92..=94 => 1,   // stream memory operations
        95 | 96 => 1,   // cooperative launches
        97 => clamp(sm.shared_memory_per_block_optin.get()),
        98 | 99 => 1, // remote writes, host registration
        100 => coherent,
        101 => 0,
        102 | 103 => 1, // virtual memory, with file descriptors as handles
        104 | 105 => 0, // Windows handles
        106 => sm.max_blocks as i32,
        107 => i32::from(data_center && capability >= 80), // compressible memory
        108 => {
            if capability >= 80 {
                clamp(device.l2_cache.get() / 16 * 11)
            } else {
                0
            }
        }
        109 => {
            if capability >= 80 {
                134_213_632
            } else {
                0
            }
        }
        110 | 116 => i32::from(data_center), // GPUDirect RDMA
        111 => clamp(sm.reserved_shared_memory_per_block.get()),
        112 => 1,       // sparse arrays
        113 => 0,       // read-only host registration
        114 | 115 => 1, // timeline semaphores, memory pools
        117 => i32::from(data_center),
        118 => {
            if data_center {
                100
            } else {
                0
            }
        }
        119 => 1,         // pools are shared by file descriptor
        120 => since(90), // clusters
        121..=123 => 1,
        124 => i32::from(data_center), // dma-buf
        125 => 1,                      // interprocess events
        126 => {
            if capability >= 90 {
                4
            } else {
                1
            }
        }
        127 => since(90), // tensor maps
        128 => 0,         // fabric handles
        129 => since(90), // unified function pointers
        130 => coherent,
        131 => -1,
        132 | 133 => 0, // multicast, MPS
        134 => 0,
        135..=138 | 140..=148 => 0,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn textures_are_in_order() {
        assert!(TEXTURES.is_sorted_by(|a, b| a.0 < b.0));
    }
}
