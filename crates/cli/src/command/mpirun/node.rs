//! `nacre mpirun-node`: what runs on the nodes of a job for `nacre mpirun`, started by the launcher in the places of the ranks.
//!
//! A first run finds the nodes: every process reports its own, and an address there that is free. A second one serves: the process of
//! each node that is in the list of servers is one, until it gets a signal or its parent, a process of the launcher, is gone. Reports are
//! lines of JSON on standard output, which the launcher brings to `nacre mpirun`.

use std::net::{Ipv6Addr, TcpListener};
use std::time::{Duration, Instant};

use nacre::{Address, Engine, ErrorKind, Options, Store, Uri};
use nacre_daemon::{Beacons, ServerOptions};
use nacre_rpc::ClusterKey;
use nacre_shell::Signals;
use rustix::process::{Pid, getppid};
use rustix::thread::{CpuSet, sched_setaffinity};
use serde::{Deserialize, Serialize};

use super::Mpi;
use crate::failure::Failure;
use crate::output;

/// The variable with the key of the job's servers, which is in no command line.
pub const KEY_VARIABLE: &str = "NACRE_MPIIO_KEY";

/// The variable with the servers of the job: `RANK=ADDRESS,…`.
pub const SERVERS_VARIABLE: &str = "NACRE_MPIRUN_SERVERS";

/// The variable with the lease of the job's servers, in milliseconds.
pub const LEASE_VARIABLE: &str = "NACRE_MPIRUN_LEASE";

/// The variable with the time in which all servers have to be reached from each node, in milliseconds.
pub const REACH_VARIABLE: &str = "NACRE_MPIRUN_REACH";

/// The beginning of a report: launchers and shells of nodes print lines of their own.
const MARK: &str = "nacre-node ";

/// The time between two attempts to reach them.
const REACH_PERIOD: Duration = Duration::from_millis(200);

/// The time between two looks for the parent.
const PARENT_PERIOD: Duration = Duration::from_millis(500);

/// Serve as a node of a job for "nacre mpirun"
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The task on the node
    #[arg(value_enum)]
    task: Task,
    /// The MPI library whose launcher has started this
    #[arg(value_enum)]
    mpi: Mpi,
}

/// A task on a node.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// Report the node
    Find,
    /// Serve locks, if this process is in the list of servers
    Serve,
}

impl Task {
    /// Returns its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Task::Find => "find",
            Task::Serve => "serve",
        }
    }
}

/// The report of a process on a node.
#[derive(Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Report {
    /// The node of a rank, and a free address there.
    Found { rank: u32, node: String, address: String },
    /// A server from whose node all servers can be reached.
    Ready,
    /// A server whose address is in use.
    Taken,
    /// A failure, as a sentence.
    Failed(String),
}

impl Report {
    /// Reads a line of a launcher's output; `None` if it is no report.
    pub fn read(line: &str) -> Option<Report> {
        let (_, text) = line.split_once(MARK)?;
        // A launcher may put something behind it too.
        serde_json::Deserializer::from_str(text).into_iter().next()?.ok()
    }

    fn print(&self) -> Result<(), Failure> {
        let text = serde_json::to_string(self).map_err(|error| Failure::Failed(error.to_string()))?;
        output::line(&format!("{MARK}{text}"))?;
        Ok(output::flush()?)
    }
}

/// Runs `nacre mpirun-node`. What fails is reported, and the launcher's exit code does not matter.
pub fn run(args: &Args) -> Result<(), Failure> {
    // Before it can be gone.
    let parent = getppid();
    let done = match args.task {
        Task::Find => find(args.mpi),
        Task::Serve => serve(args.mpi, parent),
    };
    match done {
        Ok(()) => Ok(()),
        Err(failed) => {
            failed.print()?;
            Err(Failure::Command { code: 1, sentence: None })
        }
    }
}

/// Returns a failure, in which a sentence of this node begins with its name.
fn failed(why: impl std::fmt::Display) -> Report {
    Report::Failed(format!("on node {}: {why}", host()))
}

fn find(mpi: Mpi) -> Result<(), Report> {
    let listener = TcpListener::bind((any_host(), 0)).and_then(|listener| listener.local_addr());
    let port = listener.map_err(|error| failed(format!("cannot listen on any port: {error}")))?.port();
    let found = Report::Found {
        rank: rank(mpi)?,
        node: identity().map_err(failed)?,
        address: address(mpi.host_variables(), |name| std::env::var(name).ok(), &host(), port),
    };
    // Whoever does not read it has ended.
    let _ = found.print();
    Ok(())
}

/// Returns the number of this process in its job.
fn rank(mpi: Mpi) -> Result<u32, Report> {
    let told = mpi.rank_variables().iter().find_map(|name| std::env::var(name).ok()?.parse().ok());
    told.ok_or_else(|| failed("the launcher does not tell the rank of a process"))
}

/// Returns the name of this node.
pub fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Returns what tells this node from all others: two of them may have one name, and two containers one kernel.
pub fn identity() -> Result<String, String> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    let boot = boot.map_err(|error| format!("cannot read the identity of the system: {error}"))?;
    Ok(format!("{} {}", host(), boot.trim()))
}

/// Returns the address by which other nodes reach a port of this one: by the name that the launcher uses, or that of the node if the former
/// means something else elsewhere.
fn address(variables: &[&str], variable: impl Fn(&str) -> Option<String>, own: &str, port: u16) -> String {
    let told = variables.iter().filter_map(|name| variable(name));
    let candidates = told.chain([own.to_owned()]).filter_map(|host| {
        let host = if host.parse::<Ipv6Addr>().is_ok() { format!("[{host}]") } else { host };
        format!("{host}:{port}").parse::<Address>().ok()
    });
    let mut last = None;
    for candidate in candidates {
        if !candidate.is_local() {
            return candidate.to_string();
        }
        last = Some(candidate);
    }
    // For this node alone, which is enough if there is no other.
    last.map_or_else(|| format!("localhost:{port}"), |address| address.to_string())
}

/// Returns the host that stands for all addresses of this node.
fn any_host() -> &'static str {
    let only = std::fs::read_to_string("/proc/sys/net/ipv6/bindv6only");
    let has_both = only.is_ok_and(|only| only.trim() == "0") && TcpListener::bind("[::]:0").is_ok();
    if has_both { "::" } else { "0.0.0.0" }
}

/// Returns the servers that a list names, and the ranks that are to be them.
fn servers(text: &str) -> Option<Vec<(u32, Address)>> {
    let server = |pair: &str| {
        let (rank, address) = pair.split_once('=')?;
        Some((rank.parse().ok()?, address.parse().ok()?))
    };
    text.split(',').map(server).collect()
}

fn serve(mpi: Mpi, parent: Option<Pid>) -> Result<(), Report> {
    let variable = |name: &str| std::env::var(name).map_err(|_| failed(format!("{name} has not come to it")));
    let wrong = |name: &str| failed(format!("{name} is wrong"));
    let rank = rank(mpi)?;
    let servers = servers(&variable(SERVERS_VARIABLE)?).ok_or_else(|| wrong(SERVERS_VARIABLE))?;
    let Some((_, own)) = servers.iter().find(|(server, _)| *server == rank) else { return Ok(()) };
    let time = |name: &str| -> Result<Duration, Report> {
        let milliseconds = variable(name)?.parse::<u64>().map_err(|_| wrong(name))?;
        Ok(Duration::from_millis(milliseconds))
    };
    let (lease, reach) = (time(LEASE_VARIABLE)?, time(REACH_VARIABLE)?);
    let key = ClusterKey::from_hex(variable(KEY_VARIABLE)?.as_bytes()).ok_or_else(|| wrong(KEY_VARIABLE))?;
    let key = key.in_memory().map_err(failed)?;
    let addresses: Vec<Address> = servers.iter().map(|(_, address)| address.clone()).collect();
    let default = ServerOptions::default();
    let options = ServerOptions {
        store: Some(Uri { engine: Engine::Memory, options: Options::default() }),
        lock: true,
        lock_lease: lease,
        listen: vec![listen(own).ok_or_else(|| wrong(SERVERS_VARIABLE))?.into()],
        http: None,
        key: Some(key.path()),
        members: addresses.iter().map(Address::to_string).collect(),
        member: Some(own.to_string()),
        beacons: Beacons::None,
        ..default
    };
    let uri_options = Options { key: Some(key.path()), ..Options::default() };
    let all = Uri { engine: Engine::Servers(addresses), options: uri_options };
    // The launcher may have bound this process to the processors of a rank, which is to have them for itself.
    use_all_processors();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    runtime.block_on(serve_until_end(options, &all, reach, parent))
}

/// Returns the address on which a server with an address listens: its port, at all addresses of the node.
fn listen(address: &Address) -> Option<String> {
    let Address::Tcp(text) = address else { return None };
    let (_, port) = text.rsplit_once(':')?;
    let host = any_host();
    Some(if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") })
}

fn use_all_processors() {
    let mut all = CpuSet::new();
    (0..CpuSet::MAX_CPU).for_each(|processor| all.set(processor));
    // Those that the system does not give are left out; without any change it serves more slowly.
    let _ = sched_setaffinity(None, &all);
}

async fn serve_until_end(
    options: ServerOptions,
    all: &Uri,
    reach_max: Duration,
    parent: Option<Pid>,
) -> Result<(), Report> {
    let mut signals = Signals::catch().map_err(failed)?;
    let mut unreached = None;
    let until = async {
        let end = async {
            tokio::select! {
                () = signals.next() => {}
                () = gone(parent) => {}
            }
        };
        tokio::pin!(end);
        tokio::select! {
            reached = reach(all, reach_max) => match reached {
                Ok(()) => {
                    // Whoever does not read it has ended, and needs no server.
                    if Report::Ready.print().is_ok() {
                        end.await;
                    }
                }
                Err(why) => unreached = Some(failed(format!("cannot reach all lock servers of the job: {why}"))),
            },
            () = &mut end => {}
        }
    };
    let served = nacre_daemon::run(options, |_| {}, until).await;
    served.map_err(|error| match error.kind {
        ErrorKind::Busy => Report::Taken,
        _ => failed(format!("cannot serve locks: {error}")),
    })?;
    unreached.map_or(Ok(()), Err)
}

/// Waits until this process has another parent.
async fn gone(parent: Option<Pid>) {
    while getppid() == parent {
        tokio::time::sleep(PARENT_PERIOD).await;
    }
}

/// Waits until all servers can be reached from here.
///
/// # Errors
/// The reason why one cannot, when there was enough time for it.
async fn reach(all: &Uri, max: Duration) -> Result<(), String> {
    let begun = Instant::now();
    let store = Store::open(all).map_err(|error| error.to_string())?;
    loop {
        let why = match store.status().await {
            Ok(servers) => {
                let failed = |(server, said): (String, Result<_, nacre::Error>)| {
                    Some(format!("{server}: {}", said.err()?))
                };
                match servers.into_iter().find_map(failed) {
                    None => return Ok(()),
                    Some(why) => why,
                }
            }
            Err(error) => error.to_string(),
        };
        if begun.elapsed() > max {
            return Err(format!(
                "{why}; a firewall may be between the nodes, or the name mean another address here"
            ));
        }
        tokio::time::sleep(REACH_PERIOD).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_found_in_what_a_launcher_prints() {
        let report = Report::Found { rank: 3, node: "a \"b\"".to_owned(), address: "a:1".to_owned() };
        let text = serde_json::to_string(&report).unwrap();
        assert_eq!(Report::read(&format!("[3] {MARK}{text} </stdout>")), Some(report));
        assert_eq!(Report::read(&format!("{MARK}\"ready\"")), Some(Report::Ready));
        for other in ["welcome to node a", MARK, "nacre-node {\"found\":{\"rank\":-1}}"] {
            assert_eq!(Report::read(other), None, "{other}");
        }
    }

    #[test]
    fn the_address_is_one_by_which_other_nodes_reach_this_one() {
        let address = |told: &str, own: &str| address(&["HOST"], |_| Some(told.to_owned()), own, 7);
        assert_eq!(address("node-a", "a"), "node-a:7");
        assert_eq!(address("192.0.2.1", "a"), "192.0.2.1:7");
        assert_eq!(address("2001:db8::1", "a"), "[2001:db8::1]:7");
        for useless in ["localhost", "127.0.0.1", "::1", "", "not a name"] {
            assert_eq!(address(useless, "a"), "a:7", "{useless}");
        }
        assert_eq!(address("localhost", "localhost"), "localhost:7");
    }

    #[test]
    fn the_list_of_servers_is_read_as_a_whole_or_not_at_all() {
        let read = servers("0=a:1,4=[::1]:2").unwrap();
        assert_eq!(read, [(0, "a:1".parse().unwrap()), (4, "[::1]:2".parse().unwrap())]);
        for wrong in ["", "a:1", "x=a:1", "0=a:1,", "0=a/b:1"] {
            assert_eq!(servers(wrong), None, "{wrong}");
        }
    }
}
