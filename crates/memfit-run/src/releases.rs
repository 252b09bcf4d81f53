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
pub enum Standing {
    /// Between the oldest and the newest tested release.
    Tried,
    /// Older than all tested releases.
    Older,
    /// Newer than all tested releases, or of unknown version.
    Newer,
}

/// Compares a version of torch with the tested releases.
pub fn standing(torch: &str) -> Standing {
    match release(torch) {
        Some(release) if release < OLDEST_TORCH => Standing::Older,
        Some(release) if release <= NEWEST_TORCH => Standing::Tried,
        _ => Standing::Newer,
    }
}

/// The tested releases of torch, as text.
pub fn tried() -> String {
    format!("{}.{} to {}.{}", OLDEST_TORCH.0, OLDEST_TORCH.1, NEWEST_TORCH.0, NEWEST_TORCH.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_torch_that_was_never_run_is_known_as_such() {
        assert_eq!(standing("2.5.1+cu124"), Standing::Older);
        assert_eq!(standing("2.6.0+cu124"), Standing::Tried);
        assert_eq!(standing("2.15.0+cu132"), Standing::Tried);
        assert_eq!(standing("2.16.0.dev20261101+cu132"), Standing::Newer);
        assert_eq!(standing("3.0.0"), Standing::Newer);
        assert_eq!(standing("of an unknown version"), Standing::Newer);
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
