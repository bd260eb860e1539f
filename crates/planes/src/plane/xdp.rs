//! The `xdp` plane: a program in the driver lets the kernel broadcast each datagram through a map of devices, before a
//! packet is made of it; another program rewrites each clone for one member as it is sent (`bpf/xdp.c`).
//!
//! It builds on the [`kernel`](super::kernel) plane: the same table in the kernel, the same judgement, and the same
//! program at the traffic-control hook behind it, which copies the datagrams that this one passes (groups whose members
//! are behind several devices, lanes of more than 512 places, payload of more than 2040 bytes), and leaves to user
//! space what both cannot do.
//!
//! The kernel drops clones that a device does not take, and a program at a tracepoint sees that; it hands the datagram,
//! which was kept, to user space ([`Plane::rescue`]). User space copies by the same means: one call, a test run of a
//! program with a live frame, makes up to 128 copies, and reports how far it came. So all copies go the same way, and
//! keep their order, whether a program or user space makes them.
//!
//! docs/reflect-xdp.md has the facts about the kernel that this is built on.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use aya::maps::{Map, MapData};
use aya::programs::xdp::XdpLinkId;
use aya::programs::{BtfTracePoint, TestRun, TestRunAttrs, TestRunOptions, Xdp as Program, XdpMode};
use aya::{Btf, Ebpf};
use nacre_reflect::table::{Change, GroupIndex, Table};
use nacre_reflect_bpf::constant;

use self::frame::Job;
use self::grace::Grace;
use super::kernel::load::{advice, again, chain};
use super::kernel::mapped::Mapped;
use super::kernel::netlink::Framing;
use super::kernel::{Kernel, KernelOptions};
use super::{
    Batch, CopyCounts, CopyProgress, Done, LaneBatch, Plane, PlaneError, PlaneKind, PlaneOptions, Rescue,
};
use crate::forward::Listeners;
use crate::system;

mod frame;
mod grace;
#[expect(unsafe_code, reason = "maps of devices are made by system calls")]
mod maps;

/// The greatest number of copies made by one call.
const JOB_COPIES: usize = 128;
/// The number of calls of the plane's maintenance in which it looks after devices once, if nothing is copied.
const LOOK_ROUND: u32 = 10;

/// A device that the program is attached to.
struct Device {
    index: u32,
    mac: [u8; 6],
    /// True if its driver sends frames of programs.
    copies: bool,
    link: XdpLinkId,
}

/// The `xdp` plane.
#[derive(derive_more::Debug)]
#[debug("Xdp")]
pub struct Xdp {
    kernel: Kernel,
    listeners: Arc<Listeners>,
    fans: OwnedFd,
    shared: Mapped,
    outcomes: Mapped,
    /// The devices, by the slots that programs know them by.
    devices: [Option<Device>; constant::XDP_DEVICES as usize],
    /// The devices that the program could not be attached to, with the reason.
    refused: HashMap<u32, String>,
    grace: Grace,
    graces: u64,
    steps: u32,
    jobs: u64,
    /// The number of copies that they made.
    job_copies: u64,
    /// The number of copies below which a datagram is left to the other program.
    copies_min: u32,
    /// The number of datagrams and copies at the last look after devices, and the number of calls of maintenance since.
    looked_at: u64,
    unlooked: u32,
    frame: Vec<u8>,
    /// The groups with copies that were made through sockets, and may not have gone out yet.
    sockets: HashSet<GroupIndex>,
    /// The groups of datagrams that are finished as soon as those copies have gone out.
    late: Vec<GroupIndex>,
    // These are mapped.
    _arrays: [MapData; 2],
}

impl Xdp {
    /// Makes the plane for these listeners, on the devices that are named, or on all that allow it.
    ///
    /// # Errors
    /// [`PlaneError`] if the programs cannot be loaded, or no member can be reached through any of the devices.
    pub fn open(listeners: &Arc<Listeners>, options: &PlaneOptions) -> Result<Self, PlaneError> {
        let mut plane = Self::load(listeners, options.into()).map_err(|why| PlaneError {
            plane: PlaneKind::Xdp,
            action: "be loaded".to_owned(),
            why,
        })?;
        plane.begin(options).map_err(|why| PlaneError {
            plane: PlaneKind::Xdp,
            action: "be put on a device".to_owned(),
            why,
        })?;
        Ok(plane)
    }

    fn load(listeners: &Arc<Listeners>, options: KernelOptions) -> Result<Self, String> {
        let inner = Box::new(Batch::new(listeners.clone()));
        let mut kernel = Kernel::from_object(nacre_reflect_bpf::XDP, inner, options, 2, &[])?;
        kernel.mirror.wait_for_steps();
        let programs = &mut kernel.programs;
        for name in ["reflect_xdp", "reflect_xdp_job", "reflect_xdp_egress"] {
            let program = program(programs, name)?;
            again(|| program.load()).map_err(describe)?;
        }
        let btf = Btf::from_sys_fs()
            .map_err(|error| format!("the kernel does not describe its own types: {}", chain(&error)))?;
        for (name, tracepoint) in
            [("reflect_xdp_sent", "xdp_devmap_xmit"), ("reflect_xdp_failed", "xdp_redirect_err")]
        {
            let program: &mut BtfTracePoint = programs
                .program_mut(name)
                .and_then(|program| program.try_into().ok())
                .ok_or_else(|| format!("there is no program {name} in its object file"))?;
            again(|| program.load(tracepoint, &btf)).map_err(describe)?;
            program.attach().map_err(describe)?;
        }
        let mut array = |name: &str, bytes: u64| match programs.take_map(name) {
            Some(Map::Array(map)) => match Mapped::new(map.fd().as_fd(), 1, bytes as usize / 8) {
                Ok(mapped) => Ok((map, mapped)),
                Err(error) => Err(format!("cannot map the array '{name}': {error}")),
            },
            _ => Err(format!("the program has no array '{name}'")),
        };
        let (shared_map, shared) = array("xdp_shared", constant::XDP_SHARED_BYTES)?;
        let (outcomes_map, outcomes) = array("xdp_outcomes", constant::XDP_OUTCOME_BYTES)?;
        let fans = match programs.take_map("xdp_fans") {
            Some(Map::ArrayOfMaps(map)) => own(map.fd().as_fd()).map_err(|error| error.to_string())?,
            _ => return Err("the program has no map 'xdp_fans'".to_owned()),
        };
        let grace = Grace::begin(&fans).map_err(|error| format!("cannot wait for programs: {error}"))?;
        Ok(Xdp {
            kernel,
            listeners: listeners.clone(),
            fans,
            shared,
            outcomes,
            devices: Default::default(),
            refused: HashMap::new(),
            grace,
            graces: 0,
            steps: 0,
            jobs: 0,
            job_copies: 0,
            copies_min: 0,
            looked_at: 0,
            unlooked: 0,
            frame: Vec::new(),
            sockets: HashSet::new(),
            late: Vec::new(),
            _arrays: [shared_map, outcomes_map],
        })
    }

    fn begin(&mut self, options: &PlaneOptions) -> Result<(), String> {
        self.copies_min = options.driver_copies_min;
        self.shared.entry(0)[SHARED_COPIES_MIN].store(u64::from(self.copies_min), Relaxed);
        let named = !options.devices.is_empty();
        let names = if named { options.devices.clone() } else { devices() };
        let mut why_not = String::new();
        for name in names {
            let index =
                system::device_index(&name).map_err(|why| format!("there is no device {name}: {why}"))?;
            if let Err(why) = self.attach(index) {
                if named {
                    return Err(why);
                }
                if why_not.is_empty() {
                    why_not = why;
                }
            }
        }
        if self.devices.iter().flatten().any(|device| device.copies) {
            return Ok(());
        }
        let first = self.devices.iter().flatten().next().map(|device| device.index);
        Err(match first {
            Some(index) => format!(
                "the driver of {} does not send frames of programs (a pair of virtual devices does when its other end has \
                 `gro on`, or a program of its own)",
                self.name(index)
            ),
            None if why_not.is_empty() => "there is no Ethernet device that is up".to_owned(),
            None => why_not,
        })
    }

    fn name(&mut self, index: u32) -> String {
        match self.kernel.network.device(index) {
            Ok(Some(device)) => device.name.clone(),
            _ => format!("the device number {index}"),
        }
    }

    /// Returns the `kernel` plane that it builds on.
    pub fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    /// Returns a program, for tests that run it without a network.
    pub fn program(&mut self, name: &str) -> Result<&mut Program, String> {
        program(&mut self.kernel.programs, name)
    }

    /// Returns the number of calls by which user space made copies.
    pub fn jobs(&self) -> u64 {
        self.jobs
    }

    /// Attaches the program to a device, and makes its maps.
    ///
    /// # Errors
    /// A sentence on why that is not possible.
    fn attach(&mut self, index: u32) -> Result<(), String> {
        if self.slot(index).is_some() {
            return Ok(());
        }
        if let Some(why) = self.refused.get(&index) {
            return Err(why.clone());
        }
        let attached = self.try_attach(index);
        if let Err(why) = &attached {
            self.refused.insert(index, why.clone());
        }
        attached
    }

    fn try_attach(&mut self, index: u32) -> Result<(), String> {
        let device = self.kernel.network.device(index).map_err(|error| error.to_string())?.cloned();
        let Some(device) = device else { return Err(format!("there is no device number {index}")) };
        let name = &device.name;
        if device.framing != Framing::Ethernet {
            return Err(format!("{name} is not an Ethernet device"));
        }
        let Some(slot) = self.devices.iter().position(Option::is_none) else {
            return Err(format!("it is on {} devices already", self.devices.len()));
        };
        let link = program(&mut self.kernel.programs, "reflect_xdp")?
            .attach_to_if_index(index, XdpMode::Driver)
            .map_err(|error| {
                let why = chain(&error);
                format!("the driver of {name} does not take the program: {why}{}", advice(&why))
            })?;
        let words = self.shared.entry(0);
        let word = slot * DEVICE_WORDS;
        words[word + 1].store(mac_word(device.mac), Relaxed);
        words[word].store(u64::from(index), Release);
        let program = program(&mut self.kernel.programs, "reflect_xdp_egress")?;
        let program = program.fd().map_err(describe)?;
        let filled = maps::fill(self.fans.as_fd(), slot as u32, index, program.as_fd());
        let mac = device.mac;
        self.devices[slot] = Some(Device { index, mac, copies: false, link });
        filled.map_err(|error| format!("cannot create the maps of {name}: {error}"))?;
        // A frame that nobody takes shows whether the driver sends any.
        let taken =
            device.up && self.run(Job { device: index, ..Job::default() }, &[]).map_err(describe)?.bells > 0;
        self.set_copies(slot, taken);
        Ok(())
    }

    fn slot(&self, index: u32) -> Option<usize> {
        self.devices.iter().position(|device| device.as_ref().is_some_and(|device| device.index == index))
    }

    fn set_copies(&mut self, slot: usize, copies: bool) {
        if let Some(device) = &mut self.devices[slot] {
            device.copies = copies;
            let flags = if copies { constant::XDP_DEVICE_COPY } else { 0 };
            self.shared.entry(0)[slot * DEVICE_WORDS].store(u64::from(device.index) | flags << 32, Release);
        }
    }

    /// Checks if devices are still there, and still send frames of programs. Frames for one that does not any more are
    /// dropped by the kernel silently.
    fn look_after_devices(&mut self) -> Result<(), PlaneError> {
        for slot in 0..self.devices.len() {
            let Some(Device { index, mac, copies, .. }) = self.devices[slot] else { continue };
            let known = self.kernel.network.device(index).map_err(network_failed)?.cloned();
            let Some(known) = known else {
                self.shared.entry(0)[slot * DEVICE_WORDS].store(0, Release);
                if let (Some(device), Ok(program)) =
                    (self.devices[slot].take(), program(&mut self.kernel.programs, "reflect_xdp"))
                {
                    // The link has gone with the device.
                    let _ = program.detach(device.link);
                }
                continue;
            };
            if known.mac != mac {
                self.shared.entry(0)[slot * DEVICE_WORDS + 1].store(mac_word(known.mac), Relaxed);
                if let Some(device) = &mut self.devices[slot] {
                    device.mac = known.mac;
                }
            }
            let job = Job { device: index, quiet: true, ..Job::default() };
            let sends = known.up && self.run(job, &[]).map_err(job_failed)?.seen > 0;
            if sends != copies {
                tracing::info!(device = known.name, sends, "frames of programs");
                self.set_copies(slot, sends);
            }
        }
        Ok(())
    }

    /// Copies a frame by a job. If `frame` is empty, the frame of an empty datagram is used.
    fn run(&mut self, job: Job, frame: &[u8]) -> Result<Outcome, aya::programs::ProgramError> {
        self.jobs += 1;
        let job = Job { number: self.jobs, ..job };
        job.write(&mut self.frame);
        match frame {
            [] => frame::write([0; 6], NOBODY, 0, &[], &mut self.frame),
            frame => self.frame.extend(frame),
        }
        self.run_again(job)
    }

    fn run_again(&self, job: Job) -> Result<Outcome, aya::programs::ProgramError> {
        let program =
            self.kernel.programs.program("reflect_xdp_job").and_then(|program| program.try_into().ok());
        let program: &Program = program.ok_or(aya::programs::ProgramError::NotLoaded)?;
        let mut options = TestRunOptions::new();
        options.data_in = Some(&self.frame);
        options.attrs = TestRunAttrs::new().xdp_live_frames(1);
        program.test_run(options)?;
        let words: [u64; 4] = std::array::from_fn(|at| self.outcomes.entry(0)[at].load(Acquire));
        if words[0] != job.number {
            return Ok(Outcome::default());
        }
        Ok(Outcome {
            seen: words[1] as u32,
            copies: (words[1] >> 32) as u32,
            stopped: (words[2] >> 32 != 0).then_some(words[2] as u32),
            bells: words[3] as u32,
        })
    }

    /// Returns the places of a lane batch and the device's Ethernet address, if the programs in the driver copy to these
    /// places, too.
    fn places(&mut self, lane_batch: &LaneBatch<'_>) -> Option<(std::ops::Range<u32>, [u8; 6])> {
        let (lane, index) = (lane_batch.lane, lane_batch.lane.path.device);
        let mac = self.devices[self.slot(index)?].as_ref().filter(|device| device.copies)?.mac;
        let mtu = match self.kernel.network.device(index) {
            Ok(Some(device)) if device.up => device.mtu as usize,
            _ => 0,
        };
        let mirror = &self.kernel.mirror;
        let places =
            mirror.only_lane(lane_batch.group, lane_batch.number, lane.generation, lane_batch.except)?;
        let fits = lane_batch.payload.len() <= constant::XDP_BYTES_MAX as usize
            && frame::packet_bytes(lane.path.local, lane_batch.payload.len()) <= mtu
            && places.len() >= lane_batch.positions.end
            && places.len() <= constant::XDP_PLACES_MAX as usize;
        let to_sender = lane_batch.except.is_some_and(|except| lane.holds(except));
        let fits = fits && lane.live - u32::from(to_sender) >= self.copies_min;
        // What sockets have sent and a device's queue still holds must not be overtaken.
        (fits && !self.sockets.contains(&lane_batch.group)).then_some((places, mac))
    }

    /// Copies a lane batch by jobs.
    fn copy_by_jobs(
        &mut self,
        lane_batch: &LaneBatch<'_>,
        base: u32,
        mac: [u8; 6],
    ) -> Result<CopyProgress, PlaneError> {
        let mut progress = CopyProgress { next: lane_batch.positions.end, ..CopyProgress::default() };
        let (mut next, end) = (lane_batch.positions.start, lane_batch.positions.end);
        let mut frame = Vec::new();
        frame::write(mac, lane_batch.lane.path.local, lane_batch.tos, lane_batch.payload, &mut frame);
        while next < end {
            let (mut copies, mut after) = (0, next);
            while after < end && copies < JOB_COPIES {
                copies += usize::from(lane_batch.to(after).is_some());
                after += 1;
            }
            if copies == 0 {
                break;
            }
            let job = Job {
                base: base + next as u32,
                count: (after - next) as u32,
                copies: copies as u32,
                device: lane_batch.lane.path.device,
                except: lane_batch.except,
                ..Job::default()
            };
            let outcome = self.run(job, &frame).map_err(job_failed)?;
            progress.copies += outcome.copies;
            self.job_copies += u64::from(outcome.copies);
            if let Some(stop) = outcome.stopped {
                return Ok(CopyProgress { next: next + stop as usize, full: true, ..progress });
            }
            // The device went while this was under way.
            progress.undeliverable += (copies as u32).saturating_sub(outcome.copies);
            next = after;
        }
        Ok(progress)
    }

    /// Returns whether sockets have sent datagrams that are not out yet.
    fn unsent(&self) -> bool {
        self.listeners.sockets().any(|(_, socket)| system::unsent(socket) > 0)
    }

    /// Finishes the datagrams that waited for sockets, if these have sent everything.
    fn finish_late(&mut self) {
        if self.sockets.is_empty() {
            return;
        }
        if !self.unsent() {
            self.sockets.clear();
            for group in self.late.drain(..) {
                self.kernel.finished(group);
            }
        }
    }
}

/// The number of words of a device in `struct xdp_shared`, and the index of the word behind all devices.
const DEVICE_WORDS: usize = constant::XDP_DEVICE_BYTES as usize / 8;
const SHARED_COPIES_MIN: usize = constant::XDP_DEVICES as usize * DEVICE_WORDS;

/// The sender in a frame that only checks whether a device takes frames.
const NOBODY: SocketAddr = SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED), 0);

/// The outcome of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Outcome {
    /// The number of clones that were on their way to the device.
    seen: u32,
    copies: u32,
    /// The first place without its copy, if the device was full.
    stopped: Option<u32>,
    bells: u32,
}

fn mac_word(mac: [u8; 6]) -> u64 {
    u64::from_ne_bytes([mac[0], mac[1], mac[2], mac[3], mac[4], mac[5], 0, 0])
}

fn own(fd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    fd.try_clone_to_owned()
}

/// Returns the names of the devices of this network namespace.
fn devices() -> Vec<String> {
    // Of the thread, which may have gone into a namespace by itself.
    let text = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap_or_default();
    let name = |line: &str| Some(line.split_once(':')?.0.trim().to_owned());
    text.lines().filter_map(name).filter(|name| name != "lo").collect()
}

fn program<'a>(programs: &'a mut Ebpf, name: &str) -> Result<&'a mut Program, String> {
    programs
        .program_mut(name)
        .and_then(|program| program.try_into().ok())
        .ok_or_else(|| format!("there is no program {name} in its object file"))
}

fn describe(error: aya::programs::ProgramError) -> String {
    let text = chain(&error);
    let advice = advice(&text);
    format!("{text}{advice}")
}

fn network_failed(error: io::Error) -> PlaneError {
    let action = "ask the kernel for devices".to_owned();
    PlaneError { plane: PlaneKind::Xdp, action, why: error.to_string() }
}

fn job_failed(error: aya::programs::ProgramError) -> PlaneError {
    PlaneError { plane: PlaneKind::Xdp, action: "have copies made".to_owned(), why: describe(error) }
}

impl Plane for Xdp {
    fn kind(&self) -> PlaneKind {
        PlaneKind::Xdp
    }

    fn copy(&mut self, lane_batch: &LaneBatch<'_>) -> Result<CopyProgress, PlaneError> {
        self.finish_late();
        match self.places(lane_batch) {
            Some((places, mac)) => self.copy_by_jobs(lane_batch, places.start, mac),
            None => {
                self.sockets.insert(lane_batch.group);
                self.kernel.copy(lane_batch)
            }
        }
    }

    fn follow(&mut self, table: &Table, change: Change) -> Result<(), PlaneError> {
        if let Change::Joined(member) = change
            && let Some(member) = table.get_member(member)
        {
            let device = table.group(member.group).lanes[member.lane as usize].path.device;
            let new = self.slot(device).is_none() && !self.refused.contains_key(&device);
            if new && let Err(why) = self.attach(device) {
                tracing::info!(why, "the program at the traffic-control hook copies for this device");
            }
        }
        self.kernel.follow(table, change)?;
        // Sockets may have sent something to a group that is new here only, which a device's queue still holds.
        if let Change::GroupAdded(group) = change
            && self.unsent()
        {
            self.waits(group);
            self.late.push(group);
        }
        Ok(())
    }

    fn bound(&mut self, datagrams: usize) {
        self.kernel.bound(datagrams);
    }

    fn hold(&mut self) {
        self.kernel.hold();
    }

    fn settle(&mut self) {
        self.kernel.settle();
    }

    fn rescue(&mut self) -> Option<Rescue> {
        self.finish_late();
        self.kernel.rescue()
    }

    fn rescues_max(&self) -> u64 {
        self.kernel.rescues_max()
    }

    fn rescue_ready(&self) -> Option<BorrowedFd<'_>> {
        self.kernel.rescue_ready()
    }

    fn finished(&mut self, group: GroupIndex) {
        self.finish_late();
        // The program in the driver would overtake what sockets have sent and a device's queue still holds.
        if self.sockets.contains(&group) && self.kernel.mirror.may_have_only_lane(group) {
            self.late.push(group);
        } else {
            self.kernel.finished(group);
        }
    }

    fn waits(&mut self, group: GroupIndex) {
        self.sockets.insert(group);
        self.kernel.waits(group);
    }

    fn maintain(&mut self, table: &Table) -> Result<(), PlaneError> {
        self.kernel.maintain(table)?;
        self.finish_late();
        // Where nothing is copied nothing can be lost at a device that sends frames of programs no more.
        let moved = self.kernel.mirror.admitted().wrapping_add(self.job_copies);
        self.unlooked += 1;
        if moved != self.looked_at || self.unlooked >= LOOK_ROUND {
            (self.looked_at, self.unlooked) = (moved, 0);
            self.look_after_devices()?;
        }
        // Of two that end after the last step, the second began after it.
        let graces = self.grace.count.load(Acquire);
        if graces >= self.graces + 2 {
            self.graces = graces;
            self.kernel.mirror.step(self.steps);
            self.steps = self.steps.wrapping_add(1);
        }
        // A wait costs all processors something, so there are none without a reason.
        if self.kernel.mirror.waits_for_programs() {
            self.grace.ask();
        }
        Ok(())
    }

    fn copy_counts(&self) -> CopyCounts {
        self.kernel.copy_counts() + CopyCounts { driver: self.job_copies, ..CopyCounts::default() }
    }

    fn group_done(&self, group: GroupIndex) -> Done {
        self.kernel.group_done(group)
    }

    fn done(&mut self) -> Done {
        self.kernel.done()
    }
}
