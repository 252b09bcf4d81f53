//! Durations of copies and fills: in device memory, over the link to the host, between devices.

use memfit_channel::WorkKind;

use memfit_kernels::cost::{Speeds, Work, shares};

/// Nanoseconds to set up a copy engine.
/// Source: `cudaMemcpyAsync` of a small piece takes 5 to 7 µs (Wu et al., DualPath, 2026, section 5.2), of
/// which the clock counts the host's call.
const SET_UP: f64 = 3_000.0;

/// Copy between a device and page-locked host memory.
pub(crate) fn pinned(bytes: u64, speeds: &Speeds) -> Work {
    Work::new(WorkKind::Transfer, SET_UP + bytes as f64 / speeds.host)
}

/// Copy between a device and pageable host memory: staged through the driver's buffers, one copy after the
/// other.
pub(crate) fn pageable(bytes: u64, speeds: &Speeds) -> Work {
    Work::new(WorkKind::Transfer, 2.0 * SET_UP + bytes as f64 * (1.0 / speeds.host + 1.0 / speeds.staging))
}

/// Copy within a device: each byte is read and written.
pub(crate) fn within(bytes: u64, speeds: &Speeds) -> Work {
    Work::new(WorkKind::Memory, speeds.launch + speeds.traffic(2.0 * bytes as f64, 1.0))
}

/// Copy from one device to another.
pub(crate) fn between(bytes: u64, speeds: &Speeds) -> Work {
    Work::new(WorkKind::Transfer, SET_UP + bytes as f64 / speeds.peers)
}

/// Fill of device memory.
pub(crate) fn fill(bytes: u64, speeds: &Speeds) -> Work {
    Work::new(WorkKind::Memory, speeds.launch + speeds.traffic(bytes as f64, shares::FILL))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card_speeds(name: &str) -> Speeds {
        Speeds::from_device(memfit_devices::Catalogue::builtin().unwrap().find(name).unwrap())
    }

    const GIB: u64 = 1 << 30;

    fn gigabytes(work: Work) -> f64 {
        GIB as f64 / work.length as f64
    }

    #[test]
    fn links_give_what_bandwidth_tests_show() {
        for (card, locked, other) in [
            ("t4", 11.5..13.5, 5.5..7.0),
            ("a100-80gb", 23.0..27.0, 7.0..9.5),
            ("h100", 48.0..56.0, 8.5..11.0),
        ] {
            let speeds = card_speeds(card);
            let (fast, slow) = (gigabytes(pinned(GIB, &speeds)), gigabytes(pageable(GIB, &speeds)));
            assert!(locked.contains(&fast), "{card}: {fast} GB/s of page-locked memory");
            assert!(other.contains(&slow), "{card}: {slow} GB/s of pageable memory");
        }
        let grace = card_speeds("gh200");
        assert!(gigabytes(pinned(GIB, &grace)) > 300.0);
    }

    #[test]
    fn device_copies_run_at_half_the_memory_bandwidth() {
        let speeds = card_speeds("a100-80gb");
        let ratio = within(GIB, &speeds).length as f64 / fill(GIB, &speeds).length as f64;
        // Writing alone is faster than half of a copy.
        assert!((1.9..2.5).contains(&ratio), "{ratio}");
        assert!(between(GIB, &speeds).length < pinned(GIB, &speeds).length / 5, "NVLink is not PCIe");
        let geforce = card_speeds("rtx-4090");
        assert!(
            between(GIB, &geforce).length > pinned(GIB, &geforce).length,
            "without it, there is only PCIe"
        );
        assert!(pinned(0, &speeds).length > 0);
        assert!(pinned(u64::MAX, &speeds).length > 0, "no overflow");
    }
}
