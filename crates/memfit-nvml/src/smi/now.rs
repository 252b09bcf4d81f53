//! Time of an output, in UTC.

use std::time::{SystemTime, UNIX_EPOCH};

const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];

/// A point in time, in its parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Now {
    year: u64,
    month: u64,
    day: u64,
    weekday: usize,
    hour: u64,
    minute: u64,
    second: u64,
    millisecond: u64,
}

impl Now {
    /// Reads this machine's clock.
    pub(super) fn read() -> Self {
        let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self::from_unix(elapsed.as_secs(), u64::from(elapsed.subsec_millis()))
    }

    fn from_unix(seconds: u64, millisecond: u64) -> Self {
        let (days, of_day) = (seconds / 86_400, seconds % 86_400);
        // Days since the first of March of the year 0, in eras of 400 years: leap days then end a year.
        let days_since_march = days + 719_468;
        let (era, of_era) = (days_since_march / 146_097, days_since_march % 146_097);
        let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
        let of_year = of_era - (365 * year + year / 4 - year / 100);
        let from_march = (5 * of_year + 2) / 153;
        let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
        Self {
            year: year + era * 400 + u64::from(month <= 2),
            month,
            day: of_year - (153 * from_march + 2) / 5 + 1,
            weekday: (days % 7) as usize,
            hour: of_day / 3600,
            minute: of_day / 60 % 60,
            second: of_day % 60,
            millisecond,
        }
    }

    /// Formats as `Sun Nov 22 15:04:05 2026`.
    pub(super) fn in_words(self) -> String {
        let Self { year, month, day, weekday, hour, minute, second, .. } = self;
        let (weekday, month) = (DAYS[weekday], MONTHS[(month - 1) as usize]);
        format!("{weekday} {month} {day:>2} {hour:02}:{minute:02}:{second:02} {year}")
    }

    /// Formats as `2026/11/22 15:04:05.678`.
    pub(super) fn in_numbers(self) -> String {
        let Self { year, month, day, hour, minute, second, millisecond, .. } = self;
        format!("{year}/{month:02}/{day:02} {hour:02}:{minute:02}:{second:02}.{millisecond:03}")
    }
}

#[cfg(test)]
mod tests {
    use super::Now;

    #[test]
    fn seconds_are_dates() {
        for (seconds, words) in [
            (0, "Thu Jan  1 00:00:00 1970"),
            (951_782_400, "Tue Feb 29 00:00:00 2000"),
            (1_795_359_845, "Sun Nov 22 15:04:05 2026"),
        ] {
            assert_eq!(Now::from_unix(seconds, 0).in_words(), words);
        }
        assert_eq!(Now::from_unix(1_795_359_845, 7).in_numbers(), "2026/11/22 15:04:05.007");
    }
}
