//! The start of a process: marks that tell `nacre mpirun` of it, and the check that the program's MPI library is the one for which this
//! library was built.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Once;

use crate::mpi::Library;

/// The environment variable that names the folder of the job's marks, which is there on the node of `nacre mpirun` alone.
const MARKS_VARIABLE: &str = "NACRE_MPIIO_MARKS";

/// The mark of processes that have loaded this library.
const LOADED: &str = "loaded";

/// The mark of processes that have initialized MPI with it.
const USED: &str = "used";

// SAFETY: the section has functions of this type, which the loader calls once all libraries are there.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = loaded;

extern "C" fn loaded() {
    mark(LOADED);
}

/// Leaves a mark: an empty file. Where that cannot be, nobody hears of this process.
fn mark(name: &str) {
    if let Some(folder) = std::env::var_os(MARKS_VARIABLE).filter(|folder| !folder.is_empty()) {
        let _ = File::create(Path::new(&folder).join(name));
    }
}

/// Begins the use of MPI. Ends the process if its program is linked with another MPI library: handles and constants of one mean nothing to
/// the other.
pub fn begin() {
    static BEGUN: Once = Once::new();
    BEGUN.call_once(|| {
        if let Some(sentence) = mismatch(Library::own(), Library::of_program()) {
            let _ = std::io::stderr().write_all(format!("nacre: {sentence}\n").as_bytes());
            std::process::exit(1);
        }
        mark(USED);
    });
}

/// Returns what is wrong with a program that is linked with an MPI library. One that is not known may be right.
fn mismatch(own: Library, linked: Option<Library>) -> Option<String> {
    let linked = linked.filter(|linked| *linked != own)?;
    Some(format!(
        "the program is linked with {}, but Nacre's library for {} was loaded: start it with \"nacre mpirun --mpi {} …\"",
        linked.name(),
        own.name(),
        linked.flag()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_of_another_mpi_library_is_told_the_flag() {
        let linked = |version| mismatch(Library::Mpich, Library::of_version(version));
        assert_eq!(linked("MPICH Version:\t4.0.2\nMPICH Release date:\tThu Apr 7"), None);
        assert_eq!(linked("Intel(R) MPI Library 2021.9 for Linux* OS"), None);
        assert_eq!(linked("a library of a vendor"), None);
        let sentence = linked("Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4").unwrap();
        assert!(
            sentence.contains("linked with Open MPI") && sentence.contains("--mpi openmpi"),
            "{sentence}"
        );
        // The library of the tests is the one that they are linked with.
        assert_eq!(mismatch(Library::own(), Library::of_program()), None);
    }
}
