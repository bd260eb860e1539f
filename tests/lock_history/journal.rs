//! The journals that clients keep of their locks, and the rules that these must obey.
//!
//! A client counts a lock as held from the moment when it knew of the grant until the last moment at which its own check of
//! the lease passed. Times are those of `CLOCK_BOOTTIME`, which all processes of a machine share.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::Mutex;

use nacre::lock::Mode;
use rustix::time::{ClockId, clock_gettime};

/// The number of bytes of a file that are locked. For each of them the object of the file has a cell.
pub const BYTES: u64 = 64;
/// The bytes of a cell: the number of the write that was the last.
pub const CELL_BYTES: u64 = 8;

/// Returns the time in nanoseconds.
pub fn now() -> u64 {
    let time = clock_gettime(ClockId::Boottime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// An event of a lock that a client has, by the client's number of it.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The client knows that it has it.
    Granted { file: u64, session: u64, mode: Mode, bytes: u64 },
    /// The lease held at the time of this event.
    Holds,
    /// It is about to write this into all cells of the lock.
    Writes { value: u64 },
    /// The write is acknowledged.
    Wrote,
    /// The store refused the write, and all attempts at it.
    Refused,
    /// It read the cells of the lock, and the lease held afterwards.
    Read { cells: Vec<u64> },
}

/// The journal of a client: a file that outlives it.
pub struct Journal(Mutex<File>);

impl Journal {
    pub fn create(path: &Path) -> Journal {
        Journal(Mutex::new(File::create_new(path).unwrap()))
    }

    pub fn put(&self, lock: u64, time: u64, event: &Event) {
        let mut line = format!("{lock} {time} ");
        match event {
            Event::Granted { file, session, mode, bytes } => {
                let _ = write!(line, "granted {file} {session} {mode:?} {bytes}");
            }
            Event::Holds => line.push_str("holds"),
            Event::Writes { value } => _ = write!(line, "writes {value}"),
            Event::Wrote => line.push_str("wrote"),
            Event::Refused => line.push_str("refused"),
            Event::Read { cells } => {
                line.push_str("read");
                cells.iter().for_each(|cell| _ = write!(line, " {cell}"));
            }
        }
        line.push('\n');
        // One call for a line, so that a client that is killed leaves whole ones, but for the last.
        self.0.lock().unwrap().write_all(line.as_bytes()).unwrap();
    }
}

fn parse(line: &str) -> (u64, u64, Event) {
    let words: Vec<&str> = line.split(' ').collect();
    let number = |index: usize| words[index].parse::<u64>().unwrap();
    let event = match words[2] {
        "granted" => {
            let mode = if words[5] == "Shared" { Mode::Shared } else { Mode::Exclusive };
            Event::Granted { file: number(3), session: number(4), mode, bytes: number(6) }
        }
        "holds" => Event::Holds,
        "writes" => Event::Writes { value: number(3) },
        "wrote" => Event::Wrote,
        "refused" => Event::Refused,
        "read" => Event::Read { cells: words[3..].iter().map(|word| word.parse().unwrap()).collect() },
        other => panic!("\"{other}\" in a journal"),
    };
    (number(0), number(1), event)
}

/// A lock, as its client knew it.
// Shown with a breach.
#[allow(dead_code)]
#[derive(Debug)]
struct Held {
    /// The client and its number of the lock, for messages.
    name: String,
    file: u64,
    session: u64,
    mode: Mode,
    bytes: u64,
    from: u64,
    /// The last time at which the client could rely on it.
    until: u64,
    /// The values that may be there after its last write: the last acknowledged one, and all later ones that were not refused.
    acknowledged: Option<u64>,
    doubtful: Vec<u64>,
    /// The cells that it read, and the value that it had written before that.
    reads: Vec<(u64, Option<u64>, Vec<u64>)>,
}

/// The events of a history, counted.
#[derive(Debug, Default)]
pub struct Counts {
    pub exclusive: usize,
    pub shared: usize,
    pub writes: usize,
    pub refused: usize,
    pub reads: usize,
    /// Pairs of locks of one file that were held at once.
    pub at_once: usize,
}

/// Locks of all clients.
#[derive(Default)]
pub struct History {
    held: Vec<Held>,
    refused: usize,
}

impl History {
    /// Adds the journal of a client.
    pub fn add(&mut self, name: &str, text: &str) {
        // What stands behind the last end of a line was cut off.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let mut locks: BTreeMap<u64, Held> = BTreeMap::new();
        for line in whole.lines() {
            let (number, time, event) = parse(line);
            if let Event::Granted { file, session, mode, bytes } = event {
                let held = Held {
                    name: format!("lock {number} of {name}"),
                    file,
                    session,
                    mode,
                    bytes,
                    from: time,
                    until: time,
                    acknowledged: None,
                    doubtful: Vec::new(),
                    reads: Vec::new(),
                };
                assert!(locks.insert(number, held).is_none());
                continue;
            }
            let held = locks.get_mut(&number).unwrap();
            match event {
                Event::Granted { .. } => {}
                Event::Holds => held.until = time,
                Event::Writes { value } => held.doubtful.push(value),
                Event::Wrote => {
                    held.acknowledged = held.doubtful.pop();
                    held.doubtful.clear();
                }
                Event::Refused => {
                    held.doubtful.pop();
                    self.refused += 1;
                }
                Event::Read { cells } => {
                    // A write without an outcome is followed by no read.
                    let own = held.acknowledged;
                    held.reads.push((time, own, cells));
                }
            }
        }
        self.held.extend(locks.into_values());
    }

    /// Takes in that an administrator broke a session at a time: its client may have learned that later.
    pub fn broken(&mut self, session: u64, time: u64) {
        for held in self.held.iter_mut().filter(|held| held.session == session) {
            // Shared locks last until the lease is over.
            if held.mode == Mode::Exclusive {
                held.until = held.until.min(time);
                held.reads.retain(|read| read.0 < time);
            }
        }
    }

    /// Checks that no byte was held by two conflicting holders at once, and that every holder read what the last one wrote
    /// and nothing else as long as it held it.
    ///
    /// # Errors
    /// The first breach of a rule.
    pub fn check(&self) -> Result<Counts, String> {
        let mut counts = Counts { refused: self.refused, ..Counts::default() };
        for held in &self.held {
            *(if held.mode == Mode::Exclusive { &mut counts.exclusive } else { &mut counts.shared }) += 1;
            counts.writes += usize::from(held.acknowledged.is_some());
            counts.reads += held.reads.len();
        }
        let mut files: BTreeMap<u64, Vec<&Held>> = BTreeMap::new();
        // One that could never be relied on conflicts with none; it may have written nothing.
        for held in self.held.iter().filter(|held| held.until > held.from) {
            files.entry(held.file).or_default().push(held);
        }
        for locks in files.values_mut() {
            locks.sort_by_key(|held| held.from);
            counts.at_once += locks.windows(2).filter(|pair| pair[1].from < pair[0].until).count();
            for byte in 0..BYTES {
                let of_byte: Vec<&Held> =
                    locks.iter().copied().filter(|held| held.bytes & 1 << byte != 0).collect();
                check_exclusion(&of_byte, byte)?;
                check_values(&of_byte, byte)?;
            }
        }
        Ok(counts)
    }
}

/// Checks the locks of one byte, in the order of their grants.
fn check_exclusion(locks: &[&Held], byte: u64) -> Result<(), String> {
    let mut last: Option<&Held> = None;
    let mut last_exclusive: Option<&Held> = None;
    for held in locks {
        let before = if held.mode == Mode::Exclusive { last } else { last_exclusive };
        if let Some(before) = before.filter(|before| before.until > held.from) {
            return Err(format!("byte {byte} was held by two at once: {before:?} and {held:?}"));
        }
        let later = |known: Option<&Held>| known.is_none_or(|known| known.until < held.until);
        if later(last) {
            last = Some(held);
        }
        if held.mode == Mode::Exclusive && later(last_exclusive) {
            last_exclusive = Some(held);
        }
    }
    Ok(())
}

/// Checks what the holders of one byte read in its cell.
fn check_values(locks: &[&Held], byte: u64) -> Result<(), String> {
    // The values that may be in the cell, by the holders so far.
    let mut possible = vec![0];
    for held in locks {
        let cell = (held.bytes & ((1 << byte) - 1)).count_ones() as usize;
        let mut found: Option<u64> = None;
        for (time, own, cells) in &held.reads {
            let value = cells[cell];
            let expected = match (own, found) {
                (Some(own), _) => vec![*own],
                (None, Some(found)) => vec![found],
                (None, None) => possible.clone(),
            };
            if !expected.contains(&value) {
                return Err(format!(
                    "byte {byte}, read at {time}, has {value} and not any of {expected:?}: {held:?}"
                ));
            }
            found = Some(value);
        }
        // What a reader saw is there, whatever was possible.
        if held.mode == Mode::Shared {
            possible = found.map_or(possible, |found| vec![found]);
            continue;
        }
        match held.acknowledged {
            Some(value) => possible = vec![value],
            None => possible = found.map_or(possible, |found| vec![found]),
        }
        possible.extend(&held.doubtful);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(clients: &[&str]) -> Result<Counts, String> {
        let mut history = History::default();
        clients.iter().enumerate().for_each(|(index, text)| history.add(&index.to_string(), text));
        history.check()
    }

    #[test]
    fn a_journal_that_breaks_a_rule_is_found_out() {
        let one = "1 10 granted 0 1 Exclusive 7\n1 20 holds\n1 21 writes 5\n1 22 wrote\n1 23 read 5 5 5\n1 30 holds\n";
        assert!(check(&[one, "1 30 granted 0 2 Shared 12\n1 31 read 5 0\n1 32 holds\n"]).is_ok());
        assert!(check(&[one, "1 11 granted 1 2 Exclusive 7\n1 32 holds\n"]).is_ok(), "another file");
        assert!(check(&[one, "1 11 granted 0 2 Exclusive 8\n1 32 holds\n"]).is_ok(), "other bytes");
        let breaches = [
            ("1 29 granted 0 2 Shared 4\n1 32 holds\n", "held by two"),
            ("1 30 granted 0 2 Shared 4\n1 31 read 0\n1 32 holds\n", "has 0 and not any of [5]"),
            (
                "1 30 granted 0 2 Exclusive 8\n1 31 read 0\n1 32 read 5\n1 33 holds\n",
                "has 5 and not any of [0]",
            ),
            ("1 30 granted 0 2 Exclusive 8\n1 31 writes 6\n1 32 wrote\n1 33 read 0\n1 34 holds\n", "has 0"),
        ];
        for (other, why) in breaches {
            let error = check(&[one, other]).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
        let mut history = History::default();
        history.add("one", one);
        history.add("other", "1 25 granted 0 2 Exclusive 4\n1 32 holds\n1 33");
        assert!(history.check().is_err());
        history.broken(1, 24);
        assert!(history.check().is_ok());
    }
}
