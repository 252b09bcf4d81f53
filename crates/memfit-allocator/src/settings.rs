//! Allocator settings, and the parser of their text form (`PYTORCH_ALLOC_CONF`).

use crate::release::Release;

const MIB: u64 = 1 << 20;
/// Default segment size for a request of the large pool below [`crate::MIN_LARGE_REQUEST`].
pub const LARGE_SEGMENT: u64 = 20 * MIB;

/// Settings that affect the placement of memory. Those of pinned memory and of locking are omitted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Blocks of at least this size are never split, nor used for smaller requests. [`u64::MAX`]: no limit.
    pub max_split_size: u64,
    /// Maximum difference between an unsplit block and its request.
    pub max_non_split_rounding: u64,
    /// Segment size for requests of 1 to 10 MiB, and page size of large expandable segments.
    pub large_segment_size: u64,
    /// Rounding of requests to divisions of powers of two.
    pub roundup: Divisions,
    /// Share of the allowed memory above which unused large blocks are released. Zero disables it.
    pub garbage_collection_threshold: f64,
    /// Use of expandable segments.
    pub expandable_segments: bool,
    /// Address space of an expandable segment, if it is not nine eighths of the device.
    pub expandable_reserve: Option<Reserve>,
    /// Requests that cannot fit are rejected before the device is asked.
    pub rejects_early: bool,
    /// Share of the device that this process may use, if it is limited.
    pub memory_fraction: Option<f64>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            max_split_size: u64::MAX,
            max_non_split_rounding: LARGE_SEGMENT,
            large_segment_size: LARGE_SEGMENT,
            roundup: Divisions::default(),
            garbage_collection_threshold: 0.0,
            expandable_segments: false,
            expandable_reserve: None,
            rejects_early: false,
            memory_fraction: None,
        }
    }
}

/// Address space of an expandable segment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reserve {
    /// Share of the device's memory.
    Share(f64),
    /// Number of bytes.
    Bytes(f64),
}

impl Reserve {
    /// Parses a share such as `0.5`, or a size such as `40G`. PyTorch ignores invalid values with a warning.
    fn parse(text: &str) -> Option<Self> {
        let (number, of_bytes) = text.strip_suffix('G').map_or((text, false), |number| (number, true));
        let number = number.parse::<f64>().ok().filter(|number| number.is_finite() && *number > 0.0)?;
        Some(if of_bytes { Self::Bytes(number * (1_u64 << 30) as f64) } else { Self::Share(number) })
    }

    /// Size in bytes on a device with `total` bytes; at most `most`.
    pub(crate) fn bytes(self, total: u64, most: u64) -> u64 {
        let bytes = match self {
            Self::Share(share) => share * total as f64,
            Self::Bytes(bytes) => bytes,
        };
        // The conversion saturates.
        (bytes as u64).min(most)
    }
}

/// Number of steps from each power of two to the next; less than two disables the rounding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Divisions([u64; Self::LEN]);

impl Divisions {
    const LEN: usize = 16;
    /// The first entry applies to everything below 2 MiB.
    const FIRST_BIT: u32 = MIB.ilog2();

    /// The same number of steps everywhere.
    pub const fn all(steps: u64) -> Self {
        Self([steps; Self::LEN])
    }

    /// Entries for 1 MiB, 2 MiB and so on to 32 GiB.
    pub const fn from_entries(entries: [u64; Self::LEN]) -> Self {
        Self(entries)
    }

    /// Entries by the power of two, in MiB, at which each begins; missing ones are disabled.
    pub fn from_powers(powers: impl IntoIterator<Item = (u64, u64)>) -> Self {
        let mut entries = [0; Self::LEN];
        for (power, steps) in powers {
            if power.is_power_of_two() {
                entries[Self::index(power.ilog2())] = steps;
            }
        }
        Self(entries)
    }

    /// Steps for a request of `size` bytes, which is not zero.
    pub(crate) fn steps_for(&self, size: u64) -> u64 {
        self.0[Self::index(size.ilog2().saturating_sub(Self::FIRST_BIT))]
    }

    fn index(power: u32) -> usize {
        (power as usize).min(Self::LEN - 1)
    }
}

/// Setting that PyTorch rejects.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// Unknown setting.
    #[error("PyTorch {release} has no allocator setting `{name}`")]
    Unknown {
        /// Name of the setting.
        name: String,
        /// PyTorch release.
        release: Release,
    },
    /// Invalid value.
    #[error("`{value}` is not a value for `{name}`: {expected}")]
    Value {
        /// Name of the setting.
        name: &'static str,
        /// Value.
        value: String,
        /// Description of valid values.
        expected: &'static str,
    },
    /// Text that is not `name:value`.
    #[error("`{0}` is not of the form name:value")]
    Form(String),
}

/// Known settings without effect on the placement of memory.
const WITHOUT_EFFECT: &[&str] = &[
    "backend",
    "release_lock_on_cudamalloc",
    "release_lock_on_hipmalloc",
    "pinned_use_cuda_host_register",
    "pinned_use_hip_host_register",
    "pinned_num_register_threads",
    "pinned_use_background_threads",
    "pinned_reserve_segment_size_mb",
    "pinned_free_catch_all",
    "graph_capture_record_stream_reuse",
    "expandable_segments_handle_type",
    "pinned_max_round_threshold_mb",
    "pinned_max_cached_size_mb",
];

impl Settings {
    /// Returns `true` if garbage collection is enabled above a threshold: PyTorch does so only under a memory
    /// fraction, and some releases only under one below 1.
    pub fn arms_collection(&self, release: Release) -> bool {
        self.memory_fraction
            .is_some_and(|fraction| fraction < 1.0 || !release.whole_fraction_disarms_collection())
    }

    /// Parses a text such as `max_split_size_mb:128,expandable_segments:True`, as `release` does.
    pub fn parse(text: &str, release: Release) -> Result<Self, SettingsError> {
        let mut settings = Self::default();
        let mut rounding_is_set = false;
        for item in split_outside_brackets(text) {
            let item = item.trim();
            if item.is_empty() {
                continue;
            }
            let (name, value) = item.split_once(':').ok_or_else(|| SettingsError::Form(item.to_owned()))?;
            settings.set(name.trim(), value.trim(), release)?;
            rounding_is_set |= name.trim() == "max_non_split_rounding_mb";
        }
        // Observed in 2.11 and 2.15: by default, an unsplit block may exceed its request by the size of a
        // large segment, whatever that is.
        if !rounding_is_set {
            settings.max_non_split_rounding = settings.large_segment_size;
        }
        Ok(settings)
    }

    fn set(&mut self, name: &str, value: &str, release: Release) -> Result<(), SettingsError> {
        match name {
            "max_split_size_mb" => {
                let least = LARGE_SEGMENT / MIB + u64::from(!release.accepts_smallest_split_limit());
                let expected = if release.accepts_smallest_split_limit() {
                    "a number of MiB, at least 20"
                } else {
                    "a number of MiB, more than 20"
                };
                self.max_split_size = mebibytes("max_split_size_mb", value, least, expected)?;
            }
            "max_non_split_rounding_mb" if release.has_non_split_rounding() => {
                let expected = "a number of MiB, more than 20";
                self.max_non_split_rounding = mebibytes("max_non_split_rounding_mb", value, 21, expected)?;
            }
            "large_segment_size_mb" if release.has_large_segment_size() => {
                let expected = "an even number of MiB, at least 20";
                let size = mebibytes("large_segment_size_mb", value, 20, expected)?;
                if !size.is_multiple_of(2 * MIB) {
                    return Err(invalid("large_segment_size_mb", value, expected));
                }
                self.large_segment_size = size;
            }
            "garbage_collection_threshold" => {
                let threshold = value.parse().ok().filter(|threshold| *threshold > 0.0 && *threshold < 1.0);
                self.garbage_collection_threshold = threshold.ok_or_else(|| {
                    invalid("garbage_collection_threshold", value, "a number above 0 and below 1")
                })?;
            }
            "per_process_memory_fraction" => {
                let fraction = value.parse().ok().filter(|fraction| (0.0..=1.0).contains(fraction));
                self.memory_fraction =
                    Some(fraction.ok_or_else(|| {
                        invalid("per_process_memory_fraction", value, "a number from 0 to 1")
                    })?);
            }
            "expandable_segments" => {
                self.expandable_segments = truth("expandable_segments", value)?;
            }
            "roundup_power2_divisions" => self.roundup = divisions(value, release)?,
            "throw_on_cudamalloc_oom" if release.has_early_rejection() => {
                self.rejects_early = truth("throw_on_cudamalloc_oom", value)?;
            }
            "expandable_segments_reserve" if release.has_expandable_reserve() => {
                self.expandable_reserve = Reserve::parse(value);
            }
            // The program assigns classes to streams, and no recording contains the assignment.
            "expandable_segments_reserve_by_class" if release.has_expandable_reserve() => {}
            _ if WITHOUT_EFFECT.contains(&name) => {}
            _ => return Err(SettingsError::Unknown { name: name.to_owned(), release }),
        }
        Ok(())
    }

    /// Returns `true` if splitting is limited.
    pub(crate) const fn limits_splits(&self) -> bool {
        self.max_split_size != u64::MAX
    }
}

fn invalid(name: &'static str, value: &str, expected: &'static str) -> SettingsError {
    SettingsError::Value { name, value: value.to_owned(), expected }
}

fn truth(name: &'static str, value: &str) -> Result<bool, SettingsError> {
    match value {
        "True" => Ok(true),
        "False" => Ok(false),
        _ => Err(invalid(name, value, "True or False")),
    }
}

fn mebibytes(
    name: &'static str,
    value: &str,
    least: u64,
    expected: &'static str,
) -> Result<u64, SettingsError> {
    value
        .parse::<u64>()
        .ok()
        .filter(|count| *count >= least)
        .map(|count| count.saturating_mul(MIB))
        .ok_or_else(|| invalid(name, value, expected))
}

fn divisions(value: &str, release: Release) -> Result<Divisions, SettingsError> {
    let name = "roundup_power2_divisions";
    let steps_of = |text: &str| {
        text.trim()
            .parse::<u64>()
            .ok()
            .filter(|steps| *steps == 0 || steps.is_power_of_two())
            .ok_or_else(|| invalid(name, text, "zero or a power of two"))
    };
    let Some(list) = value.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) else {
        return Ok(Divisions::all(steps_of(value)?));
    };
    let mut entries = [0; Divisions::LEN];
    let mut last = None;
    for pair in list.split(',') {
        let (key, steps) = pair.split_once(':').ok_or_else(|| SettingsError::Form(pair.to_owned()))?;
        let steps = steps_of(steps)?;
        if key.trim() == ">" {
            let behind = usize::from(release.rest_begins_behind_last_key());
            let from = last.map_or(0, |last: usize| last + behind);
            entries[from.min(Divisions::LEN)..].fill(steps);
            continue;
        }
        let power = key.trim().parse::<u64>().ok().filter(|key| key.is_power_of_two());
        let power = power.ok_or_else(|| invalid(name, key, "a power of two, in MiB, or >"))?.ilog2();
        let index = Divisions::index(power);
        if last.is_none() {
            entries[..index].fill(steps);
        }
        entries[index] = steps;
        last = Some(index);
    }
    Ok(Divisions(entries))
}

fn split_outside_brackets(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_i32;
    text.split(move |character| {
        match character {
            '[' => depth += 1,
            ']' => depth -= 1,
            _ => {}
        }
        character == ',' && depth == 0
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Settings, SettingsError> {
        Settings::parse(text, Release::NEWEST)
    }

    #[test]
    fn an_empty_text_is_the_defaults() {
        assert_eq!(parse(""), Ok(Settings::default()));
    }

    #[test]
    fn settings_are_read_with_blanks_and_lists() {
        let settings = parse(
            "max_split_size_mb:128, garbage_collection_threshold:0.8 ,expandable_segments:True,\
             roundup_power2_divisions:[256:1,512:2],backend:native",
        )
        .expect("the settings are valid");
        assert_eq!(settings.max_split_size, 128 * MIB);
        assert!((settings.garbage_collection_threshold - 0.8).abs() < f64::EPSILON);
        assert!(settings.expandable_segments);
        assert_eq!(settings.roundup.steps_for(512 * MIB), 2);
        assert_eq!(settings.roundup.steps_for(1), 1);
        assert_eq!(settings.roundup.steps_for(1024 * MIB), 0);
    }

    /// Each setting at the ends of its values, and one beyond.
    #[test]
    fn each_setting_has_its_values() {
        let fraction = |text: &str| parse(&format!("per_process_memory_fraction:{text}"));
        for (text, value) in [("0", 0.0), ("0.25", 0.25), ("1.0", 1.0)] {
            assert_eq!(fraction(text).expect("a fraction").memory_fraction, Some(value));
        }
        assert!(fraction("-0.1").is_err() && fraction("1.1").is_err() && fraction("half").is_err());
        assert_eq!(parse("").expect("no setting").memory_fraction, None);
        for (setting, least, below) in [
            ("max_split_size_mb", 20, 19),
            ("max_non_split_rounding_mb", 21, 20),
            ("large_segment_size_mb", 20, 18),
        ] {
            assert!(parse(&format!("{setting}:{least}")).is_ok(), "{setting}:{least}");
            assert!(parse(&format!("{setting}:{below}")).is_err(), "{setting}:{below}");
        }
        assert!(parse("large_segment_size_mb:33").is_err(), "an odd number of MiB");
        for threshold in ["0", "1", "-0.5", "much"] {
            assert!(parse(&format!("garbage_collection_threshold:{threshold}")).is_err(), "{threshold}");
        }
        assert!(parse("throw_on_cudamalloc_oom:True").expect("a setting").rejects_early);
        assert!(!parse("throw_on_cudamalloc_oom:False").expect("a setting").rejects_early);
        for unchanging in super::WITHOUT_EFFECT.iter().chain(&["expandable_segments_reserve_by_class"]) {
            assert_eq!(parse(&format!("{unchanging}:1")), Ok(Settings::default()), "{unchanging}");
        }
    }

    #[test]
    fn the_rest_of_a_list_begins_at_or_behind_its_last_key() {
        let text = "roundup_power2_divisions:[64:8,256:4,>:1]";
        let old = Settings::parse(text, Release::new(2, 9)).expect("the settings are valid");
        let new = parse(text).expect("the settings are valid");
        assert_eq!((old.roundup.steps_for(256 * MIB), new.roundup.steps_for(256 * MIB)), (1, 4));
        assert_eq!((old.roundup.steps_for(512 * MIB), new.roundup.steps_for(512 * MIB)), (1, 1));
        assert_eq!((old.roundup.steps_for(MIB), new.roundup.steps_for(MIB)), (8, 8));
    }

    #[test]
    fn settings_that_pytorch_refuses_are_refused() {
        for text in [
            "max_split_size_mb:10",
            "max_split_size_mb",
            "expandable_segments:yes",
            "garbage_collection_threshold:1.0",
            "roundup_power2_divisions:3",
            "roundup_power2_divisions:[3:4]",
            "max_split_sise_mb:64",
            "throw_on_cudamalloc_oom:maybe",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert!(Settings::parse("max_split_size_mb:20", Release::new(2, 9)).is_err());
        assert!(Settings::parse("max_split_size_mb:20", Release::new(2, 10)).is_ok());
        assert!(Settings::parse("large_segment_size_mb:64", Release::new(2, 9)).is_err());
        for new in ["throw_on_cudamalloc_oom:True", "expandable_segments_reserve:0.5"] {
            assert!(Settings::parse(new, Release::new(2, 11)).is_err(), "{new}");
            assert!(parse(new).is_ok(), "{new}");
        }
    }

    #[test]
    fn allowed_excess_of_an_unsplit_block_follows_the_large_segment() {
        let rounding = |text: &str| parse(text).expect("the settings are valid").max_non_split_rounding / MIB;
        assert_eq!(rounding("large_segment_size_mb:32"), 32);
        assert_eq!(rounding("large_segment_size_mb:32,max_split_size_mb:64"), 32);
        assert_eq!(rounding("max_non_split_rounding_mb:24,large_segment_size_mb:32"), 24);
        assert_eq!(rounding(""), 20);
    }

    #[test]
    fn a_reserve_is_a_share_or_a_size_and_never_too_much() {
        const GIB: u64 = 1 << 30;
        for (text, bytes) in [
            ("0.5", Some(4 * GIB)),
            ("3G", Some(3 * GIB)),
            ("1e20G", Some(9 * GIB)),
            ("0", None),
            ("-1G", None),
            ("half", None),
        ] {
            let settings = parse(&format!("expandable_segments_reserve:{text}")).expect("a warning at most");
            let reserve = settings.expandable_reserve.map(|reserve| reserve.bytes(8 * GIB, 9 * GIB));
            assert_eq!(reserve, bytes, "{text}");
        }
    }
}
