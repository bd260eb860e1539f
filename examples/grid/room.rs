//! A group that a player is a member of: a cell, or the plaza where all meet.

use std::time::{Duration, Instant};

use nacre_reflect::client::{Client, ClientError, ClientEvent};
use nacre_reflect::member::{MemberEvent, MemberOptions, SendError, Target, Wanted};

use crate::Arguments;
use crate::world::{CELLS, Cell, CellId};

/// The time that a reflector may take to acknowledge that a player leaves.
const LEAVING: Duration = Duration::from_secs(1);

/// A group that a player is a member of.
pub struct Room {
    client: Client,
    /// True once the player is a member.
    joined: bool,
    /// True once the state was received, or is known not to exist.
    settled: bool,
    had_state: bool,
    rejoined: u32,
}

fn failed(error: ClientError) -> String {
    error.to_string()
}

impl Room {
    /// Starts to join a cell, or the plaza.
    pub fn enter(arguments: &Arguments, cell: Option<CellId>) -> Result<Room, String> {
        let wanted = match (&arguments.locations, cell) {
            (Some(name), Some((column, row))) => Wanted::Location {
                name: format!("{name}/{column},{row}"),
                reflectors: arguments.reflector.clone(),
            },
            (Some(name), None) => {
                Wanted::Location { name: format!("{name}/plaza"), reflectors: arguments.reflector.clone() }
            }
            (None, cell) => {
                let plaza = u32::from(CELLS * CELLS) + 1;
                let group = cell.map_or(plaza, |(column, row)| u32::from(row * CELLS + column) + 1);
                let targets =
                    arguments.reflector.iter().map(|reflector| Target { reflector: *reflector, group });
                Wanted::Group(targets.collect())
            }
        };
        // A cell has a state; the plaza has none.
        let options =
            MemberOptions { keeps_state: cell.is_some(), wants_state: cell.is_some(), ..Default::default() };
        let client = Client::new(wanted, options).map_err(failed)?;
        Ok(Room { client, joined: false, settled: cell.is_none(), had_state: false, rejoined: 0 })
    }

    /// Returns whether the player is a member, and has the state if there is one.
    pub fn is_ready(&self) -> bool {
        self.joined && self.settled
    }

    /// Returns whether a state was received.
    pub fn had_state(&self) -> bool {
        self.had_state
    }

    /// Returns the number of times that the group was lost and joined again since the last call.
    pub fn take_rejoined(&mut self) -> u32 {
        std::mem::take(&mut self.rejoined)
    }

    /// Receives for `time`, and passes each datagram to `take`.
    pub fn listen(&mut self, time: Duration, take: &mut dyn FnMut(&[u8])) -> Result<(), String> {
        self.turn(time, &mut Plaza(take))
    }

    /// Receives for `time`, adds the announcements to `cell`, and sends the state to the reflector when it asks.
    /// Returns the number of datagrams received.
    pub fn hear(&mut self, time: Duration, cell: &mut Cell) -> Result<u64, String> {
        let mut learner = Learner { cell, heard: 0 };
        self.turn(time, &mut learner)?;
        Ok(learner.heard)
    }

    fn turn(&mut self, time: Duration, ear: &mut dyn Ear) -> Result<(), String> {
        let until = Instant::now() + time;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.client.poll(left).map_err(failed)? {
                None if left.is_zero() => return Ok(()),
                None => {}
                Some(ClientEvent::Datagram { payload, .. }) => ear.datagram(&payload),
                Some(ClientEvent::Member(event)) => match event {
                    MemberEvent::Joined { again, .. } => {
                        self.rejoined += u32::from(again);
                        self.joined = true;
                        // Where there is a state it is being fetched now.
                        self.settled |= self.client.member().state_version() == 0;
                    }
                    MemberEvent::State { bytes, .. } => {
                        ear.state(&bytes);
                        (self.settled, self.had_state) = (true, true);
                    }
                    MemberEvent::NoState => self.settled = true,
                    MemberEvent::StateAsked { ask } => {
                        // Who does not know the cell yet has no state to give.
                        let state = ear.state_request().filter(|_| self.is_ready());
                        self.client.give_state(ask, state.map(Into::into)).map_err(failed)?;
                    }
                    MemberEvent::Refused { reason, last: true } => return Err(reason.to_string()),
                    _ => {}
                },
            }
        }
    }

    /// Sends a datagram to the other members. One that cannot be sent before joining is dropped, because the next one
    /// follows soon.
    pub fn say(&mut self, datagram: &[u8]) -> Result<(), String> {
        match self.client.send(datagram) {
            Ok(()) | Err(ClientError::Send(SendError::NotJoined)) => Ok(()),
            Err(error) => Err(failed(error)),
        }
    }

    /// Leaves the group.
    pub fn leave(self) {
        // If the reflector does not hear it, it forgets the player soon.
        let _ = self.client.leave(LEAVING);
    }
}

/// A handler of received events.
trait Ear {
    /// Handles a datagram from another player.
    fn datagram(&mut self, bytes: &[u8]);

    /// Handles a state from the reflector.
    fn state(&mut self, _bytes: &[u8]) {}

    /// Returns the state, if there is one, when the reflector asks for it.
    fn state_request(&mut self) -> Option<Vec<u8>> {
        None
    }
}

/// A handler of datagrams only.
struct Plaza<'a>(&'a mut dyn FnMut(&[u8]));

impl Ear for Plaza<'_> {
    fn datagram(&mut self, bytes: &[u8]) {
        (self.0)(bytes);
    }
}

/// A handler that adds announcements to a cell.
struct Learner<'a> {
    cell: &'a mut Cell,
    heard: u64,
}

impl Ear for Learner<'_> {
    fn datagram(&mut self, bytes: &[u8]) {
        self.heard += 1;
        self.cell.learn_text(bytes);
    }

    fn state(&mut self, bytes: &[u8]) {
        self.cell.learn_text(bytes);
    }

    fn state_request(&mut self) -> Option<Vec<u8>> {
        Some(self.cell.state())
    }
}
