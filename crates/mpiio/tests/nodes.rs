//! Tests of jobs on several nodes, for which `nacre mpirun` starts a lock server on each.
//!
//! A node is a network namespace with a host name of its own, which is its address. All nodes have the file system of this machine. The
//! launchers reach a node by a script in place of ssh. Needs root, and `ip` (Debian: iproute2).

mod kit;

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use kit::{describe, is_open_mpi, launcher, library, nacre, path, program, session_folder, silence};

/// The addresses of the nodes, which are their host names too.
const HOSTS: [&str; 2] = ["10.77.0.1", "10.77.0.2"];

/// A host at which the agent does nothing, and one that it does not know.
const HANGING: &str = "10.77.0.8";
const UNKNOWN: &str = "10.77.0.9";

/// The longest time that a test waits for an event.
const PATIENCE: Duration = Duration::from_secs(60);

fn ip(arguments: &str) -> String {
    let output = Command::new("ip").args(arguments.split(' ')).output();
    let output = output.expect("ip is missing; on Debian: apt-get install -y iproute2");
    assert!(
        output.status.success(),
        "this test needs root, to make network namespaces: ip {arguments}: {}",
        describe(&output)
    );
    String::from_utf8(output.stdout).unwrap()
}

/// Two nodes with a network between them.
struct Nodes {
    names: [String; 2],
    folder: TempDir,
}

impl Nodes {
    fn new() -> Nodes {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let names = [0, 1].map(|node| format!("nacre-nodes-{}-{number}-{node}", std::process::id()));
        let nodes = Nodes { names, folder: tempfile::tempdir().unwrap() };
        let [one, other] = &nodes.names;
        ip(&format!("netns add {one}"));
        ip(&format!("netns add {other}"));
        ip(&format!("-n {one} link add node0 type veth peer name node0 netns {other}"));
        for (name, host) in nodes.names.iter().zip(HOSTS) {
            ip(&format!("-n {name} addr add {host}/24 dev node0"));
            ip(&format!("-n {name} link set node0 up"));
            ip(&format!("-n {name} link set lo up"));
        }
        let agent = format!(
            "#!/bin/sh\n[ \"$1\" = -x ] && shift\nhost=$1\nshift\ncase $host in\n{}) node={one} ;;\n{}) node={other} ;;\n\
             {HANGING}) exec sleep 600 ;;\n*) echo \"there is no host $host\" >&2; exit 1 ;;\nesac\n\
             exec ip netns exec $node unshare --uts sh -c \
             'echo \"$1\" >/proc/sys/kernel/hostname; shift; exec sh -c \"$*\"' sh \"$host\" \"$@\"\n",
            HOSTS[0], HOSTS[1]
        );
        std::fs::write(nodes.agent(), agent).unwrap();
        std::fs::set_permissions(nodes.agent(), std::fs::Permissions::from_mode(0o755)).unwrap();
        nodes
    }

    fn agent(&self) -> String {
        path(&self.folder, "agent")
    }

    /// Returns the command of a job that is started on the first node, with flags of `nacre mpirun`, on hosts with so many ranks each. The
    /// process of the command becomes `nacre mpirun`.
    fn job(&self, flags: &[&str], hosts: &[&str], ranks: usize, words: &[&str]) -> Command {
        let mut command = Command::new("ip");
        let script = "echo \"$1\" >/proc/sys/kernel/hostname; shift; exec \"$@\"";
        command.args([
            "netns",
            "exec",
            &self.names[0],
            "unshare",
            "--uts",
            "sh",
            "-c",
            script,
            "sh",
            HOSTS[0],
        ]);
        command
            .arg(nacre())
            .args(["mpirun", "--launcher", &launcher(), "--library"])
            .arg(library())
            .args(flags);
        if !flags.contains(&"--lock-servers") {
            // Longer than a rank that lives stands still.
            command.args(["--lock-lease", "60s"]);
        }
        let places: Vec<String> = hosts.iter().map(|host| format!("{host}:{ranks}")).collect();
        let places = places.join(",");
        if is_open_mpi() {
            command.args(["--oversubscribe", "--allow-run-as-root", "--host", &places]);
            command.args(["--mca", "plm_rsh_agent", &self.agent(), "--mca", "plm_rsh_no_tree_spawn", "1"]);
            command.args(["--mca", "oob_tcp_if_include", "node0", "--mca", "btl_tcp_if_include", "node0"]);
            command.env("OMPI_MCA_orte_tmpdir_base", session_folder());
        } else {
            command.args(["-launcher", "rsh", "-launcher-exec", &self.agent(), "-hosts", &places]);
        }
        command.args(["-n", &(ranks * hosts.len()).to_string()]).args(words);
        // What a job leaves that is killed is gone with the folder.
        command.stdin(silence()).env_remove("NACRE_STORE").env("TMPDIR", self.folder.path());
        command
    }

    /// Returns the processes on a node.
    fn processes(&self, node: usize) -> Vec<Pid> {
        let listed = ip(&format!("netns pids {}", self.names[node]));
        listed.lines().filter_map(|line| Pid::from_raw(line.trim().parse().ok()?)).collect()
    }

    /// Returns the lock servers on a node.
    fn servers(&self, node: usize) -> Vec<Pid> {
        let is_server = |process: &Pid| {
            let words = words_of(*process, "cmdline");
            words.get(1).is_some_and(|word| word == "mpirun-node")
        };
        self.processes(node).into_iter().filter(is_server).collect()
    }

    /// Waits until nothing runs on the nodes.
    fn wait_for_silence(&self) {
        let begun = Instant::now();
        loop {
            let left: Vec<Vec<String>> = [0, 1]
                .into_iter()
                .flat_map(|node| self.processes(node))
                .map(|process| words_of(process, "cmdline"))
                .collect();
            if left.is_empty() {
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "processes of the job are left: {left:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        for name in &self.names {
            // What a failed test has left; a namespace takes its devices along.
            let listed = Command::new("ip").args(["netns", "pids", name]).output();
            for line in
                String::from_utf8_lossy(&listed.map(|listed| listed.stdout).unwrap_or_default()).lines()
            {
                if let Some(process) = line.trim().parse().ok().and_then(Pid::from_raw) {
                    let _ = kill_process(process, Signal::KILL);
                }
            }
            let _ = Command::new("ip").args(["netns", "del", name]).status();
        }
    }
}

/// Returns the words or variables of a process; none if it is gone.
fn words_of(process: Pid, file: &str) -> Vec<String> {
    let text = std::fs::read(format!("/proc/{}/{file}", process.as_raw_pid())).unwrap_or_default();
    let words = text.split(|byte| *byte == 0).filter(|word| !word.is_empty());
    words.map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

/// Waits for the end of a job.
fn wait(mut job: Child) -> Output {
    let begun = Instant::now();
    while job.try_wait().unwrap().is_none() {
        if begun.elapsed() > PATIENCE {
            let _ = job.kill();
            panic!("the job does not end: {}", describe(&job.wait_with_output().unwrap()));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    job.wait_with_output().unwrap()
}

/// Runs a job to its end.
fn run(mut job: Command) -> Output {
    wait(job.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
}

/// Starts a job of two ranks on each node that runs until it is ended, and waits until it runs.
fn long_job(nodes: &Nodes) -> Child {
    let file = path(&nodes.folder, "file");
    let program = program("hold.c");
    let words = [program.to_str().unwrap(), &file, "20000"];
    let mut command = nodes.job(&[], &HOSTS, 2, &words);
    let mut job = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(job.stdout.as_mut().unwrap()).lines();
    let first = lines.next();
    if !matches!(&first, Some(Ok(_))) {
        panic!("the job does not begin: {}", describe(&job.wait_with_output().unwrap()));
    }
    job
}

#[test]
fn writes_of_ranks_on_two_nodes_are_not_torn() {
    let nodes = Nodes::new();
    let program = program("tear.c");
    for how in ["write_at", "write_at_all"] {
        let file = path(&nodes.folder, how);
        let words = [program.to_str().unwrap(), &file, how, "10", "1024", "64", "128", "1"];
        let output = run(nodes.job(&[], &HOSTS, 2, &words));
        let text = describe(&output);
        assert!(output.status.success(), "{how}: {text}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "torn 0 of 10\n", "{how}: {text}");
        assert!(!text.contains("nacre: "), "{how}: {text}");
        nodes.wait_for_silence();
    }
}

#[test]
fn each_node_has_a_server_and_no_command_line_shows_the_key() {
    let nodes = Nodes::new();
    let job = long_job(&nodes);
    for node in [0, 1] {
        assert_eq!(nodes.servers(node).len(), 1, "node {node}");
    }
    let variables = words_of(nodes.servers(1)[0], "environ");
    let key = variables.iter().find_map(|variable| variable.strip_prefix("NACRE_MPIIO_KEY=")).unwrap();
    assert_eq!(key.len(), 64);
    for process in [0, 1].into_iter().flat_map(|node| nodes.processes(node)) {
        let words = words_of(process, "cmdline");
        assert!(!words.iter().any(|word| word.contains(key)), "{words:?}");
    }
    kill_process(Pid::from_child(&job), Signal::TERM).unwrap();
    wait(job);
    nodes.wait_for_silence();
}

#[test]
fn a_job_ends_when_a_server_of_its_own_is_killed() {
    for node in [0, 1] {
        let nodes = Nodes::new();
        let job = long_job(&nodes);
        kill_process(nodes.servers(node)[0], Signal::KILL).unwrap();
        let output = wait(job);
        let text = describe(&output);
        assert!(!output.status.success(), "{text}");
        // Ranks may have noticed before, and ended the job.
        nodes.wait_for_silence();
    }
}

#[test]
fn nothing_of_a_job_is_left_when_nacre_mpirun_is_killed() {
    let nodes = Nodes::new();
    let mut job = long_job(&nodes);
    kill_process(Pid::from_child(&job), Signal::KILL).unwrap();
    job.wait().unwrap();
    nodes.wait_for_silence();
}

#[test]
fn a_server_without_its_launcher_ends() {
    let nodes = Nodes::new();
    let job = long_job(&nodes);
    let server = nodes.servers(1)[0];
    // The process that has started it.
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", server.as_raw_pid())).unwrap();
    let parent = stat.rsplit_once(") ").unwrap().1.split(' ').nth(1).unwrap().parse().unwrap();
    kill_process(Pid::from_raw(parent).unwrap(), Signal::KILL).unwrap();
    assert!(!wait(job).status.success());
    nodes.wait_for_silence();
}

#[test]
fn a_job_on_this_node_alone_has_its_server_at_a_socket() {
    let nodes = Nodes::new();
    let words = ["sh", "-c", "echo $NACRE_STORE; echo key:$NACRE_MPIIO_KEY"];
    // Known by its name, and found by the launcher where a variable may add hosts to those of the flags.
    for variable in ["NACRE_TEST", "HYDRA_HOST_FILE"] {
        let mut job = nodes.job(&[], &HOSTS[..1], 1, &words);
        job.env(variable, "/dev/null");
        let output = run(job);
        let text = describe(&output);
        assert!(output.status.success(), "{variable}: {text}");
        assert!(text.contains("\nunix:/") && text.contains("\nkey:\n"), "{variable}: {text}");
    }
}

#[test]
fn servers_that_are_named_take_the_place_of_those_on_the_nodes() {
    let nodes = Nodes::new();
    let script = "echo $NACRE_STORE; echo key:$NACRE_MPIIO_KEY";
    let flags = ["--lock-servers", "nacre://192.0.2.1:6470"];
    let output = run(nodes.job(&flags, &HOSTS, 1, &["sh", "-c", script]));
    let text = describe(&output);
    assert!(output.status.success(), "{text}");
    assert_eq!(text.matches("nacre://192.0.2.1:6470\n").count(), 2, "{text}");
    assert_eq!(text.matches("key:\n").count(), 2, "{text}");
}

#[test]
fn a_node_that_cannot_be_reached_is_a_failure_that_says_so() {
    let nodes = Nodes::new();
    let words = ["sh", "-c", "echo the job runs"];
    // Some versions of MPICH's launcher wait for ever for a node that their agent does not reach.
    for (host, why) in
        [(UNKNOWN, ""), (HANGING, "the launcher has not started nacre on all of them after 2s")]
    {
        let output = run(nodes.job(&["--start-timeout", "2s"], &[HOSTS[0], host], 1, &words));
        let text = describe(&output);
        assert!(!output.status.success() && !text.contains("the job runs"), "{host}: {text}");
        assert!(
            text.contains("nacre: cannot start lock servers on the nodes of the job: "),
            "{host}: {text}"
        );
        assert!(text.contains(why), "{host}: {text}");
        nodes.wait_for_silence();
    }
}
