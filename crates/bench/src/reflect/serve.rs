//! The reflector under study: a process in the reflector's namespace, which runs the real forwarder with one of the
//! planes. Its members are put into its table directly, so that only the plane is measured.
//!
//! It reads requests as lines of JSON from its standard input, and answers on its standard output.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use nacre_planes::forward::{ForwardOptions, Forwarder, Listeners, be_prompt, read_clocks};
use nacre_planes::plane::{self, PlaneKind, PlaneOptions};
use nacre_quantity::Escaped;
use nacre_reflect::control::{Control, ControlOptions};
use nacre_reflect::cookie::Secret;
use nacre_reflect::host::{Host, Incoming, Now, Outgoing};
use nacre_reflect::rate::Rate;
use nacre_reflect::table::{GroupId, GroupOptions, Path, Table};
use serde::{Deserialize, Serialize};

use super::system;
use super::testbed::{Network, PORT};
use crate::BenchError;
use crate::kit::process::this_program;

/// The time for which members of the control plane stay without a heartbeat, in milliseconds.
const STAY_MS: u32 = 600_000;

/// A member to put into the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Member {
    pub(super) group: u16,
    pub(super) device: u32,
    pub(super) local: SocketAddr,
    pub(super) address: SocketAddr,
}

/// The parameters of the reflector.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Orders {
    pub(super) plane: String,
    /// The devices behind which members are.
    pub(super) devices: Vec<String>,
    pub(super) listeners: Vec<SocketAddr>,
    pub(super) members: Vec<Member>,
    /// The number of groups on the first port, which members join by the protocol; 0 for one group whose members are
    /// put into the table.
    pub(super) groups: u32,
    /// The processor to which its thread is pinned.
    pub(super) cpu: Option<usize>,
    /// True if every datagram is wanted, however late.
    pub(super) keeps_all: bool,
}

#[derive(Serialize, Deserialize)]
enum Request {
    Counters,
}

#[derive(Serialize, Deserialize)]
enum Answer {
    Ready,
    Cannot(String),
    Counters(Counted),
}

/// The counters of the forwarder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Counted {
    /// The number of datagrams that came to user space.
    pub(super) received: u64,
    /// The number of members.
    pub(super) members: u64,
    pub(super) admitted: u64,
    pub(super) copies: u64,
    pub(super) undeliverable: u64,
    /// The number of copies given up, as their device had no room in time.
    pub(super) too_old: u64,
    /// The number of copies by who made them: programs in drivers, the program at the hook, user space by frames, and by
    /// sockets.
    pub(super) copy_counts: [u64; 4],
    pub(super) non_members: u64,
    pub(super) over_rate: u64,
    pub(super) backlog: u64,
    pub(super) socket_full: u64,
    /// The number of datagrams that a kernel program handed to user space.
    pub(super) handed: u64,
    pub(super) handed_lost: u64,
    /// The number of times that a device was full.
    pub(super) full: u64,
}

impl Counted {
    /// Returns the number of datagrams refused as a whole, for any reason.
    pub(super) fn refused(&self) -> u64 {
        self.non_members + self.over_rate + self.backlog + self.socket_full
    }

    /// Returns the increase since `before`.
    pub(super) fn since(&self, before: &Self) -> Self {
        Self {
            received: self.received - before.received,
            members: self.members,
            admitted: self.admitted - before.admitted,
            copies: self.copies - before.copies,
            undeliverable: self.undeliverable - before.undeliverable,
            too_old: self.too_old - before.too_old,
            copy_counts: std::array::from_fn(|by| self.copy_counts[by] - before.copy_counts[by]),
            non_members: self.non_members - before.non_members,
            over_rate: self.over_rate - before.over_rate,
            backlog: self.backlog - before.backlog,
            socket_full: self.socket_full - before.socket_full,
            handed: self.handed - before.handed,
            handed_lost: self.handed_lost - before.handed_lost,
            full: self.full - before.full,
        }
    }
}

/// The owner of the table.
enum Owner {
    /// No control plane: there are no other parties.
    Nobody(Box<Table>),
    /// The real control plane.
    Control(Box<Control>),
}

impl Host for Owner {
    fn table(&mut self) -> &mut Table {
        match self {
            Owner::Nobody(table) => table,
            Owner::Control(control) => Host::table(&mut **control),
        }
    }

    fn control(&mut self, now: Now, incoming: Incoming<'_>) {
        match self {
            Owner::Nobody(_) => {}
            Owner::Control(control) => control.control(now, incoming),
        }
    }

    fn outgoing(&mut self) -> Option<Outgoing> {
        match self {
            Owner::Nobody(_) => None,
            Owner::Control(control) => control.outgoing(),
        }
    }
}

impl Owner {
    /// Creates a control plane with `groups` groups.
    fn with_groups(groups: u32) -> Self {
        // Whoever joins sends no heartbeats, and is to stay until all have joined, however slow the machine is.
        let options =
            ControlOptions { heartbeat_ms: STAY_MS, expiry_ms: STAY_MS, ..ControlOptions::default() };
        let mut control = Control::new(options, Secret::new(rand::random()));
        for id in 0..groups {
            control.set_group(GroupId { port: PORT, id }, GroupOptions::default());
        }
        Owner::Control(Box::new(control))
    }

    /// Sets the members, where there is no control plane.
    fn set(&mut self, members: &[Member], keeps_all: bool) {
        let Owner::Nobody(table) = self else { return };
        let options = GroupOptions {
            group_rate: Rate::UNLIMITED,
            member_rate: Rate::UNLIMITED,
            members_max: u32::MAX,
            max_age_ms: if keeps_all { 0 } else { GroupOptions::default().max_age_ms },
            ..GroupOptions::default()
        };
        let id = |member: &Member| GroupId { port: member.group, id: 0 };
        for member in members {
            let group = table.set_group(id(member), options);
            let path = Path { device: member.device, local: member.local };
            table.join(group, path, member.address, false, 0);
        }
    }
}

/// Runs the reflector's process.
pub(crate) fn main() -> Result<(), BenchError> {
    let Some(orders) = read_line()? else { return Ok(()) };
    let orders: Orders = serde_json::from_str(&orders).map_err(unreadable)?;
    let (mut forwarder, mut owner) = match prepare(&orders) {
        Ok(prepared) => prepared,
        Err(why) => return say(&Answer::Cannot(why)),
    };
    say(&Answer::Ready)?;
    let (requests, waiting) = mpsc::channel();
    let waker = forwarder.waker();
    std::thread::spawn(move || {
        // The end of the orders ends the channel, and so the reflector.
        while let Ok(Some(line)) = read_line() {
            if requests.send(line).is_err() {
                break;
            }
            waker.wake();
        }
        drop(requests);
        waker.wake();
    });
    if let Some(cpu) = orders.cpu {
        system::pin(cpu)?;
    }
    be_prompt();
    loop {
        forwarder.poll(&mut owner, Duration::from_millis(200)).map_err(failed)?;
        if let Owner::Control(control) = &mut owner {
            control.tick(read_clocks());
            control.events().for_each(drop);
        }
        match waiting.try_recv() {
            Err(mpsc::TryRecvError::Empty) => {}
            Err(mpsc::TryRecvError::Disconnected) => return Ok(()),
            Ok(line) => match serde_json::from_str(&line).map_err(unreadable)? {
                Request::Counters => {
                    forwarder.refresh();
                    say(&Answer::Counters(counted(&forwarder, &mut owner)))?;
                }
            },
        }
    }
}

/// Reads a line of the requests; `None` at their end.
fn read_line() -> Result<Option<String>, BenchError> {
    let mut line = String::new();
    let read =
        std::io::stdin().read_line(&mut line).map_err(BenchError::io("read the reflector's orders"))?;
    Ok((read > 0).then_some(line))
}

fn prepare(orders: &Orders) -> Result<(Forwarder, Owner), String> {
    let kind: PlaneKind = orders.plane.parse()?;
    let listeners = Listeners::open(&orders.listeners).map_err(|error| error.to_string())?;
    let options = PlaneOptions { devices: orders.devices.clone(), ..PlaneOptions::default() };
    let plane = plane::open(kind, &listeners, &options).map_err(|error| error.to_string())?;
    let mut forwarder =
        Forwarder::new(listeners, plane, ForwardOptions::default()).map_err(|error| error.to_string())?;
    let mut owner = match orders.groups {
        0 => Owner::Nobody(Box::new(Table::new())),
        groups => Owner::with_groups(groups),
    };
    owner.set(&orders.members, orders.keeps_all);
    forwarder.poll(&mut owner, Duration::ZERO).map_err(|error| error.to_string())?;
    Ok((forwarder, owner))
}

fn counted(forwarder: &Forwarder, owner: &mut Owner) -> Counted {
    let counters = forwarder.counters();
    Counted {
        received: counters.received,
        members: owner.table().members_len() as u64,
        admitted: counters.admitted,
        copies: counters.copies,
        undeliverable: counters.undeliverable,
        too_old: counters.too_old,
        copy_counts: [
            counters.copy_counts.driver,
            counters.copy_counts.hook,
            counters.copy_counts.frames,
            counters.copy_counts.sockets,
        ],
        non_members: counters.non_members,
        over_rate: counters.over_rate,
        backlog: counters.backlog,
        socket_full: counters.socket_full,
        handed: counters.handed,
        handed_lost: counters.handed_lost,
        full: counters.full,
    }
}

fn failed(error: impl std::fmt::Display) -> BenchError {
    BenchError::Process(format!("the reflector: {error}"))
}

fn unreadable(error: serde_json::Error) -> BenchError {
    BenchError::Process(format!("the reflector and the study do not understand each other: {error}"))
}

fn say(answer: &Answer) -> Result<(), BenchError> {
    let line = serde_json::to_string(answer).map_err(unreadable)?;
    let mut output = std::io::stdout().lock();
    writeln!(output, "{line}").and_then(|()| output.flush()).map_err(BenchError::io("answer the study"))
}

/// The study's handle of that process, which ends when this is dropped.
pub(super) struct Reflector {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Reflector {
    /// Starts it in a namespace. `Err` within `Ok` is the reason why the plane does not work here.
    pub(super) fn start(network: &Network, orders: &Orders) -> Result<Result<Self, String>, BenchError> {
        let program = this_program()?;
        let mut child = network.run(|| {
            Command::new(&program)
                .arg("reflect-serve")
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .map_err(BenchError::io(format!("start a reflector of {}", Escaped::of(&program))))
        })?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let Some((input, output)) = input.zip(output) else {
            return Err(BenchError::Process("the reflector has no standard input or output".into()));
        };
        let mut reflector = Self { child, input: Some(input), output: BufReader::new(output) };
        match reflector.ask(orders)? {
            Answer::Ready => Ok(Ok(reflector)),
            Answer::Cannot(why) => Ok(Err(why)),
            Answer::Counters(_) => Err(BenchError::Process("the reflector answered out of turn".into())),
        }
    }

    /// Returns the current counters.
    pub(super) fn counters(&mut self) -> Result<Counted, BenchError> {
        match self.ask(&Request::Counters)? {
            Answer::Counters(counted) => Ok(counted),
            _ => Err(BenchError::Process("the reflector answered out of turn".into())),
        }
    }

    /// Returns the id of its process.
    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    fn ask(&mut self, request: &impl Serialize) -> Result<Answer, BenchError> {
        let line = serde_json::to_string(request).map_err(unreadable)?;
        if let Some(input) = &mut self.input {
            writeln!(input, "{line}").map_err(BenchError::io("tell the reflector what to do"))?;
        }
        let mut answer = String::new();
        self.output.read_line(&mut answer).map_err(BenchError::io("listen to the reflector"))?;
        if answer.is_empty() {
            return Err(BenchError::Process("the reflector ended by itself".into()));
        }
        serde_json::from_str(&answer).map_err(unreadable)
    }
}

impl Drop for Reflector {
    fn drop(&mut self) {
        // Without orders it ends, and takes its programs out of the kernel. If it does not, it is made to.
        drop(self.input.take());
        for _ in 0..200 {
            if matches!(self.child.try_wait(), Ok(Some(_)) | Err(_)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
