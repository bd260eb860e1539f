//! A throw-away Ceph cluster for tests, by `scripts/ceph`: started for the first test that wants it, stopped when the
//! last one is done with it, and in any case when the test program ends.

#![allow(dead_code, reason = "each test program uses a part of this")]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use nacre_object::testkit::block_on;
use nacre_rados::RadosStore;

/// A cluster that runs.
pub struct Cluster {
    dir: PathBuf,
    uri: String,
}

impl Cluster {
    /// Returns the cluster that the tests of one program share: objects in memory.
    pub fn shared() -> Arc<Cluster> {
        static SHARED: Mutex<Weak<Cluster>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(cluster) = shared.upgrade() {
            return cluster;
        }
        // One that nobody uses any more may still be stopping, in the folder that it has.
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let cluster = Arc::new(Self::start(&format!("shared{number}"), &[]));
        *shared = Arc::downgrade(&cluster);
        cluster
    }

    /// Starts a cluster for one test.
    pub fn start(name: &str, arguments: &[&str]) -> Cluster {
        let program = std::env::current_exe().unwrap();
        let program = program.file_stem().unwrap().to_string_lossy().into_owned();
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("ceph-{program}-{name}"));
        let pid = std::process::id().to_string();
        let mut all = vec!["--with", &pid];
        all.extend(arguments);
        let output = script(&dir, "start", &all);
        let uri = String::from_utf8(output.stdout).unwrap().trim().to_string();
        assert!(uri.starts_with("rados://"), "scripts/ceph start printed {uri:?}");
        Cluster { dir, uri }
    }

    /// Returns the uri of the pool, as the user with the least capabilities, in a namespace of its own. An operation may
    /// take very long where the machine has much else to do.
    pub fn uri(&self, namespace: &str) -> String {
        format!("{}&ns={namespace}-{:08x}&timeout_ms=300000", self.uri, rand::random::<u32>())
    }

    /// Opens a store in a namespace of its own.
    pub fn open(&self, namespace: &str) -> RadosStore {
        open(&self.uri(namespace))
    }

    /// Runs a command of `scripts/ceph` on this cluster.
    pub fn script(&self, command: &str, arguments: &[&str]) -> String {
        String::from_utf8(script(&self.dir, command, arguments).stdout).unwrap()
    }

    /// Runs Ceph's own `ceph` as the administrator.
    pub fn ceph(&self, arguments: &[&str]) -> String {
        self.script("cli", &[&["--"], arguments].concat())
    }

    /// Runs Ceph's own `rados` as the administrator.
    pub fn rados(&self, arguments: &[&str]) -> String {
        self.script("rados", &[&["--"], arguments].concat())
    }

    /// Runs Ceph's own `rados` as the administrator, and returns its output as bytes.
    pub fn rados_bytes(&self, arguments: &[&str]) -> Vec<u8> {
        script(&self.dir, "rados", &[&["--"], arguments].concat()).stdout
    }

    /// Runs Ceph's own `rados` as the administrator, on a uri's namespace and with something on its standard input.
    pub fn rados_in(&self, uri: &str, arguments: &[&str], input: &[u8]) -> Vec<u8> {
        let mut process = Command::new(path())
            .args(["rados", "--dir"])
            .arg(&self.dir)
            .args(["--", "-p", "nacre", "-N", namespace(uri)])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        process.stdin.take().unwrap().write_all(input).unwrap();
        let output = process.wait_with_output().unwrap();
        assert!(output.status.success(), "rados {arguments:?}");
        output.stdout
    }

    /// Returns the output of `ceph osd map` for an object.
    fn map(&self, uri: &str, object: &str) -> String {
        let name = format!("nacre.{object}");
        self.ceph(&["osd", "map", "nacre", &name, namespace(uri), "-f", "json"])
    }

    /// Returns the OSD that is an object's primary.
    pub fn primary(&self, uri: &str, object: &str) -> String {
        let map = self.map(uri, object);
        map.split("\"acting_primary\":").nth(1).unwrap().trim_end_matches(['}', '\n']).to_string()
    }

    /// Returns true once an object's placement group has all its replicas and nothing more to settle. Until then its
    /// primary may still need the monitor: to be confirmed as such, or to hand over to the OSD that came back.
    pub fn is_settled(&self, uri: &str, object: &str) -> bool {
        let map = self.map(uri, object);
        let field = |key: &str, end: char| {
            let value = map.split(&format!("\"{key}\":")).nth(1).unwrap();
            value[..value.find(end).unwrap()].trim_matches(['"', '[']).to_string()
        };
        let (up, acting) = (field("up", ']'), field("acting", ']'));
        up == acting
            && up.split(',').count() == 3
            && self.ceph(&["tell", &field("pgid", ','), "query"]).contains("\"state\": \"active+clean\"")
    }

    /// Kills an OSD.
    pub fn stop_osd(&self, osd: &str) {
        self.script("osd-stop", &[osd]);
    }

    /// Brings an OSD back, and waits until all are up.
    pub fn start_osd(&self, osd: &str) {
        self.script("osd-start", &[osd]);
        wait_until("the OSD is back", || {
            self.ceph(&["osd", "stat", "-f", "json"]).contains("\"num_up_osds\":3")
        });
    }

    /// Returns the folder with the configuration and the keys.
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        run(&self.dir, "stop", &[]);
    }
}

/// Waits for something that must come about. The limit only ends a test that would hang.
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let from = Instant::now();
    while !holds() {
        assert!(from.elapsed() < Duration::from_secs(300), "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Returns the namespace that a uri names.
pub fn namespace(uri: &str) -> &str {
    uri.split("ns=").nth(1).unwrap().split('&').next().unwrap()
}

/// Opens a store.
pub fn open(uri: &str) -> RadosStore {
    block_on(RadosStore::open(uri)).unwrap()
}

fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/ceph")
}

fn run(dir: &Path, command: &str, arguments: &[&str]) -> Output {
    let mut process = Command::new(path());
    process.arg(command).arg("--dir").arg(dir).args(arguments);
    process.output().expect("scripts/ceph, which needs bash")
}

fn script(dir: &Path, command: &str, arguments: &[&str]) -> Output {
    let output = run(dir, command, arguments);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "scripts/ceph {command} {arguments:?} failed:\n{said}");
    output
}
