//! Arithmetic of residues: greatest common divisors, and the first multiple that falls into a window.

/// Returns the greatest common divisor; that of 0 and a number is the number.
pub(super) fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// Returns the least common multiple of two positive numbers; none where it is past 63 bits.
pub(super) fn lcm(a: u64, b: u64) -> Option<u64> {
    (a / gcd(a, b)).checked_mul(b).filter(|&multiple| multiple <= i64::MAX as u64)
}

/// Returns the least `i` for which `(start + i * step) mod modulus` is less than `window`.
///
/// The search follows Euclid's algorithm, so it takes a number of divisions that is logarithmic in the modulus. The
/// modulus is positive and at most 2^63.
pub(super) fn first_in_window(start: u64, step: u64, modulus: u64, window: u64) -> Option<u64> {
    let start = start % modulus;
    if start < window {
        return Some(0);
    }
    if window == 0 {
        return None;
    }
    // `i * step` is to be congruent to a number from `-start` to `-start + window - 1`. As `start` is outside of the
    // window, that range does not wrap and does not hold 0.
    let low = modulus - start;
    first_in_range(step % modulus, modulus, low, low + window - 1)
}

/// Returns the least `x` for which `step * x mod modulus` lies between `low` and `high`, both included.
///
/// It takes `step < modulus` and `low <= high < modulus`. Either a multiple of the step lies in the range before the
/// first wrap; or, after `y` wraps, `step * x = modulus * y + something in the range`, so `modulus * y` is congruent
/// modulo `step` to the negated range. That range has no multiple of the step in it, so it does not wrap either, and
/// the least `y` belongs to the least `x`.
fn first_in_range(step: u64, modulus: u64, low: u64, high: u64) -> Option<u64> {
    if low == 0 {
        return Some(0);
    }
    if step == 0 {
        return None;
    }
    let x = low.div_ceil(step);
    if u128::from(x) * u128::from(step) <= u128::from(high) {
        return Some(x);
    }
    let negated = |value: u64| (step - value % step) % step;
    let wraps = first_in_range(modulus % step, step, negated(high), negated(low))?;
    let reached = u128::from(modulus) * u128::from(wraps) + u128::from(low);
    // The quotient is less than the modulus, because residues repeat after that number of multiples.
    Some(reached.div_ceil(u128::from(step)) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_multiple_in_a_window_is_the_one_that_counting_finds() {
        for modulus in 1..20_u64 {
            for step in 0..2 * modulus {
                for start in 0..modulus {
                    for window in 0..modulus + 2 {
                        let counted = (0..modulus).find(|i| (start + i * step) % modulus < window);
                        let found = first_in_window(start, step, modulus, window);
                        assert_eq!(found, counted, "{start} {step} {modulus} {window}");
                    }
                }
            }
        }
    }

    #[test]
    fn greatest_numbers_do_not_overflow() {
        let modulus = i64::MAX as u64;
        let found = first_in_window(5, modulus - 1, modulus, 1);
        assert_eq!(found, Some(5));
        assert_eq!(lcm(modulus, modulus - 1), None);
        assert_eq!(lcm(modulus, modulus), Some(modulus));
        assert_eq!(first_in_window(1, 1 << 40, 1 << 62, 1), None);
    }
}
