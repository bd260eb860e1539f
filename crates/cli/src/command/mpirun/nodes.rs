//! The lock servers of a job on its nodes: one on each, started and ended by the job's own launcher.
//!
//! The launcher runs twice before the job, each time with the job's own flags for hosts and places, so that it reaches the same nodes: first
//! to learn of them, then to serve. The second run goes on beside the job. It is in a process group of its own, where no Ctrl-C reaches it
//! before the job has ended, and ends by SIGTERM: by this process, or by the kernel if this process has ended without it.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use nacre::Address;
use nacre_quantity::escaped_text;
use nacre_rpc::ClusterKey;
use rustix::process::Signal;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader, Lines, Take};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout};
use tokio::task::JoinHandle;

use super::layout::Layout;
use super::node::{self, Report, Task};
use super::{END_MAX, Mpi, attached, cannot_run};
use crate::command::child::{Caught, pass_on};
use crate::failure::Failure;

/// The number of attempts to start servers: a free port may be taken before a server listens on it.
const ATTEMPTS_MAX: usize = 5;

/// The number of servers: as many as a list of members takes. Ranks on further nodes use them too.
const SERVERS_MAX: usize = 1024;

/// The most that is read of the output of a run, in bytes, and that is cited of its messages, in lines.
const OUTPUT_MAX: u64 = 64 << 20;
const CITED_MAX: usize = 40;

/// The time in which the rest of the messages of a launcher that has ended is read.
const CITE_MAX: Duration = Duration::from_secs(2);

/// The job whose nodes are to have servers.
pub struct Plan<'a> {
    /// The MPI library of the launcher.
    pub mpi: Mpi,
    /// The launcher.
    pub launcher: &'a Path,
    /// The places of the job.
    pub layout: Layout,
    /// The lease of the servers.
    pub lease: Duration,
}

/// A node of the job.
struct Node {
    /// The least rank that was found there.
    rank: u32,
    address: String,
}

/// Lock servers on the nodes of a job.
pub struct Nodes {
    running: Run,
    /// The uri of the servers.
    pub uri: OsString,
    /// The key of the servers.
    pub key: ClusterKey,
}

impl Nodes {
    /// Starts a server on each node of a job; none if this node is the only one.
    ///
    /// # Errors
    /// The reason why there cannot be servers on all nodes.
    pub async fn start(plan: &Plan<'_>, signals: &mut Caught) -> Result<Option<Nodes>, Failure> {
        let key = ClusterKey::generate()?;
        for _ in 0..ATTEMPTS_MAX {
            let nodes = plan.find(signals).await?;
            if nodes.len() == 1 && nodes.contains_key(&node::identity().map_err(Failure::Failed)?) {
                return Ok(None);
            }
            let nodes: Vec<Node> = nodes.into_values().collect();
            check_addresses(&nodes)?;
            if let Some(running) = plan.serve(&nodes, &key, signals).await? {
                let addresses: Vec<&str> = nodes.iter().map(|node| node.address.as_str()).collect();
                return Ok(Some(Nodes {
                    running,
                    uri: format!("nacre://{}", addresses.join(",")).into(),
                    key,
                }));
            }
        }
        Err(plan.failure(&format!("ports that were free are in use a moment later, {ATTEMPTS_MAX} times")))
    }

    /// Waits until the servers do not serve any more, and returns why.
    pub async fn ended(&mut self) -> String {
        loop {
            match self.running.report().await {
                Some(Report::Failed(why)) => return why,
                Some(_) => {}
                None => {
                    let _ = self.running.child.wait().await;
                    return format!("their launcher has ended{}", self.running.cited().await);
                }
            }
        }
    }

    /// Ends the servers.
    pub async fn stop(self) {
        self.running.end().await;
    }
}

/// Checks that nodes that have to reach each other have addresses for that.
fn check_addresses(nodes: &[Node]) -> Result<(), Failure> {
    let is_local = |node: &&Node| node.address.parse::<Address>().is_ok_and(|address| address.is_local());
    match nodes.iter().find(is_local).filter(|_| nodes.len() > 1) {
        None => Ok(()),
        Some(node) => Err(Failure::Failed(format!(
            "cannot start lock servers on the nodes of the job: that of rank {} has no name by which others reach it, only {}; name it \
             otherwise to the launcher, or name servers by --lock-servers",
            node.rank, node.address
        ))),
    }
}

impl Plan<'_> {
    fn failure(&self, why: &str) -> Failure {
        Failure::Failed(format!(
            "cannot start lock servers on the nodes of the job: {}; --lock-servers names others",
            escaped_text(why)
        ))
    }

    /// Finds the nodes of the job, by what tells them from each other.
    async fn find(&self, signals: &mut Caught) -> Result<BTreeMap<String, Node>, Failure> {
        let mut run = Run::start(self, Task::Find, &[])?;
        let mut nodes: BTreeMap<String, Node> = BTreeMap::new();
        while let Some(report) = run.report_or_signal(signals).await? {
            match report {
                Report::Found { rank, node, address } => {
                    if let Some(known) = nodes.get_mut(&node) {
                        if rank < known.rank {
                            *known = Node { rank, address };
                        }
                    } else if nodes.len() < SERVERS_MAX {
                        nodes.insert(node, Node { rank, address });
                    }
                }
                Report::Failed(why) => {
                    run.end().await;
                    return Err(self.failure(&why));
                }
                Report::Ready | Report::Taken => {}
            }
        }
        let status = run.wait(signals).await?;
        if status.success() && !nodes.is_empty() {
            return Ok(nodes);
        }
        let why = format!(
            "the launcher could not run nacre on all of them, at the path that it has here ({status})"
        );
        Err(self.failure(&format!("{why}{}", run.cited().await)))
    }

    /// Starts the servers, and waits until each node reaches all of them; none if an address is in use.
    async fn serve(
        &self,
        nodes: &[Node],
        key: &ClusterKey,
        signals: &mut Caught,
    ) -> Result<Option<Run>, Failure> {
        let servers: Vec<String> =
            nodes.iter().map(|node| format!("{}={}", node.rank, node.address)).collect();
        let variables = [
            (node::SERVERS_VARIABLE, servers.join(",")),
            (node::LEASE_VARIABLE, self.lease.as_millis().to_string()),
            (node::KEY_VARIABLE, key.to_hex()),
        ];
        let mut run = Run::start(self, Task::Serve, &variables)?;
        let mut ready = 0;
        while ready < nodes.len() {
            match run.report_or_signal(signals).await? {
                Some(Report::Ready) => ready += 1,
                Some(Report::Found { .. }) => {}
                Some(Report::Taken) => {
                    run.end().await;
                    return Ok(None);
                }
                Some(Report::Failed(why)) => {
                    run.end().await;
                    return Err(self.failure(&why));
                }
                None => {
                    let status = run.wait(signals).await?;
                    let why = format!("the launcher ended before all of them served ({status})");
                    return Err(self.failure(&format!("{why}{}", run.cited().await)));
                }
            }
        }
        Ok(Some(run))
    }
}

/// A run of the launcher for this program.
struct Run {
    child: Child,
    /// Without an end, which launchers would pass on.
    _input: Option<ChildStdin>,
    output: Option<Lines<BufReader<Take<ChildStdout>>>>,
    messages: Option<JoinHandle<String>>,
}

impl Run {
    fn start(plan: &Plan<'_>, task: Task, variables: &[(&str, String)]) -> Result<Run, Failure> {
        let this = std::env::current_exe().map_err(Failure::io("find the program that runs"))?;
        let passed: Vec<OsString> = variables.iter().flat_map(|(name, _)| plan.mpi.inherited(name)).collect();
        let command: [&OsStr; 4] =
            [this.as_os_str(), "mpirun-node".as_ref(), task.name().as_ref(), plan.mpi.name().as_ref()];
        let mut command = attached::command(plan.launcher, &plan.layout.command(&passed, &command))?;
        command.envs(variables.iter().map(|variable| (variable.0, &variable.1)));
        // A step of Slurm has its processors for itself otherwise, and the job's own would wait for its end.
        command.env("SLURM_OVERLAP", "1");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.process_group(0).kill_on_drop(true);
        let mut child = command.spawn().map_err(|error| cannot_run(plan.launcher, &error))?;
        let input = child.stdin.take();
        let output = child.stdout.take().map(|output| BufReader::new(output.take(OUTPUT_MAX)).lines());
        let messages = child.stderr.take().map(|messages| tokio::spawn(last_lines(messages)));
        Ok(Run { child, _input: input, output, messages })
    }

    /// Returns the next report; none if there are no more.
    async fn report(&mut self) -> Option<Report> {
        loop {
            // A line that is not UTF-8 is not from this program, and reading goes on behind it.
            match self.output.as_mut()?.next_line().await {
                Ok(Some(line)) => {
                    if let Some(report) = Report::read(&line) {
                        return Some(report);
                    }
                }
                Err(error) if error.kind() == std::io::ErrorKind::InvalidData => {}
                Ok(None) | Err(_) => return None,
            }
        }
    }

    /// Returns the next report, as [`Run::report`] does. A signal ends the run.
    async fn report_or_signal(&mut self, signals: &mut Caught) -> Result<Option<Report>, Failure> {
        let signal = tokio::select! {
            report = self.report() => return Ok(report),
            signal = signals.next() => signal,
        };
        Err(self.interrupted(signal).await)
    }

    /// Waits for the end of the launcher. A signal ends it.
    async fn wait(&mut self, signals: &mut Caught) -> Result<ExitStatus, Failure> {
        let signal = tokio::select! {
            status = self.child.wait() => return status.map_err(Failure::io("wait for the launcher")),
            signal = signals.next() => signal,
        };
        Err(self.interrupted(signal).await)
    }

    async fn interrupted(&mut self, signal: Signal) -> Failure {
        self.terminate().await;
        Failure::Command { code: 128 + signal.as_raw() as u8, sentence: None }
    }

    /// Ends the launcher, and with it what it has started.
    async fn end(mut self) {
        self.terminate().await;
    }

    async fn terminate(&mut self) {
        pass_on(&self.child, Signal::TERM);
        if tokio::time::timeout(END_MAX, self.child.wait()).await.is_err() {
            // What it has started ends when it is gone.
            let _ = self.child.kill().await;
        }
    }

    /// Returns the last messages of a launcher that has ended, to be put behind a sentence.
    async fn cited(&mut self) -> String {
        let Some(messages) = self.messages.take() else { return String::new() };
        match tokio::time::timeout(CITE_MAX, messages).await {
            Ok(Ok(lines)) if !lines.is_empty() => format!(": {lines}"),
            _ => String::new(),
        }
    }
}

/// Returns the last lines that a launcher prints, as one.
async fn last_lines(messages: ChildStderr) -> String {
    let mut last = VecDeque::new();
    let mut lines = BufReader::new(messages.take(OUTPUT_MAX)).split(b'\n');
    while let Ok(Some(line)) = lines.next_segment().await {
        let line = String::from_utf8_lossy(&line).trim().to_owned();
        if !line.is_empty() {
            last.push_back(line);
        }
        if last.len() > CITED_MAX {
            last.pop_front();
        }
    }
    last.make_contiguous().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_without_an_address_for_others_are_named_unless_there_is_one_alone() {
        let node = |rank, address: &str| Node { rank, address: address.to_owned() };
        assert!(check_addresses(&[node(0, "localhost:1")]).is_ok());
        assert!(check_addresses(&[node(0, "a:1"), node(2, "b:1")]).is_ok());
        let Err(Failure::Failed(sentence)) = check_addresses(&[node(0, "a:1"), node(2, "localhost:1")])
        else {
            panic!("a node that others do not reach");
        };
        assert!(sentence.contains("rank 2") && sentence.contains("localhost:1"), "{sentence}");
    }
}
