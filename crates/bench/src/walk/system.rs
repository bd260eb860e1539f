//! The programs that walk the tree: the floor, Nacre, and the peers.

use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::{Deserialize, Serialize};

use super::floor::Count;
use crate::kit::peer::{find_program, version_of};
use crate::kit::quantity::grouped;
use crate::{BenchError, Common};

/// A program that walks, in one of its modes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum System {
    /// openat, getdents64 and statx for every entry, and nothing else.
    Floor,
    /// openat and getdents64 alone.
    FloorNames,
    /// `nacre walk`: the summary.
    Nacre,
    /// `nacre walk --list`: names without metadata.
    NacreNames,
    /// `find -printf` with type, size, time and path.
    Find,
    /// `du`: the sum of the sizes.
    Du,
    /// `bfs -printf`, as find.
    Bfs,
    /// `fd` with a condition on the time, which makes it read every entry's metadata.
    Fd,
    /// `fd`: names.
    FdNames,
    /// `dwalk` of mpiFileUtils.
    Dwalk,
    /// `pdu`, parallel-disk-usage.
    Pdu,
}

/// The parameters of the programs.
pub(super) struct Programs {
    /// This program, which makes the system's calls alone.
    pub(super) this: PathBuf,
    /// The options of every study, such as the program that is measured.
    pub(super) common: Common,
    /// The number of threads of programs with such an option.
    pub(super) threads: usize,
    pub(super) dwalk: Option<String>,
    pub(super) pdu: Option<PathBuf>,
}

/// The count that a program reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Counted {
    /// The number of entries below the root.
    Entries(u64),
    /// The number of files, directories with the root, and links, each counted once however many names it has.
    Inodes(u64),
    /// The sum of the sizes of all entries by name, including the directories and the root.
    Bytes(u64),
}

impl fmt::Display for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (number, unit) = match self {
            Self::Entries(number) => (number, "entries"),
            Self::Inodes(number) => (number, "inodes"),
            Self::Bytes(number) => (number, "bytes"),
        };
        write!(f, "{} {unit}", grouped(*number as f64))
    }
}

/// The way to read a count from a program's output.
#[derive(Clone, Copy)]
enum Output {
    /// A name for every entry, ended by a zero byte; `root` is true if the root is among them.
    Names { root: bool },
    /// The floor's JSON.
    Floor,
    /// A JSON object with the number at this path; the root is counted.
    Json(&'static [&'static str]),
    /// A number at the beginning of the last line.
    Number,
    /// A number after a word.
    Behind(&'static str),
}

impl System {
    /// All programs, in the order of the table.
    pub(super) const ALL: [Self; 11] = [
        Self::Floor,
        Self::Nacre,
        Self::Find,
        Self::Du,
        Self::Bfs,
        Self::Fd,
        Self::Dwalk,
        Self::Pdu,
        Self::FloorNames,
        Self::NacreNames,
        Self::FdNames,
    ];

    /// Returns the name in tables and legends.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Floor => "floor",
            Self::FloorNames => "floor, names",
            Self::Nacre => "nacre walk",
            Self::NacreNames => "nacre walk --list",
            Self::Find => "find -printf",
            Self::Du => "du",
            Self::Bfs => "bfs -printf",
            Self::Fd => "fd, with time",
            Self::FdNames => "fd",
            Self::Dwalk => "dwalk",
            Self::Pdu => "pdu",
        }
    }

    /// Returns whether it is a command of Nacre's.
    pub(crate) fn is_nacre(self) -> bool {
        matches!(self, Self::Nacre | Self::NacreNames)
    }

    /// Returns whether it reads only names.
    pub(crate) fn reads_names_only(self) -> bool {
        matches!(self, Self::FloorNames | Self::NacreNames | Self::FdNames)
    }

    /// Returns the program and its Debian package, if it comes from one.
    fn package(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Find => Some(("find", "findutils")),
            Self::Du => Some(("du", "coreutils")),
            Self::Bfs => Some(("bfs", "bfs")),
            Self::Fd | Self::FdNames => Some(("fdfind", "fd-find")),
            _ => None,
        }
    }

    /// Returns the command that walks a tree; with `counting`, one that reports the count.
    pub(super) fn command(
        self,
        programs: &Programs,
        root: &Path,
        counting: bool,
    ) -> Result<Command, BenchError> {
        let threads = programs.threads.to_string();
        let printf = "%y %s %T@ %p\\0";
        let root = root.as_os_str();
        let of = |program: &Path, words: &[&str]| {
            let mut command = Command::new(program);
            command.args(words);
            command
        };
        let packaged = |words: &[&str]| -> Result<Command, BenchError> {
            let (program, package) = self.package().unwrap_or_default();
            Ok(of(&find_program(program, package)?, words))
        };
        let nacre =
            |words: &[&str]| -> Result<Command, BenchError> { Ok(of(&programs.common.nacre()?, words)) };
        let mut command = match self {
            Self::Floor => of(&programs.this, &["walk-floor", "--threads", &threads]),
            Self::FloorNames => of(&programs.this, &["walk-floor", "--threads", &threads, "--names-only"]),
            Self::Nacre if counting => nacre(&["walk", "--json", "--threads", &threads])?,
            Self::Nacre => nacre(&["walk", "--threads", &threads])?,
            Self::NacreNames if counting => nacre(&["walk", "--threads", &threads, "--list", "--null"])?,
            Self::NacreNames => nacre(&["walk", "--threads", &threads, "--list"])?,
            Self::Du if counting => packaged(&["--summarize", "--inodes"])?,
            Self::Du => packaged(&["--summarize", "--apparent-size"])?,
            Self::Fd => {
                packaged(&["-uu", "--print0", "--threads", &threads, "--changed-after", "1970-01-02", "."])?
            }
            Self::FdNames => packaged(&["-uu", "--print0", "--threads", &threads, "."])?,
            // Their conditions stand behind the root.
            Self::Find | Self::Bfs => {
                let mut command = packaged(&[])?;
                command.arg(root).args(["-printf", printf]);
                return Ok(command);
            }
            Self::Dwalk => {
                let words = programs.dwalk.as_deref().unwrap_or("dwalk");
                let mut words = words.split_whitespace();
                let mut command = Command::new(words.next().unwrap_or("dwalk"));
                command.args(words);
                command
            }
            Self::Pdu => {
                let program = programs.pdu.as_deref().unwrap_or(Path::new("pdu"));
                let words = ["--quantity=apparent-size", "--bytes-format=plain", "--max-depth=1"];
                of(program, &[&words[..], &["--threads", &threads]].concat())
            }
        };
        command.arg(root);
        Ok(command)
    }

    fn output(self) -> Output {
        match self {
            Self::Floor | Self::FloorNames => Output::Floor,
            Self::Nacre => Output::Json(&["total", "entries"]),
            Self::NacreNames | Self::Find | Self::Bfs => Output::Names { root: true },
            Self::Fd | Self::FdNames => Output::Names { root: false },
            Self::Du | Self::Pdu => Output::Number,
            Self::Dwalk => Output::Behind("Items:"),
        }
    }

    /// Runs it once, which also warms the caches, and returns its count and exit code.
    pub(super) fn count(self, programs: &Programs, root: &Path) -> Result<(Counted, i32), BenchError> {
        let output = self.output();
        let mut command = self.command(programs, root, true)?;
        let outcome = crate::kit::usage::run(&mut command, Some(&|text| output.number(text)))?;
        // One says that not everything could be read, with all of them.
        if outcome.code > 1 {
            let Some(heard) = outcome.complaint.lines().next() else {
                return Err(BenchError::peer(
                    self.name(),
                    format!("it ended with exit code {}", outcome.code),
                ));
            };
            return Err(BenchError::peer(self.name(), heard));
        }
        let Some(number) = outcome.heard else {
            let message = format!("it does not say how much it found; {}", outcome.complaint);
            return Err(BenchError::peer(self.name(), message));
        };
        let counted = match self {
            Self::Du => Counted::Inodes(number),
            Self::Pdu => Counted::Bytes(number),
            Self::Dwalk => Counted::Entries(number.saturating_sub(1)),
            _ => Counted::Entries(number),
        };
        Ok((counted, outcome.code))
    }
}

impl Output {
    fn number(self, output: &mut dyn Read) -> Option<u64> {
        match self {
            Self::Names { root } => {
                let mut buffer = vec![0; 1 << 16];
                let mut names = 0u64;
                loop {
                    match output.read(&mut buffer).ok()? {
                        0 => return Some(names - u64::from(root && names > 0)),
                        read => names += buffer[..read].iter().filter(|byte| **byte == 0).count() as u64,
                    }
                }
            }
            Self::Floor => {
                let count: Count = serde_json::from_reader(output).ok()?;
                Some(count.entries)
            }
            Self::Json(path) => {
                let value: serde_json::Value = serde_json::from_reader(output).ok()?;
                path.iter().try_fold(&value, |value, key| value.get(key))?.as_u64()?.checked_sub(1)
            }
            Self::Number => last_line(output)?.split_whitespace().next()?.parse().ok(),
            Self::Behind(word) => {
                let text = std::io::read_to_string(output).ok()?;
                let (_, rest) = text.split_once(word)?;
                rest.split_whitespace().next()?.replace(',', "").parse().ok()
            }
        }
    }
}

/// Returns the last line that is not empty.
fn last_line(output: &mut dyn Read) -> Option<String> {
    let text = std::io::read_to_string(output).ok()?;
    text.lines().rev().find(|line| !line.trim().is_empty()).map(str::to_owned)
}

/// Returns the name and version that a program reports, if it is installed.
pub(super) fn version(system: System) -> Option<String> {
    let (program, package) = system.package()?;
    version_of(&find_program(program, package).ok()?, &["--version"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_in_what_programs_print() {
        let number = |output: Output, text: &str| output.number(&mut text.as_bytes());
        assert_eq!(number(Output::Names { root: true }, "a\0b\0c\0"), Some(2));
        assert_eq!(number(Output::Names { root: false }, "a\nb\0c\0"), Some(2));
        assert_eq!(number(Output::Json(&["a", "b"]), "{\"a\": {\"b\": 7}}"), Some(6));
        assert_eq!(number(Output::Json(&["a"]), "not JSON"), None);
        assert_eq!(number(Output::Number, "12345\t/tmp/tree\n"), Some(12345));
        assert_eq!(number(Output::Behind("Items:"), "x\n[2026] Items: 1,234\nx"), Some(1234));
    }
}
