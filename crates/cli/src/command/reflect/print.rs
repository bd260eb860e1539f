//! Writing to standard output.

use std::io::{self, Write};

use nacre_quantity::Escaped;

use crate::failure::Failure;

/// Prints a line, and flushes it.
pub fn line(text: &str) -> Result<(), Failure> {
    let mut output = io::stdout().lock();
    writeln!(output, "{text}").and_then(|()| output.flush()).map_err(Failure::from)
}

/// Prints bytes, and flushes them.
pub fn bytes(bytes: &[u8]) -> Result<(), Failure> {
    let mut output = io::stdout().lock();
    output.write_all(bytes).and_then(|()| output.flush()).map_err(Failure::from)
}

/// Returns another program's payload on one line, escaped, without the line's end that it may have.
pub fn shown(payload: &[u8]) -> String {
    Escaped(payload.strip_suffix(b"\n").unwrap_or(payload)).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_datagram_cannot_disturb_the_terminal() {
        assert_eq!(shown(b"hello\n"), "hello");
        assert_eq!(shown(b"a\nb\x1b[2J\x07"), "a\\x0ab\\x1b[2J\\x07");
        assert_eq!(shown(b"\\\xff"), "\\\\\\xff");
    }
}
