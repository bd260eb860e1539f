//! Programs in C, compiled and linked as users do, and run with stores of this process and of `nacre serve`.
//!
//! `NACRE_PROGRAM` names the program `nacre`; without it, it is the one that stands beside the tests.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// The longest time that anything takes on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(120);

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[track_caller]
fn succeed(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    describe(command, output)
}

#[track_caller]
fn describe(command: &Command, Output { status, stdout, stderr }: Output) -> String {
    let (out, error) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{command:?}: {status}\n{out}{error}");
    out.into_owned()
}

/// Returns a folder with libnacre.so, which is linked of what cargo built.
fn library() -> &'static Path {
    static FOLDER: OnceLock<TempDir> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let archive = std::env::current_exe().unwrap().with_file_name("libnacre_c.a");
        succeed(Command::new(root().join("crates/c/link")).arg(archive).arg(folder.path()));
        folder
    });
    folder.path()
}

/// Compiles a program.
#[track_caller]
fn compile(compiler: &[&str], source: &Path, target: &Path) {
    let mut command = Command::new(compiler[0]);
    command.args(&compiler[1..]).args(["-g", "-O1", "-Wall", "-Wextra", "-Werror", "-pedantic"]);
    command.arg("-I").arg(root().join("crates/c/include")).arg(source).arg("-o").arg(target);
    command.arg("-L").arg(library()).args(["-lnacre", &format!("-Wl,-rpath,{}", library().display())]);
    succeed(&mut command);
}

/// Compiles a program once, in C99, and returns it.
#[track_caller]
fn program(source: &str) -> PathBuf {
    static FOLDER: OnceLock<TempDir> = OnceLock::new();
    static ONE_AT_A_TIME: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let source = root().join(source);
    let target = FOLDER.get_or_init(|| tempfile::tempdir().unwrap()).path().join(source.file_stem().unwrap());
    if !target.exists() {
        compile(&["cc", "-std=c99"], &source, &target);
    }
    target
}

/// A server in a folder of its own.
struct Server {
    child: Child,
    folder: TempDir,
}

impl Server {
    fn start() -> Server {
        let beside = || std::env::current_exe().unwrap().parent().unwrap().with_file_name("nacre");
        let program = std::env::var_os("NACRE_PROGRAM").map_or_else(beside, PathBuf::from);
        assert!(
            program.is_file(),
            "there is no {}: \"cargo build -p nacre-cli\" builds it",
            program.display()
        );
        let folder = tempfile::tempdir().unwrap();
        let (socket, data) = (folder.path().join("socket"), folder.path().join("data"));
        let mut command = Command::new(program);
        command.args(["serve", "--listen"]).arg(format!("unix:{}", socket.display()));
        command.arg("--store").arg(format!("file:{}", data.display())).args(["--durability", "none"]);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        let begun = Instant::now();
        while !socket.exists() {
            assert!(begun.elapsed() < PATIENCE, "the server does not start");
            assert_eq!(child.try_wait().unwrap(), None, "the server has ended");
            std::thread::sleep(Duration::from_millis(20));
        }
        Server { child, folder }
    }

    fn uri(&self) -> String {
        format!("unix:{}", self.folder.path().join("socket").display())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a program several times at once, each with arguments of its own.
#[track_caller]
fn together(program: &Path, arguments: &[Vec<String>]) -> Vec<String> {
    let start = |arguments: &Vec<String>| {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().unwrap();
        (command, child)
    };
    let started: Vec<_> = arguments.iter().map(start).collect();
    started
        .into_iter()
        .map(|(command, child)| describe(&command, child.wait_with_output().unwrap()))
        .collect()
}

fn arguments(arguments: &[&str]) -> Vec<String> {
    arguments.iter().map(|argument| argument.to_string()).collect()
}

fn file_store(folder: &TempDir) -> String {
    format!("file:{}?create=yes", folder.path().join("store").display())
}

#[test]
fn the_library_exports_its_functions_with_their_version_and_nothing_else() {
    let printed =
        succeed(Command::new("nm").args(["-D", "--defined-only"]).arg(library().join("libnacre.so.0")));
    let symbols: Vec<&str> = printed.lines().filter_map(|line| line.split(' ').nth(2)).collect();
    let functions = symbols.iter().filter(|symbol| symbol.ends_with("@@NACRE_0.1")).count();
    assert!(functions > 90, "{printed}");
    // The version itself is a symbol, too.
    assert_eq!(symbols.len(), functions + 1, "{printed}");
}

#[test]
fn processes_that_count_with_conditional_writes_lose_nothing() {
    let program = program("examples/c/counter.c");
    let server = Server::start();
    let printed = together(&program, &vec![arguments(&[&server.uri(), "visits", "100"]); 4]);
    let counts = printed.iter().map(|line| line.split([' ', ',']).nth(1).unwrap().parse::<u64>().unwrap());
    assert_eq!(counts.max(), Some(400), "{printed:?}");
    let folder = tempfile::tempdir().unwrap();
    let of_file = arguments(&[&file_store(&folder), "visits", "100"]);
    assert_eq!(together(&program, &[of_file]), ["counter 100, late 0 times\n"]);
}

#[test]
fn transfers_of_several_processes_keep_the_sum() {
    let program = program("examples/c/transfer.c");
    let server = Server::start();
    let transfer = |uri: &str, from, to| arguments(&[uri, "accounts", from, to, "5"]);
    let uri = server.uri();
    let all: Vec<_> = (0..6)
        .map(|index| match index % 2 {
            0 => transfer(&uri, "ada", "grace"),
            _ => transfer(&uri, "grace", "alan"),
        })
        .collect();
    together(&program, &all);
    let last = together(&program, &[transfer(&uri, "alan", "ada")]);
    assert_eq!(last, ["alan 110, ada 90, late 0 times\n"]);
    let folder = tempfile::tempdir().unwrap();
    let of_file = transfer(&file_store(&folder), "ada", "grace");
    assert_eq!(together(&program, &[of_file]), ["ada 95, grace 105, late 0 times\n"]);
}

#[test]
fn processes_add_to_their_own_bytes_under_locks() {
    let program = program("examples/c/stripes.c");
    let server = Server::start();
    let rank = |index: u64| arguments(&[&server.uri(), "results", &(index % 2).to_string(), "2"]);
    together(&program, &(0..6).map(rank).collect::<Vec<_>>());
    let store = nacre::open(&server.uri()).unwrap().blocking();
    let bytes = store.object("results").unwrap().read(0..10_000).unwrap().data;
    // Three processes of each rank, 16 blocks for each of them.
    let numbers: Vec<u64> =
        bytes.chunks(8).map(|block| u64::from_le_bytes(block.try_into().unwrap())).collect();
    assert_eq!(numbers, [3; 32]);
    let folder = tempfile::tempdir().unwrap();
    together(&program, &[arguments(&[&file_store(&folder), "results", "0", "2"])]);
}

#[test]
fn wrong_arguments_are_errors_and_nothing_is_leaked_or_overrun() {
    let program = program("crates/c/tests/programs/hostile.c");
    let server = Server::start();
    let folder = tempfile::tempdir().unwrap();
    for uri in [server.uri(), "mem:".to_owned(), file_store(&folder)] {
        let printed = succeed(Command::new(&program).arg(&uri));
        assert_eq!(printed, "all as it should be\n", "{uri}");
    }
}

#[test]
fn connections_that_end_do_not_end_the_program() {
    // Its lock server ends with the store, sometimes before the last message to it is written.
    let program = program("crates/c/tests/programs/hostile.c");
    for _ in 0..20 {
        succeed(Command::new(&program).arg("mem:"));
    }
}

#[test]
fn the_address_sanitizer_and_valgrind_find_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("hostile");
    let source = root().join("crates/c/tests/programs/hostile.c");
    compile(&["cc", "-std=c99", "-fsanitize=address,undefined", "-fno-sanitize-recover"], &source, &program);
    assert_eq!(succeed(Command::new(&program).arg("mem:")), "all as it should be\n");
    compile(&["cc", "-std=c99"], &source, &program);
    let mut command = Command::new("valgrind");
    command.args(["-q", "--error-exitcode=9", "--leak-check=full", "--errors-for-leak-kinds=definite"]);
    assert_eq!(
        succeed(command.arg("--show-leak-kinds=definite").arg(&program).arg("mem:")),
        "all as it should be\n"
    );
}

#[test]
fn the_examples_are_also_programs_in_cpp() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["counter", "transfer", "stripes"] {
        let source = root().join(format!("examples/c/{name}.c"));
        compile(&["c++", "-x", "c++", "-std=c++11"], &source, &folder.path().join(name));
    }
}
