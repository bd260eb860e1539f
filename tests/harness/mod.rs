//! The built program under test: servers that end with the test that started them, and commands that cannot hang.
//!
//! Servers listen on Unix sockets in folders of their own, or on ports that the system chooses. Only processes that
//! were started here are ended, by their ids.

// Every test file uses its own part of this module.
#![allow(dead_code)]

pub mod reflect;
pub mod talk;
pub mod tree;

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixListener;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// The time after which a command is considered to hang.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// Returns the program under test, with an environment that names no store.
pub fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nacre"));
    command.env_remove("NACRE_STORE").env_remove("NACRE_KEY").stdin(Stdio::null());
    // The user's own server must not be found either, should there be one.
    command.env("XDG_RUNTIME_DIR", nowhere());
    command
}

/// Returns a runtime folder without servers, for all tests of a process.
fn nowhere() -> &'static Path {
    static FOLDER: OnceLock<tempfile::TempDir> = OnceLock::new();
    FOLDER.get_or_init(folder).path()
}

/// The result of a command.
pub struct Ended {
    pub code: i32,
    pub stdout: Vec<u8>,
    pub stderr: String,
}

impl std::fmt::Debug for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shown = String::from_utf8_lossy(&self.stdout[..self.stdout.len().min(4096)]);
        write!(f, "exit code {}, stdout:\n{shown}\nstderr:\n{}", self.code, self.stderr)
    }
}

impl Ended {
    /// Checks that it succeeded, and returns its output.
    #[track_caller]
    pub fn ok(self) -> Vec<u8> {
        assert_eq!(self.code, 0, "{self:?}");
        assert_eq!(self.stderr, "", "a command that goes well says nothing on standard error");
        self.stdout
    }

    /// Checks that it succeeded, and returns its output as text, without the last line's end.
    #[track_caller]
    pub fn text(self) -> String {
        String::from_utf8(self.ok()).unwrap().trim_end().to_owned()
    }

    /// Checks that it succeeded, and returns its output as JSON.
    #[track_caller]
    pub fn json(self) -> Value {
        serde_json::from_slice(&self.ok()).unwrap()
    }

    /// Checks that it failed with a code and a message of one line that contains all of these parts, and returns its
    /// standard output.
    #[track_caller]
    pub fn failed(self, code: i32, parts: &[&str]) -> String {
        assert_eq!(self.code, code, "{self:?}");
        assert_eq!(self.stderr.lines().count(), 1, "{self:?}");
        assert!(self.stderr.starts_with("nacre: "), "{self:?}");
        for part in parts {
            assert!(self.stderr.contains(part), "\"{part}\" is not in {self:?}");
        }
        String::from_utf8(self.stdout).unwrap()
    }
}

/// Runs a command to its end, with the given standard input.
#[track_caller]
pub fn run_with(mut command: Command, input: &[u8]) -> Ended {
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    // A command that does not read its input closes it, which is not an error here.
    let writer = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let stdout = collect(child.stdout.take().unwrap());
    let stderr = collect(child.stderr.take().unwrap());
    let status = wait(&mut child, PATIENCE);
    writer.join().unwrap();
    Ended {
        code: status.code().expect("the command ends by itself, not by a signal"),
        stdout: stdout.join().unwrap(),
        stderr: String::from_utf8(stderr.join().unwrap()).unwrap(),
    }
}

/// Checks the exit code of a command whose output nobody reads, and that it says nothing.
#[track_caller]
pub fn unread(command: &mut Command, code: i32) {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let stderr = collect(child.stderr.take().unwrap());
    let status = wait(&mut child, PATIENCE);
    let stderr = String::from_utf8(stderr.join().unwrap()).unwrap();
    assert_eq!((status.code(), stderr.as_str()), (Some(code), ""), "{command:?}");
}

/// Checks the exit code of a command whose output is written to a full device, and that it says so.
#[track_caller]
pub fn unwritten(command: &mut Command, code: i32) {
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let mut child = command.stdout(full).stderr(Stdio::piped()).spawn().unwrap();
    let stderr = collect(child.stderr.take().unwrap());
    let status = wait(&mut child, PATIENCE);
    let stderr = String::from_utf8(stderr.join().unwrap()).unwrap();
    assert_eq!(status.code(), Some(code), "{command:?}: {stderr}");
    assert!(
        stderr.starts_with("nacre: cannot write to standard output: No space left"),
        "{command:?}: {stderr}"
    );
}

fn collect(mut stream: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        bytes
    })
}

/// Waits for the end of a process, which is killed, failing the test, if that takes too long.
#[track_caller]
pub fn wait(child: &mut Child, patience: Duration) -> ExitStatus {
    // One that was found ended before has been reaped.
    if let Some(status) = child.try_wait().unwrap() {
        return status;
    }
    let pid = pid(child);
    let (done, waiting) = mpsc::channel::<()>();
    let watchdog = std::thread::spawn(move || {
        let late = waiting.recv_timeout(patience) == Err(mpsc::RecvTimeoutError::Timeout);
        if late {
            // Until it is reaped, the process id cannot be reused.
            kill_process(pid, Signal::KILL).unwrap();
        }
        late
    });
    // The process is reaped only after the watchdog has ended, so that the watchdog never kills another one.
    rustix::process::waitid(
        rustix::process::WaitId::Pid(pid),
        rustix::process::WaitIdOptions::EXITED | rustix::process::WaitIdOptions::NOWAIT,
    )
    .unwrap();
    drop(done);
    let late = watchdog.join().unwrap();
    let status = child.wait().unwrap();
    assert!(!late, "process {pid:?} did not end within {patience:?}");
    status
}

/// Sends a signal to a process, unless it has ended.
pub fn send(child: &mut Child, signal: Signal) {
    // Until it is found ended here, it is not reaped, and nobody else has its process id.
    if child.try_wait().unwrap().is_none() {
        kill_process(pid(child), signal).unwrap();
    }
}

/// The memory of a process without that of files, such as the pages of its program, which come and go.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// The bytes that it has now.
    pub now_bytes: u64,
    /// The most bytes that it has had.
    pub peak_bytes: u64,
}

impl Memory {
    /// Returns the memory of a process; `None` once it has ended.
    pub fn of(pid: u32) -> Option<Memory> {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let bytes = |field: &str| {
            let text = status.lines().find_map(|line| line.strip_prefix(field))?;
            text.trim().strip_suffix(" kB")?.parse::<u64>().ok().map(|kib| kib << 10)
        };
        let peak_bytes = bytes("VmHWM:")?.saturating_sub(bytes("RssFile:")?);
        Some(Memory { now_bytes: bytes("RssAnon:")?, peak_bytes })
    }
}

/// Returns the exit code of a process as a shell shows it: 128 and its number for one that a signal ended.
#[track_caller]
pub fn shell_code(status: ExitStatus) -> i32 {
    status.code().or(status.signal().map(|signal| 128 + signal)).expect("the process has ended")
}

/// Sends a process a signal. If it is that to stop, waits until all of its threads have.
#[track_caller]
pub fn signal_process(child: &Child, signal: Signal) {
    kill_process(pid(child), signal).unwrap();
    if signal != Signal::STOP {
        return;
    }
    let tasks = format!("/proc/{}/task", child.id());
    let is_stopped = |task: std::fs::DirEntry| {
        let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        // The state follows the name, which is in brackets.
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
    };
    while !std::fs::read_dir(&tasks).unwrap().all(|task| is_stopped(task.unwrap())) {
        std::thread::yield_now();
    }
}

fn pid(child: &Child) -> Pid {
    Pid::from_raw(child.id() as i32).unwrap()
}

/// A server, which is killed when the test is over.
pub struct Server {
    child: Child,
    /// The uri by which clients name it.
    pub uri: String,
    /// The address of its metrics.
    pub metrics: Option<String>,
    /// The line that it printed when it was ready.
    pub ready: Value,
    stderr: Arc<Mutex<String>>,
    /// The folder of its socket, if it has one of its own.
    _folder: Option<tempfile::TempDir>,
}

impl Server {
    /// Starts a server in memory on a socket of its own.
    #[track_caller]
    pub fn in_memory() -> Server {
        Server::start("mem:", &[])
    }

    /// Starts a server on a socket of its own.
    #[track_caller]
    pub fn start(store: &str, flags: &[&str]) -> Server {
        let folder = tempfile::tempdir().unwrap();
        let address = format!("unix:{}", folder.path().join("socket").display());
        let mut server = Server::listen(&address, store, flags);
        server._folder = Some(folder);
        server
    }

    /// Starts a server on an address; one that others can reach is open, unless there is a key.
    #[track_caller]
    pub fn listen(address: &str, store: &str, flags: &[&str]) -> Server {
        let mut command = program();
        command.args(["--json", "serve", "--store", store, "--listen", address, "--log", "warn"]).args(flags);
        if !address.starts_with("unix:") && !flags.contains(&"--key") {
            command.arg("--open");
        }
        Server::spawn(command)
    }

    /// Starts servers that keep a store together, one for each folder or `mem:`, on sockets in a folder. Returns them
    /// and their common uri.
    #[track_caller]
    pub fn together(folder: &Path, stores: &[&str], flags: &[&str]) -> (Vec<Server>, String) {
        let addresses: Vec<String> = (0..stores.len())
            .map(|index| format!("unix:{}", folder.join(format!("socket-{index}")).display()))
            .collect();
        let members = addresses.join(",");
        // Objects are counted in many tests; those of the cluster appear where a test asks for them.
        let quiet: &[&str] = if flags.contains(&"--beacons") { &[] } else { &["--beacons", "none"] };
        let start = |(store, address): (&&str, &String)| {
            Server::listen(address, store, &[&["--members", &members], quiet, flags].concat())
        };
        let servers = stores.iter().zip(&addresses).map(start).collect();
        (servers, format!("nacre://{members}"))
    }

    /// Starts a server from a command that prints JSON.
    #[track_caller]
    pub fn spawn(mut command: Command) -> Server {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let stderr = Arc::new(Mutex::new(String::new()));
        let (log, errors) = (stderr.clone(), BufReader::new(child.stderr.take().unwrap()));
        std::thread::spawn(move || {
            for line in errors.lines().map_while(Result::ok) {
                log.lock().unwrap().push_str(&format!("{line}\n"));
            }
        });
        let lines = lines(child.stdout.take().unwrap());
        let Ok(line) = lines.recv_timeout(PATIENCE) else {
            // Its last output may still be on its way.
            let _ = child.kill();
            let status = child.wait().unwrap();
            panic!("the server did not come up ({status}): {}", stderr.lock().unwrap());
        };
        let ready: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(ready["ready"], true);
        assert_eq!(ready["pid"], child.id());
        let uri = ready["addresses"][0].as_str().unwrap().to_owned();
        let metrics = ready["metrics"].as_str().map(str::to_owned);
        Server { child, uri, metrics, ready, stderr, _folder: None }
    }

    /// Returns a command for this server.
    pub fn command<S: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = S>) -> Command {
        let mut command = program();
        command.env("NACRE_STORE", &self.uri).args(words);
        command
    }

    /// Runs a command on this server.
    #[track_caller]
    pub fn run<S: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = S>) -> Ended {
        run_with(self.command(words), b"")
    }

    /// Runs a command on this server, with the given standard input.
    #[track_caller]
    pub fn run_with<S: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = S>, input: &[u8]) -> Ended {
        run_with(self.command(words), input)
    }

    /// Returns its memory.
    #[track_caller]
    pub fn memory(&self) -> Memory {
        Memory::of(self.child.id()).expect("the server runs")
    }

    /// Kills it like `kill -9`.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Asks it to stop, like `kill` or Ctrl-C, and waits until it has.
    #[track_caller]
    pub fn stop(mut self, signal: Signal) -> ExitStatus {
        kill_process(pid(&self.child), signal).unwrap();
        wait(&mut self.child, PATIENCE)
    }

    /// Sends it a signal. If it is that to stop, waits until all of its threads have.
    #[track_caller]
    pub fn signal(&self, signal: Signal) {
        signal_process(&self.child, signal);
    }

    /// Returns its log so far.
    pub fn log(&self) -> String {
        self.stderr.lock().unwrap().clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have been reaped already, in which case this does nothing.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The place of a server that is away: clients that connect are turned away.
pub struct Absent {
    listener: UnixListener,
    path: PathBuf,
}

impl Absent {
    /// Takes the place of a server that has ended, at a Unix socket.
    #[track_caller]
    pub fn at(address: &str) -> Absent {
        let path = PathBuf::from(address.strip_prefix("unix:").unwrap());
        // A server that was killed leaves its socket.
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        listener.set_nonblocking(true).unwrap();
        Absent { listener, path }
    }

    /// Waits until a client connects, and turns it away.
    #[track_caller]
    pub fn turn_away(&self) {
        let begun = Instant::now();
        while self.listener.accept().is_err() {
            assert!(begun.elapsed() < PATIENCE, "nobody tries to reach the server");
            std::thread::yield_now();
        }
    }
}

impl Drop for Absent {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Runs commands on a server that is away, and starts it when they have tried to reach it. Returns the server, and what became of
/// the commands.
#[track_caller]
pub fn run_while_away(address: &str, store: &str, commands: &[&[&str]]) -> (Server, Vec<Ended>) {
    fn run(address: &str, words: &[&str]) -> Ended {
        let mut command = program();
        command.env("NACRE_STORE", format!("{address}?repeat_timeout=60s")).args(words);
        run_with(command, b"from standard input")
    }
    let absent = Absent::at(address);
    std::thread::scope(|scope| {
        let running: Vec<_> = commands.iter().map(|words| scope.spawn(move || run(address, words))).collect();
        commands.iter().for_each(|_| absent.turn_away());
        drop(absent);
        let server = Server::listen(address, store, &[]);
        (server, running.into_iter().map(|command| command.join().unwrap()).collect())
    })
}

/// Runs tests that wait more than they compute beside each other, however few processors there are.
#[track_caller]
pub fn side_by_side(tests: &[fn()]) {
    let failed = std::thread::scope(|scope| {
        let threads: Vec<_> = tests.iter().map(|test| scope.spawn(*test)).collect();
        threads.into_iter().filter_map(|thread| thread.join().err()).count()
    });
    assert_eq!(failed, 0, "so many of these tests failed, as said above");
}

fn lines(stream: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    receiver
}

/// Creates a folder that is removed after the test, unless NACRE_KEEP is set: then it is kept for inspection.
pub fn folder() -> tempfile::TempDir {
    let mut folder = tempfile::tempdir().unwrap();
    if std::env::var_os("NACRE_KEEP").is_some() {
        folder.disable_cleanup(true);
        println!("kept: {}", folder.path().display());
    }
    folder
}

/// Returns a store uri for a folder.
pub fn file(path: &Path) -> String {
    format!("file:{}", path.display())
}

/// Random numbers from a seed (SplitMix64), so that a failing run can be repeated.
pub struct Random(pub u64);

impl Random {
    /// Takes the seed from NACRE_SEED, or a fresh one, and prints it, so that it is shown with a failure.
    pub fn from_environment() -> Random {
        let seed = match std::env::var("NACRE_SEED") {
            Ok(text) => text.parse().expect("NACRE_SEED is a number"),
            Err(_) => std::process::id() as u64 ^ std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64,
        };
        println!("NACRE_SEED={seed}");
        Random(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// Checks a stream on a store: many ranks write one checkpoint, which is fetched, truncated, replaced and removed.
pub fn check_stream(uri: &str) {
    // One checkpoint of many ranks, each with a handle of its own, which write parts of their own in no order.
    const RANKS: usize = 40;
    const PART: usize = 96 << 10;
    let part =
        |rank: usize| -> Vec<u8> { (0..PART).map(|at| (at * 31 + rank * 7 + at / 251) as u8).collect() };
    let layout = nacre::stream::Layout { unit_bytes: 64 << 10, width: 6, object_bytes: 256 << 10 };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let open = || nacre::open(uri).unwrap().stream("checkpoint").unwrap();
        assert!(open().create(layout).await.unwrap());
        let ranks: Vec<_> = (0..RANKS)
            .map(|rank| {
                let (stream, data) = (open(), part(rank * 17 % RANKS));
                tokio::spawn(async move { stream.write((rank * 17 % RANKS * PART) as u64, data).await })
            })
            .collect();
        for rank in ranks {
            rank.await.unwrap().unwrap();
        }
        let mut all = Vec::new();
        open().get(nacre::ByteRange::ALL, &mut all).await.unwrap();
        let expected: Vec<u8> = (0..RANKS).flat_map(part).collect();
        assert!(all == expected);
        // A put replaces the checkpoint as a whole, and a removal leaves nothing.
        open().truncate(100_000).await.unwrap();
        open().write(300_000, "end").await.unwrap();
        let mut shorter = expected[..100_000].to_vec();
        shorter.resize(300_000, 0);
        shorter.extend(b"end");
        assert!(open().read(0, 1 << 20).await.unwrap() == shorter);
        open().put(&expected[..3 * PART]).await.unwrap();
        assert!(open().read(0, 1 << 20).await.unwrap() == expected[..3 * PART]);
        assert!(open().remove().await.unwrap());
        assert!(nacre::open(uri).unwrap().list().next().await.unwrap().is_none());
    });
}
