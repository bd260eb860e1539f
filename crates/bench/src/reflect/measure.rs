//! The measurement of one cell: a reflector, a sender, and the work of the processors.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nacre_quantity::Escaped;

use super::load::{Load, Sent, send_all};
use super::point::{Cell, Cost, Run, System};
use super::probe::Probe;
use super::serve::{Counted, Member, Orders, Reflector};
use super::system;
use super::testbed::{self, Device, INPUT, Network, PORT, Testbed};
use crate::BenchError;

/// The environment of all measurements.
pub(super) struct Bench {
    pub(super) samplicate: Option<PathBuf>,
    pub(super) testbed: Testbed,
    pub(super) probe: Probe,
    pub(super) sender_cpu: usize,
    pub(super) reflector_cpu: usize,
    pub(super) window: Duration,
    /// The kernel threads that continue the work of interrupts, where there is too much for the interrupts themselves.
    after_interrupts: Vec<u32>,
}

/// A running program that copies.
pub(super) enum Copier {
    Reflector(Box<Reflector>),
    Samplicate(Ended),
}

/// A process of another program, killed when dropped.
pub(super) struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The maximum number of datagrams in flight where none may be lost: as many as the sockets of every system hold.
const OUTSTANDING: u64 = 64;

impl Bench {
    /// Builds the environment.
    pub(super) fn build(
        samplicate: Option<PathBuf>,
        devices: &[Device],
        window: Duration,
    ) -> Result<Self, BenchError> {
        let cpus = system::cpus();
        let (Some(&sender_cpu), Some(&reflector_cpu)) = (cpus.first(), cpus.last()) else {
            return Err(BenchError::Process("this process may use no processor".into()));
        };
        let testbed = Testbed::build(devices)?;
        let probe = Probe::start(&cpus)?;
        let after_interrupts = testbed::kernel_threads("ksoftirqd/").into_iter().map(|thread| thread as u32);
        let after_interrupts = after_interrupts.collect();
        Ok(Self { samplicate, testbed, probe, sender_cpu, reflector_cpu, window, after_interrupts })
    }

    /// Starts a system that copies from one sender to `receivers` receivers behind the first device.
    pub(super) fn start(&self, who: System, receivers: u32) -> Result<Result<Copier, String>, BenchError> {
        match who {
            System::Plane(kind) => {
                let orders = self.orders(kind.name(), self.members(1, &[receivers])?);
                let started = Reflector::start(&self.testbed.reflector, &orders)?;
                Ok(started.map(|reflector| Copier::Reflector(Box::new(reflector))))
            }
            System::Samplicate => match &self.samplicate {
                None => Ok(Err("it is not installed; name its program with --samplicate".into())),
                Some(program) => self.start_samplicate(program, receivers).map(Ok),
            },
        }
    }

    /// Returns the orders of a reflector with these members.
    pub(super) fn orders(&self, plane: &str, members: Vec<Member>) -> Orders {
        let devices = 0..self.testbed.devices.len();
        let paths = std::iter::once(None).chain(devices.clone().map(Some));
        Orders {
            plane: plane.into(),
            devices: std::iter::once(INPUT.to_string()).chain(devices.map(testbed::output)).collect(),
            listeners: paths.map(|path| testbed::reflector_address(path, PORT)).collect(),
            members,
            groups: 0,
            cpu: Some(self.reflector_cpu),
            keeps_all: true,
        }
    }

    /// Returns senders, and receivers behind each device, as members of one group.
    pub(super) fn members(&self, senders: u32, receivers: &[u32]) -> Result<Vec<Member>, BenchError> {
        let input = self.testbed.reflector.device(INPUT)?;
        let mut members: Vec<Member> = (0..senders)
            .map(|sender| Member {
                group: PORT,
                device: input,
                local: testbed::reflector_address(None, PORT),
                address: testbed::sender_address(sender),
            })
            .collect();
        let mut number = 0;
        for (device, &many) in receivers.iter().enumerate() {
            let index = self.testbed.reflector.device(&testbed::output(device))?;
            for _ in 0..many {
                members.push(Member {
                    group: PORT,
                    device: index,
                    local: testbed::reflector_address(Some(device), PORT),
                    address: testbed::receiver_address(device, number),
                });
                number += 1;
            }
        }
        Ok(members)
    }

    fn start_samplicate(&self, program: &PathBuf, receivers: u32) -> Result<Copier, BenchError> {
        let local = testbed::reflector_address(None, PORT);
        let child = self.testbed.reflector.run(|| {
            // Its thread stays where the one that started it was.
            system::pin(self.reflector_cpu)?;
            let mut command = Command::new(program);
            command.arg("-s").arg(local.ip().to_string()).arg("-p").arg(local.port().to_string());
            for receiver in 0..receivers {
                let address = testbed::receiver_address(0, receiver);
                command.arg(format!("{}/{}", address.ip(), address.port()));
            }
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            command.spawn().map_err(BenchError::io(format!("start {}", Escaped::of(&program))))
        })?;
        let copier = Copier::Samplicate(Ended(child));
        // It says nothing when it is ready: it is when a datagram comes through.
        let before = self.testbed.counting.copies();
        for _ in 0..100 {
            self.send(Load { datagrams: 1, outstanding: None, ..self.load(16, receivers) })?;
            std::thread::sleep(Duration::from_millis(20));
            if self.testbed.counting.copies() > before {
                return Ok(copier);
            }
        }
        Err(BenchError::peer("samplicate", "it copies nothing"))
    }

    /// Returns the load of a single sender: datagrams of `bytes` bytes as fast as they are copied.
    pub(super) fn load(&self, bytes: usize, receivers: u32) -> Load {
        Load {
            sender: 0,
            from: testbed::sender_address(0),
            to: vec![testbed::reflector_address(None, PORT)],
            bytes,
            datagrams: u64::MAX,
            copies_max: u64::MAX,
            window_ns: self.window.as_nanos() as u64,
            interval_ns: 0.0,
            outstanding: Some((OUTSTANDING, u64::from(receivers))),
            wait_for: u64::from(receivers),
            batch: 1,
        }
    }

    /// Runs one sender.
    pub(super) fn send(&self, load: Load) -> Result<Sent, BenchError> {
        let loads = [(self.sender_cpu, load)];
        let sent = send_all(&self.testbed.senders, &loads, &self.testbed.counting, &self.probe)?;
        sent.into_iter().next().ok_or_else(|| BenchError::Process("nobody sent anything".into()))
    }

    /// Runs one repetition of a cell with a running copier. The shares of the sender and of the receivers are not
    /// determined here.
    pub(super) fn run(&self, cell: &Cell, copier: &mut Copier) -> Result<Run, BenchError> {
        let copies = u64::from(cell.receivers);
        // The first datagrams wait for the addresses of neighbours, and warm what is cold.
        self.warm(cell)?;
        let counters = |copier: &mut Copier| match copier {
            Copier::Reflector(reflector) => reflector.counters().map(Some),
            Copier::Samplicate(_) => Ok(None),
        };
        let process = match copier {
            Copier::Reflector(reflector) => reflector.id(),
            Copier::Samplicate(program) => program.0.id(),
        };
        let before: Option<Counted> = counters(copier)?;
        self.testbed.counting.clear();
        let load = self.load(cell.bytes, cell.receivers);
        let (sent, cost) = self.cost(&self.testbed.senders, load, Some(process))?;
        let total = self.testbed.counting.total();
        let disorder =
            (0..cell.receivers).map(|receiver| self.testbed.counting.seat(receiver, 0).disorder).sum();
        let after = counters(copier)?;
        Ok(Run {
            datagrams: sent.datagrams,
            copies_due: sent.datagrams * copies,
            copies: total.copies,
            disorder,
            seconds: sent.ns / 1e9,
            busy: cost.each(total.copies.max(1) as f64),
            sender: Cost::default(),
            receiver: Cost::default(),
            dropped: Cost::default(),
            counted: after.zip(before).map(|(after, before)| after.since(&before)),
        })
    }

    /// Runs repetitions without receivers: copies are counted and dropped at the reflector's device, or, if they are
    /// frames that go from driver to driver, in the driver of the receivers' device. Returns the cost of a copy for
    /// each size.
    pub(super) fn run_to_device(
        &mut self,
        cells: &[Cell],
        copier: &mut Copier,
    ) -> Result<Vec<Cost>, BenchError> {
        let frames = cells.iter().any(|cell| cell.who.sends_frames());
        let each = |bench: &Self, copier: &mut Copier| -> Result<Vec<Cost>, BenchError> {
            cells.iter().map(|cell| Ok(bench.run(cell, copier)?.busy)).collect()
        };
        if frames {
            return self.run_to_driver(cells, copier);
        }
        let Testbed { reflector, counting, .. } = &mut self.testbed;
        let link = reflector.run(|| counting.take_at(&testbed::output(0)))?;
        let costs = each(self, copier);
        self.testbed.reflector.run(move || {
            drop(link);
            Ok(())
        })?;
        // An empty hook would still be called for every copy.
        self.testbed.reflector.tc(&format!("qdisc del dev {} clsact\n", testbed::output(0)))?;
        costs
    }

    /// Runs repetitions with receivers that count and drop copies in the driver of their device, where a copy costs the
    /// least that it can, whoever made it. Returns the cost of a copy for each size.
    pub(super) fn run_to_driver(
        &mut self,
        cells: &[Cell],
        copier: &mut Copier,
    ) -> Result<Vec<Cost>, BenchError> {
        let Testbed { receivers, counting, .. } = &mut self.testbed;
        let link = receivers.run(|| counting.take_frames_at("v0"))?;
        let costs = cells.iter().map(|cell| Ok(self.run(cell, copier)?.busy)).collect();
        drop(link);
        costs
    }

    /// Runs one sender, and returns its cost, including that of `process`, which copies.
    fn cost(&self, network: &Network, load: Load, process: Option<u32>) -> Result<(Sent, Cost), BenchError> {
        let tasks = || {
            let copier = process.map_or(0, thread_ns);
            copier + self.after_interrupts.iter().map(|thread| thread_ns(*thread)).sum::<u64>()
        };
        let before = tasks();
        let sent = send_all(network, &[(self.sender_cpu, load)], &self.testbed.counting, &self.probe)?[0];
        let task_ns = sent.thread_ns + tasks().saturating_sub(before) as f64;
        let probe_ns = match (sent.begun, sent.ended) {
            (Some(from), Some(to)) => self.probe.busy_ns(from, to),
            _ => 0.0,
        };
        Ok((sent, Cost { probe_ns, task_ns }))
    }

    fn warm(&self, cell: &Cell) -> Result<(), BenchError> {
        let copies = u64::from(cell.receivers);
        for _ in 0..20 {
            self.testbed.counting.clear();
            let load = Load { datagrams: 100, ..self.load(cell.bytes, cell.receivers) };
            let sent = self.send(Load { outstanding: Some((8, copies)), ..load })?;
            if self.testbed.counting.copies() == sent.datagrams * copies {
                return Ok(());
            }
        }
        // Whoever loses copies now loses them in the measured window too, where it is shown.
        Ok(())
    }

    /// Measures the sender's own cost of a datagram at a rate: nothing copies it.
    pub(super) fn sender_cost(&mut self, bytes: usize, per_s: f64) -> Result<Cost, BenchError> {
        let Testbed { reflector, counting, .. } = &mut self.testbed;
        let link = reflector.run(|| counting.drop_at(INPUT, false))?;
        let window_ns = (self.window.as_nanos() as u64 / 3).max(20_000_000);
        let load = Load {
            window_ns,
            interval_ns: 1e9 / per_s,
            outstanding: None,
            wait_for: 0,
            ..self.load(bytes, 1)
        };
        let (sent, cost) = self.cost(&self.testbed.senders, load, None)?;
        drop(link);
        Ok(cost.each(sent.datagrams.max(1) as f64))
    }

    /// Measures a receiver's own cost of a copy that comes from the network stack: datagrams from the reflector's
    /// namespace, once to the end and once only as far as the device.
    pub(super) fn receiver_cost(&mut self, bytes: usize, receivers: u32) -> Result<Cost, BenchError> {
        let from = testbed::reflector_address(Some(0), PORT);
        let load = Load { from, ..self.load_to_receivers(bytes, receivers) };
        self.send_alone(&self.testbed.reflector, &load)?;
        let received = self.send_alone(&self.testbed.reflector, &load)?;
        let Testbed { reflector, counting, .. } = &mut self.testbed;
        let link = reflector.run(|| counting.drop_at(&testbed::output(0), true))?;
        let taken = self.send_alone(&self.testbed.reflector, &load)?;
        drop(link);
        Ok(received.beyond(taken))
    }

    fn load_to_receivers(&self, bytes: usize, receivers: u32) -> Load {
        Load {
            to: (0..receivers).map(|receiver| testbed::receiver_address(0, receiver)).collect(),
            window_ns: (self.window.as_nanos() as u64 / 5).max(20_000_000),
            outstanding: None,
            wait_for: 0,
            batch: 16,
            ..self.load(bytes, 1)
        }
    }

    /// Measures the total cost of a datagram.
    fn send_alone(&self, network: &Network, load: &Load) -> Result<Cost, BenchError> {
        let (sent, cost) = self.cost(network, load.clone(), None)?;
        Ok(cost.each(sent.datagrams.max(1) as f64))
    }
}

/// Returns the time that the first thread of a process has run, in nanoseconds; zero if the system does not report it.
fn thread_ns(process: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{process}/schedstat")).unwrap_or_default();
    text.split_whitespace().next().and_then(|ns| ns.parse().ok()).unwrap_or_default()
}
