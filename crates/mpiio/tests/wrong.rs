//! Tests of jobs that were started wrongly: with servers, settings, a library or a program that do not fit.

mod kit;

use std::process::Command;

use kit::{describe, is_open_mpi, job, job_with, library, path, program, succeed};

#[test]
fn a_failed_open_in_atomic_mode_leaves_the_files_as_they_were() {
    let folder = tempfile::tempdir().unwrap();
    let nowhere = format!("unix:{}", path(&folder, "nowhere"));
    let (file, program) = (path(&folder, "file"), program("open.c"));
    for ranks in [1, 2] {
        let refused = |how: &str| {
            let printed = succeed(&["--atomic", "--lock-servers", &nowhere], ranks, &program, &[&file, how]);
            assert_eq!(printed, "refused\n", "{how}, {ranks} ranks");
        };
        std::fs::write(&file, "kept").unwrap();
        refused("delete");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "kept");
        refused("new");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "kept");
        std::fs::remove_file(&file).unwrap();
        refused("new");
        assert!(!std::fs::exists(&file).unwrap(), "a file that the next attempt finds");
    }
}

#[test]
fn files_in_atomic_mode_are_deleted_when_they_are_closed() {
    let folder = tempfile::tempdir().unwrap();
    let (file, program) = (path(&folder, "file"), program("open.c"));
    for ranks in [1, 2] {
        let none: &[&str] = &[];
        for flags in [none, &["--atomic"]] {
            for (how, stays) in [("delete", false), ("new", true)] {
                let printed = succeed(flags, ranks, &program, &[&file, how]);
                assert_eq!(printed, "opened\n", "{how}, {ranks} ranks");
                assert_eq!(std::fs::exists(&file).unwrap(), stays, "{how}, {ranks} ranks, {flags:?}");
            }
            std::fs::remove_file(&file).unwrap();
        }
    }
}

#[test]
fn wrong_variables_are_refused_by_all_ranks_and_named_once() {
    let folder = tempfile::tempdir().unwrap();
    let file = path(&folder, "file");
    let arguments = [&file, "write_at", "1", "8", "8", "16", "1"];
    for (name, value, call) in [
        ("NACRE_MPIIO_WAIT", "0", "MPI_File_set_atomicity"),
        ("NACRE_MPIIO_WAIT", "-1", "MPI_File_set_atomicity"),
        ("NACRE_MPIIO_WAIT", "abc", "MPI_File_set_atomicity"),
        ("NACRE_MPIIO_ATOMIC", "maybe", "MPI_File_open"),
    ] {
        let output = job(&[], 2, &program("tear.c"), &arguments).env(name, value).output().unwrap();
        let text = describe(&output);
        assert!(!output.status.success(), "{text}");
        let sentence = format!("nacre: {call} on rank 0: {name}={value} is wrong: ");
        assert_eq!(text.matches(&sentence).count(), 1, "{text}");
    }
    // Where it is off, no server is needed.
    let nowhere = format!("unix:{}", path(&folder, "nowhere"));
    let arguments = [&file, "write_at", "1", "8", "8", "16", "0"];
    let mut command = job(&["--lock-servers", &nowhere], 2, &program("tear.c"), &arguments);
    let output = command.env("NACRE_MPIIO_ATOMIC", "no").output().unwrap();
    assert!(output.status.success(), "{}", describe(&output));
}

#[test]
fn a_job_without_the_library_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    // The loader says that it is too short, and starts the program without it.
    let short = folder.path().join("libnacre_mpiio.so");
    std::fs::write(&short, &std::fs::read(library()).unwrap()[..64]).unwrap();
    let file = path(&folder, "file");
    // Without MPI-IO in it, so that it succeeds.
    for (script, code) in [("exit 0", 1), ("exit 7", 7)] {
        let output = job_with(&short, &[], 1, "sh".as_ref(), &["-c", script]).output().unwrap();
        let text = describe(&output);
        assert_eq!(output.status.code(), Some(code), "{text}");
        let sentence = format!("nacre: no process of this job has loaded {}: ", short.display());
        assert_eq!(text.matches(&sentence).count(), 1, "{text}");
    }
    // The program before the one that matters has the library.
    let words = ["-u", "LD_PRELOAD", "sh", "-c", "exit 0"];
    let output = job(&[], 1, "env".as_ref(), &words).output().unwrap();
    let text = describe(&output);
    assert!(output.status.success() && text.contains("has initialized MPI"), "{text}");
    let output = job(&[], 1, &program("open.c"), &[&file, "new"]).output().unwrap();
    let text = describe(&output);
    assert!(output.status.success() && !text.contains("nacre: "), "{text}");
}

#[test]
fn files_that_are_no_libraries_are_refused_before_the_job_starts() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("libnacre_mpiio.so");
    std::fs::write(&script, "INPUT(libnacre_mpiio_mpich.so)").unwrap();
    let text = describe(&job_with(&script, &[], 1, "echo".as_ref(), &["started"]).output().unwrap());
    assert!(text.contains("cannot be preloaded: it is not a library") && !text.contains("started"), "{text}");
}

#[test]
fn a_program_of_another_mpi_library_is_told_which_flag_it_needs() {
    let (other, name) = if is_open_mpi() { ("mpich", "MPICH") } else { ("openmpi", "Open MPI") };
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("open");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/open.c");
    // Where there is only one MPI library, no program can have the wrong one.
    let mut compiler = Command::new(format!("mpicc.{other}"));
    let Ok(compiled) = compiler.arg(source).arg("-o").arg(&program).output() else { return };
    assert!(compiled.status.success(), "{}", describe(&compiled));
    let output = job(&[], 1, &program, &[&path(&folder, "file"), "new"]).output().unwrap();
    let text = describe(&output);
    assert!(!output.status.success(), "{text}");
    let sentence = format!("nacre: the program is linked with {name}, but ");
    assert!(text.contains(&sentence) && text.contains(&format!("nacre mpirun --mpi {other} ")), "{text}");
}
