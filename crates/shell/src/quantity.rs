//! Quantities in the form in which people type and read them.

use std::str::FromStr;
use std::time::Duration;

pub use nacre_quantity::{grouped, parse_size, parse_time, size};

/// A time, such as `500ms`, `30s` or `10min`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Time(pub Duration);

impl FromStr for Time {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse_time(text).map(Time)
    }
}

/// A size, such as `64KiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(pub u64);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse_size(text).map(Size)
    }
}

/// Returns a count with its unit, such as `1 byte` or `2 bytes`.
pub fn count(number: u64, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {what}{plural}", grouped(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_counted_for_people() {
        assert_eq!(count(1, "byte"), "1 byte");
        assert_eq!(count(1000, "byte"), "1,000 bytes");
    }
}
