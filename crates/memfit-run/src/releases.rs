//! The releases of Python, CUDA and torch that memfit supports, and those it was tested with.

use memfit_vocabulary::release;

/// The oldest Python that the probe runs in.
pub const OLDEST_PYTHON: (u32, u32) = (3, 10);
/// The oldest CUDA release whose libraries the virtual device supports.
pub const OLDEST_CUDA: u32 = 12;
/// The oldest release of torch in `measurements/matrix.md`.
pub const OLDEST_TORCH: (u32, u32) = (2, 6);
/// The newest release of torch in `measurements/matrix.md`.
pub const NEWEST_TORCH: (u32, u32) = (2, 15);

/// Relation of a release of torch to the tested ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Support {
    /// Between the oldest and the newest tested release.
    Tested,
    /// Older than all tested releases.
    Older,
    /// Newer than all tested releases, or of unknown version.
    Newer,
}

/// Compares a version of torch with the tested releases.
pub fn support_of(torch: &str) -> Support {
    match release(torch) {
        Some(release) if release < OLDEST_TORCH => Support::Older,
        Some(release) if release <= NEWEST_TORCH => Support::Tested,
        _ => Support::Newer,
    }
}

/// The tested releases of torch, as text.
pub fn tested_releases() -> String {
    format!("{}.{} to {}.{}", OLDEST_TORCH.0, OLDEST_TORCH.1, NEWEST_TORCH.0, NEWEST_TORCH.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_outside_of_the_tested_ones_are_recognised() {
        assert_eq!(support_of("2.5.1+cu124"), Support::Older);
        assert_eq!(support_of("2.6.0+cu124"), Support::Tested);
        assert_eq!(support_of("2.15.0+cu132"), Support::Tested);
        assert_eq!(support_of("2.16.0.dev20261101+cu132"), Support::Newer);
        assert_eq!(support_of("3.0.0"), Support::Newer);
        assert_eq!(support_of("of an unknown version"), Support::Newer);
    }

    #[test]
    fn tested_releases_are_those_of_the_table() {
        let table = include_str!("../../../measurements/matrix.md");
        let row = table.lines().find(|line| line.starts_with("| torch |")).unwrap();
        let mut found: Vec<_> = row.split('|').filter_map(|cell| release(cell.trim())).collect();
        found.sort_unstable();
        assert_eq!((found[0], found[found.len() - 1]), (OLDEST_TORCH, NEWEST_TORCH));
    }
}
