//! Quantities in the form in which people type and read them.

pub use nacre_walk::quantity::{grouped, size};

/// Parses a size such as `4096`, `64KiB`, `64K` or `1 GiB`; all units are powers of 1024.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        "t" | "tib" => 40,
        "p" | "pib" => 50,
        unit => return Err(format!("\"{unit}\" is not a unit; use B, KiB, MiB, GiB, TiB or PiB")),
    };
    let digits = digits.trim_end();
    let number: u64 = match digits.parse() {
        Ok(number) if digits.bytes().all(|digit| digit.is_ascii_digit()) => number,
        _ => return Err(format!("\"{digits}\" is not a whole number of bytes; write it like 4096 or 64KiB")),
    };
    number.checked_mul(1 << shift).ok_or_else(|| "that is more than 2^64 bytes".to_owned())
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
    fn sizes_are_read_with_their_units() {
        assert_eq!(parse_size("4096"), Ok(4096));
        assert_eq!(parse_size("64KiB"), Ok(65536));
        assert_eq!(parse_size("64k"), Ok(65536));
        assert_eq!(parse_size("1 GiB"), Ok(1 << 30));
        assert_eq!(parse_size("0"), Ok(0));
        for wrong in ["", "KiB", "-1", "+1", "1.5MiB", "4 parsecs", "99999999999TiB", "0x10"] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn numbers_are_counted_for_people() {
        assert_eq!(count(1, "byte"), "1 byte");
        assert_eq!(count(1000, "byte"), "1,000 bytes");
    }
}
