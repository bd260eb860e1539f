//! The world of the game: tiles, in cells that are groups of the reflector, with the players' knowledge of each other.
//!
//! All that a player announces of itself in a cell is one *record*, which replaces its older ones, so it does not
//! matter which of its datagrams get lost: the next one contains everything. The state of a cell is the newest record
//! of each player who was ever there.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// The number of cells in a row, and of rows of cells.
pub const CELLS: u16 = 3;
/// The number of tiles in a row of a cell.
pub const CELL_WIDTH: u16 = 10;
/// The number of rows of tiles in a cell.
pub const CELL_HEIGHT: u16 = 4;
/// The number of tiles in a row of the world.
pub const WIDTH: u16 = CELLS * CELL_WIDTH;
/// The number of rows of tiles in the world.
pub const HEIGHT: u16 = CELLS * CELL_HEIGHT;
/// The number of flags that a player can plant.
pub const FLAGS_MAX: usize = 40;

/// A tile of the world.
pub type Tile = (u16, u16);

/// A cell, by column and row.
pub type CellId = (u16, u16);

/// Returns the cell that contains a tile.
pub fn cell_of(tile: Tile) -> CellId {
    (tile.0 / CELL_WIDTH, tile.1 / CELL_HEIGHT)
}

/// The announcement of a player in a cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub player: u32,
    /// The player's turn at the time of the announcement.
    pub turn: u32,
    /// The player's position, unless it has left the cell.
    pub at: Option<Tile>,
    /// The flags that the player planted in the cell.
    pub flags: BTreeSet<Tile>,
}

impl Record {
    /// Formats the record as a line to send.
    pub fn line(&self) -> String {
        let mut line = format!("player {} turn {} at", self.player, self.turn);
        match self.at {
            Some((x, y)) => write!(line, " {x},{y}").unwrap(),
            None => line.push_str(" -"),
        }
        write_tiles(&mut line, &self.flags);
        line
    }

    /// Parses a line, which may come from any sender; `None` if it is not a record.
    pub fn parse(line: &str) -> Option<Record> {
        let mut words = line.split_ascii_whitespace();
        let player = number(&mut words, "player")?;
        let turn = number(&mut words, "turn")?;
        if words.next()? != "at" {
            return None;
        }
        let at = match words.next()? {
            "-" => None,
            word => Some(tile(word)?),
        };
        Some(Record { player, turn, at, flags: read_tiles(words)? })
    }
}

/// The known records of a cell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cell {
    pub records: BTreeMap<u32, Record>,
}

impl Cell {
    /// Adds a record, if it is newer than the player's known one.
    pub fn learn(&mut self, record: Record) {
        match self.records.get(&record.player) {
            Some(known) if known.turn >= record.turn => {}
            _ => drop(self.records.insert(record.player, record)),
        }
    }

    /// Adds all records of a state or a datagram.
    pub fn learn_text(&mut self, text: &[u8]) {
        let text = String::from_utf8_lossy(text);
        text.lines().filter_map(Record::parse).for_each(|record| self.learn(record));
    }

    /// Returns the state that is sent to a player who enters.
    pub fn state(&self) -> Vec<u8> {
        self.records.values().map(|record| record.line() + "\n").collect::<String>().into_bytes()
    }

    /// Returns the owner of the flag on a tile: the player with the least number, should two have planted one at once.
    pub fn flag(&self, tile: Tile) -> Option<u32> {
        self.records.values().find(|record| record.flags.contains(&tile)).map(|record| record.player)
    }
}

/// A player's announcement at the end, when all meet: all its flags, and its knowledge of other ledgers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ledger {
    pub player: u32,
    /// The level of knowledge. 0: some ledgers are missing; 1: has all ledgers; 2: knows that all players have them; 3:
    /// knows that all players know that.
    pub level: u32,
    pub flags: BTreeSet<Tile>,
}

impl Ledger {
    /// Formats the ledger as a line to send.
    pub fn line(&self) -> String {
        let mut line = format!("ledger {} level {}", self.player, self.level);
        write_tiles(&mut line, &self.flags);
        line
    }

    /// Parses a line, which may come from any sender; `None` if it is not a ledger.
    pub fn parse(line: &str) -> Option<Ledger> {
        let mut words = line.split_ascii_whitespace();
        let player = number(&mut words, "ledger")?;
        let level = number(&mut words, "level")?;
        Some(Ledger { player, level, flags: read_tiles(words)? })
    }
}

fn number<'a>(words: &mut impl Iterator<Item = &'a str>, name: &str) -> Option<u32> {
    (words.next()? == name).then(|| words.next())??.parse().ok()
}

fn tile(word: &str) -> Option<Tile> {
    let (x, y) = word.split_once(',')?;
    let (x, y) = (x.parse().ok()?, y.parse().ok()?);
    (x < WIDTH && y < HEIGHT).then_some((x, y))
}

fn write_tiles(line: &mut String, tiles: &BTreeSet<Tile>) {
    line.push_str(" flags");
    for (x, y) in tiles {
        write!(line, " {x},{y}").unwrap();
    }
}

fn read_tiles<'a>(mut words: impl Iterator<Item = &'a str>) -> Option<BTreeSet<Tile>> {
    (words.next()? == "flags").then(|| words.map(tile).collect::<Option<_>>())?
}

/// A random number generator (SplitMix64) with a seed, so that a bot's game can be replayed.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (word ^ (word >> 31)) % bound
    }
}
