//! The syntax of descriptions: numbers, pairs of numbers, lists, and names with arguments, whatever they mean.

use crate::PatternError;
use crate::limit::{DEPTH_MAX, ITEMS_MAX};

/// The maximum number of values that stand inside each other: a datatype may be behind a block, within which it is a
/// value of its own; a list with an item that has an argument stands in a datatype, and a view around all.
const OPEN_MAX: usize = 2 * DEPTH_MAX + 4;

/// A value, and the position of its first character, counted from 1.
#[derive(Debug)]
pub(super) struct Value {
    pub position: usize,
    pub kind: TokenKind,
}

#[derive(Debug)]
pub(super) enum TokenKind {
    Number(i128),
    /// `offset:length`.
    Region(i128, i128),
    /// `count@displacement`, and what stands behind it.
    Block(i128, i128, Option<Box<Value>>),
    List(Vec<Value>),
    Name(String, Vec<Argument>),
}

/// An argument, with its name if it has one.
#[derive(Debug)]
pub(super) struct Argument {
    pub name: Option<String>,
    pub value: Value,
}

/// Parses a text that is one value.
pub(super) fn parse(text: &str) -> Result<Value, PatternError> {
    let mut parser = Parser { text: text.as_bytes(), at: 0, items: 0 };
    let value = parser.value(0)?;
    match parser.peek() {
        None => Ok(value),
        Some(_) => Err(parser.expected("the end")),
    }
}

struct Parser<'a> {
    text: &'a [u8],
    at: usize,
    items: usize,
}

impl Parser<'_> {
    /// Returns the next byte that is no space, without taking it.
    fn peek(&mut self) -> Option<u8> {
        while self.text.get(self.at).is_some_and(u8::is_ascii_whitespace) {
            self.at += 1;
        }
        self.text.get(self.at).copied()
    }

    fn take(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    fn expected(&mut self, expectation: &str) -> PatternError {
        let found = match self.peek() {
            None => "the end".to_string(),
            Some(byte) if byte.is_ascii_graphic() => format!("\"{}\"", char::from(byte)),
            Some(_) => "another character".to_string(),
        };
        PatternError::Syntax {
            reason: format!("expected {expectation}, found {found}"),
            position: self.at + 1,
        }
    }

    fn value(&mut self, open: usize) -> Result<Value, PatternError> {
        if open > OPEN_MAX {
            return Err(PatternError::TooDeep);
        }
        self.items += 1;
        if self.items > ITEMS_MAX {
            return Err(PatternError::TooManyItems);
        }
        let first = self.peek();
        let position = self.at + 1;
        let kind = match first {
            Some(b'0'..=b'9' | b'-') => self.numbers(open)?,
            Some(b'[') => {
                self.at += 1;
                TokenKind::List(self.items(b']', |parser| parser.value(open + 1))?)
            }
            Some(b'a'..=b'z' | b'A'..=b'Z' | b'_') => {
                let name = self.name();
                let arguments = if self.take(b'(') {
                    self.items(b')', |parser| parser.argument(open + 1))?
                } else {
                    Vec::new()
                };
                TokenKind::Name(name, arguments)
            }
            _ => return Err(self.expected("a number, a list or a name")),
        };
        Ok(Value { position, kind })
    }

    /// Parses items up to a closing bracket, with commas between them.
    fn items<T>(
        &mut self,
        close: u8,
        mut item: impl FnMut(&mut Self) -> Result<T, PatternError>,
    ) -> Result<Vec<T>, PatternError> {
        let mut items = Vec::new();
        if self.take(close) {
            return Ok(items);
        }
        loop {
            items.push(item(self)?);
            if self.take(close) {
                return Ok(items);
            }
            if !self.take(b',') {
                return Err(self.expected(&format!("\",\" or \"{}\"", char::from(close))));
            }
        }
    }

    fn argument(&mut self, open: usize) -> Result<Argument, PatternError> {
        self.peek();
        let start = self.at;
        let name = self.name();
        if !name.is_empty() && self.take(b'=') {
            return Ok(Argument { name: Some(name), value: self.value(open)? });
        }
        self.at = start;
        Ok(Argument { name: None, value: self.value(open)? })
    }

    fn name(&mut self) -> String {
        let rest = &self.text[self.at..];
        let length = rest.iter().take_while(|byte| byte.is_ascii_alphanumeric() || **byte == b'_').count();
        self.at += length;
        String::from_utf8_lossy(&rest[..length]).into_owned()
    }

    fn numbers(&mut self, open: usize) -> Result<TokenKind, PatternError> {
        let first = self.number()?;
        if self.take(b':') {
            return Ok(TokenKind::Region(first, self.number()?));
        }
        if self.take(b'@') {
            let displacement = self.number()?;
            let next = self.peek();
            let of = if next.is_some_and(|byte| byte.is_ascii_alphabetic()) {
                Some(Box::new(self.value(open + 1)?))
            } else {
                None
            };
            return Ok(TokenKind::Block(first, displacement, of));
        }
        Ok(TokenKind::Number(first))
    }

    fn number(&mut self) -> Result<i128, PatternError> {
        let negative = self.take(b'-');
        let first = self.peek();
        let start = self.at;
        if !first.is_some_and(|byte| byte.is_ascii_digit()) {
            return Err(self.expected("a number"));
        }
        let too_large =
            || PatternError::Syntax { reason: "a number of more than 64 bits".into(), position: start + 1 };
        let mut value = 0_i128;
        while let Some(digit) = self.text.get(self.at).filter(|byte| byte.is_ascii_digit()) {
            value = value * 10 + i128::from(digit - b'0');
            if value > i128::from(u64::MAX) {
                return Err(too_large());
            }
            self.at += 1;
        }
        // A unit follows its number at once, so that a name after a space is never one.
        const UNITS: [&[u8]; 6] = [b"KiB", b"MiB", b"GiB", b"TiB", b"PiB", b"EiB"];
        for (power, unit) in (1..).zip(UNITS) {
            if self.text[self.at..].starts_with(unit) {
                self.at += unit.len();
                value <<= 10 * power;
                break;
            }
        }
        if value > i128::from(u64::MAX) {
            return Err(too_large());
        }
        Ok(if negative { -value } else { value })
    }
}
