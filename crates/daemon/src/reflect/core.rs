//! The data thread: it owns the sockets, the table and the plane, and waits for nothing but them.

use std::collections::{BTreeMap, HashSet};
use std::net::SocketAddr;
use std::sync::mpsc;
use std::time::Duration;

use nacre_balance::metric::{Decayed, HALF_LIFE};
use nacre_planes::forward::{Counters, ForwardError, Forwarder, LATE, be_prompt, read_clocks};
use nacre_planes::plane::{self, PlaneKind, PlaneOptions};
use nacre_reflect::control::{Control, Event};
use nacre_reflect::host::Now;
use nacre_reflect::table::{Group, GroupId, GroupIndex};
use tokio::sync::mpsc::UnboundedSender;

use super::ServerError;
use super::administration::Task;
use super::balance::{Departing, GroupNow, LoadNow};
use super::report::{About, Detail, GroupReport, MemberReport, Refused, Report};

/// The interval at which rates are measured, in milliseconds.
const SAMPLE_MS: u64 = 1000;
/// The time given to tell members that the reflector is closing, in milliseconds.
const CLOSING_MS: u64 = 2000;

/// The state of the data thread.
pub(super) struct Core {
    pub(super) control: Control,
    forwarder: Forwarder,
    plane_options: PlaneOptions,
    plane_reason: String,
    started_ms: u64,
    ticked_ms: u64,
    sampled_ms: u64,
    rates: BTreeMap<GroupId, Sample>,
    /// The groups whose members were on their way elsewhere at the last sample.
    departing: Vec<GroupIndex>,
    /// The channel for the control plane's requests to the store.
    wanted: UnboundedSender<Event>,
    /// The time at which closing began, in milliseconds.
    closing_ms: Option<u64>,
}

/// A group's counters at the last sample, and their growth in a second.
#[derive(Clone, Copy, Default)]
struct Sample {
    admitted: u64,
    copies: u64,
    datagrams_per_second: u64,
    copies_per_second: u64,
    /// The datagrams and the copies with decay.
    decayed: [Decayed; 2],
    /// The time since which they are counted: since the group has had members.
    counted_since: Duration,
}

impl Sample {
    /// Returns the datagrams and the copies per second, with decay. What was not counted for long is not taken for less: a
    /// group that has just come is not to look idle.
    fn rates(&self, now: Duration) -> [f64; 2] {
        let counted = now.saturating_sub(self.counted_since).max(Duration::from_millis(SAMPLE_MS));
        let part = 1.0 - (-counted.as_secs_f64() / HALF_LIFE.as_secs_f64()).exp2();
        self.decayed.map(|decayed| decayed.rate(now) / part)
    }
}

impl Core {
    pub(super) fn new(
        control: Control,
        forwarder: Forwarder,
        plane_options: PlaneOptions,
        plane_reason: String,
        wanted: UnboundedSender<Event>,
    ) -> Core {
        let now_ms = read_clocks().ms;
        Core {
            control,
            forwarder,
            plane_options,
            plane_reason,
            started_ms: now_ms,
            ticked_ms: 0,
            sampled_ms: now_ms,
            rates: BTreeMap::new(),
            departing: Vec::new(),
            wanted,
            closing_ms: None,
        }
    }

    /// Runs until the reflector was told to close and all members were told.
    pub(super) fn run(mut self, tasks: &mpsc::Receiver<Task>) -> Result<(), ServerError> {
        be_prompt();
        loop {
            let now = read_clocks();
            let tick_ms = self.control.tick_ms();
            let tick = (self.ticked_ms + tick_ms + tick_ms / LATE).saturating_sub(now.ms);
            if let Err(error) = self.forwarder.poll(&mut self.control, Duration::from_millis(tick)) {
                self.change_plane(error)?;
            }
            while let Ok(task) = tasks.try_recv() {
                task(&mut self);
            }
            let now = read_clocks();
            if now.ms >= self.ticked_ms + self.control.tick_ms() {
                self.ticked_ms = now.ms;
                self.control.tick(now);
                self.after(now);
            }
            if let Some(since) = self.closing_ms
                && (self.control.table().members_len() == 0 || now.ms >= since + CLOSING_MS)
            {
                // What was still to be sent goes out with one more turn.
                let last = self.forwarder.poll(&mut self.control, Duration::ZERO);
                return last.map_err(ServerError::from);
            }
        }
    }

    /// Begins to close.
    pub(super) fn close(&mut self) {
        self.control.close();
        self.closing_ms.get_or_insert(read_clocks().ms);
    }

    /// Replaces a plane that failed by one that has no requirements. Admitted datagrams go out by that one.
    fn change_plane(&mut self, error: ForwardError) -> Result<(), ServerError> {
        let ForwardError::Plane(why) = error else { return Err(error.into()) };
        let from = self.forwarder.plane().kind();
        let to = [PlaneKind::Batch, PlaneKind::Sendto]
            .into_iter()
            .find(|kind| *kind != from)
            .unwrap_or(PlaneKind::Sendto);
        if from == PlaneKind::Sendto {
            return Err(ForwardError::Plane(why).into());
        }
        tracing::error!(%why, "the {from} plane works no more; going on with the {to} plane");
        let plane =
            plane::open(to, self.forwarder.listeners(), &self.plane_options).map_err(ForwardError::Plane)?;
        self.plane_reason = format!("the {from} plane worked no more: {why}");
        self.forwarder.set_plane(&mut self.control, plane).map_err(ServerError::from)
    }

    fn after(&mut self, now: Now) {
        for event in self.control.events() {
            match event {
                Event::Joined { group, address } => tracing::debug!(%group, %address, "joined"),
                Event::Left { group, address, reason } => tracing::debug!(%group, %address, %reason, "left"),
                Event::LoadState { .. } | Event::StoreState { .. } => {
                    // The other thread ends after this one.
                    let _ = self.wanted.send(event);
                }
            }
        }
        if now.ms >= self.sampled_ms + SAMPLE_MS {
            self.sample(now);
        }
    }

    fn sample(&mut self, now: Now) {
        let elapsed_ms = (now.ms - self.sampled_ms).max(1);
        self.sampled_ms = now.ms;
        self.forwarder.refresh();
        let mut rates = std::mem::take(&mut self.rates);
        let mut next = BTreeMap::new();
        // What came since the last sample came in the middle of that time, on average.
        let middle = Duration::from_millis(now.ms - elapsed_ms.min(now.ms) / 2);
        self.departing.clear();
        for (index, group) in self.control.table().groups() {
            if self.control.departure(index).is_some() {
                self.departing.push(index);
            }
            let counters = self.forwarder.group_counters(index);
            if counters.admitted == 0 {
                continue;
            }
            let before = rates.remove(&group.id).unwrap_or_default();
            // A group that was removed and made again begins anew.
            let grown = |after: u64, before: u64| after.saturating_sub(before) * 1000 / elapsed_ms;
            let begins = before.counted_since.is_zero() || group.live == 0;
            let (mut decayed, counted_since) = match begins {
                true => ([Decayed::default(); 2], Duration::from_millis(now.ms - elapsed_ms.min(now.ms))),
                false => (before.decayed, before.counted_since),
            };
            decayed[0].add(middle, counters.admitted.saturating_sub(before.admitted) as f64);
            decayed[1].add(middle, counters.copies.saturating_sub(before.copies) as f64);
            next.insert(
                group.id,
                Sample {
                    admitted: counters.admitted,
                    copies: counters.copies,
                    datagrams_per_second: grown(counters.admitted, before.admitted),
                    copies_per_second: grown(counters.copies, before.copies),
                    decayed,
                    counted_since,
                },
            );
        }
        self.rates = next;
    }

    /// Returns the load by group, of the busiest `limit` groups with members, and the groups whose members are on their way
    /// elsewhere.
    pub(super) fn load(&self, limit: usize) -> LoadNow {
        let now = read_clocks();
        let at = Duration::from_millis(now.ms);
        let table = self.control.table();
        let default = self.control.options().group_default;
        let mut load = LoadNow { waiting_bytes: self.forwarder.waiting_bytes() as u64, ..LoadNow::default() };
        let mut busiest: Vec<([f64; 2], GroupIndex)> = Vec::new();
        for (index, group) in table.groups().filter(|(_, group)| group.live > 0) {
            // One that is moved away does not count any more.
            if self.control.departure(index).is_none() {
                let sample = self.rates.get(&group.id).copied().unwrap_or_default();
                let rates = sample.rates(at);
                load.datagrams += rates[0];
                load.copies += rates[1];
                load.members += u64::from(group.live);
                busiest.push((rates, index));
            }
        }
        busiest.sort_by(|(a, _), (b, _)| b[1].total_cmp(&a[1]));
        busiest.truncate(limit);
        // Bans hold at this reflector alone.
        let bans = self.control.bans().iter().filter(|ban| ban.until_unix_s > now.unix_s);
        let banned: HashSet<Option<GroupId>> = bans.map(|ban| ban.group).collect();
        let is_open = |id: GroupId| !banned.contains(&None) && !banned.contains(&Some(id));
        load.groups = busiest
            .into_iter()
            .map(|([datagrams, copies], index)| {
                let group = table.group(index);
                let location = self.control.location_of(index);
                GroupNow {
                    id: group.id,
                    location: location.map(|(name, _)| name.to_owned()),
                    is_movable: location.is_some_and(|(_, in_charge)| in_charge)
                        && default == Some(group.options)
                        && is_open(group.id),
                    members: u64::from(group.live),
                    datagrams,
                    copies,
                }
            })
            .collect();
        let departing = self.departing.iter().filter_map(|index| self.departing_group(*index, now));
        load.departing = departing.collect();
        load
    }

    /// Returns the progress of a group whose members are on their way elsewhere.
    fn departing_group(&self, index: GroupIndex, now: Now) -> Option<Departing> {
        let departure = self.control.departure(index)?;
        Some(Departing {
            location: departure.location.to_owned(),
            to: departure.to.reflectors.first(),
            is_asking: departure.is_asking,
            is_relayed: departure.is_relayed,
            members: u64::from(departure.members),
            for_ms: now.ms.saturating_sub(departure.since_ms),
        })
    }

    /// Returns whether the reflector is in charge of a location, and this is its group.
    pub(super) fn is_in_charge(&self, id: GroupId, location: &str) -> bool {
        let here = self.control.table().find(id).and_then(|index| self.control.location_of(index));
        here == Some((location, true))
    }

    /// Returns the progress of a group of an id whose members are on their way elsewhere.
    pub(super) fn departing(&self, id: GroupId) -> Option<Departing> {
        self.departing_group(self.control.table().find(id)?, read_clocks())
    }

    /// Returns a report of the reflector.
    pub(super) fn report(&mut self, detail: Detail) -> Report {
        self.forwarder.refresh();
        let now = read_clocks();
        let reflector = self.about(now);
        let table = self.control.table();
        let groups = match detail {
            Detail::Totals => Vec::new(),
            Detail::Groups => table
                .groups()
                .map(|(index, group)| (index, group, self.forwarder.group_counters(index)))
                .filter(|(_, group, counters)| group.live > 0 || *counters != Counters::default())
                .map(|(index, group, counters)| self.group(index, group, counters, None))
                .collect(),
            Detail::Group { id, members } => table
                .find(id)
                .map(|index| {
                    let list = members.then_some(now.ms);
                    self.group(index, table.group(index), self.forwarder.group_counters(index), list)
                })
                .into_iter()
                .collect(),
        };
        Report { reflector, groups }
    }

    /// Returns the name of a device, or its index if it is gone.
    fn device(&self, index: u32) -> String {
        let name = self
            .forwarder
            .listeners()
            .sockets()
            .next()
            .and_then(|(_, socket)| rustix::net::netdevice::index_to_name(socket, index).ok());
        name.unwrap_or_else(|| index.to_string())
    }

    fn about(&self, now: Now) -> About {
        let counters = self.forwarder.counters();
        let table = self.control.table();
        About {
            pid: std::process::id(),
            addresses: self.forwarder.listeners().addresses().collect(),
            plane: self.forwarder.plane().kind().to_string(),
            plane_reason: self.plane_reason.clone(),
            up_seconds: (now.ms - self.started_ms) / 1000,
            groups: table.groups_len() as u64,
            members: table.members_len() as u64,
            admitted: counters.admitted,
            admitted_bytes: counters.admitted_bytes,
            copies: counters.copies,
            undeliverable: counters.undeliverable,
            too_old: counters.too_old,
            made: BTreeMap::from([
                ("driver", counters.copy_counts.driver),
                ("hook", counters.copy_counts.hook),
                ("frames", counters.copy_counts.frames),
                ("sockets", counters.copy_counts.sockets),
            ]),
            refused: refused(&counters),
            plane_counters: BTreeMap::from([
                ("received", counters.received),
                ("control", counters.control),
                ("handed", counters.handed),
                ("handed_lost", counters.handed_lost),
                ("device_full", counters.full),
                ("answers", counters.outgoing),
                ("answers_failed", counters.outgoing_failed),
                ("network_errors", counters.reported),
                ("waiting_bytes", self.forwarder.waiting_bytes() as u64),
            ]),
            control: self.control.counters().iter().map(|(counter, count)| (counter.name(), count)).collect(),
        }
    }

    fn group(&self, index: GroupIndex, group: &Group, counters: Counters, list: Option<u64>) -> GroupReport {
        let table = self.control.table();
        let members = || {
            let entries =
                group.lanes.iter().flat_map(|lane| lane.entries.iter().map(move |entry| (lane, entry)));
            entries.filter_map(|(lane, entry)| Some((lane, table.member(entry.member()?))))
        };
        let mut delays: Vec<u32> =
            members().map(|(_, member)| member.delay_us).filter(|us| *us > 0).collect();
        let middle = delays.len() / 2;
        let delay_us = (!delays.is_empty()).then(|| *delays.select_nth_unstable(middle).1);
        let rate = self.rates.get(&group.id).copied().unwrap_or_default();
        GroupReport {
            group: group.id.to_string(),
            members: group.live,
            members_max: group.options.members_max,
            token: group.options.token,
            sequence: group.options.sequence,
            admitted: counters.admitted,
            admitted_bytes: counters.admitted_bytes,
            copies: counters.copies,
            undeliverable: counters.undeliverable,
            too_old: counters.too_old,
            refused: refused(&counters),
            datagrams_per_second: rate.datagrams_per_second,
            copies_per_second: rate.copies_per_second,
            delay_us,
            state_version: Some(self.control.state_version(index)).filter(|version| *version > 0),
            list: list.map(|now_ms| {
                let report =
                    |(lane, member): (&nacre_reflect::table::Lane, &nacre_reflect::table::Member)| {
                        MemberReport {
                            address: member.address,
                            at: lane.path.local,
                            device: self.device(lane.path.device),
                            heard_ms_ago: now_ms.saturating_sub(member.heard_ms),
                            delay_us: member.delay_us,
                            echo: member.echo,
                        }
                    };
                members().map(report).collect()
            }),
        }
    }
}

/// Returns the counts of refusals, by their names in metrics.
fn refused(counters: &Counters) -> Refused {
    BTreeMap::from([
        ("non_members", counters.non_members),
        ("over_rate", counters.over_rate),
        ("backlog", counters.backlog),
        ("too_long", counters.too_long),
        ("socket_full", counters.socket_full),
    ])
}

/// Returns whether all addresses are loopback addresses.
pub(super) fn is_loopback(addresses: &[SocketAddr]) -> bool {
    addresses.iter().all(|address| address.ip().is_loopback())
}
