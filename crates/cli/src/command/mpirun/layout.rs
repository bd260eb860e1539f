//! The launcher's part of a command line: what stands before each program of a job, and says where its ranks run.
//!
//! A launcher knows by its own table which of its flags take values, and so where the program begins. The tables here are those of MPICH's
//! Hydra, and of Open MPI. At a flag that they do not have, nothing can be told.

use std::ffi::{OsStr, OsString};
use std::net::Ipv4Addr;
use std::os::unix::ffi::OsStrExt;

use super::{HOST_FLAGS, Mpi, node};

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
    (false, 0, &["genvall", "envall", "enable-auto-cleanup", "disable-auto-cleanup", "dac"]),
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
    (true, 1, &["ppr", "cf", "cartofile", "max-vm-size", "personality"]),
    (true, 2, &["mca", "gmca", "omca", "prtemca", "pmixmca"]),
    (true, 0, &["pernode", "bycore", "byslot", "bynode", "nolocal", "oversubscribe", "nooversubscribe"]),
    (true, 0, &["use-hwthread-cpus", "novm", "noprefix", "allow-run-as-root", "leave-session-attached"]),
    (true, 0, &["do-not-resolve", "enable-instant-on-support", "fwd-mpirun-port", "use-regexp"]),
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
    (
        false,
        1,
        &["xml-file", "xterm", "report-pid", "report-uri", "report-events", "ompi-server", "max-restarts"],
    ),
    (
        false,
        0,
        &["display-map", "display-devel-map", "display-diffable-map", "display-topo", "show-progress"],
    ),
    (false, 0, &["display-allocation", "display-devel-allocation", "output-proctable", "get-stack-traces"]),
    (false, 0, &["report-state-on-timeout", "report-child-jobs-separately", "index-argv-by-rank"]),
    (false, 0, &["enable-recovery", "disable-recovery", "continuous", "set-cwd-to-session-dir"]),
    (false, 0, &["d", "debug-devel", "debug-daemons", "debug-daemons-file"]),
];

/// Flags whose value is a list of hosts. Others of [`HOST_FLAGS`] name a file with them.
const HOST_LISTS: [&str; 7] = ["H", "host", "hosts", "hostlist", "machine", "machines", "machinelist"];

/// The places of a job.
#[derive(Debug)]
pub struct Layout {
    /// The flags before each of its programs, as far as they say where it runs.
    programs: Vec<Vec<OsString>>,
    /// True if the flags name hosts, not all of which are this one for sure.
    pub names_hosts: bool,
    /// True if the flags make the launcher print the environment of the ranks.
    pub shows_environment: bool,
}

impl Layout {
    /// Reads the launcher's arguments.
    ///
    /// # Errors
    /// The word at which it cannot be told what it means.
    pub fn read(mpi: Mpi, words: &[OsString]) -> Result<Layout, OsString> {
        let mut words = words.iter();
        let mut layout = Layout { programs: Vec::new(), names_hosts: false, shows_environment: false };
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
        let (given, joined) = flag.split_once('=').map_or((flag, None), |(name, value)| (name, Some(value)));
        let is_mpich = mpi == Mpi::Mpich;
        // Hydra's flags are the same in capitals.
        let is_given = |name: &str| name == given || (is_mpich && name.eq_ignore_ascii_case(given));
        let table = if is_mpich { MPICH } else { OPEN_MPI };
        let known = table.iter().find_map(|(is_kept, count, names)| {
            let name = names.iter().find(|name| is_given(name))?;
            Some((*is_kept, *count, *name))
        });
        let (is_kept, count, name) = known?;
        // MPICH's "-genv NAME=VALUE" is one value.
        let is_pair = |value: &[u8]| is_mpich && count == 2 && value.contains(&b'=');
        let mut all = vec![word.clone()];
        let mut missing = count.checked_sub(usize::from(joined.is_some()))?;
        if joined.is_some_and(|value| is_pair(value.as_bytes())) {
            missing = 0;
        }
        while missing > 0 {
            let value = words.next()?;
            missing = if is_pair(value.as_bytes()) { 0 } else { missing - 1 };
            all.push(value.clone());
        }
        let value = joined.or_else(|| all.last()?.to_str()).unwrap_or_default();
        self.names_hosts |=
            HOST_FLAGS.contains(&name) && !(HOST_LISTS.contains(&name) && value.split(',').all(is_this_node));
        self.shows_environment |= is_mpich && ["v", "verbose", "debug"].contains(&name);
        if is_kept {
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

/// Returns whether a host of a list, which may have a number of ranks behind it, is this one whatever the launcher makes of names.
fn is_this_node(host: &str) -> bool {
    let host = host.split(':').next().unwrap_or_default();
    let is_loopback = host.parse::<Ipv4Addr>().is_ok_and(|address| address.is_loopback());
    is_loopback || host == "localhost" || host == node::host()
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
            (Mpi::Mpich, "-genv=A=1 -env=B 2 -N 2 ./program", "-N 2 serve"),
            (Mpi::Openmpi, "-x A=1 --host a:2,b:2 -np 4 a x:y", "--host a:2,b:2 -np 4 serve"),
            (
                Mpi::Openmpi,
                "--map-by ppr:1:node:PE=2 --oversubscribe --report-uri - -N 1 a --host b",
                "--map-by ppr:1:node:PE=2 --oversubscribe -N 1 serve",
            ),
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
            ("-HOSTS=a -n 1 b", true),
            ("-f localhost -n 1 b", true),
        ] {
            assert_eq!(read(Mpi::Mpich, line).unwrap().names_hosts, names_hosts, "{line}");
        }
    }

    #[test]
    fn hosts_that_are_this_one_are_known() {
        for mpi in [Mpi::Mpich, Mpi::Openmpi] {
            for (hosts, names_hosts) in [
                ("localhost:2", false),
                (node::host().as_str(), false),
                ("127.0.0.1,localhost", false),
                ("localhost,b", true),
            ] {
                let line = format!("-host {hosts} -n 2 ./program");
                assert_eq!(read(mpi, &line).unwrap().names_hosts, names_hosts, "{line}");
            }
        }
    }

    #[test]
    fn launchers_that_print_the_environment_are_known() {
        assert!(read(Mpi::Mpich, "-verbose -n 2 ./program").unwrap().shows_environment);
        assert!(!read(Mpi::Mpich, "-n 2 ./program -verbose").unwrap().shows_environment);
        assert!(!read(Mpi::Openmpi, "-v -n 2 ./program").unwrap().shows_environment);
    }

    #[test]
    fn what_is_not_known_is_named() {
        for (mpi, line, word) in [
            (Mpi::Mpich, "-n 2 --colour red ./program", "--colour"),
            (Mpi::Mpich, "-genvnone -n 2 ./program", "-genvnone"),
            (Mpi::Mpich, "-configfile jobs", "-configfile"),
            (Mpi::Mpich, "-l=1 ./program", "-l=1"),
            (Mpi::Openmpi, "-n 2 --app file", "--app"),
            (Mpi::Mpich, "-np4 ./program", "-np4"),
            (Mpi::Openmpi, "-np4 ./program", "-np4"),
            (Mpi::Openmpi, "-N=2 -Host a ./program", "-Host"),
            (Mpi::Openmpi, "-n", "-n"),
            (Mpi::Openmpi, "-n 2", "a command without a program"),
        ] {
            assert_eq!(read(mpi, line).unwrap_err(), word, "{line}");
        }
    }
}
