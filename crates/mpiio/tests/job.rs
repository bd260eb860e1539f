//! Tests of whole jobs: programs in C and Fortran, compiled by the wrappers of the MPI library that this library was built with, and run by
//! `nacre mpirun`.
//!
//! `MPICC` and `NACRE_MPIRUN` name the compiler and the launcher, `NACRE_PROGRAM` the program `nacre`.

mod kit;

use std::io::{BufRead, BufReader, Lines};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use kit::{
    describe, is_open_mpi, job, library, nacre, path, program, program_with, succeed, succeed_in_time,
};

/// Has all ranks write the same pieces ten times, by a call.
fn tear(how: &str, ranks: usize) {
    let folder = tempfile::tempdir().unwrap();
    let file = path(&folder, "file");
    let (block, stride) = if how.contains("all") { ("128", "256") } else { ("64", "128") };
    let arguments = [&file, how, "10", "1024", block, stride, "1"];
    assert_eq!(succeed(&[], ranks, &program("tear.c"), &arguments), "torn 0 of 10\n", "{how}, {ranks} ranks");
}

#[test]
fn blocking_writes_are_not_torn() {
    for how in ["write_at", "write"] {
        tear(how, 2);
        tear(how, 4);
    }
}

#[test]
fn collective_writes_are_not_torn() {
    for how in ["write_at_all", "write_all"] {
        tear(how, 2);
        tear(how, 4);
    }
    tear("write_at_all_begin", 4);
}

#[test]
fn nonblocking_writes_are_not_torn() {
    tear("iwrite_at", 2);
    for how in ["iwrite_at", "iwrite", "iwrite_at_all", "iwrite_all"] {
        tear(how, 4);
    }
}

#[test]
fn the_check_for_torn_writes_finds_them() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = [&path(&folder, "file"), "halves", "3", "64", "64", "128", "1"];
    assert_eq!(succeed(&[], 2, &program("tear.c"), &arguments), "torn 3 of 3\n");
}

#[test]
fn programs_in_fortran_are_not_torn_by_any_of_the_three_bindings() {
    let folder = tempfile::tempdir().unwrap();
    for binding in ["tear_mpifh.f90", "tear_mpi.f90", "tear_mpi_f08.f90"] {
        let printed = succeed(&[], 4, &program(binding), &[&path(&folder, binding), "10"]);
        assert_eq!(printed.trim(), "torn 0 of 10", "{binding}");
    }
}

/// Returns the folder in which Debian has libraries for this machine.
fn libraries() -> String {
    format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH)
}

#[test]
fn parallel_hdf5_writes_datasets_that_are_not_torn() {
    let mpi = if is_open_mpi() { "openmpi" } else { "mpich" };
    let headers = format!("-I/usr/include/hdf5/{mpi}");
    let program =
        program_with("hdf5.c", &[headers, format!("-L{}/hdf5/{mpi}", libraries()), "-lhdf5".to_owned()]);
    let folder = tempfile::tempdir().unwrap();
    for ranks in [1, 2, 4] {
        let arguments = [&path(&folder, "file"), "20"];
        assert_eq!(succeed(&[], ranks, &program, &arguments), "torn 0 of 20\n", "{ranks} ranks");
    }
}

#[test]
fn pnetcdf_and_adios_have_an_atomic_mode_by_a_flag() {
    // Debian has them for Open MPI; the archive of ADIOS for MPICH needs a library that is linked to Open MPI.
    if !is_open_mpi() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let pnetcdf = program_with("pnetcdf.c", &["-lpnetcdf".to_owned()]);
    let all = libraries();
    let adios = format!(
        "-L{all}/adios/openmpi -ladios -L{all}/netcdf/mpi -lnetcdf -L{all}/hdf5/openmpi -lhdf5_hl -lhdf5 -lsz -lz -lbz2 \
         -llz4 -lblosc -lm"
    );
    let adios = program_with("adios.c", &adios.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
    for ranks in [1, 2, 4] {
        let arguments = [&path(&folder, "variables"), "20"];
        let printed = succeed(&["--atomic"], ranks, &pnetcdf, &arguments);
        assert_eq!(printed, "torn 0 of 20\n", "{ranks} ranks");
        let file = path(&folder, &format!("array-{ranks}"));
        assert_eq!(succeed(&["--atomic"], ranks, &adios, &[&file]), "done\n", "{ranks} ranks");
    }
}

#[test]
fn files_that_cannot_be_in_atomic_mode_are_not_opened_if_all_have_to_be() {
    let folder = tempfile::tempdir().unwrap();
    let nowhere = format!("unix:{}", path(&folder, "nowhere"));
    let flags = ["--atomic", "--lock-servers", &nowhere];
    let arguments = [&path(&folder, "file"), "write_at", "1", "8", "8", "16", "1"];
    let text = describe(&job(&flags, 2, &program("tear.c"), &arguments).output().unwrap());
    // By one rank, for all.
    let sentence = "nacre: MPI_File_open on rank 0: cannot reach the server at unix:";
    assert_eq!(text.matches(sentence).count(), 1, "{text}");
    assert!(text.contains("open: ") && !text.contains("set_view: "), "{text}");
}

#[test]
fn a_file_is_one_by_all_its_names_and_communicators() {
    let folder = tempfile::tempdir().unwrap();
    let (file, link) = (path(&folder, "file"), path(&folder, "link"));
    std::fs::write(&file, "").unwrap();
    std::fs::hard_link(&file, &link).unwrap();
    let arguments = [&file, "write_at", "20", "1024", "64", "128", "1", &link];
    assert_eq!(succeed(&[], 2, &program("tear.c"), &arguments), "torn 0 of 20\n");
}

#[test]
fn every_access_reads_and_writes_what_it_is_to() {
    for ranks in [1, 2, 3] {
        let folder = tempfile::tempdir().unwrap();
        let printed = succeed(&[], ranks, &program("access.c"), &[&path(&folder, "file")]);
        assert_eq!(printed, "all as it should be\n", "{ranks} ranks");
    }
}

#[test]
fn collective_writes_lose_no_bytes_between_the_pieces_of_others() {
    let folder = tempfile::tempdir().unwrap();
    for (ranks, times, hint) in [(2, "200", &["romio_cb_write", "disable"][..]), (3, "5", &[])] {
        let file = path(&folder, &ranks.to_string());
        let arguments = [&[&file, times], hint].concat();
        assert_eq!(
            succeed(&[], ranks, &program("gaps.c"), &arguments),
            format!("lost 0 of {times}\n"),
            "{ranks} ranks"
        );
    }
}

/// Runs the program `exchange`, and returns the numbers of pieces, of calls that write, and of calls that read.
fn exchange(ranks: usize, how: &[&str]) -> [u64; 3] {
    let folder = tempfile::tempdir().unwrap();
    let file = path(&folder, "file");
    let output = succeed(&[], ranks, &program("exchange.c"), &[&[file.as_str()], how].concat());
    let numbers: Vec<u64> =
        output.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse().ok()).collect();
    let [wrong, pieces, writes, reads] = numbers[..] else { panic!("{output}") };
    assert_eq!(wrong, 0, "{ranks} ranks, {how:?}: {output}");
    [pieces, writes, reads]
}

#[test]
fn small_pieces_of_all_ranks_are_written_and_read_together() {
    for ranks in [2, 3, 4] {
        let [pieces, writes, reads] = exchange(ranks, &["regular"]);
        let shown = format!("{ranks} ranks: {pieces} pieces, {writes} writes, {reads} reads");
        assert!(writes < 1000 && reads < 1000, "{shown}");
        // The bytes between them are nobody's, and are not written.
        let [pieces, writes, reads] = exchange(ranks, &["regular", "600"]);
        let runs = pieces / ranks as u64;
        assert!(
            writes < runs + 1000 && reads < 1000,
            "{ranks} ranks: {pieces} pieces, {writes} writes, {reads} reads"
        );
    }
    let [pieces, ..] = exchange(4, &["irregular"]);
    assert_eq!(pieces, 3000);
}

#[test]
fn small_pieces_that_ranks_write_at_once_are_not_lost() {
    for gap in ["0", "600"] {
        let [pieces, writes, reads] = exchange(4, &["regular", gap, "alone"]);
        assert!(writes < 1000 && reads < 1000, "{pieces} pieces, {writes} writes, {reads} reads");
    }
    let [pieces, writes, _] = exchange(4, &["irregular", "0", "alone"]);
    assert!(writes < pieces, "{pieces} pieces, {writes} writes");
}

#[test]
fn what_was_written_is_flushed_to_the_device_when_the_program_asks_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let program = program_with("sync.c", &["-rdynamic".to_owned()]);
    let output = succeed(&[], 2, &program, &[&path(&folder, "file")]);
    let counts: Vec<u32> = output.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    assert!(counts.len() == 2 && counts.iter().all(|count| *count > 0), "{output}");
}

#[test]
fn hints_choose_how_bytes_are_locked_and_wrong_ones_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = path(&folder, "file");
    let hints = [
        ("nacre_lock_method", "posix"),
        ("nacre_protocol", "one-try"),
        ("nacre_lock_block", "4KiB"),
        ("nacre_lock_flush", "true"),
        ("nacre_sieve", "false"),
    ];
    for (hint, value) in hints {
        let printed = succeed(&[], 2, &program("gaps.c"), &[file.as_str(), "3", hint, value]);
        assert_eq!(printed, "lost 0 of 3\n", "{hint}={value}");
    }
    // One rank says it for all.
    let wrong = [file.as_str(), "3", "nacre_lock_method", "vector"];
    let text = describe(&job(&[], 2, &program("gaps.c"), &wrong).output().unwrap());
    let sentence = "nacre: MPI_File_set_atomicity on rank 0: the hint nacre_lock_method=vector is wrong: ";
    assert_eq!(text.matches(sentence).count(), 1, "{text}");
    assert!(text.contains("set_atomicity failed") && !text.contains("lost 0 of"), "{text}");
}

#[test]
fn hints_hold_until_others_are_given_and_can_be_read() {
    let folder = tempfile::tempdir().unwrap();
    for ranks in [1, 3] {
        let output = job(&[], ranks, &program("hints.c"), &[&path(&folder, "file")]).output().unwrap();
        let text = describe(&output);
        assert!(output.status.success(), "{text}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "done\n", "{text}");
        for sentence in [
            "the hint nacre_protocol=nonsense is wrong: the values are two-phase, one-try, alt-try",
            "the hint nacre_stripe=1024 is ignored: the stripe of the lock servers is 65536 bytes",
        ] {
            let line = format!("nacre: MPI_File_set_info on rank 0: {sentence}\n");
            assert_eq!(text.matches(&line).count(), 1, "{line}{text}");
        }
    }
}

#[test]
fn a_method_that_does_not_take_an_access_is_an_error_that_names_the_hint() {
    let folder = tempfile::tempdir().unwrap();
    let file = path(&folder, "file");
    // A request for each piece, of which there may be 2^18.
    let arguments = [file.as_str(), "1", "nacre_lock_method", "posix", "300000"];
    let text = describe(&job(&[], 1, &program("gaps.c"), &arguments).output().unwrap());
    let sentence = "nacre: MPI_File_write_at_all on rank 0: the hint nacre_lock_method=posix: cannot lock ";
    assert_eq!(text.matches(sentence).count(), 1, "{text}");
    assert!(text.contains("write_at_all failed"), "{text}");
}

#[test]
fn file_types_mean_what_the_standard_says() {
    let folder = tempfile::tempdir().unwrap();
    for ranks in [1, 2] {
        assert_eq!(succeed(&[], ranks, &program("types.c"), &[&path(&folder, "file")]), "done\n");
    }
}

#[test]
fn a_thread_that_moves_the_individual_pointer_tears_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = [&path(&folder, "file"), "500"];
    assert_eq!(succeed(&[], 2, &program("seek.c"), &arguments), "torn 0 of 500\n");
}

#[test]
fn threads_use_files_of_different_communicators_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = [&path(&folder, "one"), &path(&folder, "other"), "50"];
    assert_eq!(succeed(&[], 2, &program("threads.c"), &arguments), "done\n");
}

#[test]
fn a_rank_with_wrong_arguments_gets_an_error_and_the_others_go_on() {
    let folder = tempfile::tempdir().unwrap();
    for ranks in [1, 2, 3] {
        let printed = succeed(&[], ranks, &program("wrong.c"), &[&path(&folder, "file")]);
        assert_eq!(printed, "done\n", "{ranks} ranks");
    }
}

#[test]
fn a_job_of_several_programs_has_the_library_in_all_of_them() {
    let folder = tempfile::tempdir().unwrap();
    let (file, program) = (path(&folder, "file"), program("tear.c"));
    let arguments = [&file, "write_at_all", "3", "64", "64", "128", "1"];
    let mut command = job(&[], 1, &program, &arguments);
    let output = command.args([":", "-n", "1"]).arg(&program).args(arguments).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "torn 0 of 3\n", "{}", describe(&output));
    // Both ways round: the first rank has the library, or lacks it.
    for first in [false, true] {
        let without = |lacks: bool| if lacks { &["-u", "LD_PRELOAD"][..] } else { &[] };
        let mut command = job(&[], 1, Path::new("env"), without(first));
        command.arg(&program).args(arguments).args([":", "-n", "1", "env"]).args(without(!first));
        let output = command.arg(&program).args(arguments).env("NACRE_MPIIO_WAIT", "1").output().unwrap();
        let text = describe(&output);
        assert!(!output.status.success(), "{text}");
        assert!(text.contains("not all processes that opened the file have Nacre's library"), "{text}");
    }
}

#[test]
fn opposite_orders_of_two_files_do_not_deadlock() {
    let folder = tempfile::tempdir().unwrap();
    for ranks in [2, 4] {
        let arguments = [&path(&folder, "one"), &path(&folder, "other"), "20"];
        assert_eq!(succeed(&[], ranks, &program("opposite.c"), &arguments), "done\n");
    }
}

#[test]
fn programs_lock_what_datatypes_describe_by_the_c_library() {
    let folder = tempfile::tempdir().unwrap();
    let (root, here) = (Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."), folder.path());
    // Cargo has built it beside the program.
    let archive = nacre().with_file_name("deps").join("libnacre_c.a");
    let linked = Command::new(root.join("crates/c/link")).arg(archive).arg(here).output().unwrap();
    assert!(linked.status.success(), "{}", describe(&linked));
    let program = here.join("pattern");
    let compiler = std::env::var("MPICC").unwrap_or_else(|_| "mpicc".to_owned());
    let mut command = Command::new(compiler);
    command.args(["-std=c99", "-Wall", "-Wextra", "-Werror"]);
    for include in ["crates/c/include", "crates/mpiio/include"] {
        command.arg("-I").arg(root.join(include));
    }
    command.arg(root.join("crates/mpiio/tests/programs/pattern.c")).arg("-o").arg(&program);
    for (folder, name) in [(here, "-lnacre"), (library().parent().unwrap(), "-lnacre_mpiio")] {
        command.arg("-L").arg(folder).arg(name).arg(format!("-Wl,-rpath,{}", folder.display()));
    }
    let compiled = command.output().unwrap();
    assert!(compiled.status.success(), "{}", describe(&compiled));
    let box_of_array = "view(displacement=0, count=3, of=subarray(sizes=[8, 8], subsizes=[2, 8], starts=[2, 0], of=bytes(4)))\n";
    for ranks in [2, 3] {
        assert_eq!(succeed(&[], ranks, &program, &[]), box_of_array, "{ranks} ranks");
    }
}

/// Runs a study of this library, whose figures it draws into a folder. Returns its table.
fn study(folder: &TempDir, words: &str) -> String {
    let bench = nacre().with_file_name("nacre-bench");
    assert!(bench.is_file(), "there is no {}: \"cargo build -p nacre-bench\" builds it", bench.display());
    let mut command = Command::new("timeout");
    command.arg("600").arg(nacre()).arg("bench").args(words.split_whitespace());
    command.args(["--mpi", if is_open_mpi() { "openmpi" } else { "mpich" }, "--library"]).arg(library());
    let output = command.args(["--repeat", "1"]).current_dir(folder.path()).output().unwrap();
    assert!(output.status.success(), "{words}: {}", describe(&output));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_studies_of_atomic_mode_find_every_byte_where_it_has_to_be() {
    let folder = tempfile::tempdir().unwrap();
    let systems = "none,preloaded,own,posix,list,datatype,block-64k-flushed";
    let table = study(&folder, &format!("s3d --systems {systems} --edges 11 --ranks 1,4"));
    // All systems with MPICH, and some with Open MPI.
    for words in ["datatype-one-try", "4 ranks: datatype locks ÷ no locks", "cost of the preloaded library"]
    {
        assert!(table.contains(words), "{words}: {table}");
    }
    for figure in ["8a", "8b", "9"] {
        let drawn = std::fs::read_to_string(folder.path().join(format!("figure-{figure}-11.svg"))).unwrap();
        assert!(drawn.contains("datatype-one-try"), "figure {figure}");
    }
    let size = "--queries 3 --fragments 5 --results-min 10 --results-max 20 --megabytes 1 --search 100ms";
    let servers = "--lock-servers 2 --protocols two-phase,alt-try";
    let table = study(&folder, &format!("s3asim --systems none,list,datatype --ranks 3 {size} {servers}"));
    for words in ["datatype-two-phase", "datatype-alt-try", "most I/O of the total time"] {
        assert!(table.contains(words), "{words}: {table}");
    }
    assert!(folder.path().join("figure-12b.svg").is_file());
    let table = study(&folder, "pieces --systems none,preloaded,datatype --pieces 64 --ranks 3 --calls 1");
    for words in
        ["single", "64 bytes together: datatype locks ÷ no atomic mode", "cost of the preloaded library"]
    {
        assert!(table.contains(words), "{words}: {table}");
    }
}

#[test]
fn without_a_server_atomic_mode_fails_and_says_why_and_other_files_need_none() {
    let folder = tempfile::tempdir().unwrap();
    let nowhere = format!("unix:{}", path(&folder, "nowhere"));
    let file = path(&folder, "file");
    let flags = ["--lock-servers", &nowhere];
    let output =
        job(&flags, 2, &program("tear.c"), &[&file, "write_at", "1", "8", "8", "16", "1"]).output().unwrap();
    let text = describe(&output);
    assert!(!output.status.success(), "{text}");
    // By one rank, for all.
    let sentence = "nacre: MPI_File_set_atomicity on rank 0: cannot reach the server at unix:";
    assert_eq!(text.matches(sentence).count(), 1, "{text}");
    assert!(text.contains("set_atomicity: "), "{text}");
    let printed = succeed(&flags, 1, &program("tear.c"), &[&file, "write_at", "1", "8", "8", "16", "0"]);
    assert_eq!(printed, "torn 0 of 1\n");
}

/// A lock server of the tests' own, which is ended with them.
struct Server {
    process: Child,
    uri: String,
    _folder: TempDir,
}

impl Server {
    fn start(lease: &str) -> Server {
        Server::listen(tempfile::tempdir().unwrap(), &["--lock-lease", lease])
    }

    /// Starts two servers that share the locks of every file, and returns them with the uri of both.
    fn two(flags: &[&str]) -> (Vec<Server>, String) {
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let members = folders.each_ref().map(Server::address).join(",");
        let flags = [&["--members", members.as_str(), "--beacons", "none", "--lock-lease", "60s"][..], flags]
            .concat();
        let servers = folders.into_iter().map(|folder| Server::listen(folder, &flags)).collect();
        (servers, format!("nacre://{members}"))
    }

    fn address(folder: &TempDir) -> String {
        format!("unix:{}", path(folder, "socket"))
    }

    fn listen(folder: TempDir, flags: &[&str]) -> Server {
        let uri = Server::address(&folder);
        let mut command = Command::new(nacre());
        command.args(["serve", "--store", "mem:", "--log", "error", "--listen", &uri]).args(flags);
        let mut process = command.current_dir(folder.path()).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap() == "ready"));
        Server { process, uri, _folder: folder }
    }

    fn run(&self, arguments: &[&str]) -> Output {
        Command::new(nacre()).args(["--store", &self.uri]).args(arguments).output().unwrap()
    }

    fn nacre(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{}", describe(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Returns the number of requests that hold bytes, or held them when their session was lost.
    fn held(&self) -> usize {
        let text = self.nacre(&["--json", "locks"]);
        ["\"held\"", "\"lapsed\""].iter().map(|state| text.matches(state).count()).sum()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn a_lock_spans_the_servers_that_share_a_file() {
    let (_servers, uri) = Server::two(&["--lock-stripe", "1KiB"]);
    let folder = tempfile::tempdir().unwrap();
    let file = path(&folder, "file");
    for how in ["write_at", "write_at_all", "iwrite_at"] {
        let arguments = [&file, how, "5", "1024", "64", "128", "1"];
        let printed = succeed(&["--lock-servers", &uri], 4, &program("tear.c"), &arguments);
        assert_eq!(printed, "torn 0 of 5\n", "{how}");
    }
}

/// A job of one rank that writes the same bytes again and again.
struct Holder {
    job: Child,
    rank: Pid,
    _output: Lines<BufReader<ChildStdout>>,
}

impl Holder {
    /// Starts the job, and waits until its rank holds bytes. Returns nothing if it ends before, as one that outlives its lease does.
    fn start(server: &Server, flags: &[&str], file: &str) -> Option<Holder> {
        let mut running = job(flags, 1, &program("hold.c"), &[file, "200000"]);
        let mut job = running.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut lines = BufReader::new(job.stdout.take().unwrap()).lines();
        let rank: i32 = lines.next().unwrap().unwrap().trim().parse().unwrap();
        let mut holder = Holder { job, rank: Pid::from_raw(rank).unwrap(), _output: lines };
        let begun = Instant::now();
        while server.held() == 0 {
            if holder.job.try_wait().unwrap().is_some() {
                return None;
            }
            assert!(begun.elapsed() < Duration::from_secs(120), "the rank does not lock anything");
        }
        Some(holder)
    }
}

/// Returns the states of a process's threads; none if it is gone.
fn states(process: Pid) -> Vec<char> {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{process}/task")) else { return Vec::new() };
    let stats =
        threads.flatten().filter_map(|thread| std::fs::read_to_string(thread.path().join("stat")).ok());
    // The state stands behind the name, which is in parentheses.
    stats.filter_map(|stat| stat.rsplit_once(") ")?.1.chars().next()).collect()
}

/// Returns whether all of a process is stopped. It is not any more as soon as it is killed, even if it does not get to end yet.
fn is_stopped(process: Pid) -> bool {
    let states = states(process);
    !states.is_empty() && states.iter().all(|state| *state == 'T')
}

#[test]
fn others_go_on_when_the_lease_of_a_killed_rank_is_over() {
    let server = Server::start("6s");
    let flags = ["--lock-servers", &server.uri];
    let folder = tempfile::tempdir().unwrap();
    let file = path(&folder, "file");
    for _ in 0..20 {
        let Some(mut holder) = Holder::start(&server, &flags, &file) else { continue };
        let _ = kill_process(holder.rank, Signal::KILL);
        // Whatever it held is not taken from it before its lease is over.
        let died_holding = server.held() > 0;
        holder.job.wait().unwrap();
        if died_holding {
            let arguments = [&file, "write_at", "3", "1024", "64", "128", "1"];
            assert_eq!(succeed_in_time(&flags, 2, &program("tear.c"), &arguments), "torn 0 of 3\n");
            return;
        }
    }
    panic!("no rank was killed while it held a lock");
}

/// Another program that holds all of a file that ranks lock, until its input ends.
struct Other {
    process: Child,
    _output: Lines<BufReader<ChildStdout>>,
}

impl Other {
    /// Makes the file, and locks it.
    fn hold(server: &Server, file: &str) -> Other {
        std::fs::write(file, [b'.'; 4096]).unwrap();
        // The name by which ranks lock the file.
        let metadata = std::fs::metadata(file).unwrap();
        let system = match rustix::fs::statvfs(file).unwrap().f_fsid {
            0 => metadata.dev(),
            number => number,
        };
        let name = format!("mpiio/{system:016x}-{}", metadata.ino());
        let mut command = Command::new(nacre());
        command.args(["--store", &server.uri, "lock", &name, "--", "sh", "-c", "echo held; read line; true"]);
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "held");
        Other { process, _output: lines }
    }

    /// Has it release the file.
    fn release(&mut self) {
        drop(self.process.stdin.take());
    }

    fn ends_well(mut self) -> bool {
        self.release();
        self.process.wait().unwrap().success()
    }
}

#[test]
fn files_that_are_not_in_atomic_mode_lock_nothing_beside_files_that_are() {
    let server = Server::start("60s");
    let folder = tempfile::tempdir().unwrap();
    let plain = path(&folder, "plain");
    let other = Other::hold(&server, &plain);
    let arguments = [&plain, &path(&folder, "file"), "200"];
    assert_eq!(succeed(&["--lock-servers", &server.uri], 1, &program("beside.c"), &arguments), "done\n");
    assert!(other.ends_well());
}

#[test]
fn nonblocking_accesses_go_on_in_the_background() {
    let server = Server::start("60s");
    let folder = tempfile::tempdir().unwrap();
    let file = path(&folder, "file");
    let mut other = Other::hold(&server, &file);
    let mut running = job(&["--lock-servers", &server.uri], 1, &program("background.c"), &[&file]);
    let mut running = running.stdout(Stdio::piped()).spawn().unwrap();
    let mut printed = BufReader::new(running.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(printed.next().as_deref(), Some("begun"));
    other.release();
    assert_eq!(printed.next().as_deref(), Some("done"));
    assert!(running.wait().unwrap().success() && other.ends_well());
}

/// Stops a rank, and returns whether it was killed for the bytes that it held: it may have held none.
fn is_killed_when_stopped(server: &Server, rank: Pid) -> bool {
    let _ = kill_process(rank, Signal::STOP);
    let begun = Instant::now();
    while !is_stopped(rank) {
        if states(rank).iter().all(|state| matches!(state, 'Z' | 'X')) {
            return false;
        }
        assert!(begun.elapsed() < Duration::from_secs(120), "the rank does not stop: {:?}", states(rank));
        std::thread::sleep(Duration::from_millis(1));
    }
    let (mut times_held, mut looked) = (0, Instant::now());
    loop {
        let text = server.nacre(&["--json", "locks"]);
        // Whoever is stopped still was so when the listing was made. Its last message, which may come after that, may have been a release.
        if !is_stopped(rank) {
            return times_held > 1;
        }
        let is_lost = text.contains("\"lapsed\"") || text.contains("\"sessions\":0");
        // If all of the machine stood still, the watchdog did too.
        let is_certain = times_held > 1 && looked.elapsed() < Duration::from_secs(2);
        assert!(!(is_lost && is_certain), "a rank that can still write has lost its bytes: {text}");
        if is_lost || !text.contains("\"held\"") {
            return false;
        }
        (times_held, looked) = (times_held + 1, Instant::now());
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_stopped_rank_is_killed_before_others_get_its_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let file = path(&folder, "file");
    for _ in 0..20 {
        // Of its own, so that only this rank can hold something there.
        let server = Server::start("10s");
        let flags = ["--lock-servers", &server.uri, "--lease-lost", "kill"];
        let Some(mut holder) = Holder::start(&server, &flags, &file) else { continue };
        let was_holding = is_killed_when_stopped(&server, holder.rank);
        let _ = kill_process(holder.rank, Signal::KILL);
        holder.job.wait().unwrap();
        if was_holding {
            // Of those that are left, some write all together.
            for how in ["write_at", "write_at_all"] {
                let arguments = [&file, how, "3", "1024", "64", "128", "1"];
                let printed = succeed_in_time(&flags, 2, &program("tear.c"), &arguments);
                assert_eq!(printed, "torn 0 of 3\n", "{how}");
            }
            return;
        }
    }
    panic!("no rank was stopped while it held a lock");
}

#[test]
fn a_rank_that_loses_its_lock_is_told() {
    let server = Server::start("10s");
    let folder = tempfile::tempdir().unwrap();
    let flags = ["--lock-servers", &server.uri];
    let mut running = job(&flags, 1, &program("hold.c"), &[&path(&folder, "file"), "100000"]);
    let mut running = running.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let begun = Instant::now();
    // A session that is broken between two writes is replaced by the next one, and nothing is lost.
    while running.try_wait().unwrap().is_none() {
        assert!(begun.elapsed() < Duration::from_secs(240), "the rank goes on");
        let text = server.nacre(&["--json", "locks"]);
        if let Some((_, rest)) = text.split_once("\"session\":") {
            let session: String = rest.chars().take_while(char::is_ascii_digit).collect();
            // Which is too late if the rank has been told meanwhile.
            server.run(&["locks", "break", &session]);
        }
    }
    let text = describe(&running.wait_with_output().unwrap());
    // While it writes, or while it still waits for the lock.
    assert!(text.contains("nacre: MPI_File_write_at on rank 0: "), "{text}");
    assert!(text.contains("lock session") && text.contains("is lost"), "{text}");
}

#[test]
fn the_command_ends_as_the_job_does_and_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let temporary = path(&folder, "temporary");
    std::fs::create_dir(&temporary).unwrap();
    let shell = |script: &str| {
        let mut command = job(&[], 1, Path::new("sh"), &["-c", script]);
        command.env("TMPDIR", &temporary);
        command
    };
    assert_eq!(shell("exit 7").output().unwrap().status.code(), Some(7));
    // The ranks find the library and the server, and the launcher's own variables are left alone.
    let output = shell("echo $LD_PRELOAD; test -S ${NACRE_STORE#unix:} && echo a server").output().unwrap();
    let expected = format!("{}\na server\n", library().display());
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{}", describe(&output));

    let mut long = shell("echo begun; exec sleep 600");
    let mut running = long.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(running.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "begun");
    let begun = Instant::now();
    kill_process(Pid::from_child(&running), Signal::TERM).unwrap();
    // With which code is the launcher's affair: that of MPICH sometimes says 0.
    running.wait().unwrap();
    assert!(begun.elapsed() < Duration::from_secs(300), "the signal was not handed on");
    // A launcher that cannot be run leaves nothing behind either.
    let mut none = Command::new(nacre());
    none.args(["mpirun", "--mpi", "mpich", "--launcher", "/no/such/launcher", "--library"]).arg(library());
    none.arg("sh").env("TMPDIR", &temporary).env_remove("NACRE_STORE");
    assert_eq!(none.output().unwrap().status.code(), Some(127));
    let left: Vec<_> =
        std::fs::read_dir(&temporary).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().starts_with("nacre-mpirun")), "{left:?}");
}
