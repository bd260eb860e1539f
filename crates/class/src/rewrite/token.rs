//! The tokens of a text.

use super::{COUNT, JOIN, LITERAL_BYTES_MAX};

/// A place in the text, and what is wrong there.
pub(super) type Wrong = (usize, String);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Name,
    Keyword,
    Number,
    Text,
    Symbol,
    End,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Token {
    pub kind: Kind,
    pub start: usize,
    pub end: usize,
}

const KEYWORDS: [&str; 22] = [
    "and", "break", "do", "else", "elseif", "end", "false", "for", "function", "goto", "if", "in", "local",
    "nil", "not", "or", "repeat", "return", "then", "true", "until", "while",
];

/// Symbols, longer ones before those that they begin with.
const SYMBOLS: [&str; 33] = [
    "...", "..", "==", "~=", "<=", ">=", "//", "::", "<<", ">>", "+", "-", "*", "/", "%", "^", "#", "&", "~",
    "|", "<", ">", "=", "(", ")", "{", "}", "[", "]", ";", ":", ",", ".",
];

fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Splits a text into tokens, the last of which is the end. Comments and spaces are none.
pub(super) fn tokens(text: &[u8]) -> Result<Vec<Token>, Wrong> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(&byte) = text.get(at) {
        let rest = &text[at..];
        let (kind, end) = match byte {
            b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c => {
                at += 1;
                continue;
            }
            b'-' if rest.starts_with(b"--") => {
                at += match bracket_level(&rest[2..]) {
                    Some(level) => 2 + bracket_end(text, at + 2, level)?,
                    None => rest.iter().position(|byte| matches!(byte, b'\n' | b'\r')).unwrap_or(rest.len()),
                };
                continue;
            }
            b'"' | b'\'' => (Kind::Text, at + quoted_end(text, at)?),
            b'[' if bracket_level(rest).is_some() => {
                let level = bracket_level(rest).unwrap_or(0);
                (Kind::Text, at + bracket_end(text, at, level)?)
            }
            b'0'..=b'9' => (Kind::Number, number_end(text, at)?),
            b'.' if rest.get(1).is_some_and(u8::is_ascii_digit) => (Kind::Number, number_end(text, at)?),
            byte if is_name(byte) => {
                let end = at + rest.iter().position(|byte| !is_name(*byte)).unwrap_or(rest.len());
                let word = &text[at..end];
                if word == COUNT.as_bytes() || word == JOIN.as_bytes() {
                    let name = String::from_utf8_lossy(word);
                    return Err((
                        at,
                        format!("the name \"{name}\" is reserved for what Nacre puts into the text"),
                    ));
                }
                let keyword = KEYWORDS.iter().any(|keyword| keyword.as_bytes() == word);
                (if keyword { Kind::Keyword } else { Kind::Name }, end)
            }
            _ => match SYMBOLS.iter().find(|symbol| rest.starts_with(symbol.as_bytes())) {
                Some(symbol) => (Kind::Symbol, at + symbol.len()),
                None => return Err((at, format!("byte {byte} does not begin a token of Lua"))),
            },
        };
        if kind == Kind::Text && end - at > LITERAL_BYTES_MAX {
            return Err((at, format!("a literal string has at most {LITERAL_BYTES_MAX} bytes in an OSD")));
        }
        found.push(Token { kind, start: at, end });
        at = end;
    }
    found.push(Token { kind: Kind::End, start: text.len(), end: text.len() });
    Ok(found)
}

/// Returns the level of the long bracket that a text begins with: the number of its equals signs.
fn bracket_level(text: &[u8]) -> Option<usize> {
    let level = text.strip_prefix(b"[")?.iter().take_while(|byte| **byte == b'=').count();
    (text.get(1 + level) == Some(&b'[')).then_some(level)
}

/// Returns the length of the long bracket at a place.
fn bracket_end(text: &[u8], at: usize, level: usize) -> Result<usize, Wrong> {
    let close = [&b"]"[..], &vec![b'='; level], b"]"].concat();
    let start = 2 + level;
    let found = text[at + start..].windows(close.len()).position(|window| window == close);
    found
        .map(|found| start + found + close.len())
        .ok_or_else(|| (at, "a long bracket is not closed".to_owned()))
}

/// Returns the length of the quoted string at a place. Only where it ends matters: escapes are skipped.
fn quoted_end(text: &[u8], start: usize) -> Result<usize, Wrong> {
    let open = || (start, "a string is not closed".to_owned());
    let mut at = start + 1;
    loop {
        match *text.get(at).ok_or_else(open)? {
            byte if byte == text[start] => return Ok(at + 1 - start),
            b'\n' | b'\r' => return Err(open()),
            b'\\' => match *text.get(at + 1).ok_or_else(open)? {
                // All space that follows is skipped, newlines too.
                b'z' => {
                    at += 2;
                    let space = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c);
                    at += text[at..].iter().take_while(|byte| space(byte)).count();
                }
                // A newline of two bytes is one.
                newline @ (b'\n' | b'\r') => {
                    let second = text.get(at + 2);
                    let pair = matches!((newline, second), (b'\n', Some(b'\r')) | (b'\r', Some(b'\n')));
                    at += if pair { 3 } else { 2 };
                }
                _ => at += 2,
            },
            _ => at += 1,
        }
    }
}

/// Returns where the number at a place ends: as far as Lua reads one. What it would not take for a number is an error.
fn number_end(text: &[u8], start: usize) -> Result<usize, Wrong> {
    let hex = text[start] == b'0' && matches!(text.get(start + 1), Some(b'x' | b'X'));
    let exponent: &[u8] = if hex { b"pP" } else { b"eE" };
    let mut at = if hex { start + 2 } else { start };
    let (mut dots, mut exponents) = (0, 0);
    while let Some(&byte) = text.get(at) {
        if exponent.contains(&byte) {
            exponents += 1;
            at += 1;
            if matches!(text.get(at), Some(b'+' | b'-')) {
                at += 1;
            }
        } else if byte == b'.' {
            dots += 1;
            at += 1;
        } else if byte.is_ascii_hexdigit() && (hex || byte.is_ascii_digit()) {
            at += 1;
        } else if is_name(byte) {
            return Err((start, "a malformed number".to_owned()));
        } else {
            break;
        }
    }
    if dots > 1 || exponents > 1 {
        return Err((start, "a malformed number; put a space before \"..\"".to_owned()));
    }
    Ok(at)
}
