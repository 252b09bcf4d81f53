//! Differences between releases of PyTorch. Everything else in this crate is the same from 2.0 to 2.15.

use std::fmt;
use std::str::FromStr;

/// Release of PyTorch, as far as the allocator's behaviour depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Release {
    major: u16,
    minor: u16,
}

/// Error for a text that is not a release number.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("`{0}` is not a PyTorch release; a release looks like 2.9 or 2.15.0+cu132")]
pub struct ReleaseError(String);

impl Release {
    /// Newest release with known behaviour.
    pub const NEWEST: Self = Self::new(2, 15);

    /// Last release whose snapshots do not name the pool of each event.
    pub const WITHOUT_POOL_NAMES: Self = Self::new(2, 11);

    /// Release `major.minor`.
    pub const fn new(major: u16, minor: u16) -> Self {
        Self { major, minor }
    }

    /// Environment variable that holds the allocator's settings. 2.9 renamed it, and reads the older name as
    /// well.
    pub const fn settings_variable(self) -> &'static str {
        if self.at_least(2, 9) { "PYTORCH_ALLOC_CONF" } else { "PYTORCH_CUDA_ALLOC_CONF" }
    }

    const fn at_least(self, major: u16, minor: u16) -> bool {
        self.major > major || (self.major == major && self.minor >= minor)
    }

    /// Of free blocks of the same size, the one in the oldest segment is used; earlier, the one at the lowest
    /// address. Observed in 2.15 and not in 2.11; assumed for the releases between.
    pub(crate) const fn prefers_older_segments(self) -> bool {
        self.at_least(2, 12)
    }

    /// If several captures match a stream, the last one wins; up to 2.9 the first one did.
    pub(crate) const fn last_capture_wins(self) -> bool {
        self.at_least(2, 10)
    }

    /// `>` in a list of divisions fills the entries after the last key; up to 2.9 it overwrote the last key
    /// itself.
    pub(crate) const fn rest_begins_behind_last_key(self) -> bool {
        self.at_least(2, 10)
    }

    /// Pools marked `use_on_oom` serve requests that would fail otherwise.
    pub(crate) const fn has_pools_on_oom(self) -> bool {
        self.at_least(2, 9)
    }

    /// Such pools are tried before cached memory is released; in 2.9 they were tried last.
    pub(crate) const fn asks_pools_before_releasing(self) -> bool {
        self.at_least(2, 10)
    }

    /// A pool can forbid splitting of its segments.
    pub(crate) const fn has_unsplit_pools(self) -> bool {
        self.at_least(2, 10)
    }

    /// Pools with their own allocator do not use expandable segments; earlier, the setting applied to all
    /// pools.
    pub(crate) const fn own_allocators_stay_unexpandable(self) -> bool {
        self.at_least(2, 10)
    }

    /// Garbage is collected only if the memory fraction is below one; up to 2.9 any fraction enabled it.
    pub(crate) const fn whole_fraction_disarms_collection(self) -> bool {
        self.at_least(2, 10)
    }

    /// `max_split_size_mb:20` is accepted; up to 2.9 the value had to be larger.
    pub(crate) const fn accepts_smallest_split_limit(self) -> bool {
        self.at_least(2, 10)
    }

    /// The rounding of unsplit large blocks is a setting; earlier, it was 20 MiB.
    pub(crate) const fn has_non_split_rounding(self) -> bool {
        self.at_least(2, 5)
    }

    /// Requests beyond the limit can be rejected before the device is asked. Present in the source of 2.15,
    /// absent in 2.11.
    pub(crate) const fn has_early_rejection(self) -> bool {
        self.at_least(2, 12)
    }

    /// The address space reserved for expandable segments is a setting. Present in the source of 2.15, absent
    /// in 2.11.
    pub(crate) const fn has_expandable_reserve(self) -> bool {
        self.at_least(2, 12)
    }

    /// The segment size for requests of 1 to 10 MiB is a setting; earlier, it was 20 MiB.
    pub(crate) const fn has_large_segment_size(self) -> bool {
        self.at_least(2, 11)
    }
}

impl Default for Release {
    fn default() -> Self {
        Self::NEWEST
    }
}

impl fmt::Display for Release {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{}", self.major, self.minor)
    }
}

impl FromStr for Release {
    type Err = ReleaseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || ReleaseError(text.to_owned());
        let mut parts = text.trim().split('.');
        let major = parts.next().and_then(|part| part.parse().ok()).ok_or_else(error)?;
        let minor = parts
            .next()
            .map(|part| part.split(|character: char| !character.is_ascii_digit()).next().unwrap_or_default())
            .and_then(|part| part.parse().ok())
            .ok_or_else(error)?;
        Ok(Self::new(major, minor))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_as_wheels_name_themselves_are_understood() {
        for (text, release) in [
            ("2.15.0+cu132", Release::new(2, 15)),
            ("2.9", Release::new(2, 9)),
            ("2.0.1", Release::new(2, 0)),
            ("2.12a0", Release::new(2, 12)),
        ] {
            assert_eq!(text.parse(), Ok(release), "{text}");
        }
        for text in ["", "two", "2", "2.", "2.x"] {
            assert!(text.parse::<Release>().is_err(), "{text}");
        }
    }

    #[test]
    fn ten_comes_after_nine() {
        assert!(Release::new(2, 10) > Release::new(2, 9));
        assert!(Release::new(2, 15).last_capture_wins());
        assert!(!Release::new(2, 9).last_capture_wins());
    }
}
