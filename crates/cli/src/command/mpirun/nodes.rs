//! The lock servers of a job on its nodes: one on each, started and ended by the job's own launcher.
//!
//! The launcher runs twice before the job, each time with the job's own flags for hosts and places, so that it reaches the same nodes: first
//! to learn of them, then to serve. The second run goes on beside the job. It is in a process group of its own, where no Ctrl-C reaches it
//! before the job has ended, and ends by SIGTERM: by this process, or by the kernel if this process has ended without it.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use nacre::Address;
use nacre_quantity::escaped_text;
use nacre_rpc::ClusterKey;
use rustix::process::Signal;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader, Lines, Take};
use tokio::process::{Child, ChildStdin, ChildStdout};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::layout::Layout;
use super::node::{self, Report, Task};
use super::{END_MAX, Mpi, attached, cannot_run};
use crate::command::child::{Caught, Descendants, kill_with_descendants, pass_on};
use crate::failure::Failure;
use crate::output;

/// The number of attempts to start servers: a free port may be taken before a server listens on it.
const ATTEMPTS_MAX: usize = 5;

/// The number of servers: as many as a list of members takes. Ranks on further nodes use them too.
const SERVERS_MAX: usize = 1024;

/// The most that is read of the output of a run, and that is kept of its messages, in bytes, and that is cited of these, in lines.
const OUTPUT_MAX: u64 = 64 << 20;
const KEPT_MAX: usize = 16 << 10;
const CITED_MAX: usize = 40;

/// The time in which the rest of the messages of a launcher that has ended is read.
const CITE_MAX: Duration = Duration::from_secs(2);

/// Variables by which launchers would end the servers before the job, or print the environment.
const LEFT_OUT: [&str; 3] = ["MPIEXEC_TIMEOUT", "HYDRA_DEBUG", "HYDRA_TOPO_DEBUG"];

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
    /// The time that the launcher may take to reach all nodes, and the servers to reach each other.
    pub start_max: Duration,
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
                if plan.layout.shows_environment || std::env::var_os("HYDRA_DEBUG").is_some() {
                    output::complain(
                        "nacre: a launcher that is verbose prints the environment of the job, with the key of its lock servers: let \
                         nobody else read that",
                    );
                }
                let addresses: Vec<&str> = nodes.iter().map(|node| node.address.as_str()).collect();
                return Ok(Some(Nodes {
                    running,
                    uri: format!("nacre://{}", addresses.join(",")).into(),
                    key,
                }));
            }
        }
        Err(failure(&format!("ports that were free are in use a moment later, {ATTEMPTS_MAX} times")))
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

fn failure(why: &str) -> Failure {
    Failure::Failed(format!(
        "cannot start lock servers on the nodes of the job: {}; --lock-servers names others",
        escaped_text(why)
    ))
}

impl Plan<'_> {
    /// Finds the nodes of the job, by what tells them from each other.
    async fn find(&self, signals: &mut Caught) -> Result<BTreeMap<String, Node>, Failure> {
        let mut run = Run::start(self, Task::Find, &[], self.start_max)?;
        let mut nodes: BTreeMap<String, Node> = BTreeMap::new();
        while let Some(report) = run.report_in_time(signals).await? {
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
                    return Err(failure(&why));
                }
                Report::Ready | Report::Taken => {}
            }
        }
        let status = run.wait_in_time(signals).await?;
        if status.success() && !nodes.is_empty() {
            return Ok(nodes);
        }
        let why = format!(
            "the launcher could not run nacre on all of them, at the path that it has here ({status})"
        );
        Err(failure(&format!("{why}{}", run.cited().await)))
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
            (node::REACH_VARIABLE, self.start_max.as_millis().to_string()),
            (node::KEY_VARIABLE, key.to_hex()),
        ];
        // They reach each other once all of them have been started.
        let mut run = Run::start(self, Task::Serve, &variables, self.start_max * 2)?;
        let mut ready = 0;
        while ready < nodes.len() {
            match run.report_in_time(signals).await? {
                Some(Report::Ready) => ready += 1,
                Some(Report::Found { .. }) => {}
                Some(Report::Taken) => {
                    run.end().await;
                    return Ok(None);
                }
                Some(Report::Failed(why)) => {
                    run.end().await;
                    return Err(failure(&why));
                }
                None => {
                    let status = run.wait_in_time(signals).await?;
                    let why = format!("the launcher ended before all of them served ({status})");
                    return Err(failure(&format!("{why}{}", run.cited().await)));
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
    /// The time that it may take to be ready, and when that is over.
    max: Duration,
    deadline: Instant,
}

impl Run {
    fn start(
        plan: &Plan<'_>,
        task: Task,
        variables: &[(&str, String)],
        max: Duration,
    ) -> Result<Run, Failure> {
        let this = std::env::current_exe().map_err(Failure::io("find the program that runs"))?;
        let passed: Vec<OsString> = variables.iter().flat_map(|(name, _)| plan.mpi.inherited(name)).collect();
        let command: [&OsStr; 4] =
            [this.as_os_str(), "mpirun-node".as_ref(), task.name().as_ref(), plan.mpi.name().as_ref()];
        let mut command = attached::command(plan.launcher, &plan.layout.command(&passed, &command))?;
        command.envs(variables.iter().map(|variable| (variable.0, &variable.1)));
        for name in LEFT_OUT {
            command.env_remove(name);
        }
        // A step of Slurm has its processors for itself otherwise, and the job's own would wait for its end.
        command.env("SLURM_OVERLAP", "1");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.process_group(0).kill_on_drop(true);
        let mut child = command.spawn().map_err(|error| cannot_run(plan.launcher, &error))?;
        let input = child.stdin.take();
        let output = child.stdout.take().map(|output| BufReader::new(output.take(OUTPUT_MAX)).lines());
        let key = variables.iter().find(|variable| variable.0 == node::KEY_VARIABLE);
        let key = key.map(|variable| variable.1.clone());
        let messages = child.stderr.take().map(|messages| tokio::spawn(last_messages(messages, key)));
        Ok(Run { child, _input: input, output, messages, max, deadline: Instant::now() + max })
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

    /// Returns the next report, as [`Run::report`] does. A signal ends the run, and so does its deadline.
    async fn report_in_time(&mut self, signals: &mut Caught) -> Result<Option<Report>, Failure> {
        let deadline = self.deadline;
        let signal = tokio::select! {
            report = self.report() => return Ok(report),
            signal = signals.next() => Some(signal),
            () = tokio::time::sleep_until(deadline) => None,
        };
        Err(self.given_up(signal).await)
    }

    /// Waits for the end of the launcher. A signal ends it, and so does its deadline.
    async fn wait_in_time(&mut self, signals: &mut Caught) -> Result<ExitStatus, Failure> {
        let signal = tokio::select! {
            status = self.child.wait() => return status.map_err(Failure::io("wait for the launcher")),
            signal = signals.next() => Some(signal),
            () = tokio::time::sleep_until(self.deadline) => None,
        };
        Err(self.given_up(signal).await)
    }

    /// Ends the run, and returns the reason: a signal, or that its time is over.
    async fn given_up(&mut self, signal: Option<Signal>) -> Failure {
        self.terminate().await;
        if let Some(signal) = signal {
            return Failure::Command { code: 128 + signal.as_raw() as u8, sentence: None };
        }
        let (max, cited) = (self.max, self.cited().await);
        failure(&format!(
            "the launcher has not started nacre on all of them after {max:?} (--start-timeout sets another time); a node may not \
             answer, or ask for a password{cited}"
        ))
    }

    /// Ends the launcher, and with it what it has started.
    async fn end(mut self) {
        self.terminate().await;
    }

    async fn terminate(&mut self) {
        // It may leave some behind, such as a connection to a node that does not answer.
        let started = Descendants::of(&self.child);
        pass_on(&self.child, Signal::TERM);
        if tokio::time::timeout(END_MAX, self.child.wait()).await.is_err() {
            kill_with_descendants(&self.child);
            let _ = self.child.wait().await;
        }
        started.kill();
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

/// Returns the end of what a launcher prints, as one line, in which the key is not shown.
async fn last_messages(mut messages: impl AsyncRead + Unpin, key: Option<String>) -> String {
    let (mut last, mut is_cut, mut buffer) = (Vec::new(), false, [0; 4096]);
    while let Ok(count @ 1..) = messages.read(&mut buffer).await {
        last.extend_from_slice(&buffer[..count]);
        let surplus = last.len().saturating_sub(KEPT_MAX);
        is_cut |= surplus > 0;
        last.drain(..surplus);
    }
    let mut text = String::from_utf8_lossy(&last).into_owned();
    if let Some(key) = key {
        text = text.replace(&key, "…");
    }
    // Of a line that was cut, a part of the key may be left.
    let lines = text.lines().skip(usize::from(is_cut));
    let lines: Vec<&str> = lines.map(str::trim).filter(|line| !line.is_empty()).collect();
    lines[lines.len().saturating_sub(CITED_MAX)..].join("; ")
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

    #[tokio::test]
    async fn the_end_of_what_a_launcher_says_is_cited_without_the_key() {
        let cite = async |said: &str| last_messages(said.as_bytes(), Some("5ec2e7".to_owned())).await;
        assert_eq!(cite("").await, "");
        assert_eq!(cite("one\n\n  two, A=5ec2e7 \n").await, "one; two, A=…");
        let many = "a line\n".repeat(KEPT_MAX) + "the last\n";
        let cited = cite(&many).await;
        assert!(cited.ends_with("a line; the last"), "{cited}");
        assert_eq!(cited.matches("; ").count(), CITED_MAX - 1);
    }
}
