//! Reflectors and members of the built program.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{PATIENCE, lines, program, wait};

/// A running reflector, which is killed when the test is over.
pub struct Reflector {
    child: Child,
    /// Where it listens.
    pub address: SocketAddr,
    /// What it said when it was ready.
    pub ready: Value,
    /// The address of its pages.
    pub http: String,
    /// The address at which it takes orders.
    pub admin: String,
    stderr: Arc<Mutex<String>>,
    /// The folder of its socket, if it was given one of its own.
    _folder: Option<tempfile::TempDir>,
}

impl Reflector {
    /// Starts one on a port of its own.
    #[track_caller]
    pub fn start(flags: &[&str]) -> Reflector {
        Reflector::listen("127.0.0.1:0", flags)
    }

    /// Starts one on an address.
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

    /// What would start it.
    pub fn command(address: &str, flags: &[&str]) -> Command {
        let mut command = program();
        command.args(["--json", "reflect", "serve", "--listen", address, "--log", "info"]);
        if !flags.contains(&"--http") {
            command.args(["--http", "127.0.0.1:0"]);
        }
        if !flags.contains(&"--plane") {
            // Planes are tried where they are tested; here every run takes the same way.
            command.args(["--plane", "batch"]);
        }
        command.args(flags);
        command
    }

    /// Starts one by a command that prints JSON.
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

    /// A group on its shared port, as members name it.
    pub fn group(&self, id: u32) -> String {
        format!("{id}@{}", self.address)
    }

    /// The JSON of one of its pages.
    #[track_caller]
    pub fn get(&self, path: &str) -> Value {
        let (status, body) = http(&self.http, "GET", path, "");
        assert_eq!(status, 200, "{path}: {body}");
        serde_json::from_str(&body).unwrap()
    }

    /// What it says of all of itself.
    #[track_caller]
    pub fn report(&self) -> Value {
        self.get("/groups")["reflector"].clone()
    }

    /// What it says of one group on the shared port; null if there is none.
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

    /// Waits until a group is as it should be.
    #[track_caller]
    pub fn until(&self, id: u32, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        until(what, || Some(self.group_report(id)).filter(|report| holds(report)))
    }

    /// The process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Kills it as `kill -9` does.
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

    /// What it logged so far.
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
        // It may have been waited for already; then its id is known to be gone, and this does nothing.
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
    /// Joins, and waits until it has.
    #[track_caller]
    pub fn join(what: &str, flags: &[&str]) -> Joined {
        let member = Joined::begin(what, flags);
        member.next("joined");
        member
    }

    /// Begins to join.
    #[track_caller]
    pub fn begin(what: &str, flags: &[&str]) -> Joined {
        let mut command = program();
        command.args(["--json", "reflect", "join", what]).args(flags);
        Joined::spawn(command)
    }

    /// Begins to join by a command.
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

    /// The next event of a kind. Others before it are passed over.
    #[track_caller]
    pub fn next(&self, kind: &str) -> Value {
        self.next_before(kind, &[])
    }

    /// The next event of a kind, before which some others must not come.
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

    /// The text of the next datagram.
    #[track_caller]
    pub fn hear(&self) -> String {
        self.next("datagram")["text"].as_str().unwrap().to_owned()
    }

    /// The process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Closes its standard input, and waits until it has left. Gives its exit code, and what it still printed.
    #[track_caller]
    pub fn close(mut self) -> (i32, Vec<Value>) {
        drop(self.stdin.take());
        let code = wait(&mut self.child, PATIENCE).code().expect("a member ends by itself");
        let rest = self.events.iter().map(|line| serde_json::from_str(&line).unwrap()).collect();
        (code, rest)
    }

    /// Waits until it ends by itself.
    #[track_caller]
    pub fn ended(&mut self) -> i32 {
        wait(&mut self.child, PATIENCE).code().expect("a member ends by itself")
    }

    /// Sends it a signal.
    #[track_caller]
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.child.id() as i32).unwrap(), signal).unwrap();
    }

    /// What it said on standard error.
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

/// Waits until something is there.
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

/// Sends a request to the address of a page. Gives the status and the body.
#[track_caller]
pub fn http(url: &str, method: &str, path: &str, body: &str) -> (u16, String) {
    let host = url.strip_prefix("http://").unwrap().trim_end_matches('/');
    request(url, method, path, &[&format!("Host: {host}")], body)
}

/// The same with header fields of the caller's own.
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

/// Has a daemon move a location.
#[track_caller]
pub fn relocate(admin: &str, location: &str, to: &str) {
    let mut command = program();
    command.args(["reflect", "move", location, "--to", to, "--admin", admin]);
    super::run_with(command, b"").ok();
}
