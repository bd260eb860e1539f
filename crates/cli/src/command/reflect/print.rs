//! Writing to standard output.

use std::io::{self, Write};

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

/// Formats another program's payload as text that cannot disturb a terminal.
pub fn shown(payload: &[u8]) -> String {
    let payload = payload.strip_suffix(b"\n").unwrap_or(payload);
    let text = String::from_utf8_lossy(payload);
    text.chars()
        .flat_map(|c| if c.is_control() && c != '\t' { c.escape_default().collect() } else { vec![c] })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_datagram_cannot_disturb_the_terminal() {
        assert_eq!(shown(b"hello\n"), "hello");
        assert_eq!(shown(b"a\nb\x1b[2J\x07"), "a\\nb\\u{1b}[2J\\u{7}");
        assert_eq!(shown(b"\xff"), "\u{fffd}");
    }
}
