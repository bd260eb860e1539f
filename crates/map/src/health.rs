//! The judgement of which servers are up and which are down, by their beacons: a state machine without I/O, whose clock is given to it.
//!
//! A beacon counts when its sequence number is seen to change, by the clock of whoever looks. So the clocks of the servers
//! do not matter, and only a monotonic one is needed here. A server is down after a time of silence. It is up again after a
//! number of beacons in a row and a hold-down, which grows with every time that it went down, so that one that comes and
//! goes stays down rather than being up half of the time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The settings of a monitor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The time without a beacon after which a server is down.
    pub silence: Duration,
    /// The number of beacons in a row after which a server that was down may be up.
    pub beacons_up: u32,
    /// The time for which a server that went down for the second time has to send beacons before it is up again. It
    /// doubles with each further time.
    pub hold: Duration,
    /// The longest such time.
    pub hold_max: Duration,
    /// The time that a server has to be up for what was before to be forgotten.
    pub steady: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            silence: Duration::from_secs(3),
            beacons_up: 3,
            hold: Duration::from_secs(5),
            hold_max: Duration::from_secs(300),
            steady: Duration::from_secs(600),
        }
    }
}

/// The state of a server in the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// A server that sends beacons.
    Up,
    /// A server that was silent for too long.
    Down,
    /// A server that ended in good order, and is not expected to send any.
    Stopped,
}

/// The name of a beacon: none is sent twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pulse {
    /// A number that the server has chosen at its start.
    pub incarnation: u64,
    /// The number of the beacon since.
    pub sequence: u64,
}

/// A server as the map and the beacons have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observed {
    /// The server's name.
    pub name: String,
    /// Its state in the map.
    pub standing: Standing,
    /// The number of times that it went down, as the map has it.
    pub downs: u32,
    /// Its latest beacon, if there is one.
    pub pulse: Option<Pulse>,
}

/// A change of the map that is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The server's name.
    pub name: String,
    /// The state that it is to have.
    pub standing: Standing,
    /// The number of times that it went down, this one included.
    pub downs: u32,
    /// The time for which its beacons were missing or are back.
    pub since: Duration,
}

/// A monitor's knowledge of a server.
#[derive(Clone, Copy, Debug)]
struct Seen {
    pulse: Option<Pulse>,
    /// The time since its latest beacon was seen first, or since one waits for it, as far as the monitor was there.
    quiet: Duration,
    /// The number of beacons without a silence between them, and when the first of them came.
    run: u32,
    run_began: Duration,
    standing: Standing,
    /// The time at which it was first seen in that state.
    standing_since: Duration,
}

/// A monitor of servers.
#[derive(Clone, Debug)]
pub struct Monitor {
    settings: Settings,
    seen: BTreeMap<String, Seen>,
    looked: Option<Duration>,
}

impl Monitor {
    /// Creates a monitor that knows nothing yet.
    pub fn new(settings: Settings) -> Self {
        Self { settings, seen: BTreeMap::new(), looked: None }
    }

    /// Takes in what the map and the beacons say at a time of the monitor's own clock, and returns the changes of the map
    /// that are due. They are due again at the next look unless they are in the map by then.
    pub fn look(&mut self, now: Duration, servers: &[Observed]) -> Vec<Decision> {
        let Settings { silence, beacons_up, steady, .. } = self.settings;
        let gap = self.looked.map_or(Duration::ZERO, |looked| now.saturating_sub(looked));
        self.looked = Some(now);
        for seen in self.seen.values_mut() {
            if gap > silence {
                // A monitor that could not look for a while (it was stopped, or did not reach the store) cannot tell a
                // silence from its own absence: all clocks begin anew.
                (seen.quiet, seen.run, seen.run_began) = (Duration::ZERO, 0, now);
            } else {
                // Nor does a part of it prove more than this; but one that always looks late still sees who is silent.
                seen.quiet += gap.min(silence / 2);
            }
        }
        let names: BTreeSet<&str> = servers.iter().map(|server| &*server.name).collect();
        self.seen.retain(|name, _| names.contains(&**name));
        let mut decisions = Vec::new();
        for server in servers {
            let seen = self.seen.entry(server.name.clone()).or_insert(Seen {
                pulse: server.pulse,
                quiet: Duration::ZERO,
                run: 0,
                run_began: now,
                standing: server.standing,
                standing_since: now,
            });
            if seen.standing != server.standing {
                (seen.standing, seen.standing_since) = (server.standing, now);
                match server.standing {
                    // Whoever is entered anew is given the time to send a beacon.
                    Standing::Up => seen.quiet = Duration::ZERO,
                    // Only beacons that come since count, also where another monitor missed them.
                    Standing::Down => (seen.run, seen.run_began) = (0, now),
                    Standing::Stopped => {}
                }
            }
            let silent = seen.quiet >= silence;
            if seen.pulse != server.pulse {
                if silent || seen.run == 0 {
                    (seen.run, seen.run_began) = (0, now);
                }
                seen.run = seen.run.saturating_add(1);
                (seen.pulse, seen.quiet) = (server.pulse, Duration::ZERO);
            } else if silent {
                seen.run = 0;
            }
            let quiet = seen.quiet;
            let steady = now.saturating_sub(seen.standing_since) >= steady;
            let decision = match server.standing {
                Standing::Up if quiet >= silence => {
                    let downs = if steady { 1 } else { server.downs.saturating_add(1) };
                    Some((Standing::Down, downs, quiet))
                }
                Standing::Down if seen.run >= beacons_up => {
                    let back = now.saturating_sub(seen.run_began);
                    (back >= self.hold(server.downs)).then_some((Standing::Up, server.downs, back))
                }
                _ => None,
            };
            if let Some((standing, downs, since)) = decision {
                decisions.push(Decision { name: server.name.clone(), standing, downs, since });
            }
        }
        decisions
    }

    /// Returns the time for which a server has to send beacons before it is up again.
    fn hold(&self, downs: u32) -> Duration {
        match downs {
            0 | 1 => Duration::ZERO,
            downs => {
                let doublings = (downs - 2).min(16);
                self.settings.hold.saturating_mul(1 << doublings).min(self.settings.hold_max)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Servers with a clock: what the monitor decides is in the map at the next look.
    struct World {
        monitor: Monitor,
        now: Duration,
        servers: Vec<Observed>,
        decided: Vec<(u64, String, Standing, u32)>,
    }

    impl World {
        fn new(names: &[&str]) -> World {
            let server = |name: &&str| Observed {
                name: (*name).to_owned(),
                standing: Standing::Up,
                downs: 0,
                pulse: Some(Pulse { incarnation: 1, sequence: 0 }),
            };
            let servers = names.iter().map(server).collect();
            let monitor = Monitor::new(Settings::default());
            World { monitor, now: Duration::from_secs(1000), servers, decided: Vec::new() }
        }

        /// Lets so many seconds pass, in each of which the named servers send a beacon.
        fn pass(&mut self, seconds: u64, alive: &[&str]) {
            for _ in 0..seconds {
                self.now += SECOND;
                for server in &mut self.servers {
                    if let Some(pulse) = server.pulse.as_mut().filter(|_| alive.contains(&&*server.name)) {
                        pulse.sequence += 1;
                    }
                }
                for decision in self.monitor.look(self.now, &self.servers) {
                    let server = self.servers.iter_mut().find(|server| server.name == decision.name).unwrap();
                    (server.standing, server.downs) = (decision.standing, decision.downs);
                    let at = self.now.as_secs() - 1000;
                    self.decided.push((at, decision.name, decision.standing, decision.downs));
                }
            }
        }
    }

    #[test]
    fn a_silent_server_is_down_after_the_time_and_up_after_three_beacons() {
        let mut world = World::new(&["a", "b"]);
        world.pass(5, &["a", "b"]);
        world.pass(5, &["a"]);
        world.pass(5, &["a", "b"]);
        assert_eq!(world.decided, [(8, "b".into(), Standing::Down, 1), (13, "b".into(), Standing::Up, 1)]);
    }

    #[test]
    fn one_that_comes_and_goes_is_held_down_longer_each_time() {
        let mut world = World::new(&["a"]);
        world.pass(3, &["a"]);
        for _ in 0..6 {
            world.pass(4, &[]);
            world.pass(60, &["a"]);
        }
        let ups: Vec<u64> = world
            .decided
            .iter()
            .filter(|decided| decided.2 == Standing::Up)
            .map(|decided| decided.0)
            .collect();
        let begins: Vec<u64> = (0..ups.len() as u64).map(|round| 3 + 64 * round + 5).collect();
        let held: Vec<u64> = ups.iter().zip(&begins).map(|(up, begin)| up - begin).collect();
        assert_eq!(held, [2, 5, 10, 20, 40], "and the sixth time it is not up within a minute");
        // One that was up for long is trusted again.
        world.pass(100, &["a"]);
        assert_eq!(world.decided.last().unwrap().2, Standing::Up);
        world.pass(700, &["a"]);
        world.pass(4, &[]);
        assert_eq!(world.decided.last().unwrap().3, 1);
    }

    #[test]
    fn a_few_beacons_between_silences_make_no_server_up() {
        let mut world = World::new(&["a"]);
        world.pass(2, &["a"]);
        world.pass(4, &[]);
        for _ in 0..10 {
            world.pass(2, &["a"]);
            world.pass(4, &[]);
        }
        assert_eq!(world.decided, [(5, "a".into(), Standing::Down, 1)]);
    }

    #[test]
    fn a_monitor_that_was_away_condemns_nobody() {
        let mut world = World::new(&["a", "b"]);
        world.pass(5, &["a", "b"]);
        // Its clock goes on, or jumps ahead, while it does not look.
        world.now += Duration::from_secs(3600);
        world.pass(2, &[]);
        assert_eq!(world.decided, []);
        world.pass(2, &["a"]);
        assert_eq!(world.decided, [(3609, "b".into(), Standing::Down, 1)]);
    }

    #[test]
    fn a_monitor_that_always_looks_late_still_sees_who_is_silent() {
        let mut monitor = Monitor::new(Settings::default());
        let server = |sequence| Observed {
            name: "a".into(),
            standing: Standing::Up,
            downs: 0,
            pulse: Some(Pulse { incarnation: 1, sequence }),
        };
        let late = Duration::from_millis(1600);
        for look in 0..20 {
            assert_eq!(monitor.look(late * look, &[server(u64::from(look))]), []);
        }
        assert_eq!(monitor.look(late * 20, &[server(19)]), []);
        assert_eq!(monitor.look(late * 21, &[server(19)])[0].standing, Standing::Down);
    }

    #[test]
    fn a_server_that_another_monitor_marked_down_is_held_as_long() {
        let mut world = World::new(&["a"]);
        world.pass(100, &["a"]);
        // This monitor has not missed a beacon.
        (world.servers[0].standing, world.servers[0].downs) = (Standing::Down, 4);
        world.pass(30, &["a"]);
        assert_eq!(world.decided, [(121, "a".into(), Standing::Up, 4)]);
    }

    #[test]
    fn a_restarted_server_whose_numbers_begin_anew_goes_on() {
        let mut world = World::new(&["a"]);
        world.pass(5, &["a"]);
        world.servers[0].pulse = Some(Pulse { incarnation: 2, sequence: 0 });
        world.pass(2, &[]);
        world.pass(5, &["a"]);
        assert_eq!(world.decided, []);
    }

    #[test]
    fn one_that_stopped_in_good_order_is_not_down() {
        let mut world = World::new(&["a", "b"]);
        world.pass(3, &["a", "b"]);
        world.servers[1].standing = Standing::Stopped;
        world.pass(30, &["a"]);
        assert_eq!(world.decided, []);
        world.servers[1].standing = Standing::Up;
        world.pass(2, &["a"]);
        world.pass(30, &["a", "b"]);
        assert_eq!(world.decided, []);
    }
}
