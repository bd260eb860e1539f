//! `nacre-mpi walk`: the command `nacre walk`, carried out by all ranks of a job.
//!
//! Every rank makes the same plan from the same flags. Rank 0 visits the roots; the algorithm shares out what is below;
//! at the end, and at every checkpoint, each rank tells rank 0 what it has counted, and rank 0 prints.

use crate::job::{self, JobError, Until};
use crate::measure::{Measured, Measurements};
use crate::network::Network;
use crate::output::Output;
use nacre_walk::Unit;
use nacre_walk::algorithm::proximity::Nodes;
use nacre_walk::algorithm::{self, Algorithm, Ending};
use nacre_walk::command::{self, Collector, CommandError, Plan};
use nacre_walk::report::{Report, Shape};
use nacre_walk::report::link::HardLinks;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::io;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

/// Count or list everything below some roots, by all ranks of this job
#[derive(clap::Args, Clone, Debug)]
#[group(skip)]
pub struct Args {
    /// How the ranks share out the work: cp, drqs, deqs, pa-drqs or h-drqs
    #[arg(long, value_name = "NAME", default_value_t = Algorithm::HDrqs, help_heading = "Ranks")]
    pub algorithm: Algorithm,
    /// What all random choices follow from
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Ranks")]
    pub seed: u64,
    /// Write what every rank did, said and took into this file, as JSON
    #[arg(long, value_name = "FILE", help_heading = "Ranks")]
    pub measurements: Option<PathBuf>,
    #[command(flatten)]
    pub walk: command::Args,
}

/// What a rank tells rank 0 at the end of a phase.
#[derive(serde::Serialize, serde::Deserialize)]
struct Part {
    report: Report,
    /// Pieces of output that rank 0 has to have.
    pieces: u64,
    measured: Measured,
    /// Why this rank could not do its part.
    failure: Option<String>,
}

/// In front of what a rank tells: a piece of its files with several names, or its part, which comes last.
const LINKS: u8 = 0;
const LAST: u8 = 1;

/// Walks, and gives the exit code of this rank.
pub fn run(args: &Args, json: bool, network: Network<Unit>, interrupted: &AtomicBool) -> i32 {
    let mut walk = Rank { network, args, json, interrupted };
    match walk.run() {
        Ok(code) => code,
        Err(error) => {
            // Others may wait for this rank for ever: the whole job ends.
            eprintln!("nacre-mpi: rank {}: {error}", walk.network.number());
            walk.network.abort(1)
        }
    }
}

struct Rank<'a> {
    network: Network<Unit>,
    args: &'a Args,
    json: bool,
    interrupted: &'a AtomicBool,
}

impl Rank<'_> {
    fn run(&mut self) -> Result<i32, JobError> {
        let began = Instant::now();
        let nodes = Nodes::new(&self.network.share(node_number()));
        let plan = match self.agree(self.plan(&nodes))? {
            Ok(plan) => plan,
            Err(code) => return Ok(code),
        };
        let spill = Arc::default();
        let (forwarder, mut output) = Output::new(self.printer()?, self.network.size());
        let listing = nacre_walk::list::Output::new(Box::new(forwarder));
        let mut walk = match self.agree(plan.walk())? {
            Ok(walk) => walk,
            Err(code) => return Ok(code),
        };
        let mut collectors = plan.collectors(&listing, walk.queue(), &spill);
        let started = if self.network.is_root() { plan.start(&walk, &mut collectors[0]) } else { Ok(()) };
        if let Err(code) = self.agree(started)? {
            return Ok(code);
        }
        let mut options = algorithm::Options::new(self.args.algorithm, self.network.size(), self.args.seed);
        options.count_peers = self.args.measurements.is_some();
        options.nodes = Arc::new(nodes);
        let entries = if options.algorithm.has_master() { walk.queue().take(usize::MAX) } else { Vec::new() };

        let mut report = Report::new(&plan.shape);
        let mut links = HardLinks::new(&spill, 1);
        let until = Until { interrupted: self.interrupted, checkpoint_at: None };
        let phase = job::run_phase(
            &mut self.network,
            &mut walk,
            &mut collectors,
            &options,
            entries,
            &mut output,
            &until,
            |collectors| collectors.iter_mut().for_each(Collector::flush),
        )?;
        for collector in &mut collectors {
            collector.take(&mut report, &mut links);
        }
        let measured = Measured::new(&phase, &self.network, walk.queue().progress(), began.elapsed());
        let parts = self.gather(&mut report, &mut links, &plan.shape, measured, &mut output)?;
        let code = match parts {
            None => 0,
            Some(parts) => self.conclude(&plan, phase.ending, report, &links, &parts, &output),
        };
        Ok(self.network.decide(code))
    }

    /// What the flags ask for, with as many threads as this rank has processors to itself.
    fn plan(&self, nodes: &Nodes) -> Result<Plan, CommandError> {
        let mut args = self.args.walk.clone();
        if self.args.algorithm.has_threads() {
            let processors = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
            let neighbours = nodes.local_ranks(self.network.number()) as usize;
            args.threads = args.threads.or(NonZeroUsize::new((processors / neighbours).max(1)));
        } else {
            args.threads = Some(NonZeroUsize::MIN);
        }
        let mut plan = Plan::new(&args, self.json)?;
        plan.options.profile = self.args.measurements.is_some();
        Ok(plan)
    }

    /// Whether all ranks succeeded with something: if not, each that failed says why, and all end with the same code.
    fn agree<T>(&self, done: Result<T, CommandError>) -> Result<Result<T, i32>, JobError> {
        let code = match &done {
            Ok(_) => 0,
            Err(CommandError::Usage(_)) => 2,
            Err(_) => 1,
        };
        let codes = self.network.share(code);
        let worst = codes.iter().copied().max().unwrap_or(0);
        let first = codes.iter().position(|code| *code == worst).unwrap_or(0) as u32;
        match done {
            Ok(value) if worst == 0 => Ok(Ok(value)),
            // Ranks mostly fail for the same reason: one of them says it.
            Err(error) if first == self.network.number() => {
                eprintln!("nacre-mpi: {error}");
                Ok(Err(worst as i32))
            }
            _ => Ok(Err(worst as i32)),
        }
    }

    fn printer(&self) -> Result<Option<std::fs::File>, JobError> {
        use std::os::fd::AsFd;
        if !self.network.is_root() {
            return Ok(None);
        }
        Ok(Some(io::stdout().as_fd().try_clone_to_owned()?.into()))
    }

    /// Brings everything that was counted to rank 0, which gets what all ranks measured.
    fn gather(
        &self,
        report: &mut Report,
        links: &mut HardLinks,
        shape: &Shape,
        measured: Measured,
        output: &mut Output,
    ) -> Result<Option<Vec<Part>>, JobError> {
        if !self.network.is_root() {
            let failure = links
                .send(|bytes| {
                    self.network.tell(&[&[LINKS], bytes].concat());
                    Ok(())
                })
                .err()
                .map(|error| error.to_string());
            let part = Part { report: report.clone(), pieces: output.sent(), measured, failure };
            let bytes = postcard::to_stdvec(&part).map_err(io::Error::other)?;
            self.network.tell(&[&[LAST], &bytes[..]].concat());
            return Ok(None);
        }
        let own = Part { report: Report::new(shape), pieces: 0, measured, failure: None };
        let mut parts: Vec<Option<Part>> = (0..self.network.size()).map(|_| None).collect();
        parts[0] = Some(own);
        let complete = |parts: &[Option<Part>], output: &Output| {
            parts.iter().enumerate().all(|(rank, part)| {
                part.as_ref().is_some_and(|part| rank == 0 || output.received(rank as u32) == part.pieces)
            })
        };
        while !complete(&parts, output) {
            let mut quiet = !output.go_on(&self.network)?;
            while let Some((from, bytes)) = self.network.hear() {
                quiet = false;
                let nonsense = || JobError::Nonsense(from);
                match bytes.split_first() {
                    Some((&LINKS, bytes)) => links.receive(bytes).then_some(()).ok_or_else(nonsense)?,
                    Some((&LAST, bytes)) => {
                        let mut part: Part = postcard::from_bytes(bytes).map_err(|_| nonsense())?;
                        let empty = Report::new(shape);
                        report.merge(std::mem::replace(&mut part.report, empty));
                        parts[from as usize] = Some(part);
                    }
                    _ => return Err(nonsense()),
                }
            }
            if quiet {
                std::thread::sleep(std::time::Duration::from_micros(200));
            }
        }
        Ok(Some(parts.into_iter().flatten().collect()))
    }

    /// Prints, on rank 0, and gives the exit code of the job.
    fn conclude(
        &self,
        plan: &Plan,
        ending: Ending,
        mut report: Report,
        links: &HardLinks,
        parts: &[Part],
        output: &Output,
    ) -> i32 {
        for (root, within) in &plan.dropped {
            eprintln!("nacre-mpi: {root:?} is visited as part of {within:?}");
        }
        if let Some(error) = output.failure() {
            return match CommandError::output(io::Error::new(error.kind(), error.to_string())) {
                CommandError::Unread => 0,
                error => fail(&error.to_string()),
            };
        }
        if let Some((rank, failure)) =
            parts.iter().enumerate().find_map(|(rank, part)| Some((rank, part.failure.as_ref()?)))
        {
            return fail(&format!("rank {rank}: {failure}"));
        }
        if ending == Ending::Stopped {
            return fail("interrupted: what was counted so far is not printed");
        }
        if let Err(error) = plan.finish(&mut report, links) {
            return fail(&error.to_string());
        }
        match plan.print(&report, &mut io::stdout().lock()) {
            Ok(()) => {}
            Err(CommandError::Unread) => return 0,
            Err(error) => return fail(&error.to_string()),
        }
        if let Some(file) = &self.args.measurements {
            let measurements = Measurements::new(
                self.args.algorithm,
                plan.options.threads.get(),
                parts.iter().map(|part| &part.measured),
            );
            if let Err(error) = measurements.write(file) {
                return fail(&format!("cannot write {file:?}: {error}"));
            }
        }
        let (lines, end) = plan.verdict(&report);
        lines.iter().for_each(|line| eprintln!("nacre-mpi: {line}"));
        match end {
            Ok(()) => 0,
            Err(error) => fail(&error.to_string()),
        }
    }
}

fn fail(sentence: &str) -> i32 {
    eprintln!("nacre-mpi: {sentence}");
    1
}

/// What tells this node from others.
fn node_number() -> u64 {
    let name = nix::sys::utsname::uname().map(|name| name.nodename().to_owned()).ok();
    BuildHasherDefault::<DefaultHasher>::default().hash_one(name)
}
