//! The rate at which very many members join, and the memory of each.
//!
//! A thread plays all members, with real datagrams through the testbed: each sends a request, gets a cookie, returns it,
//! and is a member then. The memory is the growth of the reflector's process, and all tables that its plane keeps in
//! the kernel.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::time::{Duration, Instant};

use nacre_reflect::wire::{Answer, Join, Request};
use serde::Serialize;

use super::arguments::Args;
use super::measure::Bench;
use super::point::System;
use super::report::Results;
use super::serve::Reflector;
use super::system::{self, ManySocket};
use super::testbed::{self, Device, MEMBER_PORT, PORT};
use crate::BenchError;
use crate::kit::machine::memory_bytes_of;
use crate::kit::quantity::grouped;
use crate::kit::report::Report;
use crate::kit::study::Steps;
use crate::kit::table::Table;

const GROUPS: u32 = 10_000;
const MEMBERS: u32 = 100_000;
/// The number of members of one address, on as many ports: as many joins as one address is allowed at once.
const PORTS: u16 = 4;
/// The maximum number of joins in flight: fewer than a socket's buffer holds.
const OUTSTANDING: u32 = 64;

/// The results of joins with a plane.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Joins {
    pub(super) who: System,
    groups: u32,
    members: u64,
    seconds: f64,
    pub(super) joins_per_s: f64,
    /// The number of requests that were sent again, because no answer came.
    again: u64,
    /// The memory of the process, with its groups and without members, and the memory that all members add, in bytes.
    groups_bytes: u64,
    members_bytes: u64,
    /// The memory of the plane's tables in the kernel, however full they are, in bytes.
    kernel_bytes: u64,
    pub(super) bytes_per_member: f64,
}

/// Measures joins with all planes.
pub(super) fn measure(args: &Args, report: &mut Report<Results>) -> Result<(), BenchError> {
    let planes = args.planes();
    let (groups, members) = if args.quick { (GROUPS / 10, MEMBERS / 10) } else { (GROUPS, MEMBERS) };
    let steps = Steps::new(planes.len() as u64);
    let bench = Bench::build(None, &[Device::Unlimited], args.window())?;
    for who in planes.into_iter().map(System::Plane) {
        steps.step(&format!("{}, joins", who.name()), 0)?;
        match joins(&bench, who, groups, members)? {
            Ok(result) => report.joins.push(result),
            Err(why) => report.add_absent(who, why),
        }
    }
    Ok(())
}

fn joins(bench: &Bench, who: System, groups: u32, members: u32) -> Result<Result<Joins, String>, BenchError> {
    let orders = super::serve::Orders { groups, ..bench.orders(who.name(), Vec::new()) };
    let mut reflector = match Reflector::start(&bench.testbed.reflector, &orders)? {
        Ok(reflector) => reflector,
        Err(why) => return Ok(Err(why)),
    };
    let SocketAddr::V4(to) = testbed::reflector_address(None, PORT) else {
        return Err(BenchError::Process("the testbed has addresses of IPv4 alone".into()));
    };
    reflector.counters()?;
    let groups_bytes = memory_bytes_of(reflector.id());
    let cpu = bench.sender_cpu;
    let (seconds, again) = bench.testbed.senders.run(|| {
        system::pin(cpu)?;
        Crowd::new(to, groups, members)?.join()
    })?;
    let counted = reflector.counters()?;
    if counted.members != u64::from(members) {
        let there = counted.members;
        return Err(BenchError::Process(format!("{members} were told that they are members, {there} are")));
    }
    let members_bytes = memory_bytes_of(reflector.id()).saturating_sub(groups_bytes);
    let kernel_bytes = kernel_bytes_of(reflector.id());
    Ok(Ok(Joins {
        who,
        groups,
        members: counted.members,
        seconds,
        joins_per_s: f64::from(members) / seconds,
        again,
        groups_bytes,
        members_bytes,
        kernel_bytes,
        bytes_per_member: (members_bytes + kernel_bytes) as f64 / f64::from(members),
    }))
}

/// Returns the kernel memory of the maps of a process's programs, in bytes.
fn kernel_bytes_of(process: u32) -> u64 {
    let files = std::fs::read_dir(format!("/proc/{process}/fdinfo")).into_iter().flatten().flatten();
    let mut maps = std::collections::BTreeMap::new();
    for file in files {
        let text = std::fs::read_to_string(file.path()).unwrap_or_default();
        let field = |name: &str| -> Option<u64> {
            text.lines().find_map(|line| line.strip_prefix(name))?.trim().parse().ok()
        };
        // One map may be open several times.
        if let (Some(id), Some(bytes)) = (field("map_id:"), field("memlock:")) {
            maps.insert(id, bytes);
        }
    }
    maps.values().sum()
}

/// All members, played by one thread.
struct Crowd {
    to: SocketAddrV4,
    groups: u32,
    sockets: Vec<ManySocket>,
    /// The cookie of each member that has one, and its state.
    members: Vec<Seeker>,
    inside: u32,
    again: u64,
}

#[derive(Clone, Copy, Default)]
struct Seeker {
    cookie: [u8; 16],
    join_sent: bool,
    inside: bool,
}

impl Crowd {
    fn new(to: SocketAddrV4, groups: u32, members: u32) -> Result<Self, BenchError> {
        let sockets = (0..PORTS).map(|port| ManySocket::bind(MEMBER_PORT + port)).collect::<Result<_, _>>();
        Ok(Self {
            to,
            groups,
            sockets: sockets.map_err(BenchError::io("open the members' sockets"))?,
            members: vec![Seeker::default(); members as usize],
            inside: 0,
            again: 0,
        })
    }

    /// Makes all members join, and returns the time in seconds and the number of requests that were sent again.
    fn join(mut self) -> Result<(f64, u64), BenchError> {
        let start = Instant::now();
        let mut next = 0;
        let mut heard = start;
        while (self.inside as usize) < self.members.len() {
            while next < self.members.len() as u32 && next - self.inside < OUTSTANDING {
                self.ask(next)?;
                next += 1;
            }
            if self.listen()? {
                heard = Instant::now();
            } else if heard.elapsed() > Duration::from_secs(20) {
                let (inside, all) = (self.inside, self.members.len());
                return Err(BenchError::Process(format!("{inside} of {all} could join, then none any more")));
            } else if heard.elapsed() > Duration::from_millis(200) {
                let waiting: Vec<u32> = (0..next)
                    .rev()
                    .filter(|member| !self.members[*member as usize].inside)
                    .take(OUTSTANDING as usize)
                    .collect();
                for member in waiting {
                    self.again += 1;
                    self.ask(member)?;
                }
                std::thread::sleep(Duration::from_millis(100));
            } else {
                std::thread::yield_now();
            }
        }
        Ok((start.elapsed().as_secs_f64(), self.again))
    }

    fn place(member: u32) -> (Ipv4Addr, usize) {
        (testbed::member_address(member / u32::from(PORTS)), (member % u32::from(PORTS)) as usize)
    }

    fn ask(&mut self, member: u32) -> Result<(), BenchError> {
        let seeker = &mut self.members[member as usize];
        seeker.join_sent = true;
        let join = Join {
            group: member % self.groups,
            echo: false,
            keeps_state: false,
            nonce: u64::from(member),
            cookie: seeker.cookie,
            token: &[],
            leaves: None,
        };
        let (from, socket) = Self::place(member);
        self.sockets[socket]
            .send(from, self.to, &Request::Join(join).encode())
            .map_err(BenchError::io("ask to join"))
    }

    /// Handles all answers that have arrived; returns false if there were none.
    fn listen(&mut self) -> Result<bool, BenchError> {
        let mut any = false;
        let mut bytes = [0; 2048];
        for socket in 0..self.sockets.len() {
            for _ in 0..OUTSTANDING {
                let received = self.sockets[socket].receive(&mut bytes);
                let Some((length, at)) = received.map_err(BenchError::io("hear an answer"))? else { break };
                any = true;
                match Answer::decode(&bytes[..length]) {
                    Ok(Answer::Challenge { nonce, cookie, .. }) => {
                        let member = nonce as u32;
                        if Self::place(member) == (at, socket) && !self.members[member as usize].inside {
                            self.members[member as usize].cookie = cookie;
                            self.ask(member)?;
                        }
                    }
                    Ok(Answer::Joined(joined)) => {
                        let seeker = &mut self.members[joined.nonce as usize];
                        if !std::mem::replace(&mut seeker.inside, true) {
                            self.inside += 1;
                        }
                    }
                    Ok(Answer::Refused { reason, .. }) => {
                        return Err(BenchError::Process(format!("a member was refused: {}", reason.text())));
                    }
                    Ok(_) => {}
                    Err(error) => {
                        return Err(BenchError::Process(format!("a member heard nonsense: {error}")));
                    }
                }
            }
        }
        Ok(any)
    }
}

/// Returns the results as a table.
pub(super) fn table(joins: &[Joins]) -> Table {
    let mut table = Table::new(
        "plane | groups | members | joins/s | asked again | groups' memory | members' memory | \
             in the kernel | per member",
    );
    let mib = |bytes: u64| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
    for joins in joins {
        table.row(vec![
            joins.who.name().into(),
            grouped(f64::from(joins.groups)),
            grouped(joins.members as f64),
            grouped(joins.joins_per_s),
            grouped(joins.again as f64),
            mib(joins.groups_bytes),
            mib(joins.members_bytes),
            mib(joins.kernel_bytes),
            format!("{:.0} B", joins.bytes_per_member),
        ]);
    }
    table
}
