//! Reflectors and members of the built program.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{PATIENCE, lines, program, wait};

/// A running reflector, which is killed when the test is over.
pub struct Reflector {
    child: Child,
    /// The address that it listens on.
    pub address: SocketAddr,
    /// The line that it printed when it was ready.
    pub ready: Value,
    /// The address of its pages.
    pub http: String,
    /// The address of its administration.
    pub admin: String,
    stderr: Arc<Mutex<String>>,
    /// The folder of its socket, if it has one of its own.
    _folder: Option<tempfile::TempDir>,
}

impl Reflector {
    /// Starts a reflector on a port of its own.
    #[track_caller]
    pub fn start(flags: &[&str]) -> Reflector {
        Reflector::listen("127.0.0.1:0", flags)
    }

    /// Starts a reflector on an address.
    #[track_caller]
    pub fn listen(address: &str, flags: &[&str]) -> Reflector {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Reflector::command(address, flags);
        if !flags.contains(&"--admin") {
            command.arg("--admin").arg(format!("unix:{}", folder.path().join("socket").display()));
        }
        let mut reflector = Reflector::spawn(command);
        reflector._folder = Some(folder);
        reflector
    }

    /// Returns the command that starts a reflector.
    pub fn command(address: &str, flags: &[&str]) -> Command {
        let mut command = program();
        command.args(["--json", "reflect", "serve", "--listen", address, "--log", "info"]);
        if !flags.contains(&"--http") {
            command.args(["--http", "127.0.0.1:0"]);
        }
        if !flags.contains(&"--plane") {
            // Planes are tested elsewhere; here every run uses the same one.
            command.args(["--plane", "batch"]);
        }
        if !flags.contains(&"--heartbeat") {
            // On a busy machine members stand still for longer than games bear, and are in all the same.
            command.args(["--heartbeat", "500ms", "--expiry", "12s"]);
        }
        if !flags.contains(&"--max-age") {
            // A reflector that stood still passes on what has come meanwhile.
            command.args(["--max-age", "600s"]);
        }
        command.args(flags);
        command
    }

    /// Starts a reflector from a command that prints JSON.
    #[track_caller]
    pub fn spawn(mut command: Command) -> Reflector {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let stderr = log(&mut child);
        let lines = lines(child.stdout.take().unwrap());
        let Ok(line) = lines.recv_timeout(PATIENCE) else {
            let _ = child.kill();
            let status = child.wait().unwrap();
            panic!("the reflector did not come up ({status}): {}", stderr.lock().unwrap());
        };
        let ready: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(ready["ready"], true);
        assert_eq!(ready["pid"], child.id());
        let address = ready["addresses"][0].as_str().unwrap().parse().unwrap();
        let http = ready["http"].as_str().unwrap_or_default().to_owned();
        let admin = ready["admin"].as_str().unwrap_or_default().to_owned();
        Reflector { child, address, ready, http, admin, stderr, _folder: None }
    }

    /// Returns the name of a group on its shared port, in the form that members use.
    pub fn group(&self, id: u32) -> String {
        format!("{id}@{}", self.address)
    }

    /// Returns the JSON of one of its pages.
    #[track_caller]
    pub fn get(&self, path: &str) -> Value {
        let (status, body) = http(&self.http, "GET", path, "");
        assert_eq!(status, 200, "{path}: {body}");
        serde_json::from_str(&body).unwrap()
    }

    /// Returns its report on itself.
    #[track_caller]
    pub fn report(&self) -> Value {
        self.get("/groups")["reflector"].clone()
    }

    /// Returns its report on one group on the shared port; null if there is none.
    #[track_caller]
    pub fn group_report(&self, id: u32) -> Value {
        let name = format!("{}/{id}", self.address.port());
        let groups = self.get("/groups");
        groups["groups"]
            .as_array()
            .unwrap()
            .iter()
            .find(|group| group["group"] == name)
            .cloned()
            .unwrap_or(Value::Null)
    }

    /// Waits until the report on a group satisfies a condition, and returns it.
    #[track_caller]
    pub fn until(&self, id: u32, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        until(what, || Some(self.group_report(id)).filter(|report| holds(report)))
    }

    /// Returns the process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Kills it like `kill -9`.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Asks it to stop, and waits until it has.
    #[track_caller]
    pub fn stop(mut self, signal: Signal) -> ExitStatus {
        kill_process(Pid::from_raw(self.child.id() as i32).unwrap(), signal).unwrap();
        wait(&mut self.child, PATIENCE)
    }

    /// Returns its log so far.
    pub fn log(&self) -> String {
        self.stderr.lock().unwrap().clone()
    }

    /// Checks that it has not ended.
    #[track_caller]
    pub fn check_alive(&mut self) {
        let ended = self.child.try_wait().unwrap();
        assert!(ended.is_none(), "the reflector ended with {ended:?}: {}", self.log());
    }
}

impl Drop for Reflector {
    fn drop(&mut self) {
        // It may have been reaped already, in which case this does nothing.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A member: `nacre reflect join --json`.
pub struct Joined {
    child: Child,
    stdin: Option<ChildStdin>,
    events: Receiver<String>,
    stderr: Arc<Mutex<String>>,
}

impl Joined {
    /// Starts a member, and waits until it has joined.
    #[track_caller]
    pub fn join(what: &str, flags: &[&str]) -> Joined {
        let member = Joined::begin(what, flags);
        member.next("joined");
        member
    }

    /// Starts a member.
    #[track_caller]
    pub fn begin(what: &str, flags: &[&str]) -> Joined {
        let mut command = program();
        command.args(["--json", "reflect", "join", what]).args(flags);
        Joined::spawn(command)
    }

    /// Starts a member from a command.
    #[track_caller]
    pub fn spawn(mut command: Command) -> Joined {
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = child.unwrap();
        let stderr = log(&mut child);
        let events = lines(child.stdout.take().unwrap());
        let stdin = child.stdin.take();
        Joined { child, stdin, events, stderr }
    }

    /// Sends a line.
    #[track_caller]
    pub fn say(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().expect("its input is open");
        writeln!(stdin, "{line}").and_then(|()| stdin.flush()).unwrap();
    }

    /// Returns the next event of a kind. Others before it are skipped.
    #[track_caller]
    pub fn next(&self, kind: &str) -> Value {
        self.next_before(kind, &[])
    }

    /// Returns the next event of a kind, before which some others must not come.
    #[track_caller]
    pub fn next_before(&self, kind: &str, unwanted: &[&str]) -> Value {
        let until = Instant::now() + PATIENCE;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let Ok(line) = self.events.recv_timeout(left) else {
                panic!("no event \"{kind}\" came: {}", self.stderr.lock().unwrap());
            };
            let event: Value = serde_json::from_str(&line).unwrap();
            let name = event["event"].as_str().unwrap();
            assert!(!unwanted.contains(&name), "{event} came before \"{kind}\"");
            if name == kind {
                return event;
            }
        }
    }

    /// Returns the text of the next datagram.
    #[track_caller]
    pub fn hear(&self) -> String {
        self.next("datagram")["text"].as_str().unwrap().to_owned()
    }

    /// Returns the process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Closes its standard input, and waits until it has left. Returns its exit code and its remaining output.
    #[track_caller]
    pub fn close(mut self) -> (i32, Vec<Value>) {
        drop(self.stdin.take());
        let code = wait(&mut self.child, PATIENCE).code().expect("a member ends by itself");
        let rest = self.events.iter().map(|line| serde_json::from_str(&line).unwrap()).collect();
        (code, rest)
    }

    /// Waits until it ends by itself, and returns its exit code.
    #[track_caller]
    pub fn ended(&mut self) -> i32 {
        wait(&mut self.child, PATIENCE).code().expect("a member ends by itself")
    }

    /// Sends it a signal.
    #[track_caller]
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.child.id() as i32).unwrap(), signal).unwrap();
    }

    /// Returns its output on standard error so far.
    pub fn log(&self) -> String {
        self.stderr.lock().unwrap().clone()
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn log(child: &mut Child) -> Arc<Mutex<String>> {
    let stderr = Arc::new(Mutex::new(String::new()));
    let (log, errors) = (stderr.clone(), BufReader::new(child.stderr.take().unwrap()));
    std::thread::spawn(move || {
        for line in errors.lines().map_while(Result::ok) {
            log.lock().unwrap().push_str(&format!("{line}\n"));
        }
    });
    stderr
}

/// Returns a port of the loopback address that is free, and that the system gives to nobody who asks for any.
#[track_caller]
pub fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Other processes begin elsewhere. All of them are below the ports that the system gives.
    let begin = std::process::id() % 1000 * 20;
    let found = (0..20_000).find_map(|_| {
        let next = begin + NEXT.fetch_add(1, Ordering::Relaxed);
        let port = 10_000 + (next % 20_000) as u16;
        let (datagrams, connections) =
            (UdpSocket::bind(("127.0.0.1", port)), TcpListener::bind(("127.0.0.1", port)));
        (datagrams.is_ok() && connections.is_ok()).then_some(port)
    });
    found.expect("some port is free")
}

/// Waits until `found` returns a value, and returns that.
#[track_caller]
pub fn until<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(begun.elapsed() < PATIENCE, "{what}: that did not come");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

/// Sends a request to the address of a page. Returns the status and the body.
#[track_caller]
pub fn http(url: &str, method: &str, path: &str, body: &str) -> (u16, String) {
    let host = url.strip_prefix("http://").unwrap().trim_end_matches('/');
    request(url, method, path, &[&format!("Host: {host}")], body)
}

/// Sends a request with additional header fields. Returns the status and the body.
#[track_caller]
pub fn request(url: &str, method: &str, path: &str, fields: &[&str], body: &str) -> (u16, String) {
    let address = url.strip_prefix("http://").unwrap().trim_end_matches('/');
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let (fields, length) = (fields.join("\r\n"), body.len());
    write!(stream, "{method} {path} HTTP/1.0\r\n{fields}\r\nContent-Length: {length}\r\n\r\n{body}").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

/// Moves a location through a daemon's administration.
#[track_caller]
pub fn relocate(admin: &str, location: &str, to: &str) {
    let mut command = program();
    command.args(["reflect", "move", location, "--to", to, "--admin", admin]);
    super::run_with(command, b"").ok();
}
