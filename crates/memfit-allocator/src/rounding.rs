//! Rounding of requests to block sizes, and of blocks to segment sizes.

use crate::settings::Settings;

/// Minimum size and granularity of blocks.
pub const MIN_BLOCK: u64 = 512;
/// Maximum rounded size of a request in the small pool.
pub const SMALL_LIMIT: u64 = 1 << 20;
/// Size of a segment in the small pool.
pub const SMALL_SEGMENT: u64 = 2 << 20;
/// Minimum size of a request that gets a segment of its own size.
pub const MIN_LARGE_REQUEST: u64 = 10 << 20;
/// Granularity of such segments.
pub const ROUND_LARGE: u64 = 2 << 20;

/// Size of the block for a request of `requested` bytes, without an unsplit remainder.
pub fn round_size(requested: u64, settings: &Settings) -> u64 {
    let requested = requested.max(MIN_BLOCK);
    let divisions = settings.roundup.steps_for(requested);
    if divisions > 1 && requested > MIN_BLOCK * divisions {
        next_division(requested, divisions)
    } else {
        requested.next_multiple_of(MIN_BLOCK)
    }
}

/// Size of the segment from which a new block of `rounded` bytes is split.
pub fn segment_size(rounded: u64, settings: &Settings) -> u64 {
    if rounded <= SMALL_LIMIT {
        SMALL_SEGMENT
    } else if rounded < MIN_LARGE_REQUEST {
        settings.large_segment_size
    } else {
        rounded.next_multiple_of(ROUND_LARGE)
    }
}

/// Rounds up to the next of `divisions` equal steps between two powers of two.
fn next_division(size: u64, divisions: u64) -> u64 {
    if size.is_power_of_two() {
        return size;
    }
    let floor = 1_u64 << size.ilog2();
    let step = floor >> divisions.ilog2();
    if step == 0 { floor << 1 } else { size.next_multiple_of(step) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::release::Release;
    use crate::settings::Settings;

    fn parse_settings(conf: &str) -> Settings {
        Settings::parse(conf, Release::NEWEST).expect("the settings are valid")
    }

    /// Expected values from PyTorch's own `test_allocator_settings`.
    #[test]
    fn requests_are_rounded_to_divisions_of_powers_of_two() {
        const MIB: u64 = 1 << 20;
        let plain = Settings::default();
        for (requested, rounded) in
            [(1, 512), (511, 512), (512, 512), (513, 1024), (130, 512), (MIB + 1, MIB + 512)]
        {
            assert_eq!(round_size(requested, &plain), rounded, "{requested}");
        }
        let four = parse_settings("roundup_power2_divisions:4");
        for (requested, rounded) in [
            (1200, 1536),
            (2049, 2560),
            (5 * MIB + 1, 6 * MIB),
            (40 * MIB, 40 * MIB),
            (41 * MIB, 48 * MIB),
            (64 * MIB, 64 * MIB),
        ] {
            assert_eq!(round_size(requested, &four), rounded, "{requested}");
        }
        let list = parse_settings("roundup_power2_divisions:[64:8,128:2,256:4,512:2,1024:4,>:1]");
        for (requested, rounded) in [
            (21 * MIB, 22 * MIB),
            (65 * MIB, 72 * MIB),
            (129 * MIB, 192 * MIB),
            (257 * MIB, 320 * MIB),
            (1100 * MIB, 1280 * MIB),
            (2049 * MIB + 1, 2049 * MIB + 512),
        ] {
            assert_eq!(round_size(requested, &list), rounded, "{requested}");
        }
    }

    #[test]
    fn segments_come_in_three_sizes() {
        const MIB: u64 = 1 << 20;
        let plain = Settings::default();
        for (rounded, segment) in [
            (512, 2 * MIB),
            (MIB, 2 * MIB),
            (MIB + 512, 20 * MIB),
            (10 * MIB - 512, 20 * MIB),
            (10 * MIB, 10 * MIB),
            (10 * MIB + 512, 12 * MIB),
            (33 * MIB, 34 * MIB),
        ] {
            assert_eq!(segment_size(rounded, &plain), segment, "{rounded}");
        }
        assert_eq!(segment_size(2 * MIB, &parse_settings("large_segment_size_mb:64")), 64 * MIB);
    }

    proptest! {
        #[test]
        fn rounding_never_shrinks_and_is_idempotent(
            requested in 1_u64..1 << 40,
            divisions in prop::sample::select(vec![0_u64, 2, 4, 8, 16]),
        ) {
            let settings = Settings { roundup: crate::Divisions::all(divisions), ..Settings::default() };
            let rounded = round_size(requested, &settings);
            prop_assert!(rounded >= requested);
            prop_assert!(rounded >= MIN_BLOCK);
            prop_assert_eq!(round_size(rounded, &settings), rounded);
            prop_assert!(segment_size(rounded, &settings) >= rounded);
        }
    }
}
