//! A throw-away Ceph cluster for tests, by `scripts/ceph`: started for the first test that wants it, stopped when the
//! last one is done with it, and in any case when the test program ends.

#![allow(dead_code, reason = "each test program uses a part of this")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use nacre_object::testkit::block_on;
use nacre_rados::RadosStore;

/// A cluster that runs.
pub struct Cluster {
    dir: PathBuf,
    uri: String,
}

impl Cluster {
    /// The cluster that the tests of one program share: objects in memory.
    pub fn shared() -> Arc<Cluster> {
        static SHARED: Mutex<Weak<Cluster>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(cluster) = shared.upgrade() {
            return cluster;
        }
        let cluster = Arc::new(Self::start("shared", &[]));
        *shared = Arc::downgrade(&cluster);
        cluster
    }

    /// A cluster for one test.
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

    /// The uri of the pool, as the user with the least capabilities, in a namespace that nobody used before.
    pub fn uri(&self, namespace: &str) -> String {
        format!("{}&ns={namespace}-{:08x}", self.uri, rand::random::<u32>())
    }

    /// Opens a store in a namespace that nobody used before.
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

    /// The same, where it prints bytes.
    pub fn rados_bytes(&self, arguments: &[&str]) -> Vec<u8> {
        script(&self.dir, "rados", &[&["--"], arguments].concat()).stdout
    }

    /// The folder with the configuration and the keys.
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        run(&self.dir, "stop", &[]);
    }
}

/// Opens a store.
pub fn open(uri: &str) -> RadosStore {
    block_on(RadosStore::open(uri)).unwrap()
}

fn run(dir: &Path, command: &str, arguments: &[&str]) -> Output {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/ceph");
    let mut process = Command::new(script);
    process.arg(command).arg("--dir").arg(dir).args(arguments);
    process.output().expect("scripts/ceph, which needs bash")
}

fn script(dir: &Path, command: &str, arguments: &[&str]) -> Output {
    let output = run(dir, command, arguments);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "scripts/ceph {command} {arguments:?} failed:\n{said}");
    output
}
