//! Quantities in the form in which people type and read them.

pub use nacre_quantity::{parse_size, parse_time};
pub use nacre_walk::quantity::{grouped, size};

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
