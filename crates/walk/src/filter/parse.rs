//! The values of filters, parsed from the command line.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use nacre_quantity::Escaped;

use crate::entry::{FileKind, Time};

/// A comparison with a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// `+N`
    More,
    /// `-N`
    Less,
    /// `N`
    Exactly,
}

impl Comparison {
    fn split(text: &str) -> (Comparison, &str) {
        if let Some(rest) = text.strip_prefix('+') {
            (Comparison::More, rest)
        } else if let Some(rest) = text.strip_prefix('-') {
            (Comparison::Less, rest)
        } else {
            (Comparison::Exactly, text)
        }
    }

    fn sign(self) -> &'static str {
        match self {
            Comparison::More => "+",
            Comparison::Less => "-",
            Comparison::Exactly => "",
        }
    }

    fn holds<N: Ord>(self, value: N, than: N) -> bool {
        match self {
            Comparison::More => value > than,
            Comparison::Less => value < than,
            Comparison::Exactly => value == than,
        }
    }
}

/// A condition on a size: `+10M`, `-64KiB`, `512c`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    comparison: Comparison,
    number: u64,
    /// The unit in bytes to which sizes are rounded up before they are compared.
    unit: u64,
}

impl Size {
    /// Returns whether a size in bytes satisfies it.
    pub fn matches(&self, size: u64) -> bool {
        self.comparison.holds(size.div_ceil(self.unit), self.number)
    }
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Size, String> {
        let (comparison, rest) = Comparison::split(text);
        let digits = rest.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let number = whole(digits.trim_end(), "c, k, M, KiB, MiB")?;
        // Units as in find round up; those of powers of two in their full spelling are exact.
        let (unit, factor) = match &rest[digits.len()..] {
            "c" | "B" => (1, 1),
            "w" => (2, 1),
            "b" => (512, 1),
            "k" => (1 << 10, 1),
            "M" => (1 << 20, 1),
            "G" => (1 << 30, 1),
            "T" => (1 << 40, 1),
            "P" => (1 << 50, 1),
            "KiB" => (1, 1 << 10),
            "MiB" => (1, 1 << 20),
            "GiB" => (1, 1 << 30),
            "TiB" => (1, 1 << 40),
            "PiB" => (1, 1 << 50),
            "" => return Err("a size needs a unit: c for bytes, k, M, G as in find, or KiB, MiB, GiB".into()),
            unit => {
                return Err(format!(
                    "\"{unit}\" is not a unit; use c (bytes), b (512 bytes), k, M, G, T, P, which round up as in \
                     find, or KiB, MiB, GiB, TiB, PiB"
                ));
            }
        };
        let number = number.checked_mul(factor).ok_or("that is more than 2^64 bytes")?;
        Ok(Size { comparison, number, unit })
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const ROUNDED: [(u64, &str); 7] = [
            (2, "w"),
            (512, "b"),
            (1 << 10, "k"),
            (1 << 20, "M"),
            (1 << 30, "G"),
            (1 << 40, "T"),
            (1 << 50, "P"),
        ];
        const EXACT: [(u64, &str); 5] =
            [(1 << 50, "PiB"), (1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
        let (sign, number) = (self.comparison.sign(), self.number);
        if let Some((_, unit)) = ROUNDED.iter().find(|(bytes, _)| *bytes == self.unit) {
            return write!(f, "{sign}{number}{unit}");
        }
        match EXACT.iter().find(|(bytes, _)| number > 0 && number % bytes == 0) {
            Some((bytes, unit)) => write!(f, "{sign}{}{unit}", number / bytes),
            None => write!(f, "{sign}{number}c"),
        }
    }
}

/// A condition on an age in whole days: `+30`, `-1`, `7`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Days {
    comparison: Comparison,
    number: i64,
}

impl Days {
    /// Returns whether the age of an entry, since it was modified, read or changed at `modified`, satisfies it.
    pub fn matches(&self, now: Time, modified: Time) -> bool {
        let borrow = i64::from(modified.nanoseconds > now.nanoseconds);
        let age_s = now.seconds.saturating_sub(modified.seconds).saturating_sub(borrow);
        self.comparison.holds(age_s.div_euclid(86_400), self.number)
    }
}

impl FromStr for Days {
    type Err = String;

    fn from_str(text: &str) -> Result<Days, String> {
        let (comparison, rest) = Comparison::split(text);
        let number = whole(rest, "+30, -1 or 7")?;
        i64::try_from(number)
            .map(|number| Days { comparison, number })
            .map_err(|_| "that is too many days".to_owned())
    }
}

impl fmt::Display for Days {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.comparison.sign(), self.number)
    }
}

fn whole(digits: &str, like: &str) -> Result<u64, String> {
    match digits.parse() {
        Ok(number) if digits.bytes().all(|digit| digit.is_ascii_digit()) => Ok(number),
        _ => Err(format!("\"{digits}\" is not a whole number in a value like {like}")),
    }
}

/// Kinds of entries, by their letters: `f,d,l`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kinds(u16);

impl Kinds {
    /// Returns whether the kind is among them.
    pub fn contains(&self, kind: FileKind) -> bool {
        self.0 & 1 << kind as u16 != 0
    }
}

impl FromStr for Kinds {
    type Err = String;

    fn from_str(text: &str) -> Result<Kinds, String> {
        let mut kinds = 0;
        for letter in text.split(',') {
            let kind = match letter {
                "f" => FileKind::File,
                "d" => FileKind::Directory,
                "l" => FileKind::Link,
                "p" => FileKind::Pipe,
                "s" => FileKind::Socket,
                "c" => FileKind::CharacterDevice,
                "b" => FileKind::BlockDevice,
                _ => {
                    return Err(format!(
                        "\"{letter}\" is not a type; use f (file), d (directory), l (link), p (pipe), s (socket), \
                         c and b (devices), with commas between"
                    ));
                }
            };
            kinds |= 1 << kind as u16;
        }
        Ok(Kinds(kinds))
    }
}

impl fmt::Display for Kinds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letters = [
            ("f", FileKind::File),
            ("d", FileKind::Directory),
            ("l", FileKind::Link),
            ("p", FileKind::Pipe),
            ("s", FileKind::Socket),
            ("c", FileKind::CharacterDevice),
            ("b", FileKind::BlockDevice),
        ];
        let given = letters.into_iter().filter(|(_, kind)| self.contains(*kind)).map(|(letter, _)| letter);
        f.write_str(&given.collect::<Vec<_>>().join(","))
    }
}

/// Levels below the root: `2`, `1..3`, `..3`, `2..`, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Depths {
    /// The minimum depth.
    pub min: u32,
    /// The maximum depth, if there is one.
    pub max: Option<u32>,
}

impl FromStr for Depths {
    type Err = String;

    fn from_str(text: &str) -> Result<Depths, String> {
        let level = |text: &str| {
            let level = whole(text, "2, 1..3, ..3 or 2..")?;
            u32::try_from(level).map_err(|_| format!("there is no level {level}"))
        };
        let (min, max) = match text.split_once("..") {
            None => (level(text)?, Some(level(text)?)),
            Some((min, max)) => (
                if min.is_empty() { 0 } else { level(min)? },
                if max.is_empty() { None } else { Some(level(max)?) },
            ),
        };
        if max.is_some_and(|max| max < min) {
            return Err(format!("no level is in \"{text}\""));
        }
        Ok(Depths { min, max })
    }
}

impl fmt::Display for Depths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.max {
            Some(max) if max == self.min => write!(f, "{max}"),
            Some(max) => write!(f, "{}..{max}", self.min),
            None => write!(f, "{}..", self.min),
        }
    }
}

/// An owner, by name or number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct User(pub u32);

impl FromStr for User {
    type Err = String;

    fn from_str(text: &str) -> Result<User, String> {
        // A name of digits is a name first, as in find.
        match nix::unistd::User::from_name(text) {
            Ok(Some(user)) => Ok(User(user.uid.as_raw())),
            Ok(None) => text.parse().map(User).map_err(|_| format!("there is no user \"{text}\" here")),
            Err(error) => Err(format!("cannot look up the user \"{text}\": {error}")),
        }
    }
}

/// A group, by name or number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group(pub u32);

impl FromStr for Group {
    type Err = String;

    fn from_str(text: &str) -> Result<Group, String> {
        match nix::unistd::Group::from_name(text) {
            Ok(Some(group)) => Ok(Group(group.gid.as_raw())),
            Ok(None) => text.parse().map(Group).map_err(|_| format!("there is no group \"{text}\" here")),
            Err(error) => Err(format!("cannot look up the group \"{text}\": {error}")),
        }
    }
}

/// A time: a file's last modification, or a date.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reference {
    /// The modification time of this file.
    File(PathBuf),
    /// A fixed time.
    Date(Time),
}

impl From<OsString> for Reference {
    fn from(text: OsString) -> Reference {
        match text.to_str().and_then(date) {
            Some(time) => Reference::Date(time),
            None => Reference::File(text.into()),
        }
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reference::File(path) => write!(f, "\"{}\"", Escaped::of(path)),
            Reference::Date(Time { seconds, nanoseconds }) => {
                match jiff::Timestamp::new(*seconds, *nanoseconds as i32) {
                    Ok(time) => write!(f, "{time}"),
                    Err(_) => write!(f, "@{seconds}"),
                }
            }
        }
    }
}

impl Reference {
    /// Returns the time.
    ///
    /// # Errors
    /// A message if the file cannot be read.
    pub fn time(&self) -> Result<Time, String> {
        match self {
            Reference::Date(time) => Ok(*time),
            Reference::File(path) => {
                let about = rustix::fs::stat(path).map_err(|error| {
                    format!(
                        "cannot read the time of \"{}\": {}; give a file, or a date such as 2026-01-31, \
                         2026-01-31T12:00 or @1767225600",
                        Escaped::of(path),
                        std::io::Error::from(error)
                    )
                })?;
                Ok(Time { seconds: about.st_mtime, nanoseconds: about.st_mtime_nsec as u32 })
            }
        }
    }
}

/// Parses `@SECONDS`, `2026-01-31`, `2026-01-31T12:00` or `2026-01-31 12:00:00+01:00`; local time unless a zone is
/// given.
fn date(text: &str) -> Option<Time> {
    let timestamp = if let Some(seconds) = text.strip_prefix('@') {
        jiff::Timestamp::from_second(seconds.parse().ok()?).ok()?
    } else if let Ok(timestamp) = text.parse() {
        timestamp
    } else {
        let local: jiff::civil::DateTime = text.parse().ok()?;
        local.to_zoned(jiff::tz::TimeZone::system()).ok()?.timestamp()
    };
    let nanoseconds = timestamp.as_nanosecond();
    Some(Time {
        seconds: i64::try_from(nanoseconds.div_euclid(1_000_000_000)).ok()?,
        nanoseconds: nanoseconds.rem_euclid(1_000_000_000) as u32,
    })
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn sizes_round_as_their_units_say() {
        let matches = |text: &str, size| text.parse::<Size>().unwrap().matches(size);
        assert!(matches("1k", 1) && matches("1k", 1024) && !matches("1k", 0) && !matches("1k", 1025));
        assert!(matches("-1M", 0) && !matches("-1M", 1));
        assert!(matches("-1MiB", 1) && !matches("-1MiB", 1 << 20));
        assert!(matches("+64KiB", 65537) && !matches("+64KiB", 65536) && matches("64KiB", 65536));
        assert!(matches("+64 KiB", 65537) && !matches("+64 KiB", 65536));
        for wrong in ["", "5", "+", "k", "--1k", "1.5k", "1  furlong", "9furlongs", "99999999999PiB"] {
            assert!(wrong.parse::<Size>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn days_are_whole() {
        let now = Time { seconds: 1_000_000, nanoseconds: 5 };
        let matches = |text: &str, seconds: i64, nanoseconds| {
            text.parse::<Days>().unwrap().matches(now, Time { seconds: 1_000_000 - seconds, nanoseconds })
        };
        assert!(matches("0", 86_399, 5) && !matches("0", 86_400, 5) && matches("0", 86_400, 6));
        assert!(matches("+0", 86_400, 5) && matches("-1", 86_399, 5) && matches("-1", -5, 0));
        assert!("+".parse::<Days>().is_err() && "x".parse::<Days>().is_err());
    }

    #[test]
    fn values_are_printed_as_they_are_typed() {
        for text in ["+10M", "-64KiB", "512c", "0c", "3b", "7w", "1000c", "2GiB"] {
            assert_eq!(text.parse::<Size>().unwrap().to_string(), text);
        }
        for text in ["+30", "-1", "7"] {
            assert_eq!(text.parse::<Days>().unwrap().to_string(), text);
        }
        for text in ["2", "1..3", "0..3", "2.."] {
            assert_eq!(text.parse::<Depths>().unwrap().to_string(), text);
        }
        assert_eq!("l,f".parse::<Kinds>().unwrap().to_string(), "f,l");
        let reference = |bytes: &[u8]| Reference::from(OsStr::from_bytes(bytes).to_owned());
        assert_eq!(reference(b"1970-01-02T00:00:00Z").to_string(), "1970-01-02T00:00:00Z");
        assert_eq!(reference(b"a\xff"), Reference::File(OsStr::from_bytes(b"a\xff").into()));
        assert_eq!(reference(b"a\xff").to_string(), "\"a\\xff\"");
    }

    #[test]
    fn depths_types_and_dates_are_read() {
        assert_eq!("2".parse(), Ok(Depths { min: 2, max: Some(2) }));
        assert_eq!("1..3".parse(), Ok(Depths { min: 1, max: Some(3) }));
        assert_eq!("..3".parse(), Ok(Depths { min: 0, max: Some(3) }));
        assert_eq!("2..".parse(), Ok(Depths { min: 2, max: None }));
        for wrong in ["", "x", "3..1", "-1", "1...3", "5000000000"] {
            assert!(wrong.parse::<Depths>().is_err(), "{wrong}");
        }
        let kinds: Kinds = "f,l".parse().unwrap();
        assert!(
            kinds.contains(FileKind::File)
                && kinds.contains(FileKind::Link)
                && !kinds.contains(FileKind::Directory)
        );
        assert!("x".parse::<Kinds>().is_err() && "".parse::<Kinds>().is_err());
        assert_eq!(date("@17"), Some(Time { seconds: 17, nanoseconds: 0 }));
        assert_eq!(date("1970-01-02T00:00:00Z").unwrap().seconds, 86_400);
        assert_eq!(date("1970-01-02T00:00:00.5+01:00").unwrap().seconds, 82_800);
        assert!(date("2026-01-31").is_some() && date("2026-01-31 12:00").is_some());
        assert_eq!(date("some/file"), None);
        assert_eq!("root".parse(), Ok(User(0)));
        assert_eq!("4294967290".parse(), Ok(User(4_294_967_290)));
        assert!("no such user".parse::<User>().is_err());
        assert_eq!("root".parse(), Ok(Group(0)));
        assert!("no such group".parse::<Group>().is_err());
    }
}
