//! Names, paths and other texts that somebody else chose, as they are printed for people: one way for every command, message and log.
//!
//! Text is printed as it is, except that a backslash is `\\`, and each byte that is not UTF-8, or belongs to a character that controls
//! a terminal or the layout of text, is `\xNN`. So a line stays one line, nothing commands a terminal, and [`unescape`] returns the
//! bytes again.

use std::ffi::OsStr;
use std::fmt::{self, Write as _};
use std::os::unix::ffi::OsStrExt;

/// Bytes as they are printed for people.
///
/// ```
/// use nacre_quantity::{Escaped, unescape};
///
/// assert_eq!(Escaped(b"gr\xc3\xb6\xc3\x9fe \\ \xff\n").to_string(), "größe \\\\ \\xff\\x0a");
/// assert_eq!(unescape(b"\\\\ \\xff\\x0a").unwrap(), b"\\ \xff\n");
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Escaped<'a>(pub &'a [u8]);

impl<'a> Escaped<'a> {
    /// Returns a text or a path as it is printed.
    ///
    /// ```
    /// use std::path::Path;
    ///
    /// assert_eq!(nacre_quantity::Escaped::of(Path::new("a\tb")).to_string(), "a\\x09b");
    /// ```
    pub fn of<T: AsRef<OsStr> + ?Sized>(text: &'a T) -> Self {
        Self(text.as_ref().as_bytes())
    }
}

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            let text = chunk.valid();
            // What needs no escape is written in one piece.
            let mut begin = 0;
            for (at, c) in text.char_indices().filter(|&(_, c)| c == '\\' || commands(c)) {
                f.write_str(&text[begin..at])?;
                begin = at + c.len_utf8();
                match c {
                    '\\' => f.write_str("\\\\")?,
                    _ => hexadecimal(f, &text.as_bytes()[at..begin])?,
                }
            }
            f.write_str(&text[begin..])?;
            hexadecimal(f, chunk.invalid())?;
        }
        Ok(())
    }
}

fn hexadecimal(to: &mut impl fmt::Write, bytes: &[u8]) -> fmt::Result {
    bytes.iter().try_for_each(|byte| write!(to, "\\x{byte:02x}"))
}

/// Returns a text without what would command a terminal. Unlike in [`Escaped`], lines, tabulators and backslashes stay as they are: it
/// is for scripts, and for messages in which names are escaped already. It cannot be read back.
///
/// ```
/// assert_eq!(nacre_quantity::escaped_text("print('\\n')\n\u{1b}[2J"), "print('\\n')\n\\x1b[2J");
/// ```
pub fn escaped_text(text: &str) -> String {
    const KEPT: [char; 3] = ['\n', '\t', '\\'];
    let mut shown = String::with_capacity(text.len());
    for piece in text.split_inclusive(KEPT) {
        let end = piece.len() - usize::from(piece.ends_with(KEPT));
        // Writing to memory does not fail.
        let _ = write!(shown, "{}", Escaped(&piece.as_bytes()[..end]));
        shown.push_str(&piece[end..]);
    }
    shown
}

/// The most characters of a text that [`excerpt`] returns.
const EXCERPT_CHARS_MAX: usize = 60;

/// Returns the beginning of a text for a message that repeats it, without what would command a terminal. Backslashes stay as they are.
///
/// ```
/// assert_eq!(nacre_quantity::excerpt("\\q\n"), "\\q\\x0a");
/// ```
pub fn excerpt(text: &str) -> String {
    let mut shown = String::new();
    let mut chars = text.chars();
    for c in chars.by_ref().take(EXCERPT_CHARS_MAX) {
        if commands(c) {
            // Writing to memory does not fail.
            let _ = hexadecimal(&mut shown, c.encode_utf8(&mut [0; 4]).as_bytes());
        } else {
            shown.push(c);
        }
    }
    if chars.next().is_some() {
        shown.push('…');
    }
    shown
}

/// Returns whether a character controls a terminal, ends a line, or changes the order in which text is shown.
fn commands(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Replaces `\xNN` and `\\` by the bytes that they stand for: the inverse of [`Escaped`]. Everything else is itself.
///
/// # Errors
/// A sentence, if a backslash begins neither.
pub fn unescape(text: &[u8]) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, tail)) = rest.split_first() {
        rest = tail;
        if first != b'\\' {
            bytes.push(first);
            continue;
        }
        match rest {
            [b'\\', tail @ ..] => {
                bytes.push(b'\\');
                rest = tail;
            }
            [b'x', high, low, tail @ ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                let digit = |c: u8| (c as char).to_digit(16).unwrap_or_default() as u8;
                bytes.push(digit(*high) << 4 | digit(*low));
                rest = tail;
            }
            _ => {
                let text = excerpt(&String::from_utf8_lossy(text));
                return Err(format!(
                    "the \\ in \"{text}\" begins neither \\xNN nor \\\\; write \\\\ for itself"
                ));
            }
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_commands_no_terminal_and_reads_back() {
        for (bytes, printed) in [
            (&b""[..], ""),
            (b"a/b \"c\" 'd'", "a/b \"c\" 'd'"),
            ("größe".as_bytes(), "größe"),
            (b"\\", "\\\\"),
            (b"\\x41", "\\\\x41"),
            (b"\x00\x1b]0;t\x07\r\n\t\x7f", "\\x00\\x1b]0;t\\x07\\x0d\\x0a\\x09\\x7f"),
            (
                "\u{9b}2J\u{202e}a\u{2028}\u{200f}\u{61c}".as_bytes(),
                "\\xc2\\x9b2J\\xe2\\x80\\xaea\\xe2\\x80\\xa8\\xe2\\x80\\x8f\\xd8\\x9c",
            ),
            (b"\xffa\xc3", "\\xffa\\xc3"),
        ] {
            assert_eq!(Escaped(bytes).to_string(), printed);
            assert_eq!(unescape(printed.as_bytes()).unwrap(), bytes, "{printed}");
        }
        assert_eq!(Escaped::of(OsStr::from_bytes(b"a\xff")).to_string(), "a\\xff");
        assert_eq!(unescape(b"\\x41\\xfF").unwrap(), b"A\xff");
    }

    #[test]
    fn a_backslash_that_begins_nothing_is_refused() {
        for wrong in ["\\", "\\n", "\\x4", "\\xzz", "a\\", "\u{1b}\\"] {
            let said = unescape(wrong.as_bytes()).unwrap_err();
            assert!(!said.contains('\u{1b}'), "{said:?}");
        }
        let said = unescape(format!("\u{1b}\\q{}", "x".repeat(1 << 20)).as_bytes()).unwrap_err();
        assert!(said.starts_with("the \\ in \"\\x1b\\qxxx") && said.len() < 200, "{said}");
    }

    #[test]
    fn a_message_repeats_the_beginning_of_a_text_only() {
        assert_eq!(excerpt("größe\\ \"x\""), "größe\\ \"x\"");
        assert_eq!(excerpt("a\u{1b}[2J\n\u{202e}"), "a\\x1b[2J\\x0a\\xe2\\x80\\xae");
        assert_eq!(excerpt(&"ä".repeat(EXCERPT_CHARS_MAX)), "ä".repeat(EXCERPT_CHARS_MAX));
        assert_eq!(excerpt(&"ä".repeat(1 << 20)), format!("{}…", "ä".repeat(EXCERPT_CHARS_MAX)));
    }
}
