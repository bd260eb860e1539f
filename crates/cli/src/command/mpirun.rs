//! `nacre mpirun`: runs an MPI job whose programs have an atomic mode of MPI-IO that holds, and lock servers for it.

pub mod attached;
mod layout;
pub mod node;
mod nodes;

use std::ffi::{OsStr, OsString};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use nacre::{Address, Engine, Uri};
use nacre_daemon::{Daemon, LEASE_MAX, LEASE_MIN, ServerOptions};
use nacre_quantity::{Escaped, escaped_text};
use rustix::process::Signal;
use tokio::process::Command;
use tokio::time::Instant;

use self::layout::Layout;
use self::nodes::{Nodes, Plan};
use super::child::{Caught, kill_with_descendants, outcome, pass_on};
use super::daemon;
use crate::arguments::Common;
use crate::failure::Failure;
use crate::output;
use crate::quantity::Time;
use crate::session::{STORE_VARIABLE, parse_uri};

const AFTER_HELP: &str = "\
Flags of nacre mpirun come first. The first argument that is none of them begins those of mpirun, to which it and all that follow are \
passed. A -- before it says so, where both have a flag of that name.

The ranks get the library for the atomic mode through LD_PRELOAD, and the lock servers through NACRE_STORE. Files that are not in atomic \
mode are left to the MPI library. Without --lock-servers, --store and NACRE_STORE, a lock server runs as long as the job, on a Unix \
socket; if hosts are given and the job has several nodes, one runs on each, started by the launcher, and they share the locks of every \
file. nacre then has to be at the same path on all nodes. Here --store takes the URI of servers only, as --lock-servers does.

Exit codes: that of mpirun; 128 plus the signal number if a signal ended it; 126 if it cannot be run; 127 if it does not exist; 1 if \
there is no library or no server for the job, or if no process of a job on this node has loaded the library; 2 for wrong usage.";

/// Flags by which launchers run nothing.
const QUESTIONS: [&str; 7] = ["--version", "-version", "-V", "--help", "-help", "-h", "-info"];

/// The variable that names the folder in which the library leaves marks.
const MARKS_VARIABLE: &str = "NACRE_MPIIO_MARKS";

/// Flags of launchers by which ranks may run on other nodes, without the dashes before them.
const HOST_FLAGS: [&str; 14] = [
    "f",
    "H",
    "host",
    "hosts",
    "hostfile",
    "hostlist",
    "machine",
    "machines",
    "machinefile",
    "machinelist",
    "default-hostfile",
    "rf",
    "rankfile",
    "configfile",
];

/// Variables by which they may: those of batch systems, and of the launchers.
const HOST_VARIABLES: [&str; 13] = [
    "SLURM_JOB_ID",
    "PBS_JOBID",
    "PBS_NODEFILE",
    "LSB_HOSTS",
    "LSB_MCPU_HOSTS",
    "PE_HOSTFILE",
    "LOADL_HOSTFILE",
    "COBALT_NODEFILE",
    "FLUX_JOB_ID",
    "HYDRA_HOST_FILE",
    "HYDRA_CONFIG_FILE",
    "OMPI_MCA_orte_default_hostfile",
    "PRTE_MCA_prte_default_hostfile",
];

/// The longest time that a launcher may take to end after SIGTERM, before it is killed with all that it has started.
const END_MAX: Duration = Duration::from_secs(10);

/// Run an MPI job with a correct atomic mode of MPI-IO
///
/// The programs need no changes. With MPI_File_set_atomicity, each read and write locks its own bytes while it
/// runs. All further arguments go to mpirun: nacre mpirun -n 4 ./program
#[derive(clap::Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// The MPI library of the programs [default: the one that mpirun reports]
    #[arg(long, value_enum)]
    mpi: Option<Mpi>,
    /// The launcher of the job [default: mpirun; with --mpi, mpirun.mpich or mpirun.openmpi if it exists]
    #[arg(long, value_name = "PROGRAM")]
    launcher: Option<PathBuf>,
    /// The library to preload [default: libnacre_mpiio_mpich.so or libnacre_mpiio_openmpi.so beside this program, or in
    /// ../lib/nacre]
    #[arg(long, value_name = "FILE")]
    library: Option<PathBuf>,
    /// The lock servers, as a URI: unix:PATH or nacre://HOST:PORT,… [default: --store or NACRE_STORE, or else servers
    /// that are started for the job, one on each of its nodes]
    #[arg(long, value_name = "URI")]
    lock_servers: Option<OsString>,
    /// Time after which a silent rank loses its locks, 500ms to 1h, at servers that are started for the job [default:
    /// 10s]
    #[arg(long, value_name = "TIME")]
    lock_lease: Option<Time>,
    /// Time that the launcher may take to reach all nodes, and the lock servers there to reach each other
    #[arg(long, value_name = "TIME", default_value = "60s")]
    start_timeout: Time,
    /// Consequence for a rank that holds bytes when its lease is about to end, because it was stopped or cannot reach the
    /// servers
    #[arg(long, value_enum, value_name = "ACTION", default_value_t = LeaseLost::Error)]
    lease_lost: LeaseLost,
    /// Put files in atomic mode as soon as they are open, for libraries that have no call for it, such as PnetCDF and ADIOS
    #[arg(long)]
    atomic: bool,
    /// Arguments of mpirun: its flags and the programs to run
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true, value_name = "ARGUMENT")]
    words: Vec<OsString>,
}

/// An MPI library.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum Mpi {
    /// MPICH, and libraries derived from it
    Mpich,
    /// Open MPI
    Openmpi,
}

/// A consequence of a lost lease.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum LeaseLost {
    /// Its call fails; if it was stopped right before a write, it still writes when it continues
    Error,
    /// A watchdog beside it kills it before others get its bytes, and the launcher ends the job
    Kill,
}

impl Mpi {
    fn name(self) -> &'static str {
        match self {
            Mpi::Mpich => "mpich",
            Mpi::Openmpi => "openmpi",
        }
    }

    fn library(self) -> String {
        format!("libnacre_mpiio_{}.so", self.name())
    }

    /// Returns the flags by which the launcher sets a variable of the ranks, and of nothing else.
    fn variable(self, name: &str, value: &OsStr) -> Vec<OsString> {
        match self {
            Mpi::Mpich => vec!["-genv".into(), name.into(), value.to_owned()],
            Mpi::Openmpi => {
                let mut pair = OsString::from(format!("{name}="));
                pair.push(value);
                vec!["-x".into(), pair]
            }
        }
    }

    /// Returns the flags by which the ranks get a variable with the value that the launcher has, which no command line shows.
    fn inherited(self, name: &str) -> Vec<OsString> {
        match self {
            // They get all of them.
            Mpi::Mpich => Vec::new(),
            Mpi::Openmpi => vec!["-x".into(), name.into()],
        }
    }

    /// Returns the variables in which the launcher tells a process its rank.
    fn rank_variables(self) -> &'static [&'static str] {
        match self {
            Mpi::Mpich => &["PMI_RANK", "PMI_ID"],
            Mpi::Openmpi => &["OMPI_COMM_WORLD_RANK"],
        }
    }

    /// Returns the variables in which the launcher tells a process how it calls the node.
    fn host_variables(self) -> &'static [&'static str] {
        match self {
            Mpi::Mpich => &["MPIR_CVAR_CH3_INTERFACE_HOSTNAME", "PMI_HOSTNAME"],
            Mpi::Openmpi => &["PMIX_HOSTNAME"],
        }
    }

    /// Returns the launcher's arguments: flags that set variables, and those of the user. Open MPI forgets the former at each ":", behind
    /// which another program of the job begins; with MPICH they are for all.
    fn command<'a>(
        self,
        variables: Vec<OsString>,
        words: impl Iterator<Item = &'a OsString>,
    ) -> Vec<OsString> {
        let mut command = variables.clone();
        for word in words {
            command.push(word.clone());
            if self == Mpi::Openmpi && word == ":" {
                command.extend_from_slice(&variables);
            }
        }
        command
    }
}

/// Runs `nacre mpirun`.
pub fn run(common: &Common, args: Args) -> Result<(), Failure> {
    super::block_on(job(common, args))
}

async fn job(common: &Common, args: Args) -> Result<(), Failure> {
    let launcher = launcher(&args);
    let mpi = match args.mpi {
        Some(mpi) => mpi,
        None => ask(&launcher).await?,
    };
    let library = match &args.library {
        Some(library) => std::path::absolute(library).map_err(Failure::io("find the library"))?,
        None => find(mpi)?,
    };
    if !library.is_file() {
        return Err(Failure::Failed(format!("there is no library {}", Escaped::of(&library))));
    }
    // The loader takes both for the end of a name, and has no way to write them otherwise.
    if library.as_os_str().as_encoded_bytes().iter().any(|byte| byte.is_ascii_whitespace() || *byte == b':') {
        let text =
            format!("{} cannot be preloaded: its path contains a space or a colon", Escaped::of(&library));
        return Err(Failure::Failed(text));
    }
    check_machine(&library)?;
    // The signals are caught before anything is started that is to be ended.
    let mut signals = Caught::new()?;
    let mut words = mpi.variable("LD_PRELOAD", &preload(&library));
    if let Some(key) = &common.key {
        let key = std::path::absolute(key).map_err(Failure::io("find the key"))?;
        words.extend(mpi.variable("NACRE_KEY", key.as_os_str()));
    }
    if args.lease_lost == LeaseLost::Kill {
        let this = std::env::current_exe().map_err(Failure::io("find the program that runs"))?;
        words.extend(mpi.variable("NACRE_MPIIO_WATCHDOG", this.as_os_str()));
    }
    if args.atomic {
        words.extend(mpi.variable("NACRE_MPIIO_ATOMIC", OsStr::new("1")));
    }
    // A "--" before mpirun's own flags is for this program.
    let theirs = &args.words[usize::from(args.words.first().is_some_and(|word| word == "--"))..];
    let may_leave = may_leave_this_node(theirs.iter(), |name| std::env::var_os(name).is_some());
    let first = theirs.first().and_then(|word| word.to_str());
    let is_question = first.is_some_and(|word| QUESTIONS.contains(&word));
    let named = || std::env::var_os(STORE_VARIABLE).filter(|uri| !uri.is_empty());
    let named = args.lock_servers.clone().or_else(|| common.store.clone()).or_else(named);
    let (mut servers, folder) = (None, Folder::create());
    let (uri, folder) = match named {
        // Without marks, nobody hears of a library that was not loaded, but the job can run.
        Some(uri) => (servers_uri(&uri)?, folder.ok()),
        None => {
            let (folder, lease) = (folder?, lease(&args)?);
            let places = if is_question { None } else { places(mpi, theirs, may_leave) };
            let start_max = args.start_timeout.0;
            let plan = places.map(|layout| Plan { mpi, launcher: &launcher, layout, lease, start_max });
            let started = Servers::start(plan, lease, &folder, &mut signals).await?;
            (servers.insert(started).uri(), Some(folder))
        }
    };
    words.extend(mpi.variable(STORE_VARIABLE, &uri));
    if let Some(folder) = &folder {
        words.extend(mpi.variable(MARKS_VARIABLE, folder.0.as_os_str()));
    }
    if let Some(Servers::Nodes(_)) = &servers {
        words.extend(mpi.inherited(node::KEY_VARIABLE));
    }
    let command = command(&launcher, &mpi.command(words, theirs.iter()), servers.as_ref())?;
    let ended = launched(command, &launcher, servers.as_mut(), &mut signals).await;
    // Also if the launcher cannot be run.
    let stopped = match servers {
        Some(servers) => servers.stop().await,
        None => Ok(()),
    };
    let (status, is_unlocked) = ended?;
    let is_missing = match &folder {
        Some(folder) if !is_question => complain_of_missing(folder, &library, status, may_leave),
        _ => false,
    };
    outcome(status)?;
    stopped?;
    // What is wrong has been said.
    if is_missing || is_unlocked { Err(Failure::Command { code: 1, sentence: None }) } else { Ok(()) }
}

/// Returns the places of a job that may run on other nodes; none if it runs on this one, or nothing can be told.
fn places(mpi: Mpi, words: &[OsString], may_leave: bool) -> Option<Layout> {
    if !may_leave {
        return None;
    }
    let is_batch = || HOST_VARIABLES.iter().any(|name| std::env::var_os(name).is_some());
    match Layout::read(mpi, words) {
        Ok(layout) => (layout.names_hosts || is_batch()).then_some(layout),
        Err(word) => {
            output::complain(&format!(
                "nacre: \"{}\" is not known to nacre mpirun, which therefore starts a lock server for the ranks of this node alone; \
                 --lock-servers names others",
                Escaped::of(&word)
            ));
            None
        }
    }
}

/// Returns whether ranks may run on other nodes, where the library leaves no marks for this program.
fn may_leave_this_node<'a>(
    mut words: impl Iterator<Item = &'a OsString>,
    is_set: impl Fn(&str) -> bool,
) -> bool {
    let is_flag = |word: &OsString| {
        let Some(flag) = word.to_str().filter(|word| word.starts_with('-')) else { return false };
        let name = flag.trim_start_matches('-').split('=').next().unwrap_or_default();
        // MPICH has them in capitals too; "-h" is no flag of this kind.
        HOST_FLAGS.iter().any(|known| *known == name || (name.len() > 1 && known.eq_ignore_ascii_case(name)))
    };
    words.any(is_flag) || HOST_VARIABLES.iter().any(|name| is_set(name))
}

/// Complains if the processes of a job that has ended have not left the marks of the library. Returns whether none has loaded it for sure.
fn complain_of_missing(folder: &Folder, library: &Path, status: ExitStatus, may_leave: bool) -> bool {
    let library = Escaped::of(library);
    if !folder.0.join("loaded").exists() {
        let place = if may_leave { " on this node" } else { "" };
        output::complain(&format!(
            "nacre: no process of this job has loaded {library}{place}: without it, atomic mode does not hold. An LD_PRELOAD of the \
             job's own, or a file with its programs, may have taken its place, or the loader cannot load it"
        ));
        return !may_leave;
    }
    // A job that has failed may have done so before.
    if status.success() && !folder.0.join("used").exists() && !may_leave {
        output::complain(&format!(
            "nacre: no process that has loaded {library} has initialized MPI: if the job has programs of MPI, they ran without it, and \
             atomic mode did not hold in them"
        ));
    }
    false
}

/// Checks that a library is one for this machine: the loader passes over others, and starts the programs without.
fn check_machine(library: &Path) -> Result<(), Failure> {
    let refused =
        |why: String| Failure::Failed(format!("{} cannot be preloaded: {why}", Escaped::of(library)));
    let head = |path: &Path| -> io::Result<[u8; HEAD_BYTES]> {
        let mut head = [0; HEAD_BYTES];
        std::fs::File::open(path)?.read_exact(&mut head)?;
        Ok(head)
    };
    let own = head(Path::new("/proc/self/exe")).map_err(Failure::io("read the program that runs"))?;
    match head(library) {
        Ok(head) if !is_elf(&head) => Err(refused("it is not a library".to_owned())),
        Ok(head) if machine(&head) != machine(&own) => {
            Err(refused("it is for another kind of machine".to_owned()))
        }
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            Err(refused("it is not a library".to_owned()))
        }
        Err(error) => Err(refused(error.to_string())),
    }
}

/// The bytes at the beginning of a file in ELF, up to the end of its kind of machine.
const HEAD_BYTES: usize = 20;

fn is_elf(head: &[u8; HEAD_BYTES]) -> bool {
    head.starts_with(b"\x7fELF")
}

/// Returns the width of words, their order, and the kind of processor.
fn machine(head: &[u8; HEAD_BYTES]) -> [u8; 4] {
    [head[4], head[5], head[18], head[19]]
}

/// Returns the command of the launcher.
fn command(launcher: &Path, words: &[OsString], servers: Option<&Servers>) -> Result<Command, Failure> {
    // The ranks get the servers by the launcher's flags; the launcher itself is not to look for any. A key that it has is of a job around
    // this one.
    match servers {
        Some(Servers::Nodes(nodes)) => {
            let mut command = attached::command(launcher, words)?;
            command.env(node::KEY_VARIABLE, nodes.key.to_hex());
            Ok(command)
        }
        _ => {
            let mut command = Command::new(launcher);
            command.args(words).env_remove(node::KEY_VARIABLE);
            Ok(command)
        }
    }
}

/// Runs the launcher to its end, and passes signals on to it. Ends the job if its servers end before; returns whether they did.
async fn launched(
    mut command: Command,
    launcher: &Path,
    mut servers: Option<&mut Servers>,
    signals: &mut Caught,
) -> Result<(ExitStatus, bool), Failure> {
    let mut child = command.spawn().map_err(|error| cannot_run(launcher, &error))?;
    let (mut is_unlocked, mut kill_at) = (false, None);
    loop {
        tokio::select! {
            status = child.wait() => {
                return Ok((status.map_err(Failure::io("wait for mpirun"))?, is_unlocked));
            }
            signal = signals.next() => match signal {
                // From a terminal the launcher gets it too.
                Signal::INT => {}
                signal => pass_on(&child, signal),
            },
            why = lost(servers.as_deref_mut()), if !is_unlocked => {
                output::complain(&format!("nacre: the job is ended, because its lock servers are gone: {}", escaped_text(&why)));
                pass_on(&child, Signal::TERM);
                (is_unlocked, kill_at) = (true, Some(Instant::now() + END_MAX));
            }
            () = at(kill_at) => {
                kill_with_descendants(&child);
                kill_at = None;
            }
        }
    }
}

/// Waits until servers on other nodes have ended, and returns why. Those in this process end with it.
async fn lost(servers: Option<&mut Servers>) -> String {
    match servers {
        Some(Servers::Nodes(nodes)) => nodes.ended().await,
        _ => std::future::pending().await,
    }
}

async fn at(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// Returns the launcher's program.
fn launcher(args: &Args) -> PathBuf {
    let own = args.mpi.map(|mpi| format!("mpirun.{}", mpi.name()));
    let there = own.filter(|program| in_path(program));
    args.launcher.clone().or(there.map(PathBuf::from)).unwrap_or_else(|| "mpirun".into())
}

fn in_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// Asks a launcher to which MPI library it belongs.
async fn ask(launcher: &Path) -> Result<Mpi, Failure> {
    let mut command = Command::new(launcher);
    let version = command.arg("--version").stdin(Stdio::null()).output().await;
    let version = version.map_err(|error| cannot_run(launcher, &error))?;
    let version = String::from_utf8_lossy(&version.stdout).into_owned();
    let named = |names: &[&str]| names.iter().any(|name| version.contains(name));
    match (named(&["Open MPI", "OpenRTE"]), named(&["HYDRA", "Intel(R) MPI", "MVAPICH"])) {
        (true, false) => Ok(Mpi::Openmpi),
        (false, true) => Ok(Mpi::Mpich),
        _ => Err(Failure::Failed(format!(
            "\"{} --version\" does not report MPICH or Open MPI; give --mpi",
            Escaped::of(launcher)
        ))),
    }
}

/// Finds the library for an MPI library.
fn find(mpi: Mpi) -> Result<PathBuf, Failure> {
    let this = std::env::current_exe().map_err(Failure::io("find the program that runs"))?;
    let name = mpi.library();
    let places = [this.with_file_name(&name), this.with_file_name("../lib/nacre").join(&name)];
    let found = places.iter().find(|place| place.is_file());
    found.and_then(|place| place.canonicalize().ok()).ok_or_else(|| {
        Failure::Failed(format!(
            "{name} is neither beside {} nor in ../lib/nacre from there: \"make mpi\" builds it, \"make install\" installs it, and \
             --library says where it is",
            Escaped::of(&this)
        ))
    })
}

/// Returns the libraries to be preloaded: those of the environment, which may be tools that use the profiling interface, and then ours.
fn preload(library: &Path) -> OsString {
    let mut all = std::env::var_os("LD_PRELOAD").unwrap_or_default();
    if !all.is_empty() {
        all.push(":");
    }
    all.push(library);
    all
}

/// Checks that a uri names servers, and returns it with absolute paths: ranks may run in other folders.
fn servers_uri(uri: &OsStr) -> Result<OsString, Failure> {
    let mut parsed = parse_uri(uri)?;
    let absolute = |path: &Path| std::path::absolute(path).map_err(Failure::io("find the lock servers"));
    match &mut parsed.engine {
        Engine::Servers(servers) => {
            for server in servers.iter_mut() {
                if let Address::Unix(path) = server {
                    *path = absolute(path)?;
                }
            }
        }
        _ => return Err(Failure::Usage(format!("{parsed} is not a server; locks need \"nacre serve\""))),
    }
    if let Some(key) = &mut parsed.options.key {
        *key = absolute(key)?;
    }
    Ok(parsed.to_os_string())
}

/// Returns the lease of servers that are started for the job.
fn lease(args: &Args) -> Result<Duration, Failure> {
    match &args.lock_lease {
        None => Ok(ServerOptions::default().lock_lease),
        Some(lease) if (LEASE_MIN..=LEASE_MAX).contains(&lease.0) => Ok(lease.0),
        Some(_) => Err(Failure::Usage("--lock-lease is a time from 500ms to 1h".to_owned())),
    }
}

/// Lock servers of the job's own.
enum Servers {
    /// One in this process, which ends with it.
    Here { daemon: Box<Daemon>, uri: OsString },
    /// One on each node of the job.
    Nodes(Box<Nodes>),
}

impl Servers {
    /// Starts them: one on each node if the job has others than this one.
    async fn start(
        plan: Option<Plan<'_>>,
        lease: Duration,
        folder: &Folder,
        signals: &mut Caught,
    ) -> Result<Servers, Failure> {
        if let Some(plan) = plan
            && let Some(nodes) = Nodes::start(&plan, signals).await?
        {
            return Ok(Servers::Nodes(Box::new(nodes)));
        }
        let options = ServerOptions {
            store: Some(Uri { engine: Engine::Memory, options: Default::default() }),
            lock: true,
            lock_lease: lease,
            listen: vec![Address::Unix(folder.0.join("locks")).to_os_string()],
            http: None,
            ..ServerOptions::default()
        };
        let started = Daemon::start(&options).map_err(Failure::store("start a lock server for the job"));
        let daemon = Box::new(started?);
        let uri = daemon.addresses().first().map(daemon::uri).unwrap_or_default();
        Ok(Servers::Here { daemon, uri })
    }

    fn uri(&self) -> OsString {
        match self {
            Servers::Here { uri, .. } => uri.clone(),
            Servers::Nodes(nodes) => nodes.uri.clone(),
        }
    }

    async fn stop(self) -> Result<(), Failure> {
        match self {
            Servers::Here { daemon, .. } => Ok(daemon.stop()?),
            Servers::Nodes(nodes) => {
                nodes.stop().await;
                Ok(())
            }
        }
    }
}

/// A folder of the job's own that nobody else can look into, for the socket of its server and the marks of its processes. Removed when it
/// is dropped.
struct Folder(PathBuf);

impl Folder {
    fn create() -> Result<Folder, Failure> {
        use std::os::unix::fs::DirBuilderExt;
        let path = std::env::temp_dir().join(format!(
            "nacre-mpirun-{}-{:08x}",
            std::process::id(),
            rand::random::<u32>()
        ));
        // Its processes may run in other folders.
        let path = std::path::absolute(path).map_err(Failure::io("find the folder for temporary files"))?;
        let attempted = format!("create the folder {} for the job", Escaped::of(&path));
        std::fs::DirBuilder::new().mode(0o700).create(&path).map_err(Failure::io(attempted))?;
        Ok(Folder(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A folder that stays behind does no harm.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn cannot_run(launcher: &Path, error: &io::Error) -> Failure {
    let code = if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 };
    Failure::Command { code, sentence: Some(format!("cannot run {}: {error}", Escaped::of(launcher))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_program_of_a_job_gets_the_variables() {
        let words: Vec<OsString> = ["-n", "1", "a", ":", "-n", "2", "b", "x:y"].map(OsString::from).into();
        let command = |mpi: Mpi| {
            let words = mpi.command(mpi.variable("LD_PRELOAD", OsStr::new("l.so")), words.iter());
            words.iter().map(|word| word.to_str().unwrap()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(command(Mpi::Mpich), "-genv LD_PRELOAD l.so -n 1 a : -n 2 b x:y");
        assert_eq!(command(Mpi::Openmpi), "-x LD_PRELOAD=l.so -n 1 a : -x LD_PRELOAD=l.so -n 2 b x:y");
    }

    #[test]
    fn jobs_that_may_run_elsewhere_are_known_by_flags_and_variables() {
        let may_leave = |words: &[&str], variable: &str| {
            let words: Vec<OsString> = words.iter().map(OsString::from).collect();
            may_leave_this_node(words.iter(), |name| name == variable)
        };
        for flag in ["--host", "-hosts", "--hostfile=nodes", "-machinefile", "-H"] {
            assert!(may_leave(&["-n", "2", flag, "a,b", "program"], ""), "{flag}");
        }
        assert!(may_leave(&["-n", "2", "program"], "SLURM_JOB_ID"));
        assert!(!may_leave(&["-n", "2", "--app", "file", "host", "-x", "LD_PRELOAD=x"], ""));
    }

    #[test]
    fn only_libraries_for_this_machine_can_be_preloaded() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("library.so");
        let refused = |bytes: &[u8]| {
            std::fs::write(&file, bytes).unwrap();
            match check_machine(&file) {
                Err(Failure::Failed(sentence)) => sentence,
                other => panic!("{other:?}"),
            }
        };
        for bytes in [&b""[..], b"INPUT(libother.so)  # a script of the linker"] {
            assert!(refused(bytes).ends_with("it is not a library"));
        }
        let mut head = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        head.truncate(HEAD_BYTES);
        head[18] ^= 1;
        assert!(refused(&head).ends_with("it is for another kind of machine"));
        assert!(check_machine(&std::env::current_exe().unwrap()).is_ok());
    }

    #[test]
    fn ranks_in_other_folders_find_the_servers() {
        let here = std::env::current_dir().unwrap();
        let uri = servers_uri(OsStr::new("unix:run/locks?key=cluster.key")).unwrap();
        let expected = format!("unix:{0}/run/locks?key={0}/cluster.key", here.display());
        assert_eq!(uri, OsString::from(expected));
        assert_eq!(servers_uri(OsStr::new("nacre://a:1,b:2")).unwrap(), "nacre://a:1,b:2");
        assert!(servers_uri(OsStr::new("mem:")).is_err());
    }
}
