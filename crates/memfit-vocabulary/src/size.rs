//! The one format of byte counts in texts for people.

/// Formats a size for people: binary units, with as many decimals as are useful.
pub fn format_size(bytes: u64) -> String {
    const UNITS: [(u32, &str); 4] = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    for (shift, unit) in UNITS {
        let one = 1_u64 << shift;
        // A size that would round up to a full larger unit is printed in that unit (1023.9 MiB).
        if bytes >= one - one / 64 {
            let count = bytes as f64 / one as f64;
            let decimals = match unit {
                "TiB" | "GiB" => 2,
                "MiB" if count < 99.95 => 1,
                _ => 0,
            };
            return format!("{count:.decimals$} {unit}");
        }
    }
    format!("{bytes} B")
}

/// Formats milliseconds with three digits, which exceeds the accuracy of the estimates.
pub fn format_milliseconds(ms: f64) -> String {
    match ms {
        10_000.0.. => format!("{:.1} s", ms / 1000.0),
        1000.0.. => format!("{:.2} s", ms / 1000.0),
        100.0.. => format!("{ms:.0} ms"),
        10.0.. => format!("{ms:.1} ms"),
        _ => format!("{ms:.2} ms"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_three_digits() {
        for (ms, text) in [
            (0.0, "0.00 ms"),
            (9.876, "9.88 ms"),
            (12.34, "12.3 ms"),
            (123.4, "123 ms"),
            (1234.0, "1.23 s"),
            (12_345.0, "12.3 s"),
        ] {
            assert_eq!(format_milliseconds(ms), text);
        }
    }

    #[test]
    fn sizes_have_as_many_decimals_as_matter() {
        let check = |bytes: u64, text: &str| assert_eq!(format_size(bytes), text, "{bytes}");
        check(0, "0 B");
        check(1000, "1000 B");
        check(1023, "1 KiB");
        check(513 << 10, "513 KiB");
        check(1 << 20, "1.0 MiB");
        check((97 << 20) + (1 << 19), "97.5 MiB");
        check(465 << 20, "465 MiB");
        check((1 << 30) - 1, "1.00 GiB");
        check(25 << 30, "25.00 GiB");
        check(3 << 40, "3.00 TiB");
        check(u64::MAX, "16777216.00 TiB");
    }
}
