//! Quantities as people type and read them: sizes, durations, and counts that may be unlimited.

use std::time::Duration;

/// Parses a size in bytes, such as `4096`, `4KiB` or `1M`; all units are powers of 1024.
pub(crate) fn parse_bytes(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        "t" | "tib" => 40,
        other => return Err(format!("\"{other}\" is no unit of size; use B, KiB, MiB, GiB or TiB")),
    };
    let number: u64 = digits.trim().parse().map_err(|_| format!("\"{digits}\" is no whole number"))?;
    number.checked_mul(1 << unit).ok_or_else(|| format!("{text} is too large"))
}

/// Parses a duration such as `500ms`, `2s` or `1m`.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: u64 = digits.trim().parse().map_err(|_| format!("\"{digits}\" is no whole number"))?;
    let ms = match &text[digits.len()..] {
        "ms" => Some(number),
        "s" => number.checked_mul(1000),
        "m" | "min" => number.checked_mul(60_000),
        "" => return Err(format!("\"{text}\" has no unit; use ms, s or m")),
        other => return Err(format!("\"{other}\" is no unit of time; use ms, s or m")),
    };
    ms.map(Duration::from_millis).ok_or_else(|| format!("{text} is too long"))
}

/// Parses a count, or `unlimited`.
pub(crate) fn parse_limit(text: &str) -> Result<Limit, String> {
    match text {
        "unlimited" => Ok(Limit::Unlimited),
        _ => text.parse().map(Limit::Count).map_err(|_| format!("\"{text}\" is no count and not unlimited")),
    }
}

/// A count that may be unlimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// A finite count.
    Count(u64),
    /// No limit.
    Unlimited,
}

impl Limit {
    /// Returns the count, if it is finite.
    pub fn count(self) -> Option<u64> {
        match self {
            Self::Count(count) => Some(count),
            Self::Unlimited => None,
        }
    }
}

/// Formats a number with commas between thousands: `12,345`.
pub(crate) fn grouped(number: f64) -> String {
    let digits = format!("{number:.0}");
    let (sign, digits) = digits.strip_prefix('-').map_or(("", digits.as_str()), |rest| ("-", rest));
    let mut text = String::from(sign);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a latency in microseconds with a suitable unit.
pub(crate) fn latency(us: f64) -> String {
    match us {
        us if us < 10.0 => format!("{us:.2} µs"),
        us if us < 1000.0 => format!("{us:.0} µs"),
        us if us < 10_000.0 => format!("{:.2} ms", us / 1e3),
        us if us < 1e6 => format!("{:.0} ms", us / 1e3),
        us => format!("{:.2} s", us / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_durations_are_read_with_their_units() {
        assert_eq!(parse_bytes("4KiB"), Ok(4096));
        assert_eq!(parse_bytes("4096"), Ok(4096));
        assert_eq!(parse_bytes("1m"), Ok(1 << 20));
        assert!(parse_bytes("4 parsecs").is_err());
        assert!(parse_bytes("99999999999TiB").is_err());
        assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration("2s"), Ok(Duration::from_secs(2)));
        assert!(parse_duration("2").is_err());
        assert_eq!(parse_limit("unlimited"), Ok(Limit::Unlimited));
        assert_eq!(parse_limit("512"), Ok(Limit::Count(512)));
        assert!(parse_limit("many").is_err());
    }

    #[test]
    fn numbers_are_written_for_people() {
        assert_eq!(grouped(1_234_567.4), "1,234,567");
        assert_eq!(grouped(12.0), "12");
        assert_eq!(grouped(-1234.0), "-1,234");
        assert_eq!(latency(4.26), "4.26 µs");
        assert_eq!(latency(61_000.0), "61 ms");
    }
}
