//! Access to a store: other users of the same machine, foreign files, reads that must leave no trace, and the checks
//! that a server is the right one.

mod harness;

use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use harness::reflect::free_port;
use harness::{Ended, PATIENCE, Server, file, folder, program, run_with};
use rustix::process::Signal;

/// A user that owns nothing.
const NOBODY: u32 = 65534;

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o777
}

#[track_caller]
fn nacre(words: &[&str]) -> Ended {
    let mut command = program();
    command.args(words);
    run_with(command, b"")
}

/// The program as another user can run it: a link to it, or a copy, in a folder that is open to everybody.
struct Second(tempfile::TempDir);

impl Second {
    fn user() -> Second {
        let root = rustix::process::geteuid().is_root();
        assert!(root, "this test runs the program as a second user: run it as root");
        let folder = tempfile::tempdir().unwrap();
        set_mode(folder.path(), 0o755);
        let target = folder.path().join("nacre");
        let source = env!("CARGO_BIN_EXE_nacre");
        if fs::hard_link(source, &target).is_err() {
            fs::copy(source, &target).unwrap();
        }
        set_mode(&target, 0o755);
        Second(folder)
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(self.0.path().join("nacre"));
        command.env_clear().current_dir("/").uid(NOBODY).gid(NOBODY).args(words);
        command
    }

    #[track_caller]
    fn run(&self, words: &[&str]) -> Ended {
        run_with(self.command(words), b"")
    }
}

/// Creates a folder that is open to everybody.
fn public_folder() -> tempfile::TempDir {
    let folder = folder();
    set_mode(folder.path(), 0o755);
    folder
}

#[test]
fn a_server_is_its_users_own_and_found_without_being_named() {
    let runtime = folder();
    let here = |words: &[&str]| {
        let mut command = program();
        command.env("XDG_RUNTIME_DIR", runtime.path()).args(words);
        command
    };
    let socket = runtime.path().join("nacre/server.sock");
    let uri = format!("unix:{}", socket.display());
    run_with(here(&["ls"]), b"").failed(1, &[&uri, "nacre serve"]);

    let server = Server::spawn(here(&["serve", "--json", "--store", "mem:", "--metrics", "none"]));
    assert_eq!(server.uri, uri, "it listens nowhere else");
    assert_eq!((mode(socket.parent().unwrap()), mode(&socket)), (0o700, 0o600));
    run_with(here(&["write", "a", "x"]), b"").ok();
    assert_eq!(run_with(here(&["read", "a"]), b"").ok(), b"x");
    // A second server of the same user is told of the first, and does not replace it.
    run_with(here(&["serve", "--store", "mem:", "--metrics", "none"]), b"").failed(1, &[&uri, "in use"]);
    assert_eq!(run_with(here(&["read", "a"]), b"").ok(), b"x");
    // After kill -9 the next server takes the socket over, and nothing is left beside it.
    server.kill();
    assert!(socket.exists());
    run_with(here(&["ls"]), b"").failed(1, &[&uri, "refused"]);
    let server = Server::spawn(here(&["serve", "--json", "--store", "mem:", "--metrics", "none"]));
    run_with(here(&["ls"]), b"").ok();
    let names: Vec<_> =
        fs::read_dir(socket.parent().unwrap()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["server.sock"]);
    assert_eq!(server.stop(Signal::TERM).code(), Some(0));
    assert!(!socket.exists());
}

#[test]
fn another_user_gets_at_nothing() {
    let second = Second::user();
    let place = public_folder();
    let (socket, data) = (place.path().join("socket"), place.path().join("data"));
    let uri = format!("unix:{}", socket.display());
    let mut command = program();
    // The umask does not matter.
    command.args(["serve", "--json", "--listen", &uri, "--store", data.to_str().unwrap(), "--log", "warn"]);
    let masked = "umask 000; exec \"$0\" \"$@\"";
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(masked).arg(command.get_program()).args(command.get_args());
    let server = Server::spawn(shell);
    server.run(["write", "a", "secret"]).ok();
    assert_eq!((mode(&socket), mode(&data)), (0o600, 0o700));
    for entry in fs::read_dir(&data).unwrap() {
        let path = entry.unwrap().path();
        assert_eq!(mode(&path), 0o600, "{path:?}");
    }
    second.run(&["--store", &uri, "read", "a"]).failed(1, &["ermission denied"]);
    second.run(&["--store", &file(&data), "read", "a"]).failed(1, &["ermission denied"]);
    // Opening the socket's mode behind the server's back gives no access.
    set_mode(&socket, 0o666);
    second.run(&["--store", &uri, "read", "a"]).failed(1, &["for the user that it runs as"]);
    second.run(&["--store", &uri, "rm", "a"]).failed(1, &["for the user that it runs as"]);
    assert_eq!(server.run(["read", "a"]).ok(), b"secret");
    drop(server);

    // A socket that is meant for others admits them.
    let shared = place.path().join("shared");
    let uri = format!("unix:{}", shared.display());
    let group = NOBODY.to_string();
    let server = Server::listen(&uri, "mem:", &["--socket-mode", "0660", "--socket-group", &group]);
    assert_eq!((mode(&shared), fs::metadata(&shared).unwrap().gid()), (0o660, NOBODY));
    second.run(&["--store", &uri, "write", "a", "x"]).ok();
    assert_eq!(server.run(["read", "a"]).ok(), b"x");
}

#[test]
fn a_server_of_another_user_is_not_believed() {
    let second = Second::user();
    let place = folder();
    set_mode(place.path(), 0o777);
    let socket = place.path().join("socket");
    let uri = format!("unix:{}", socket.display());
    let words =
        ["serve", "--json", "--store", "mem:", "--listen", &uri, "--socket-mode", "0666", "--log", "warn"];
    let server = Server::spawn(second.command(&words));
    let parts = ["user 65534", "neither you nor root", "?owner=65534"];
    server.run(["write", "password", "x"]).failed(1, &parts);
    assert_eq!(nacre(&["--store", &format!("{uri}?owner={NOBODY}"), "ls"]).text(), "", "it was told nothing");
    drop(server);

    // Nor is a default place accepted where others could put a socket of theirs.
    let runtime = place.path().join("runtime");
    fs::create_dir_all(runtime.join("nacre")).unwrap();
    set_mode(&runtime.join("nacre"), 0o777);
    let mut command = program();
    command.env("XDG_RUNTIME_DIR", &runtime).args(["serve", "--store", "mem:", "--metrics", "none"]);
    run_with(command, b"").failed(1, &["not safe", "mode 777", "--listen"]);
}

#[test]
fn an_address_that_others_can_reach_needs_a_key_or_the_word_open() {
    let serve = |address: &str, words: &[&str]| {
        nacre(&[&["serve", "--store", "mem:", "--listen", address], words].concat())
    };
    serve("127.0.0.1:0", &[])
        .failed(2, &["127.0.0.1:0", "every user of this machine", "--key", "--open", "Unix socket"]);
    serve("0.0.0.0:0", &[]).failed(2, &["0.0.0.0:0", "everybody", "--key", "--open"]);
    let folder = folder();
    let key = folder.path().join("key");
    nacre(&["keygen", key.to_str().unwrap()]).ok();
    serve("127.0.0.1:0", &["--open", "--key", key.to_str().unwrap()]).failed(2, &["not both"]);
    // The line with the address also warns that it is open.
    let mut command = program();
    command.args(["serve", "--store", "mem:", "--listen", "127.0.0.1:0", "--open"]);
    let mut child = command.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.take().unwrap()), &mut line)
        .unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(
        line.starts_with("listening on nacre://127.0.0.1:") && line.contains(", open: whoever"),
        "{line}"
    );
}

#[test]
fn settings_that_others_could_have_written_are_not_read() {
    let root = rustix::process::geteuid().is_root();
    assert!(root, "this test makes files of a second user: run it as root");
    let folder = folder();
    let config = folder.path().join("nacre.toml");
    let serve = |words: &[&str]| {
        let mut command = program();
        command.args(["serve", "--json", "--store", "mem:", "--listen", "unix:socket", "--http", "none"]);
        command.args(words).current_dir(folder.path());
        command
    };
    fs::write(&config, "log = \"warn\"\n").unwrap();
    let own = |owner: u32, bits: u32| {
        std::os::unix::fs::chown(&config, Some(owner), None).unwrap();
        set_mode(&config, bits);
    };
    let named = ["--config", "nacre.toml"];
    own(NOBODY, 0o644);
    run_with(serve(&[]), b"").failed(2, &["nacre.toml", "user 65534", "--config"]);
    // Whoever names it means it.
    Server::spawn(serve(&named));
    own(0, 0o664);
    run_with(serve(&[]), b"").failed(2, &["nacre.toml", "others may change", "chmod go-w"]);
    Server::spawn(serve(&named));
    own(0, 0o666);
    run_with(serve(&[]), b"").failed(2, &["nacre.toml", "others may change"]);
    run_with(serve(&named), b"").failed(2, &["nacre.toml", "everybody may change", "chmod o-w"]);
    let mut reflect = program();
    reflect.args(["reflect", "serve"]).current_dir(folder.path());
    run_with(reflect, b"").failed(2, &["nacre.toml", "others may change"]);
    own(0, 0o644);
    Server::spawn(serve(&[]));
    // A link shows what it leads to.
    fs::rename(&config, folder.path().join("elsewhere")).unwrap();
    std::os::unix::fs::symlink("elsewhere", &config).unwrap();
    Server::spawn(serve(&[]));
    set_mode(&folder.path().join("elsewhere"), 0o646);
    run_with(serve(&[]), b"").failed(2, &["nacre.toml", "others may change"]);
}

#[test]
fn only_the_socket_of_a_server_that_is_gone_is_replaced() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("file"), "precious").unwrap();
    fs::create_dir(at("folder")).unwrap();
    std::os::unix::fs::symlink(at("file"), at("link")).unwrap();
    let alive = UnixListener::bind(at("alive")).unwrap();
    // A server may end by itself; the others are there until somebody removes them.
    for (name, what, code) in [
        ("file", "an ordinary file", 2),
        ("folder", "a folder", 2),
        ("link", "a symbolic link", 2),
        ("alive", "in use", 1),
    ] {
        let address = format!("unix:{}", at(name).display());
        let before = fs::symlink_metadata(at(name)).unwrap().ino();
        nacre(&["serve", "--store", "mem:", "--listen", &address])
            .failed(code, &["cannot listen on", &address, what]);
        assert_eq!(fs::symlink_metadata(at(name)).unwrap().ino(), before, "{name}");
    }
    assert_eq!(fs::read(at("file")).unwrap(), b"precious");
    drop(alive);
    let server = Server::listen(&format!("unix:{}", at("alive").display()), "mem:", &[]);
    server.run(["ls"]).ok();
}

/// Lists everything in a folder: names, sizes and times of the last change. The number of a snapshot is left out: every
/// opening increases it, because a name that was used before may not be on the device.
fn contents(folder: &Path) -> Vec<(PathBuf, u64, i64, i64)> {
    let mut entries: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            let metadata = entry.metadata().unwrap();
            let mut path = entry.path();
            if entry.file_name().to_string_lossy().starts_with("snapshot-") {
                path.set_file_name("snapshot");
            }
            (path, metadata.len(), metadata.mtime(), metadata.mtime_nsec())
        })
        .collect();
    entries.sort();
    entries
}

/// Commands that must not create anything.
const LOOKS: [&[&str]; 11] = [
    &["ls"],
    &["read", "a"],
    &["get", "a"],
    &["stat", "a"],
    &["extents", "a"],
    &["keys", "ls", "a"],
    &["info"],
    &["scrub"],
    &["compact"],
    &["rm", "a"],
    &["keys", "rm", "a", "k"],
];

#[test]
fn looking_makes_no_store() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    fs::create_dir(at("empty")).unwrap();
    fs::create_dir(at("foreign")).unwrap();
    fs::write(at("foreign/letter"), "dear").unwrap();
    for (name, why) in [("missing", "no such folder"), ("empty", "no store"), ("foreign", "no store")] {
        let store = file(&at(name));
        for words in LOOKS {
            nacre(&[&["--store", &store], words].concat()).failed(1, &[&store, why]);
        }
    }
    assert!(!at("missing").exists());
    assert_eq!(contents(&at("empty")), []);
    assert_eq!(contents(&at("foreign")).len(), 1);

    // Nor does writing create a store among foreign files.
    let foreign = file(&at("foreign"));
    for words in [&["write", "a", "x"][..], &["put", "a"], &["keys", "set", "a", "k", "v"]] {
        nacre(&[&["--store", &foreign], words].concat())
            .failed(1, &[&foreign, "letter", "new or an empty folder"]);
    }
    nacre(&["serve", "--store", &foreign, "--listen", &format!("unix:{}", at("s").display())])
        .failed(2, &["letter", "new or an empty folder"]);
    assert_eq!(contents(&at("foreign")).len(), 1);

    // In a new folder and in an empty one it does, for the user alone; unless the uri forbids it.
    nacre(&["--store", &format!("{}?create=no", file(&at("empty"))), "write", "a", "x"])
        .failed(1, &["no store"]);
    for name in ["empty", "deep/new"] {
        nacre(&["--store", &file(&at(name)), "write", "a", "x"]).ok();
        assert_eq!(nacre(&["--store", &file(&at(name)), "read", "a"]).ok(), b"x");
    }
    assert_eq!((mode(&at("deep")), mode(&at("deep/new"))), (0o700, 0o700));
}

#[test]
fn looking_at_a_store_leaves_it_as_it_was() {
    let folder = folder();
    let store = file(&folder.path().join("data"));
    nacre(&["--store", &store, "write", "a", "kept"]).ok();
    nacre(&["--store", &store, "keys", "set", "a", "k", "v"]).ok();
    // The first opening after a write may tidy up after the last one.
    nacre(&["--store", &store, "ls"]).ok();
    let before = contents(&folder.path().join("data"));
    for words in LOOKS.iter().filter(|words| !["compact", "rm", "keys"].contains(&words[0])) {
        nacre(&[&["--store", &store], *words].concat()).ok();
    }
    assert_eq!(contents(&folder.path().join("data")), before);
}

#[test]
fn opening_a_store_removes_no_strangers_file() {
    let folder = folder();
    let data = folder.path().join("data");
    let store = file(&data);
    nacre(&["--store", &store, "write", "a", "kept"]).ok();
    let strangers = [
        "thesis.tmp",
        ".tmp",
        "snapshot-1.tmp",
        "snapshot-0000000001.tmp.tmp",
        "segment-0000000001.tmp",
        "nacre-store.tmp~",
    ];
    for name in strangers {
        fs::write(data.join(name), "precious").unwrap();
    }
    // The unfinished remains of a snapshot belong to the store.
    fs::write(data.join("snapshot-0000000007.tmp"), "half").unwrap();
    for _ in 0..2 {
        assert_eq!(nacre(&["--store", &store, "read", "a"]).ok(), b"kept");
        nacre(&["--store", &store, "write", "a", "kept"]).ok();
    }
    for name in strangers {
        assert_eq!(fs::read(data.join(name)).unwrap(), b"precious", "{name}");
    }
    assert!(!data.join("snapshot-0000000007.tmp").exists());
}

/// A folder that others may read keeps the mode that its owner gave it, and the owner is warned.
#[test]
fn an_open_folder_is_warned_of_and_left_alone() {
    let folder = folder();
    let data = folder.path().join("data");
    fs::create_dir(&data).unwrap();
    set_mode(&data, 0o755);
    let server = Server::start(&file(&data), &[]);
    server.run(["write", "a", "x"]).ok();
    assert_eq!(mode(&data), 0o755);
    // The log is collected by a separate thread.
    let since = std::time::Instant::now();
    while !server.log().contains("mode 755") || !server.log().contains("chmod 700") {
        assert!(since.elapsed() < PATIENCE, "{}", server.log());
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    for entry in fs::read_dir(&data).unwrap() {
        let path = entry.unwrap().path();
        assert_eq!(mode(&path), 0o600, "{path:?}");
    }
}

#[test]
fn two_spellings_of_a_store_are_one_store() {
    let ports = [free_port(), free_port()];
    let spelt = |host: &str| ports.map(|port| format!("{host}:{port}")).join(",");
    let members = spelt("127.0.0.1");
    // Objects are counted below: those of the cluster are not to be among them.
    let flags = ["--beacons", "none", "--members", &*members];
    let start = |port: u16| Server::listen(&format!("127.0.0.1:{port}"), "mem:", &flags);
    let _servers = ports.map(start);
    let uris =
        ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]"].map(|host| format!("nacre://{}", spelt(host)));
    let claim = |uri: &str, job: &str, owner: &str| {
        nacre(&["--store", uri, "keys", "set", job, "owner", owner, "--if-absent"]).code
    };
    for job in 0..24 {
        let name = format!("job-{job}");
        let codes: Vec<i32> =
            (0..3).map(|turn| claim(&uris[(job + turn) % 3], &name, &turn.to_string())).collect();
        assert_eq!(codes, [0, 3, 3], "{name}: one client owns it, whatever it calls the servers");
    }
    for uri in &uris {
        assert_eq!(nacre(&["--store", uri, "ls"]).text().lines().count(), 24);
    }
    // One of them is enough to find the others.
    let one = format!("nacre://localhost:{}", ports[1]);
    assert_eq!(nacre(&["--store", &one, "ls"]).text().lines().count(), 24);
}

#[test]
fn servers_that_were_not_told_of_each_other_are_no_store() {
    let folder = folder();
    let at = |name: &str| format!("unix:{}", folder.path().join(name).display());
    let servers = ["a", "b"].map(|name| Server::listen(&at(name), "mem:", &[]));
    let both = format!("nacre://{},{}", at("a"), at("b"));
    nacre(&["--store", &both, "write", "o", "x"]).failed(1, &[&at("a"), &at("b"), "by itself", "--members"]);
    for server in &servers {
        assert_eq!(server.run(["ls"]).text(), "");
    }
}

#[test]
fn a_store_keeps_its_list_of_members() {
    let folder = folder();
    let at = |name: &str| format!("unix:{}", folder.path().join(name).display());
    let data = file(&folder.path().join("data"));
    let serve = |flags: &[&str]| {
        let words = ["serve", "--json", "--log", "warn", "--store", &data, "--listen"];
        let mut command = program();
        command.args(words).arg(at("a")).args(flags);
        command
    };
    let list = |names: &[&str]| names.iter().map(|name| at(name)).collect::<Vec<_>>().join(",");
    let (two, three) = (list(&["a", "b"]), list(&["a", "b", "c"]));
    // A store whose server began alone.
    let server = Server::spawn(serve(&[]));
    for number in 0..20 {
        server.run(["write", &format!("o{number}"), "x"]).ok();
    }
    assert_eq!(server.stop(Signal::TERM).code(), Some(0));
    let server = Server::spawn(serve(&["--members", &two]));
    // The log is collected by a separate thread.
    let since = std::time::Instant::now();
    while !server.log().contains("belong to other members") {
        assert!(since.elapsed() < PATIENCE, "{}", server.log());
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert_eq!(server.stop(Signal::TERM).code(), Some(0));

    let refused = |flags: &[&str]| {
        run_with(serve(flags), b"").failed(2, &[&at("c"), "version 1", "--members-version"]);
    };
    refused(&["--members", &three]);
    refused(&["--members", &three, "--members-version", "1"]);
    // The list in another order, or not given again.
    for flags in [&["--members", &list(&["b", "a"])][..], &[]] {
        let server = Server::spawn(serve(flags));
        let other = Server::listen(&at("b"), "mem:", &["--members", &two]);
        let uri = format!("nacre://{two}");
        nacre(&["--store", &uri, "ls"]).ok();
        assert_eq!(server.stop(Signal::TERM).code(), Some(0));
        drop(other);
    }
    let server = Server::spawn(serve(&["--members", &three, "--members-version", "2"]));
    assert_eq!(server.stop(Signal::TERM).code(), Some(0));
    // The old list is refused from now on.
    run_with(serve(&["--members", &two]), b"").failed(2, &["version 2", "--members-version"]);
    // Another member of the same list would look for other objects here.
    let flags = ["--members", &three, "--members-version", "2", "--member", &at("b")];
    run_with(serve(&flags), b"").failed(2, &[&format!("as member {}", at("b"))]);
    // A damaged file is an error.
    let path = folder.path().join("data/nacre-members");
    let mut bytes = fs::read(&path).unwrap();
    assert_eq!(mode(&path), 0o600);
    bytes[40] ^= 1;
    fs::File::create(&path).unwrap().write_all(&bytes).unwrap();
    run_with(serve(&[]), b"").failed(1, &["nacre-members", "damaged"]);
    assert!(
        fs::symlink_metadata(folder.path().join("a"))
            .is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
    );
}

#[test]
fn sockets_are_what_they_say() {
    let folder = folder();
    let path = folder.path().join("s");
    let serve = |words: &[&str]| {
        nacre(
            &[&["serve", "--store", "mem:", "--listen", &format!("unix:{}", path.display())], words].concat(),
        )
    };
    serve(&["--socket-mode", "rw"]).failed(2, &["\"rw\"", "0660"]);
    serve(&["--socket-group", "no such group"]).failed(2, &["no such group"]);
    assert!(!path.exists());
    let server = Server::listen(&format!("unix:{}", path.display()), "mem:", &["--socket-mode", "0660"]);
    assert!(fs::symlink_metadata(&path).unwrap().file_type().is_socket());
    assert_eq!(mode(&path), 0o660);
    drop(server);
}
