//! A player, which moves, crosses from cell to cell and plants flags; and the bot that does so by itself.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::Arguments;
use crate::room::Room;
use crate::world::{CELLS, Cell, CellId, FLAGS_MAX, HEIGHT, Ledger, Random, Record, Tile, WIDTH, cell_of};

/// The time after which a wait is a failure.
const PATIENCE: Duration = Duration::from_secs(120);

/// A player and its knowledge of the world.
pub struct Player {
    number: u32,
    turn: u32,
    pub at: Tile,
    /// Its own flags.
    pub flags: BTreeSet<Tile>,
    /// The known cells, from other players and from states.
    pub cells: BTreeMap<CellId, Cell>,
    /// The group of the cell that it is in.
    room: Room,
    arguments: Arguments,
    pub statistics: Statistics,
}

/// Network statistics of a player.
#[derive(Clone, Copy, Debug, Default)]
pub struct Statistics {
    /// The number of cells entered.
    pub entered: u32,
    /// The number of entered cells that had a state.
    pub with_state: u32,
    /// The number of datagrams received from other players.
    pub heard: u64,
    /// The number of times that a reflector was lost and it or another one was joined.
    pub rejoined: u32,
}

impl Player {
    /// Enters the world at a random tile.
    pub fn enter(arguments: &Arguments) -> Result<Player, String> {
        let mut random = Random(arguments.seed ^ u64::from(arguments.player) << 32);
        let at = (random.below(WIDTH.into()) as u16, random.below(HEIGHT.into()) as u16);
        let room = Room::enter(arguments, Some(cell_of(at)))?;
        let mut player = Player {
            number: arguments.player,
            turn: 0,
            at,
            flags: BTreeSet::new(),
            cells: BTreeMap::new(),
            room,
            arguments: arguments.clone(),
            statistics: Statistics::default(),
        };
        player.settle(|_| {})?;
        Ok(player)
    }

    /// Waits until the player is a member of its cell's group, and has received the state if there is one.
    fn settle(&mut self, mut meanwhile: impl FnMut(&mut Cell)) -> Result<(), String> {
        let begun = Instant::now();
        while !self.room.is_ready() {
            if begun.elapsed() > PATIENCE {
                return Err(format!("cell {:?} did not take player {} up", cell_of(self.at), self.number));
            }
            self.hear(Duration::from_millis(50))?;
            meanwhile(self.cells.entry(cell_of(self.at)).or_default());
        }
        self.statistics.entered += 1;
        self.statistics.with_state += u32::from(self.room.had_state());
        self.say(Some(self.at))
    }

    /// Receives announcements of other players in this cell for `time`.
    pub fn hear(&mut self, time: Duration) -> Result<(), String> {
        let cell = self.cells.entry(cell_of(self.at)).or_default();
        let until = Instant::now() + time;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            self.statistics.heard += self.room.hear(left, cell)?;
            if left.is_zero() {
                self.statistics.rejoined += self.room.take_rejoined();
                return Ok(());
            }
        }
    }

    /// Announces the position in this cell, or that the player has left it, and the flags planted there.
    fn say(&mut self, at: Option<Tile>) -> Result<(), String> {
        self.turn += 1;
        let id = cell_of(self.at);
        let flags = self.flags.iter().copied().filter(|flag| cell_of(*flag) == id).collect();
        let record = Record { player: self.number, turn: self.turn, at, flags };
        self.cells.entry(id).or_default().learn(record.clone());
        self.room.say(record.line().as_bytes())
    }

    /// Moves by a tile, unless the world ends there.
    pub fn step(&mut self, by: (i32, i32)) -> Result<(), String> {
        let to = |at: u16, by: i32, end: u16| at.checked_add_signed(by as i16).filter(|at| *at < end);
        let (Some(x), Some(y)) = (to(self.at.0, by.0, WIDTH), to(self.at.1, by.1, HEIGHT)) else {
            return self.say(Some(self.at));
        };
        if cell_of((x, y)) == cell_of(self.at) {
            self.at = (x, y);
            return self.say(Some(self.at));
        }
        // The next before the last: there is no moment in which it is nowhere.
        let next = Room::enter(&self.arguments, Some(cell_of((x, y))))?;
        let mut last = std::mem::replace(&mut self.room, next);
        let left = cell_of(self.at);
        let from = self.at;
        self.at = (x, y);
        let known = self.cells.remove(&left).unwrap_or_default();
        let mut last_cell = known;
        let mut failed = None;
        self.settle(|_| {
            if let Err(why) = last.hear(Duration::ZERO, &mut last_cell) {
                failed = Some(why);
            }
        })?;
        self.turn += 1;
        let flags = self.flags.iter().copied().filter(|flag| cell_of(*flag) == cell_of(from)).collect();
        let record = Record { player: self.number, turn: self.turn, at: None, flags };
        last_cell.learn(record.clone());
        last.say(record.line().as_bytes())?;
        self.cells.insert(left, last_cell);
        last.leave();
        failed.map_or(Ok(()), Err)
    }

    /// Plants a flag, if the tile has none yet and one is left.
    pub fn plant(&mut self) -> Result<(), String> {
        let free = self.cells.get(&cell_of(self.at)).is_none_or(|cell| cell.flag(self.at).is_none());
        if free && self.flags.len() < FLAGS_MAX {
            self.flags.insert(self.at);
        }
        self.say(Some(self.at))
    }

    /// Leaves the world.
    pub fn leave(mut self) -> Result<(), String> {
        self.say(None)?;
        self.room.leave();
        Ok(())
    }
}

/// Plays by itself, meets the other players, and prints the result.
pub fn bot(arguments: &Arguments) -> Result<(), String> {
    let players = arguments.players.unwrap_or(1);
    let mut random = Random(arguments.seed.wrapping_mul(31) ^ u64::from(arguments.player));
    let mut player = Player::enter(arguments)?;
    let mut heading = (1, 0);
    for _ in 0..arguments.turns {
        // Mostly straight on, so that it comes around.
        if random.below(5) == 0 {
            heading = [(1, 0), (-1, 0), (0, 1), (0, -1)][random.below(4) as usize];
        }
        match random.below(4) {
            0 => player.plant()?,
            _ => player.step(heading)?,
        }
        player.hear(arguments.turn())?;
    }
    player.say(None)?;
    let plaza = Room::enter(arguments, None)?;
    std::mem::replace(&mut player.room, plaza).leave();
    let ledgers = meet(&mut player, arguments, players)?;
    check(&player, &ledgers)?;
    let Statistics { entered, with_state, heard, rejoined } = player.statistics;
    player.room.leave();
    eprintln!(
        "player {}: entered {entered} cells, {with_state} of them with a state; heard {heard} datagrams; rejoined {rejoined} times",
        arguments.player
    );
    Ok(())
}

/// Exchanges flags until all players know each other's, and returns them.
fn meet(
    player: &mut Player,
    arguments: &Arguments,
    players: u32,
) -> Result<BTreeMap<u32, BTreeSet<Tile>>, String> {
    let own = Ledger { player: arguments.player, level: 0, flags: player.flags.clone() };
    let mut ledgers = BTreeMap::from([(arguments.player, own)]);
    let begun = Instant::now();
    let mut printed = false;
    let mut quiet_since = Instant::now();
    loop {
        let everybody = (1..=players).all(|number| ledgers.contains_key(&number));
        let least = ledgers.values().filter(|l| l.player != arguments.player).map(|l| l.level).min();
        let own = ledgers.get_mut(&arguments.player).ok_or("a player knows itself")?;
        if everybody {
            own.level = own.level.max(least.map_or(3, |least| (least + 1).min(3)));
        }
        player.room.say(own.line().as_bytes())?;
        let level = own.level;
        if level >= 1 && !printed {
            print(&ledgers);
            printed = true;
        }
        // The last to know cannot know that the others know that: it is enough that they have gone.
        if level == 3 || (level >= 1 && quiet_since.elapsed() > Duration::from_secs(5)) {
            let flags = ledgers.into_values().map(|ledger| (ledger.player, ledger.flags)).collect();
            return Ok(flags);
        }
        if begun.elapsed() > PATIENCE {
            let missing: Vec<u32> = (1..=players).filter(|number| !ledgers.contains_key(number)).collect();
            return Err(format!("players {missing:?} did not come to the plaza"));
        }
        let mut heard = Vec::new();
        player.room.listen(arguments.turn(), &mut |datagram| heard.push(datagram.to_vec()))?;
        for datagram in heard {
            let text = String::from_utf8_lossy(&datagram);
            if let Some(ledger) = Ledger::parse(&text).filter(|ledger| (1..=players).contains(&ledger.player))
            {
                quiet_since = Instant::now();
                let known = ledgers.get(&ledger.player).map_or(0, |known| known.level);
                if ledger.level >= known && ledger.player != arguments.player {
                    ledgers.insert(ledger.player, ledger);
                }
            }
        }
    }
}

/// Prints the result on which all players must agree.
fn print(ledgers: &BTreeMap<u32, Ledger>) {
    let mut owners: BTreeMap<Tile, u32> = BTreeMap::new();
    for ledger in ledgers.values() {
        for flag in &ledger.flags {
            owners.entry(*flag).or_insert(ledger.player);
        }
    }
    for ledger in ledgers.values() {
        let kept = owners.values().filter(|owner| **owner == ledger.player).count();
        println!("player {} planted {} flags and keeps {kept}", ledger.player, ledger.flags.len());
    }
    for row in 0..CELLS {
        for column in 0..CELLS {
            let flags = owners.keys().filter(|tile| cell_of(**tile) == (column, row)).count();
            println!("cell {column},{row} has {flags} flags");
        }
    }
    let mut digest = 0xcbf2_9ce4_8422_2325_u64;
    for ((x, y), owner) in &owners {
        for word in [u64::from(*x), u64::from(*y), u64::from(*owner)] {
            digest = (digest ^ word).wrapping_mul(0x0100_0000_01b3);
        }
    }
    println!("digest {digest:016x}");
}

/// Checks that every record received of a player, directly or in a state, agrees with that player's ledger.
fn check(player: &Player, ledgers: &BTreeMap<u32, BTreeSet<Tile>>) -> Result<(), String> {
    for (id, cell) in &player.cells {
        for record in cell.records.values() {
            let planted =
                ledgers.get(&record.player).ok_or_else(|| format!("nobody is {}", record.player))?;
            if let Some(flag) = record.flags.iter().find(|flag| !planted.contains(flag)) {
                return Err(format!(
                    "player {} never planted {flag:?}, as was said in {id:?}",
                    record.player
                ));
            }
        }
    }
    Ok(())
}
