//! The network of the study: three namespaces, for the senders, the reflector and the receivers, with veth pairs
//! between them.
//!
//! The namespaces have no names: they exist as long as a process has them open, so that nothing of them remains,
//! however the study ends.
//!
//! ```text
//!  senders                 reflector                      receivers
//!  s0 10.63.0.2 …  ──────  in0 10.63.0.1
//!     10.63.128.0/17
//!                          out0 10.64.0.1  ─────────────  v0  10.64.128.0/17, all of it local
//!                          out1 10.65.0.1  ─────────────  v1  10.65.128.0/17
//! ```

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};

use super::counting::Counting;
use super::system;
use crate::BenchError;

/// The port of the first group; those of other groups follow.
pub(super) const PORT: u16 = 7400;

/// The port of all receivers and senders.
pub(super) const MEMBER_PORT: u16 = 9000;

/// The reflector's device towards the senders.
pub(super) const INPUT: &str = "in0";

/// The sending rate of a device of the reflector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Device {
    /// No limit but the processors.
    Unlimited,
    /// A number of megabits per second, with Ethernet's gaps between frames, behind a queue of 100 frames.
    Limited(u32),
}

/// A network namespace.
pub(super) struct Network(File);

impl Network {
    fn new() -> Result<Self, BenchError> {
        // The thread ends, and the file keeps the namespace.
        on_own_thread(system::new_network).map(Self)
    }

    /// Runs `work` in the namespace, on its own thread.
    pub(super) fn run<T: Send>(
        &self,
        work: impl FnOnce() -> Result<T, BenchError> + Send,
    ) -> Result<T, BenchError> {
        on_own_thread(|| {
            self.enter()?;
            work()
        })
    }

    /// Moves the calling thread there permanently.
    pub(super) fn enter(&self) -> Result<(), BenchError> {
        system::enter_network(&self.0)
    }

    /// Returns the path by which `ip` finds it.
    fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }

    /// Runs some `ip` commands, one on each line.
    pub(super) fn ip(&self, lines: &str) -> Result<(), BenchError> {
        self.batch("ip", lines)
    }

    /// Runs some `tc` commands, one on each line.
    pub(super) fn tc(&self, lines: &str) -> Result<(), BenchError> {
        self.batch("tc", lines)
    }

    fn batch(&self, program: &'static str, lines: &str) -> Result<(), BenchError> {
        self.run(|| {
            let mut command = Command::new(program);
            command.args(["-batch", "-"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
            let mut child = command.spawn().map_err(|error| match error.kind() {
                std::io::ErrorKind::NotFound => {
                    BenchError::MissingProgram { program: program.into(), package: "iproute2" }
                }
                _ => BenchError::io(format!("start {program}"))(error),
            })?;
            if let Some(mut input) = child.stdin.take() {
                // If it does not listen to the end, its own complaint says more.
                let _ = input.write_all(lines.as_bytes());
            }
            let output = child.wait_with_output().map_err(BenchError::io(format!("wait for {program}")))?;
            match output.status.success() {
                true => Ok(()),
                false => {
                    let complaint = String::from_utf8_lossy(&output.stderr);
                    Err(BenchError::Process(format!("{program} failed: {}", complaint.trim())))
                }
            }
        })
    }

    /// Writes to a file of a device, below /sys/class/net.
    pub(super) fn set(&self, file: &str, value: &str) -> Result<(), BenchError> {
        self.run(|| {
            system::show_devices()?;
            let path = format!("/sys/class/net/{file}");
            std::fs::write(&path, value).map_err(BenchError::io(format!("write {value} to {path}")))
        })
    }

    /// Returns the index of a device.
    pub(super) fn device(&self, name: &str) -> Result<u32, BenchError> {
        self.run(|| {
            system::show_devices()?;
            let path = format!("/sys/class/net/{name}/ifindex");
            let text = std::fs::read_to_string(&path).map_err(BenchError::io(format!("read {path}")))?;
            text.trim().parse().map_err(|_| BenchError::Process(format!("{path} holds no number")))
        })
    }
}

fn on_own_thread<T: Send>(work: impl FnOnce() -> Result<T, BenchError> + Send) -> Result<T, BenchError> {
    std::thread::scope(|scope| match scope.spawn(work).join() {
        Ok(done) => done,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

/// The whole network.
pub(super) struct Testbed {
    pub(super) senders: Network,
    pub(super) reflector: Network,
    pub(super) receivers: Network,
    pub(super) devices: Vec<Device>,
    pub(super) counting: Counting,
}

impl Testbed {
    /// Builds the network, with these devices towards the receivers.
    pub(super) fn build(devices: &[Device]) -> Result<Self, BenchError> {
        let (senders, reflector, receivers) = (Network::new()?, Network::new()?, Network::new()?);
        senders
            .ip(&format!(
                "link set lo up\nlink add s0 type veth peer name {INPUT} netns {}\nlink set s0 up\n\
             addr add 10.63.0.2/24 dev s0\n{}route add default via 10.63.0.1\n\
             route add local 10.63.128.0/17 dev lo\n",
                reflector.path(),
                (1..SENDERS_MAX)
                    .map(|sender| format!("addr add {}/24 dev s0\n", sender_address(sender).ip()))
                    .collect::<String>(),
            ))
            .or_else(hint)?;
        reflector.ip(&format!(
            "link set lo up\nlink set {INPUT} up\naddr add 10.63.0.1/24 dev {INPUT}\n\
             route add 10.63.128.0/17 via 10.63.0.2\n"
        ))?;
        receivers.ip("link set lo up\n")?;
        for (device, kind) in devices.iter().enumerate() {
            let net = 64 + device;
            // A device that sends at once has no queue; one that takes its time has the queue of the paper's.
            reflector.ip(&format!(
                "link add {out} type veth peer name v{device} netns {peer}\nlink set {out} txqueuelen 100\n\
                 link set {out} up\naddr add 10.{net}.0.1/17 dev {out}\nroute add 10.{net}.128.0/17 dev {out}\n",
                out = output(device),
                peer = receivers.path(),
            ))?;
            receivers.ip(&format!(
                "link set v{device} up\naddr add 10.{net}.0.2/17 dev v{device}\n\
                 route add local 10.{net}.128.0/17 dev lo\n"
            ))?;
            if let Device::Limited(mbit) = kind {
                reflector.tc(&format!(
                    "qdisc add dev {out} root handle 1: tbf rate {mbit}mbit burst {burst} limit 1000000 overhead 24 \
                     mpu 84\nqdisc add dev {out} parent 1:1 handle 10: pfifo limit 100\n",
                    out = output(device),
                    // What the device sends in a millisecond, as timers are not finer here, and no less than a frame.
                    burst = (mbit * 125).max(4000),
                ))?;
            }
        }
        let mut counting = Counting::load()?;
        for device in 0..devices.len() {
            let name = format!("v{device}");
            reflector.run(|| poll_for_frames(&output(device)))?;
            receivers.run(|| {
                poll_for_frames(&name)?;
                counting.count(&name)
            })?;
        }
        Ok(Self { senders, reflector, receivers, devices: devices.to_vec(), counting })
    }
}

impl Testbed {
    /// Makes another processor handle the reflector's input, as a network card's interrupts would: a kernel thread
    /// fetches it from a ring. Otherwise the sender's processor does that work, which limits the sender. The devices
    /// towards receivers get the paper's queue.
    pub(super) fn fetch_on(&self, cpu: usize) -> Result<(), BenchError> {
        self.senders.run(|| poll_for_frames("s0"))?;
        let name = format!("napi/{INPUT}-");
        let before = kernel_threads(&name);
        self.reflector.run(|| poll_for_frames(INPUT))?;
        self.reflector.set(&format!("{INPUT}/threaded"), "1")?;
        for thread in kernel_threads(&name).difference(&before) {
            system::pin_process(*thread, cpu)?;
        }
        for device in 0..self.devices.len() {
            self.reflector.tc(&format!("qdisc add dev {} root pfifo limit 100\n", output(device)))?;
        }
        Ok(())
    }
}

/// Returns the kernel threads whose names begin with `name`.
pub(super) fn kernel_threads(name: &str) -> BTreeSet<i32> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    numbers
        .filter(|process| {
            let comm = std::fs::read_to_string(format!("/proc/{process}/comm"));
            comm.is_ok_and(|comm| comm.starts_with(name))
        })
        .collect()
}

/// Makes a veth device take its input from a ring, as network cards do. Both ends need this. Without it, frames that a
/// driver program at the other end sends are not taken at all, and buffers of the network stack pass through a queue of
/// the sending processor, so that the output of two processors is in no order.
fn poll_for_frames(device: &str) -> Result<(), BenchError> {
    let mut command = Command::new("ethtool");
    command.args(["-K", device, "gro", "on", "tso", "off"]).stdin(Stdio::null()).stdout(Stdio::null());
    let output = command.stderr(Stdio::piped()).output().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            BenchError::MissingProgram { program: "ethtool".into(), package: "ethtool" }
        }
        _ => BenchError::io("start ethtool")(error),
    })?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    match output.status.success() {
        true => Ok(()),
        false => Err(BenchError::Process(format!("ethtool failed: {}", complaint.trim()))),
    }
}

/// Adds the likely cause to an error: missing privileges.
fn hint(error: BenchError) -> Result<(), BenchError> {
    Err(BenchError::Process(format!("{error}; network namespaces need root, and a kernel with veth")))
}

/// The maximum number of senders.
pub(super) const SENDERS_MAX: u32 = 8;

/// Returns the name of the reflector's device with this number towards receivers.
pub(super) fn output(device: usize) -> String {
    format!("out{device}")
}

/// Returns the address of a sender.
pub(super) fn sender_address(sender: u32) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::from(0x0a3f_0002 + sender), MEMBER_PORT))
}

/// Returns the address of one of very many members on the senders' side.
pub(super) fn member_address(member: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 63, 128, 1)) + member)
}

/// Returns the address of a receiver behind a device.
pub(super) fn receiver_address(device: usize, receiver: u32) -> SocketAddr {
    let net = Ipv4Addr::new(10, 64 + device as u8, 128, 0);
    SocketAddr::from((Ipv4Addr::from(u32::from(net) + receiver), MEMBER_PORT))
}

/// Returns the reflector's address towards the senders, or towards the receivers behind a device.
pub(super) fn reflector_address(device: Option<usize>, port: u16) -> SocketAddr {
    let net = device.map_or(63, |device| 64 + device as u8);
    SocketAddr::from((Ipv4Addr::new(10, net, 0, 1), port))
}
