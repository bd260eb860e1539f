//! Reads on file systems that do not tell what the page cache has: they are answered at once all the same.

use std::path::Path;
use std::process::Command;

use bytes::Bytes;
use nacre_logstore::{LogStore, Options};
use nacre_object::testkit::block_on;
use nacre_object::{Answer, ByteRange, Fork, ObjectId, ObjectStore, Outcome, Reply, StoreError, Transaction};

/// The variable that names the folder to a test that runs again in a namespace of its own.
const FOLDER: &str = "NACRE_TEST_FOLDER";
const BLOCK_BYTES: u64 = 4096;
const BLOCKS: u64 = 1000;

/// Runs a test of this program again, in a mount namespace in which `script` has mounted a file system on `$1/mount`.
fn run_in_namespace(test: &str, script: &str) {
    let root = rustix::process::geteuid().is_root();
    assert!(root, "this test mounts file systems: run it as root, in a container for example");
    let folder = tempfile::tempdir().unwrap();
    let script = format!("mkdir \"$1/mount\" && {script} && shift && exec \"$@\"");
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &script, "sh"]).arg(folder.path());
    command.arg(std::env::current_exe().unwrap()).args(["--exact", test, "--nocapture"]);
    let ended =
        command.env(FOLDER, folder.path().join("mount")).output().expect("unshare; apt install util-linux");
    let shown = String::from_utf8_lossy(&ended.stdout);
    let errors = String::from_utf8_lossy(&ended.stderr);
    assert!(
        ended.status.success() && shown.contains("1 passed"),
        "in a mount namespace, for which this needs CAP_SYS_ADMIN: {shown}\n{errors}"
    );
}

fn data(block: u64) -> Bytes {
    vec![block as u8; BLOCK_BYTES as usize].into()
}

fn write(store: &LogStore, object: &ObjectId) {
    for block in 0..BLOCKS {
        let write = Transaction::new().write(Fork::DEFAULT, block * BLOCK_BYTES, data(block));
        block_on(store.apply(object, write)).unwrap();
    }
}

fn check(block: u64, result: Result<Outcome, StoreError>) {
    let Outcome::Done(mut done) = result.unwrap() else { panic!("there is no guard") };
    assert!(matches!(done.answers.pop(), Some(Answer::Range(read)) if read.data == data(block)));
}

/// Reads all blocks; returns how many were there at once.
fn read(store: &LogStore, object: &ObjectId) -> u64 {
    let mut at_once = 0;
    for block in 0..BLOCKS {
        let range = ByteRange::new(block * BLOCK_BYTES, BLOCK_BYTES);
        let reply = store.apply(object, Transaction::new().read_range(Fork::DEFAULT, range));
        at_once += u64::from(matches!(reply, Reply::Ready(_)));
        check(block, block_on(reply));
    }
    at_once
}

/// Returns how many reads of what was written are answered at once, before and after the store is opened again.
fn write_and_read(folder: &Path) -> [u64; 2] {
    let object = ObjectId::try_from("object").unwrap();
    let store = LogStore::open(folder, Options::default()).unwrap();
    write(&store, &object);
    let before = read(&store, &object);
    store.close().unwrap();
    drop(store);
    // What nobody has used since the store was opened is read by those who may wait, and is known from then on.
    let store = LogStore::open(folder, Options::default()).unwrap();
    read(&store, &object);
    [before, read(&store, &object)]
}

#[test]
fn reads_on_tmpfs_never_wait() {
    match std::env::var_os(FOLDER) {
        Some(folder) => assert_eq!(write_and_read(Path::new(&folder)), [BLOCKS; 2]),
        None => run_in_namespace("reads_on_tmpfs_never_wait", "mount -t tmpfs none \"$1/mount\""),
    }
}

#[test]
fn reads_on_overlayfs_do_not_wait_for_what_was_used_before() {
    match std::env::var_os(FOLDER) {
        // A read that is interrupted for long enough is taken for one that has waited, and then the next are not answered at once. On a
        // busy machine that may happen again and again.
        Some(folder) => {
            let mut found = Vec::new();
            let are_enough = (0..10).any(|attempt| {
                let store = Path::new(&folder).join(attempt.to_string());
                std::fs::create_dir(&store).unwrap();
                let at_once = write_and_read(&store);
                found.push(at_once);
                at_once.iter().all(|count| *count >= BLOCKS / 2)
            });
            assert!(are_enough, "of {BLOCKS} reads were answered at once: {found:?}");
        }
        None => run_in_namespace(
            "reads_on_overlayfs_do_not_wait_for_what_was_used_before",
            "mkdir \"$1/lower\" \"$1/upper\" \"$1/work\" && \
             mount -t overlay none -o \"lowerdir=$1/lower,upperdir=$1/upper,workdir=$1/work\" \"$1/mount\"",
        ),
    }
}
