//! The launcher's part of a command line: what stands before each program of a job, and says where its ranks run.
//!
//! A launcher knows by its own table which of its flags take values, and so where the program begins. The tables here are those of MPICH's
//! Hydra, and of Open MPI. At a flag that they do not have, nothing can be told.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use super::{HOST_FLAGS, Mpi};

/// The flags of a launcher: whether they are for each command that is to run in the places of the job, the number of their values, and
/// their names without dashes. The others set what is of the job alone: its variables, its output, its time.
type Flags = &'static [(bool, usize, &'static [&'static str])];

const MPICH: Flags = &[
    (
        true,
        1,
        &["f", "hostfile", "machinefile", "machine", "machines", "machinelist", "host", "hosts", "hostlist"],
    ),
    (true, 1, &["n", "np", "ppn", "rankmap", "map-by", "order-nodes", "usize", "wdir"]),
    (
        true,
        1,
        &["launcher", "launcher-exec", "bootstrap", "bootstrap-exec", "rmk", "iface", "localhost", "demux"],
    ),
    (true, 0, &["skip-launch-node", "enable-x", "disable-x", "hybrid-hosts", "pmi-port"]),
    (true, 0, &["enable-hostname-propagation", "disable-hostname-propagation"]),
    (false, 1, &["binding", "bind-to", "membind", "topolib", "g", "gpus-per-proc", "gpu-subdevs-per-proc"]),
    (
        false,
        1,
        &["output-from", "prepend-pattern", "outfile-pattern", "errfile-pattern", "outfile", "errfile"],
    ),
    (false, 1, &["nameserver", "memory-alloc-kinds"]),
    (
        false,
        0,
        &["prepend-rank", "l", "print-all-exitcodes", "profile", "report-bindings", "debug", "v", "verbose"],
    ),
    (false, 0, &["genvall", "envall", "enable-auto-cleanup", "disable-auto-cleanup"]),
    (false, 2, &["genv", "env"]),
];

const OPEN_MPI: Flags = &[
    (true, 1, &["H", "host", "hostfile", "machinefile", "default-hostfile", "rf", "rankfile"]),
    (true, 1, &["c", "n", "np", "N", "npernode", "npersocket", "map-by", "rank-by", "cpu-set", "cpu-list"]),
    (
        true,
        1,
        &["cpus-per-proc", "cpus-per-rank", "path", "prefix", "wd", "wdir", "am", "tune", "launch-agent"],
    ),
    (true, 2, &["mca", "gmca", "omca", "prtemca", "pmixmca"]),
    (true, 0, &["pernode", "bycore", "byslot", "bynode", "nolocal", "oversubscribe", "nooversubscribe"]),
    (true, 0, &["use-hwthread-cpus", "novm", "noprefix", "allow-run-as-root"]),
    (
        false,
        1,
        &["x", "bind-to", "output-filename", "output", "display", "stdin", "timeout", "preload-files"],
    ),
    (
        false,
        0,
        &["bind-to-core", "bind-to-socket", "report-bindings", "merge-stderr-to-stdout", "tag-output"],
    ),
    (false, 0, &["timestamp-output", "xml", "q", "quiet", "v", "verbose", "s", "preload-binary"]),
    (false, 0, &["display-map", "display-allocation", "get-stack-traces"]),
];

/// The places of a job.
#[derive(Debug)]
pub struct Layout {
    /// The flags before each of its programs, as far as they say where it runs.
    programs: Vec<Vec<OsString>>,
    /// True if the flags name hosts.
    pub names_hosts: bool,
}

impl Layout {
    /// Reads the launcher's arguments.
    ///
    /// # Errors
    /// The word at which it cannot be told what it means.
    pub fn read(mpi: Mpi, words: &[OsString]) -> Result<Layout, OsString> {
        let mut words = words.iter();
        let mut layout = Layout { programs: Vec::new(), names_hosts: false };
        loop {
            let mut flags = Vec::new();
            loop {
                let Some(word) = words.next() else { return Err("a command without a program".into()) };
                if !word.as_bytes().starts_with(b"-") {
                    break;
                }
                layout.read_flag(mpi, word, &mut words, &mut flags).ok_or(word)?;
            }
            layout.programs.push(flags);
            // The program's own arguments.
            if !words.any(|word| word == ":") {
                return Ok(layout);
            }
        }
    }

    /// Reads a flag and its values; `None` if it is not known.
    fn read_flag<'a>(
        &mut self,
        mpi: Mpi,
        word: &'a OsString,
        words: &mut impl Iterator<Item = &'a OsString>,
        flags: &mut Vec<OsString>,
    ) -> Option<()> {
        let flag = word.to_str()?.trim_start_matches('-');
        let (name, joined) = flag.split_once('=').map_or((flag, 0), |(name, _)| (name, 1));
        let table = if mpi == Mpi::Mpich { MPICH } else { OPEN_MPI };
        let (is_kept, count, _) = table.iter().find(|(_, _, names)| names.contains(&name))?;
        let mut all = vec![word.clone()];
        for _ in 0..count.checked_sub(joined)? {
            let value = words.next()?;
            all.push(value.clone());
            // MPICH's "-genv NAME=VALUE" is one value.
            if mpi == Mpi::Mpich && value.as_bytes().contains(&b'=') {
                break;
            }
        }
        self.names_hosts |= HOST_FLAGS.contains(&name);
        if *is_kept {
            flags.append(&mut all);
        }
        Some(())
    }

    /// Returns the launcher's arguments for a command in all places of the job. `variables` are flags that stand before each program.
    pub fn command(&self, variables: &[OsString], command: &[&OsStr]) -> Vec<OsString> {
        let mut words = Vec::new();
        for flags in &self.programs {
            if !words.is_empty() {
                words.push(":".into());
            }
            words.extend(variables.iter().chain(flags).cloned());
            words.extend(command.iter().map(OsString::from));
        }
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(mpi: Mpi, line: &str) -> Result<Layout, OsString> {
        let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        Layout::read(mpi, &words)
    }

    fn command(mpi: Mpi, line: &str) -> String {
        let words = read(mpi, line).unwrap().command(&[], &[OsStr::new("serve")]);
        words.iter().map(|word| word.to_str().unwrap()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn another_command_takes_the_places_of_the_programs() {
        for (mpi, line, expected) in [
            (Mpi::Mpich, "-hosts a,b -ppn 2 -n 4 ./program -n 7", "-hosts a,b -ppn 2 -n 4 serve"),
            (
                Mpi::Mpich,
                "-genv A=1 -genv B 2 -l -f=nodes -n 1 a : -env C 3 -n 2 b",
                "-f=nodes -n 1 serve : -n 2 serve",
            ),
            (Mpi::Openmpi, "-x A=1 --host a:2,b:2 -np 4 a x:y", "--host a:2,b:2 -np 4 serve"),
            (
                Mpi::Openmpi,
                "--mca plm_rsh_agent ssh --tag-output -n 1 a : -n 1 b",
                "--mca plm_rsh_agent ssh -n 1 serve : -n 1 serve",
            ),
        ] {
            assert_eq!(command(mpi, line), expected, "{line}");
        }
    }

    #[test]
    fn variables_stand_before_each_program() {
        let layout = read(Mpi::Openmpi, "-n 1 a : -n 2 b").unwrap();
        let words = layout.command(&["-x".into(), "KEY".into()], &[OsStr::new("serve")]);
        let expected = "-x KEY -n 1 serve : -x KEY -n 2 serve";
        assert_eq!(words, expected.split(' ').map(OsString::from).collect::<Vec<_>>());
    }

    #[test]
    fn hosts_are_named_by_flags_of_the_launcher_and_not_of_the_program() {
        for (line, names_hosts) in [
            ("-n 2 ./program -f input --host x", false),
            ("-n 2 -hosts a,b ./program", true),
            ("-n 1 a : -host b -n 1 b", true),
        ] {
            assert_eq!(read(Mpi::Mpich, line).unwrap().names_hosts, names_hosts, "{line}");
        }
    }

    #[test]
    fn what_is_not_known_is_named() {
        for (mpi, line, word) in [
            (Mpi::Mpich, "-n 2 --colour red ./program", "--colour"),
            (Mpi::Mpich, "-genvnone -n 2 ./program", "-genvnone"),
            (Mpi::Mpich, "-configfile jobs", "-configfile"),
            (Mpi::Mpich, "-l=1 ./program", "-l=1"),
            (Mpi::Openmpi, "-n 2 --app file", "--app"),
            (Mpi::Openmpi, "-n", "-n"),
            (Mpi::Openmpi, "-n 2", "a command without a program"),
        ] {
            assert_eq!(read(mpi, line).unwrap_err(), word, "{line}");
        }
    }
}
