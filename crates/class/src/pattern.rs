//! Lua's patterns, with every step counted.
//!
//! Lua's own matcher can take exponential time in C, where no count of instructions sees it. This one does the same by
//! the same rules, and pays for each step from the call's budget.

/// The maximum number of captures in a pattern, as in Lua.
const CAPTURES_MAX: usize = 32;
/// The maximum depth of recursion, as in Lua.
const DEPTH_MAX: u32 = 200;
const ESCAPE: u8 = b'%';

/// The reason for which a match ended without an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PatternError {
    /// The pattern is wrong, or too complex.
    Invalid(&'static str),
    /// The budget is spent.
    Exhausted,
}

/// A captured part of the subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Capture {
    /// The bytes from `start` to `end`.
    Text { start: usize, end: usize },
    /// A position, from 0.
    Position(usize),
}

/// A match: where it begins, where it ends, and its captures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Match {
    pub start: usize,
    pub end: usize,
    pub captures: Vec<Capture>,
}

impl Match {
    /// Returns the captures, or the whole match where the pattern has none.
    pub fn values(&self) -> impl Iterator<Item = Capture> + '_ {
        let whole = self.captures.is_empty().then_some(Capture::Text { start: self.start, end: self.end });
        self.captures.iter().copied().chain(whole)
    }
}

#[derive(Clone, Copy)]
enum Length {
    Open,
    Position,
    Closed(usize),
}

struct Matcher<'a> {
    subject: &'a [u8],
    pattern: &'a [u8],
    captures: [(usize, Length); CAPTURES_MAX],
    level: usize,
    depth: u32,
    steps: &'a mut u64,
}

/// Returns whether a pattern has no special characters, so that it matches itself alone.
pub(crate) fn is_plain(pattern: &[u8]) -> bool {
    !pattern.iter().any(|byte| b"^$*+?.([%-".contains(byte))
}

/// Finds the first match at or after `from`. An anchor at the pattern's beginning counts if `anchors`. A match that
/// ends at `not_ending_at` is passed over. Each step takes one from `steps`.
pub(crate) fn search(
    subject: &[u8],
    pattern: &[u8],
    from: usize,
    anchors: bool,
    not_ending_at: Option<usize>,
    steps: &mut u64,
) -> Result<Option<Match>, PatternError> {
    let (anchored, pattern) = match pattern.strip_prefix(b"^") {
        Some(rest) if anchors => (true, rest),
        _ => (false, pattern),
    };
    let mut matcher =
        Matcher { subject, pattern, captures: [(0, Length::Open); CAPTURES_MAX], level: 0, depth: 0, steps };
    for start in from..=subject.len() {
        matcher.level = 0;
        matcher.step()?;
        if let Some(end) = matcher.run(start, 0)?
            && Some(end) != not_ending_at
        {
            return Ok(Some(Match { start, end, captures: matcher.captured()? }));
        }
        if anchored {
            break;
        }
    }
    Ok(None)
}

fn in_class(byte: u8, class: u8) -> bool {
    let is = match class.to_ascii_lowercase() {
        b'a' => byte.is_ascii_alphabetic(),
        b'c' => byte.is_ascii_control(),
        b'd' => byte.is_ascii_digit(),
        b'g' => byte.is_ascii_graphic(),
        b'l' => byte.is_ascii_lowercase(),
        b'p' => byte.is_ascii_punctuation(),
        b's' => matches!(byte, b' ' | b'\t'..=b'\r'),
        b'u' => byte.is_ascii_uppercase(),
        b'w' => byte.is_ascii_alphanumeric(),
        b'x' => byte.is_ascii_hexdigit(),
        _ => return class == byte,
    };
    is != class.is_ascii_uppercase()
}

impl Matcher<'_> {
    fn step(&mut self) -> Result<(), PatternError> {
        *self.steps = self.steps.checked_sub(1).ok_or(PatternError::Exhausted)?;
        Ok(())
    }

    fn captured(&self) -> Result<Vec<Capture>, PatternError> {
        self.captures[..self.level]
            .iter()
            .map(|&(start, length)| match length {
                Length::Open => Err(PatternError::Invalid("unfinished capture")),
                Length::Position => Ok(Capture::Position(start)),
                Length::Closed(length) => Ok(Capture::Text { start, end: start + length }),
            })
            .collect()
    }

    /// Returns the position behind the single-character class at `p`.
    fn class_end(&mut self, p: usize) -> Result<usize, PatternError> {
        let pattern = self.pattern;
        match pattern[p] {
            ESCAPE if p + 1 >= pattern.len() => {
                Err(PatternError::Invalid("malformed pattern (ends with '%')"))
            }
            ESCAPE => Ok(p + 2),
            b'[' => {
                let mut at = p + 1;
                if pattern.get(at) == Some(&b'^') {
                    at += 1;
                }
                // The first character of a set is part of it, also if it is a bracket.
                loop {
                    self.step()?;
                    let Some(&byte) = pattern.get(at) else {
                        return Err(PatternError::Invalid("malformed pattern (missing ']')"));
                    };
                    at += 1;
                    if byte == ESCAPE {
                        if at >= pattern.len() {
                            return Err(PatternError::Invalid("malformed pattern (missing ']')"));
                        }
                        at += 1;
                    }
                    if pattern.get(at) == Some(&b']') {
                        return Ok(at + 1);
                    }
                }
            }
            _ => Ok(p + 1),
        }
    }

    /// Returns whether a byte is in the set from `p` to its closing bracket at `last`.
    fn in_set(&mut self, byte: u8, p: usize, last: usize) -> Result<bool, PatternError> {
        let pattern = self.pattern;
        let mut at = p + 1;
        let mut found = true;
        if pattern[at] == b'^' {
            found = false;
            at += 1;
        }
        while at < last {
            self.step()?;
            if pattern[at] == ESCAPE {
                if in_class(byte, pattern[at + 1]) {
                    return Ok(found);
                }
                at += 2;
            } else if pattern[at + 1] == b'-' && at + 2 < last {
                if (pattern[at]..=pattern[at + 2]).contains(&byte) {
                    return Ok(found);
                }
                at += 3;
            } else {
                if pattern[at] == byte {
                    return Ok(found);
                }
                at += 1;
            }
        }
        Ok(!found)
    }

    /// Returns whether the byte at `s` matches the single-character class from `p` to `end`.
    fn single(&mut self, s: usize, p: usize, end: usize) -> Result<bool, PatternError> {
        self.step()?;
        let Some(&byte) = self.subject.get(s) else { return Ok(false) };
        match self.pattern[p] {
            b'.' => Ok(true),
            ESCAPE => Ok(in_class(byte, self.pattern[p + 1])),
            b'[' => self.in_set(byte, p, end - 1),
            literal => Ok(literal == byte),
        }
    }

    fn run(&mut self, s: usize, p: usize) -> Result<Option<usize>, PatternError> {
        if self.depth == DEPTH_MAX {
            return Err(PatternError::Invalid("pattern too complex"));
        }
        self.depth += 1;
        let result = self.run_inner(s, p);
        self.depth -= 1;
        result
    }

    fn run_inner(&mut self, mut s: usize, mut p: usize) -> Result<Option<usize>, PatternError> {
        loop {
            self.step()?;
            let Some(&byte) = self.pattern.get(p) else { return Ok(Some(s)) };
            match byte {
                b'(' if self.pattern.get(p + 1) == Some(&b')') => {
                    return self.open(s, p + 2, Length::Position);
                }
                b'(' => return self.open(s, p + 1, Length::Open),
                b')' => return self.close(s, p + 1),
                b'$' if p + 1 == self.pattern.len() => {
                    return Ok((s == self.subject.len()).then_some(s));
                }
                ESCAPE => match self.pattern.get(p + 1) {
                    Some(b'b') => match self.balance(s, p + 2)? {
                        Some(end) => {
                            s = end;
                            p += 4;
                            continue;
                        }
                        None => return Ok(None),
                    },
                    Some(b'f') => {
                        p += 2;
                        if self.pattern.get(p) != Some(&b'[') {
                            return Err(PatternError::Invalid("missing '[' after '%f' in pattern"));
                        }
                        let end = self.class_end(p)?;
                        let before = if s == 0 { 0 } else { self.subject[s - 1] };
                        let here = self.subject.get(s).copied().unwrap_or(0);
                        if !self.in_set(before, p, end - 1)? && self.in_set(here, p, end - 1)? {
                            p = end;
                            continue;
                        }
                        return Ok(None);
                    }
                    Some(digit) if digit.is_ascii_digit() => match self.again(s, *digit)? {
                        Some(end) => {
                            s = end;
                            p += 2;
                            continue;
                        }
                        None => return Ok(None),
                    },
                    _ => {}
                },
                _ => {}
            }
            let end = self.class_end(p)?;
            match self.pattern.get(end) {
                Some(b'?') => {
                    if self.single(s, p, end)?
                        && let Some(found) = self.run(s + 1, end + 1)?
                    {
                        return Ok(Some(found));
                    }
                    p = end + 1;
                }
                Some(b'+') => {
                    return match self.single(s, p, end)? {
                        true => self.greedy(s + 1, p, end),
                        false => Ok(None),
                    };
                }
                Some(b'*') => return self.greedy(s, p, end),
                Some(b'-') => return self.lazy(s, p, end),
                _ => {
                    if !self.single(s, p, end)? {
                        return Ok(None);
                    }
                    s += 1;
                    p = end;
                }
            }
        }
    }

    fn greedy(&mut self, s: usize, p: usize, end: usize) -> Result<Option<usize>, PatternError> {
        let mut count = 0;
        while self.single(s + count, p, end)? {
            count += 1;
        }
        loop {
            if let Some(found) = self.run(s + count, end + 1)? {
                return Ok(Some(found));
            }
            if count == 0 {
                return Ok(None);
            }
            count -= 1;
        }
    }

    fn lazy(&mut self, mut s: usize, p: usize, end: usize) -> Result<Option<usize>, PatternError> {
        loop {
            if let Some(found) = self.run(s, end + 1)? {
                return Ok(Some(found));
            }
            if !self.single(s, p, end)? {
                return Ok(None);
            }
            s += 1;
        }
    }

    fn open(&mut self, s: usize, p: usize, length: Length) -> Result<Option<usize>, PatternError> {
        if self.level == CAPTURES_MAX {
            return Err(PatternError::Invalid("too many captures"));
        }
        self.captures[self.level] = (s, length);
        self.level += 1;
        let found = self.run(s, p)?;
        if found.is_none() {
            self.level -= 1;
        }
        Ok(found)
    }

    fn close(&mut self, s: usize, p: usize) -> Result<Option<usize>, PatternError> {
        let open = |(_, length): &(usize, Length)| matches!(length, Length::Open);
        let Some(index) = self.captures[..self.level].iter().rposition(open) else {
            return Err(PatternError::Invalid("invalid pattern capture"));
        };
        self.captures[index].1 = Length::Closed(s - self.captures[index].0);
        let found = self.run(s, p)?;
        if found.is_none() {
            self.captures[index].1 = Length::Open;
        }
        Ok(found)
    }

    fn balance(&mut self, s: usize, p: usize) -> Result<Option<usize>, PatternError> {
        let (Some(&open), Some(&close)) = (self.pattern.get(p), self.pattern.get(p + 1)) else {
            return Err(PatternError::Invalid("malformed pattern (missing arguments to '%b')"));
        };
        if self.subject.get(s) != Some(&open) {
            return Ok(None);
        }
        let mut depth = 1;
        for at in s + 1..self.subject.len() {
            self.step()?;
            let byte = self.subject[at];
            if byte == close {
                depth -= 1;
                if depth == 0 {
                    return Ok(Some(at + 1));
                }
            } else if byte == open {
                depth += 1;
            }
        }
        Ok(None)
    }

    fn again(&mut self, s: usize, digit: u8) -> Result<Option<usize>, PatternError> {
        let index = usize::from(digit).wrapping_sub(usize::from(b'1'));
        let length = match self.captures[..self.level].get(index) {
            Some((_, Length::Closed(length))) => *length,
            _ => return Err(PatternError::Invalid("invalid capture index in pattern")),
        };
        let start = self.captures[index].0;
        *self.steps = self.steps.checked_sub(length as u64 / 16).ok_or(PatternError::Exhausted)?;
        let text = &self.subject[start..start + length];
        Ok(self.subject[s..].starts_with(text).then_some(s + length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(subject: &str, pattern: &str) -> Option<(usize, usize, Vec<String>)> {
        let mut steps = 1_000_000;
        let found = search(subject.as_bytes(), pattern.as_bytes(), 0, true, None, &mut steps)
            .expect("a sound pattern")?;
        let text = |capture| match capture {
            Capture::Text { start, end } => subject[start..end].to_owned(),
            Capture::Position(at) => format!("@{at}"),
        };
        Some((found.start, found.end, found.captures.iter().copied().map(text).collect()))
    }

    #[test]
    fn patterns_match_as_in_the_manual() {
        assert_eq!(find("hello world", "o w"), Some((4, 7, vec![])));
        assert_eq!(
            find("key = value", "(%w+)%s*=%s*(%w+)"),
            Some((0, 11, vec!["key".into(), "value".into()]))
        );
        assert_eq!(find("THE (quick) fox", "%((%a+)%)"), Some((4, 11, vec!["quick".into()])));
        assert_eq!(find("f(a(b)c)d", "%b()"), Some((1, 8, vec![])));
        assert_eq!(find("THE (quick) fox", "%f[%a]%a+%f[%A]"), Some((0, 3, vec![])));
        assert_eq!(find("abcabc", "(abc)%1"), Some((0, 6, vec!["abc".into()])));
        assert_eq!(find("abc", "()b()"), Some((1, 2, vec!["@1".into(), "@2".into()])));
        assert_eq!(find("[[x]]", "[%]x]+"), Some((2, 5, vec![])));
        assert_eq!(find("a]b", "[]]"), Some((1, 2, vec![])));
        assert_eq!(find("a-b", "[a%-]+$"), None);
        assert_eq!(find("<a><b>", "<.->"), Some((0, 3, vec![])));
        assert_eq!(find("aaa", "^a?a?a?a"), Some((0, 3, vec![])));
    }

    #[test]
    fn wrong_patterns_are_refused() {
        for pattern in ["%", "[a", "[", "(a", "a)", "%b", "%f", "%1", "[%", "[^"] {
            let mut steps = 1000;
            let result = search(b"aaa", pattern.as_bytes(), 0, true, None, &mut steps);
            assert!(matches!(result, Err(PatternError::Invalid(_))), "{pattern}: {result:?}");
        }
    }

    #[test]
    fn a_pathological_pattern_ends_with_its_budget() {
        let subject = vec![b'a'; 100];
        let pattern = [&b"a?".repeat(30)[..], &b"a*".repeat(30)[..], b"b"].concat();
        let mut steps = 100_000;
        assert_eq!(search(&subject, &pattern, 0, true, None, &mut steps), Err(PatternError::Exhausted));
        assert_eq!(steps, 0);
    }
}
