//! A network in one machine, for tests and studies: namespaces, pairs of devices between them, queues of a chosen
//! length.
//!
//! A testbed has names of its own (they hold the number of its process), so several run side by side. It is removed when it
//! is dropped; the remains of a process that died are removed when the next testbed is made. Addresses are of private
//! ranges and exist inside the namespaces only. Making a testbed needs root, and `ip` and `tc` of iproute2.

use std::fs::File;
use std::io;
use std::net::{Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{JoinHandle, ScopedJoinHandle};
use std::time::{Duration, Instant};

use crate::system;

/// The prefix of the names of all namespaces.
const PREFIX: &str = "nacre-testbed-";

/// An error in setting up a testbed, in words.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct TestbedError(String);

/// Namespaces, which are removed when the testbed is dropped.
#[derive(Debug)]
pub struct Testbed {
    number: u32,
    namespaces: Vec<Namespace>,
}

/// A network namespace of a [`Testbed`].
#[derive(Clone, Debug)]
pub struct Namespace {
    name: String,
}

fn run(program: &str, arguments: &[&str]) -> Result<String, TestbedError> {
    let check = |output: Output| match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(TestbedError(format!(
            "`{program} {}` failed: {} (a testbed of network namespaces needs root)",
            arguments.join(" "),
            String::from_utf8_lossy(&output.stderr).trim()
        ))),
    };
    Command::new(program)
        .args(arguments)
        .output()
        .map_err(|why| {
            TestbedError(format!("cannot run `{program}`, which is in the package iproute2: {why}"))
        })
        .and_then(check)
}

impl Testbed {
    /// Creates an empty testbed.
    pub fn new() -> Result<Testbed, TestbedError> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        // What the dead have left: their namespaces hold their devices.
        for name in run("ip", &["netns", "list"])?.lines().filter_map(|line| line.split(' ').next()) {
            let pid = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next());
            if pid.is_some_and(|pid| !std::path::Path::new("/proc").join(pid).exists()) {
                // Another testbed may be sweeping too.
                let _ = run("ip", &["netns", "delete", name]);
            }
        }
        Ok(Testbed { number: NUMBER.fetch_add(1, Ordering::Relaxed), namespaces: Vec::new() })
    }

    /// Adds a namespace, with its loopback device up. The name is for people, and short.
    pub fn namespace(&mut self, name: &str) -> Result<Namespace, TestbedError> {
        let name = format!("{PREFIX}{}-{}-{name}", std::process::id(), self.number);
        run("ip", &["netns", "add", &name])?;
        let namespace = Namespace { name };
        self.namespaces.push(namespace.clone());
        namespace.ip(&["link", "set", "lo", "up"])?;
        // Addresses are given by hand: nothing is to be asked of, or told to, anybody at its own time.
        for (key, value) in [("accept_ra", "0"), ("router_solicitations", "0"), ("accept_dad", "0")] {
            for of in ["all", "default"] {
                namespace.sysctl(&format!("net/ipv6/conf/{of}/{key}"), value)?;
            }
        }
        Ok(namespace)
    }

    /// Makes a pair of devices, one in each of two namespaces, up, without addresses. Frames sent by one arrive at the
    /// other.
    pub fn link(&self, a: (&Namespace, &str), b: (&Namespace, &str)) -> Result<(), TestbedError> {
        let ((a, a_device), (b, b_device)) = (a, b);
        a.ip(&["link", "add", a_device, "type", "veth", "peer", "name", b_device, "netns", &b.name])?;
        a.ip(&["link", "set", a_device, "up"])?;
        b.ip(&["link", "set", b_device, "up"])?;
        Ok(())
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        for namespace in &self.namespaces {
            if let Err(error) = run("ip", &["netns", "delete", &namespace.name]) {
                eprintln!("a network namespace stays behind: {error}");
            }
        }
    }
}

impl Namespace {
    /// Returns the name, as `ip netns` knows it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs `ip` in the namespace, and returns its output.
    pub fn ip(&self, arguments: &[&str]) -> Result<String, TestbedError> {
        run("ip", &[&["-n", &self.name], arguments].concat())
    }

    /// Runs `tc` in the namespace, and returns its output.
    pub fn tc(&self, arguments: &[&str]) -> Result<String, TestbedError> {
        run("tc", &[&["-n", &self.name], arguments].concat())
    }

    /// Gives a device an address, such as `10.0.0.1/24` or `fd00::1/64`. What is sent there from now on arrives.
    pub fn address(&self, device: &str, address: &str) -> Result<(), TestbedError> {
        let ip = address.split('/').next().and_then(|ip| ip.parse::<Ipv6Addr>().ok());
        let no_check: &[&str] = if ip.is_some() { &["nodad"] } else { &[] };
        self.ip(&[&["address", "add", address, "dev", device], no_check].concat())?;
        // The kernel has the address now, but a thread of its own adds the route by which it takes what comes for it:
        // until then that is dropped, also for sockets that are bound already.
        let since = Instant::now();
        while let Some(ip) = ip.filter(|&ip| !self.takes(ip)) {
            if since.elapsed() > Duration::from_secs(60) {
                return Err(TestbedError(format!(
                    "{device} of {} does not take what comes for {ip}",
                    self.name
                )));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Returns whether there is a local route to an address.
    fn takes(&self, address: Ipv6Addr) -> bool {
        // The destination, the length of its prefix, and at the end flags and device.
        const LOCAL: u32 = 0x8000_0000;
        let wanted = format!("{:032x} 80 ", address.to_bits());
        let routes = self.run(|| std::fs::read_to_string("/proc/thread-self/net/ipv6_route"));
        let flags = |route: &str| u32::from_str_radix(route.split_whitespace().nth(8)?, 16).ok();
        let is_local = |route: &str| flags(route).is_some_and(|flags| flags & LOCAL != 0);
        routes.is_ok_and(|routes| routes.lines().any(|route| route.starts_with(&wanted) && is_local(route)))
    }

    /// Gives a device a queue, such as `pfifo limit 4`, or `tbf rate 10mbit burst 2000 limit 3000`.
    pub fn queue(&self, device: &str, queue: &str) -> Result<(), TestbedError> {
        let queue: Vec<&str> = queue.split_whitespace().collect();
        self.tc(&[&["qdisc", "replace", "dev", device, "root"], &queue[..]].concat()).map(drop)
    }

    /// Gives a device of a pair a ring of its own for incoming frames, as a card has, if the other end is given one
    /// too: frames that two processors send through the pair then stay in order, and a queue at the other end waits
    /// when this ring is full. Without it the pair has no order across processors, and loses frames for which these
    /// have no room, unnoticed by that queue.
    pub fn ring(&self, device: &str) -> Result<(), TestbedError> {
        self.run(|| system::ring(device))
            .map_err(|why| TestbedError(format!("cannot give {device} of {} a queue: {why}", self.name)))
    }

    /// Makes a device, up and without a queue, whose other end is a file: each read returns a frame that was sent by
    /// the device, without waiting for one. While the file is not read, the driver takes `frames` frames and refuses
    /// more.
    pub fn tap(&self, device: &str, frames: u32) -> Result<File, TestbedError> {
        let file = self.run(|| system::tap(device)).map_err(|why| {
            TestbedError(format!("cannot create the device {device} in {}: {why}", self.name))
        })?;
        self.ip(&["link", "set", device, "txqueuelen", &frames.to_string()])?;
        self.ip(&["link", "set", device, "up"])?;
        self.queue(device, "noqueue")?;
        Ok(file)
    }

    /// Lets a device complete the checksums of outgoing packets, as cards do, or the kernel before it. The device has
    /// no ring any more.
    pub fn checksums(&self, device: &str, by_device: bool) -> Result<(), TestbedError> {
        self.run(|| system::checksums(device, by_device))
            .map_err(|why| TestbedError(format!("cannot set checksums of {device} of {}: {why}", self.name)))
    }

    /// Sets one of the kernel's parameters, by its path, such as `net/ipv4/ip_forward`.
    pub fn sysctl(&self, path: &str, value: &str) -> Result<(), TestbedError> {
        let path = std::path::Path::new("/proc/sys").join(path);
        self.run(|| std::fs::write(&path, value))
            .map_err(|why| TestbedError(format!("cannot write {value} to {}: {why}", path.display())))
    }

    /// Returns the index of a device in the namespace.
    pub fn device(&self, name: &str) -> Result<u32, TestbedError> {
        self.run(|| system::device_index(name))
            .map_err(|why| TestbedError(format!("there is no device {name} in {}: {why}", self.name)))
    }

    /// Runs a function in the namespace, on a thread of its own, and waits for it. Sockets that are made there stay
    /// there.
    ///
    /// # Panics
    /// If the namespace is gone, or the function panicked.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| join(self.spawn_scoped(scope, work)))
    }

    /// Starts a function in the namespace on a thread of its own.
    pub fn spawn<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
        let namespace = self.clone();
        std::thread::spawn(move || {
            namespace.enter();
            work()
        })
    }

    /// Starts a function in the namespace on a scoped thread, which may borrow from its surroundings.
    pub fn spawn_scoped<'scope, T: Send + 'scope>(
        &self,
        scope: &'scope std::thread::Scope<'scope, '_>,
        work: impl FnOnce() -> T + Send + 'scope,
    ) -> ScopedJoinHandle<'scope, T> {
        let namespace = self.clone();
        scope.spawn(move || {
            namespace.enter();
            work()
        })
    }

    /// Moves the calling thread, and all that it starts, into the namespace, for ever.
    ///
    /// # Panics
    /// If the namespace is gone.
    pub fn enter(&self) {
        let path = format!("/run/netns/{}", self.name);
        let entered = File::open(&path).and_then(|file| system::enter_network(file.as_fd()));
        if let Err(why) = entered {
            panic!("cannot enter the network namespace {path}, which a testbed has made: {why}");
        }
    }
}

/// Opens a socket in the namespace of the calling thread with the largest receive buffer that root may set. A datagram
/// that cannot be sent is an error.
pub fn socket(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(address)?;
    let bytes = 256 << 20_i32;
    system::set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &bytes)?;
    match address {
        SocketAddr::V4(_) => {
            system::set_option(socket.as_fd(), libc::IPPROTO_IP, libc::IP_RECVERR, &1_i32)?;
        }
        SocketAddr::V6(_) => {
            system::set_option(socket.as_fd(), libc::IPPROTO_IPV6, libc::IPV6_RECVERR, &1_i32)?;
        }
    }
    Ok(socket)
}

/// Lets what a socket of IPv4 sends be fragmented on its way.
pub fn let_fragment(socket: &UdpSocket) -> io::Result<()> {
    system::set_option(socket.as_fd(), libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, &libc::IP_PMTUDISC_DONT)
}

fn join<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panicked| std::panic::resume_unwind(panicked))
}
