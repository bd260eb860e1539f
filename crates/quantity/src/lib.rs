//! Sizes, times and names as people type them, by one grammar for all commands, settings and uris, and as they read them.
//!
//! A quantity is a whole number and a unit, with or without a space between them. Units of sizes are powers of 1024, in
//! any case: `4096`, `64KiB`, `64k`, `1 GiB`. Times have a unit always, in small letters: `200us`, `500ms`, `30s`, `10min`,
//! `10m`, `2h`, `7d`.
//!
//! A name is any bytes, such as a path; [`Escaped`] prints it, and [`unescape`] reads it.
//!
//! [`repeated`] has people read few lines about events that come again and again.

#![forbid(unsafe_code)]

mod escape;
pub mod repeated;

use std::num::{IntErrorKind, ParseIntError};
use std::ops::RangeInclusive;
use std::time::Duration;

pub use escape::{Escaped, escaped_text, excerpt, unescape};

/// Returns a parser of counts within a range, for an argument of a program.
///
/// ```
/// let parse = nacre_quantity::count_parser::<u32>(1..=100);
/// assert_eq!(parse("7"), Ok(7));
/// assert_eq!(parse("0"), Err("it must be 1 to 100".to_owned()));
/// assert_eq!(parse("-1"), Err("it must be 1 to 100".to_owned()));
/// assert_eq!(nacre_quantity::count_parser::<u64>(1..=u64::MAX)("0"), Err("it must be at least 1".to_owned()));
/// ```
pub fn count_parser<T: TryFrom<u64> + 'static>(
    range: RangeInclusive<u64>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static {
    move |text: &str| {
        let beyond = || match range.end() {
            &u64::MAX => format!("it must be at least {}", range.start()),
            end => format!("it must be {} to {end}", range.start()),
        };
        let number: u64 = text.parse().map_err(|error: ParseIntError| match error.kind() {
            IntErrorKind::PosOverflow => "the number is too large".to_owned(),
            _ if is_negative(text) => beyond(),
            _ => "it is not a count".to_owned(),
        })?;
        if !range.contains(&number) {
            return Err(beyond());
        }
        T::try_from(number).map_err(|_| "the number is too large".to_owned())
    }
}

/// Parses a size in bytes.
///
/// # Errors
/// A sentence, if the text is no size, or the size is 2^64 bytes or more.
///
/// ```
/// assert_eq!(nacre_quantity::parse_size("64KiB"), Ok(65536));
/// ```
pub fn parse_size(text: &str) -> Result<u64, String> {
    let (digits, unit) = split(text);
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        "t" | "tib" => 40,
        "p" | "pib" => 50,
        _ => return Err(format!("\"{unit}\" is not a unit; use B, KiB, MiB, GiB, TiB or PiB")),
    };
    let number = whole(digits).ok_or_else(|| match is_negative(digits) {
        true => "a size cannot be negative".to_owned(),
        false => format!("\"{digits}\" is not a whole number of bytes; write it like 4096 or 64KiB"),
    })?;
    number?.checked_mul(1 << shift).ok_or_else(|| "that is more than 2^64 bytes".to_owned())
}

/// Parses a time.
///
/// # Errors
/// A sentence, if the text is no time, or the time is 2^64 milliseconds or more.
///
/// ```
/// # use std::time::Duration;
/// assert_eq!(nacre_quantity::parse_time("10min"), Ok(Duration::from_secs(600)));
/// ```
pub fn parse_time(text: &str) -> Result<Duration, String> {
    let (digits, unit) = split(text);
    let wrong = || match is_negative(digits) {
        true => "a time cannot be negative".to_owned(),
        false => format!("\"{text}\" is not a time; write it like 500ms, 30s, 10min, 2h or 7d"),
    };
    let unit_ms: u64 = match unit {
        "us" => return whole(digits).ok_or_else(wrong)?.map(Duration::from_micros),
        "ms" => 1,
        "s" => 1000,
        "m" | "min" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(wrong()),
    };
    let number = whole(digits).ok_or_else(wrong)??;
    number.checked_mul(unit_ms).map(Duration::from_millis).ok_or_else(|| format!("\"{text}\" is too long"))
}

/// Formats a size with a suitable unit, such as `1.5 MiB`.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    // From 1023.95 on it would read as 1024.0.
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// Formats a number with commas between thousands, such as `12,345`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a number with its noun, such as `1 entry` or `2 entries`.
pub fn count(number: u64, one: &str, many: &str) -> String {
    format!("{} {}", grouped(number), if number == 1 { one } else { many })
}

/// Splits a quantity into its number and its unit.
fn split(text: &str) -> (&str, &str) {
    let text = text.trim();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    (digits.trim_end(), &text[digits.len()..])
}

/// Parses a whole number without a sign; `None` if it is none.
fn whole(digits: &str) -> Option<Result<u64, String>> {
    let is_whole = !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit());
    is_whole.then(|| digits.parse().map_err(|_| format!("{digits} is more than can be counted")))
}

/// Returns whether a text is a whole number with a minus sign.
fn is_negative(text: &str) -> bool {
    text.strip_prefix('-').is_some_and(|digits| whole(digits).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_numbers_are_written_for_people() {
        assert_eq!(size(1023), "1023 B");
        assert_eq!(size(1536), "1.5 KiB");
        assert_eq!(size((1 << 20) - 1), "1.0 MiB");
        assert_eq!(size(u64::MAX), "16.0 EiB");
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!(count(1, "entry", "entries"), "1 entry");
        assert_eq!(count(1000, "entry", "entries"), "1,000 entries");
    }

    #[test]
    fn sizes_are_read_with_their_units() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("4096B", 4096),
            ("64KiB", 65536),
            ("64k", 65536),
            ("1 KiB", 1024),
            (" 1 GiB ", 1 << 30),
            ("3P", 3 << 50),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for wrong in ["", "KiB", "-1", "+1", "1.5MiB", "4 parsecs", "0x10", "1 0", "1kb"] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
        assert_eq!(parse_size("-1KiB").unwrap_err(), "a size cannot be negative");
        for large in ["99999999999TiB", "16384PiB", "18446744073709551616"] {
            assert!(parse_size(large).is_err(), "{large}");
        }
    }

    #[test]
    fn times_have_units() {
        for (text, ms) in [
            ("0s", 0),
            ("500ms", 500),
            ("30s", 30_000),
            ("1m", 60_000),
            ("1min", 60_000),
            ("1 min", 60_000),
            ("2h", 7_200_000),
            ("7d", 604_800_000),
        ] {
            assert_eq!(parse_time(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        assert_eq!(parse_time("200us"), Ok(Duration::from_micros(200)));
        for negative in ["-1s", "-5"] {
            assert_eq!(parse_time(negative).unwrap_err(), "a time cannot be negative");
        }
        for wrong in
            ["", "5", "s", "-1s", "+1s", "1.5s", "1M", "1sec", "99999999999999999d", "18446744073709551616ms"]
        {
            assert!(parse_time(wrong).is_err(), "{wrong}");
        }
    }
}
