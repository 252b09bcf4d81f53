//! Occupancy: the number of a kernel's blocks that fit on a multiprocessor.
//!
//! The formula of NVIDIA's occupancy calculator: threads, registers and shared memory each limit the number
//! of blocks, in the granularity in which the hardware allocates them.

/// Resources of a multiprocessor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Multiprocessor {
    /// Ten times the major compute capability plus the minor.
    pub(crate) version: u32,
    pub(crate) threads: u32,
    pub(crate) blocks: u32,
    pub(crate) threads_per_block: u32,
    pub(crate) registers: u32,
    pub(crate) registers_per_block: u32,
    pub(crate) shared: u32,
    /// Maximum shared memory per block of a kernel that opts in to more than 48 KiB.
    pub(crate) shared_per_block: u32,
    /// Shared memory that the system reserves in each block.
    pub(crate) shared_reserved: u32,
}

/// Resources that one block needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Demand {
    pub(crate) threads: u32,
    /// Registers per thread.
    pub(crate) registers: u32,
    /// Static and dynamic shared memory.
    pub(crate) shared: u32,
}

const WARP: u32 = 32;
/// Registers are allocated to a warp in multiples of this number.
const REGISTER_GRAIN: u32 = 256;
/// Warp schedulers of a multiprocessor; warps are spread evenly over them.
const SCHEDULERS: u32 = 4;

impl Multiprocessor {
    /// Shared memory is allocated to a block in multiples of this number of bytes.
    fn shared_grain(&self) -> u32 {
        if self.version >= 80 { 128 } else { 256 }
    }

    fn allocated_shared(&self, requested: u32) -> u32 {
        (requested + self.shared_reserved).next_multiple_of(self.shared_grain())
    }

    /// Number of blocks that fit at the same time.
    pub(crate) fn blocks(&self, demand: Demand) -> u32 {
        if demand.threads == 0 || demand.threads > self.max_threads(demand.registers) {
            return 0;
        }
        if demand.shared > self.shared_per_block {
            return 0;
        }
        let warps = demand.threads.div_ceil(WARP);
        let by_warps = (self.threads / WARP) / warps;
        let by_registers = self.warps_by_registers(demand.registers, self.registers) / warps;
        let by_shared = self.shared.checked_div(self.allocated_shared(demand.shared)).unwrap_or(u32::MAX);
        self.blocks.min(by_warps).min(by_registers).min(by_shared)
    }

    /// Maximum threads in a block of a kernel.
    pub(crate) fn max_threads(&self, registers: u32) -> u32 {
        let warps = self.warps_by_registers(registers, self.registers_per_block);
        self.threads_per_block.min(warps * WARP)
    }

    /// Maximum dynamic shared memory per block if `blocks` of them must fit.
    pub(crate) fn dynamic_shared(&self, blocks: u32, fixed: u32) -> u32 {
        let Some(share) = self.shared.checked_div(blocks) else { return 0 };
        let share = share / self.shared_grain() * self.shared_grain();
        share.saturating_sub(self.shared_reserved).min(self.shared_per_block).saturating_sub(fixed)
    }

    fn warps_by_registers(&self, registers: u32, available: u32) -> u32 {
        if registers == 0 {
            return self.threads / WARP;
        }
        let per_warp = (registers * WARP).next_multiple_of(REGISTER_GRAIN);
        available / SCHEDULERS / per_warp * SCHEDULERS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADA: Multiprocessor = Multiprocessor {
        version: 89,
        threads: 1536,
        blocks: 24,
        threads_per_block: 1024,
        registers: 65536,
        registers_per_block: 65536,
        shared: 100 << 10,
        shared_per_block: 99 << 10,
        shared_reserved: 1 << 10,
    };
    const AMPERE: Multiprocessor = Multiprocessor {
        version: 80,
        threads: 2048,
        blocks: 32,
        shared: 164 << 10,
        shared_per_block: 163 << 10,
        ..ADA
    };
    const TURING: Multiprocessor = Multiprocessor {
        version: 75,
        threads: 1024,
        blocks: 16,
        shared: 64 << 10,
        shared_per_block: 64 << 10,
        shared_reserved: 0,
        ..ADA
    };

    #[test]
    fn each_resource_can_limit_the_blocks() {
        for (sm, threads, registers, shared, expected) in [
            (ADA, 256, 32, 0, 6),         // threads: 1536 / 256
            (ADA, 32, 16, 0, 24),         // blocks
            (ADA, 256, 64, 0, 4),         // registers: 32 warps
            (ADA, 128, 255, 0, 2),        // registers: 8 warps of 8,192
            (ADA, 128, 33, 0, 12),        // 33 registers cost 40: 48 warps fit, threads bind as well
            (AMPERE, 128, 33, 0, 12),     // the same 48 warps, and now registers bind
            (ADA, 128, 32, 48 << 10, 2),  // shared: 49 KiB with the reserve
            (ADA, 128, 32, 99 << 10, 1),  // all of it
            (ADA, 128, 32, 100 << 10, 0), // more than a block may have
            (TURING, 128, 32, 32 << 10, 2),
            (TURING, 1024, 64, 0, 1),
            (ADA, 1024, 65, 0, 0), // 72 registers: 28 warps, a block has 32
            (ADA, 0, 32, 0, 0),
            (ADA, 1025, 16, 0, 0),
            (ADA, 33, 32, 0, 24), // two warps
        ] {
            let demand = Demand { threads, registers, shared };
            assert_eq!(sm.blocks(demand), expected, "{demand:?} on {}", sm.version);
        }
    }

    #[test]
    fn more_registers_allow_fewer_threads() {
        assert_eq!(ADA.max_threads(255), 256);
        assert_eq!(ADA.max_threads(128), 512);
        assert_eq!(ADA.max_threads(96), 640);
        assert_eq!(ADA.max_threads(64), 1024);
        assert_eq!(ADA.max_threads(0), 1024);
    }

    #[test]
    fn blocks_share_dynamic_shared_memory_equally() {
        assert_eq!(ADA.dynamic_shared(1, 0), 99 << 10);
        assert_eq!(ADA.dynamic_shared(2, 1 << 10), 48 << 10);
        assert_eq!(ADA.dynamic_shared(0, 0), 0);
        for blocks in 1..24 {
            let shared = ADA.dynamic_shared(blocks, 0);
            assert!(ADA.blocks(Demand { threads: 32, registers: 16, shared }) >= blocks, "{blocks}");
        }
    }
}
