//! Quantities as people type and read them: counts that may be unlimited, and numbers in reports.

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
    let sign = if number < -0.5 { "-" } else { "" };
    format!("{sign}{}", nacre_quantity::grouped(number.abs().round_ties_even() as u64))
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
    fn limits_are_counts_or_none() {
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
