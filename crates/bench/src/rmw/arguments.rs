//! The arguments of `nacre bench rmw`.

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use nacre_quantity::{parse_size, parse_time};

use super::point::{Deployment, Point, System};
use crate::BenchError;
use crate::kit::quantity::{Limit, parse_limit};
use crate::kit::server::Durability;

/// Update shared blocks from many concurrent clients, and measure the cost of coordination
///
/// Every operation picks a random block, reads it, changes it and writes it back. The study starts its own servers and
/// client processes, measures a window after a warm-up, repeats, and checks after every run that no update was lost.
/// With --store, it uses that store instead of its own servers; mem: and file:PATH run in this process, with threads as
/// clients.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Systems to measure, separated by commas [default: optimistic,zookeeper,none]
    #[arg(
        long,
        alias = "way",
        value_enum,
        value_delimiter = ',',
        value_name = "SYSTEM,…",
        hide_default_value = true
    )]
    pub system: Vec<System>,

    /// Also measure Redis: WATCH, MULTI and EXEC on values in memory
    #[arg(long, help_heading = "Peers")]
    pub redis: bool,
    /// Also measure Redis with every write synced to disk (appendfsync always)
    #[arg(long, help_heading = "Peers")]
    pub redis_aof: bool,
    /// Also measure etcd: transactions that compare revisions
    #[arg(long, help_heading = "Peers")]
    pub etcd: bool,
    /// Also measure ZooKeeper as a store: setData with the version
    #[arg(long, help_heading = "Peers")]
    pub zookeeper_cas: bool,
    /// Also measure raw librados: whole RADOS objects in the pool that --store names, written if their version is still
    /// the one that was read
    #[arg(long, help_heading = "Peers")]
    pub librados: bool,
    /// Also measure these peers, in place of the flags above, except --librados
    #[arg(long, value_enum, help_heading = "Peers")]
    pub peers: Option<Peers>,

    /// Server processes to start [default: 1; for figures 3 to 5: 32]
    #[arg(long, value_name = "N", help_heading = "Servers and clients")]
    pub servers: Option<u32>,
    /// Durability of the blocks in the started servers
    #[arg(long, alias = "keep", value_enum, default_value_t, help_heading = "Servers and clients")]
    pub durability: Durability,
    /// Turn off the servers' pacing of contended blocks
    #[arg(long, help_heading = "Servers and clients")]
    pub no_pacing: bool,
    /// Client processes to start [default: 1; for figures 3 to 5: up to 32]
    #[arg(long, value_name = "N", help_heading = "Servers and clients")]
    pub clients: Option<u32>,
    /// Concurrent operations of each client
    #[arg(long, default_value_t = 16, value_name = "N", help_heading = "Servers and clients")]
    pub concurrency: u32,
    /// ZooKeeper sessions, or etcd connections, of each client
    #[arg(long, default_value_t = 4, value_name = "N", help_heading = "Servers and clients")]
    pub connections: u32,
    /// Folder for the files of servers and peers [default: the folder for temporary files]
    #[arg(long, value_name = "FOLDER", help_heading = "Servers and clients")]
    pub folder: Option<PathBuf>,

    /// Objects [default: one per server]
    #[arg(long, value_name = "N", help_heading = "Blocks")]
    pub objects: Option<u32>,
    /// Forks of each object
    #[arg(long, default_value_t = 1, value_name = "N", help_heading = "Blocks")]
    pub forks: u32,
    /// Blocks of each fork, or "unlimited" for a new one each time
    #[arg(long, default_value = "unlimited", value_parser = parse_limit, help_heading = "Blocks")]
    pub blocks: Limit,
    /// Size of a block
    #[arg(long, default_value = "4KiB", value_parser = parse_size, value_name = "SIZE", help_heading = "Blocks")]
    pub block_size: u64,
    /// Propose the version that was read plus one, as the paper's protocol does
    #[arg(long, help_heading = "Blocks")]
    pub propose: bool,
    /// Begin retries with a read, as the paper's protocol does, instead of with the block in the refusal
    #[arg(long, help_heading = "Blocks")]
    pub reread: bool,

    /// Measure briefly and with few repetitions: 3 × 0.5 s per point, for a first look
    #[arg(long, conflicts_with = "full", help_heading = "Measuring")]
    pub quick: bool,
    /// Measure longer: 5 × 3 s per point
    #[arg(long, help_heading = "Measuring")]
    pub full: bool,
    /// Time before the measured window [default: 500ms]
    #[arg(long, value_parser = parse_time, value_name = "TIME", help_heading = "Measuring")]
    pub warm_up: Option<Duration>,
    /// Length of the measured window [default: 2s]
    #[arg(long, value_parser = parse_time, value_name = "TIME", help_heading = "Measuring")]
    pub window: Option<Duration>,
    /// Number of repetitions of each point [default: 5]
    #[arg(long, value_name = "N", help_heading = "Measuring")]
    pub repeat: Option<u32>,
    /// Seed of all random choices
    #[arg(long, default_value_t = 1, help_heading = "Measuring")]
    pub seed: u64,

    /// Measure and draw the paper's figures 2 (a and b), 3, 4 and 5 instead of one point; several separated by commas
    #[arg(long, value_enum, value_delimiter = ',', value_name = "FIGURE,…", help_heading = "Results")]
    pub figure: Vec<FigureName>,
    /// Measure Nacre's targets on two processors, instead of one point
    #[arg(long, alias = "reach", conflicts_with = "figure", help_heading = "Results")]
    pub targets: bool,
    /// Folder for the figures
    #[arg(long, value_name = "FOLDER", default_value = ".", help_heading = "Results")]
    pub out: PathBuf,
    /// Write all results, raw and summarised, with the machine's description, to this file as JSON
    #[arg(long, value_name = "FILE", help_heading = "Results")]
    pub results: Option<PathBuf>,

    /// The store to use instead of starting servers; `mem:` and `file:PATH` run in this process, with threads as
    /// clients. Filled in by the program from a flag that all its commands share.
    #[arg(skip)]
    pub store: Option<String>,
}

/// A figure of the paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FigureName {
    /// Rate and success over the range of blocks, 16 concurrent operations on one server.
    #[value(name = "2")]
    Two,
    /// Rate over the number of clients, without contention.
    #[value(name = "3")]
    Three,
    /// Rate over the number of clients, with 512 blocks.
    #[value(name = "4")]
    Four,
    /// Longest run of failures of each of 512 blocks.
    #[value(name = "5")]
    Five,
    /// All figures.
    All,
}

/// The duration and the number of measurements of a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Measure {
    pub(crate) warm_up: Duration,
    pub(crate) window: Duration,
    pub(crate) repetitions: u32,
}

/// A selection of peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Peers {
    /// All peers.
    All,
    /// None, even if other flags name them.
    None,
}

impl Args {
    /// Returns the requested systems, in the order of the table.
    pub(crate) fn systems(&self) -> Vec<System> {
        let mut systems = match self.system.as_slice() {
            [] => vec![System::Optimistic, System::Zookeeper, System::None],
            systems => systems.to_vec(),
        };
        let flags = [
            (self.redis, System::Redis),
            (self.redis_aof, System::RedisAof),
            (self.etcd, System::Etcd),
            (self.zookeeper_cas, System::ZookeeperCas),
        ];
        for (flag, peer) in flags {
            let requested = self.peers.map_or(flag, |peers| peers == Peers::All);
            if requested && !systems.contains(&peer) {
                systems.push(peer);
            }
        }
        if self.librados && !systems.contains(&System::Librados) {
            systems.push(System::Librados);
        }
        systems
    }

    /// Returns whether a figure was requested.
    pub(crate) fn wants(&self, figure: FigureName) -> bool {
        self.figure.contains(&figure) || self.figure.contains(&FigureName::All)
    }

    /// Returns the duration and the number of measurements.
    pub(crate) fn measure(&self) -> Measure {
        let (warm_up_ms, window_ms, repetitions) = match (self.quick, self.full) {
            (true, _) => (200, 500, 3),
            (_, true) => (1000, 3000, 5),
            _ => (500, 2000, 5),
        };
        Measure {
            warm_up: self.warm_up.unwrap_or(Duration::from_millis(warm_up_ms)),
            window: self.window.unwrap_or(Duration::from_millis(window_ms)),
            repetitions: self.repeat.unwrap_or(repetitions),
        }
    }

    /// Returns the place of the blocks, with `servers` servers unless another number was requested.
    pub(crate) fn place(&self, servers: u32) -> Deployment {
        match &self.store {
            None => Deployment::Servers {
                servers: self.servers.unwrap_or(servers),
                durability: self.durability,
                pacing: !self.no_pacing,
            },
            Some(uri) if uri.starts_with("mem:") || uri.starts_with("file:") => {
                Deployment::InProcess(uri.clone())
            }
            Some(uri) => Deployment::Existing(uri.clone()),
        }
    }

    /// Returns the point that the parameters describe, for one system.
    ///
    /// # Errors
    /// [`BenchError::Usage`] if the parameters are inconsistent.
    pub(crate) fn point(&self, system: System) -> Result<Point, BenchError> {
        let usage = |text: &str| BenchError::Usage(text.into());
        let measure = self.measure();
        let (servers, clients) = (self.servers.unwrap_or(1), self.clients.unwrap_or(1));
        if [servers, clients, self.concurrency, measure.repetitions].contains(&0) {
            return Err(usage("servers, clients, concurrency and repetitions are at least 1 each"));
        }
        if measure.window.is_zero() {
            return Err(usage("the measured window must have a length"));
        }
        let block_bytes = u32::try_from(self.block_size).map_err(|_| usage("the block size is too large"))?;
        Ok(Point {
            system,
            label: system.name().into(),
            figure: None,
            place: self.place(1),
            clients,
            concurrency: self.concurrency,
            objects: self.objects.unwrap_or(servers),
            forks: self.forks,
            blocks: self.blocks.count(),
            block_bytes,
            warm_up_ms: measure.warm_up.as_millis() as u64,
            window_ms: measure.window.as_millis() as u64,
            seed: self.seed,
            propose: self.propose,
            reread: self.reread,
            counts_regions: false,
            connections: self.connections,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Args, clap::Error> {
        crate::kit::parse(words)
    }

    #[test]
    fn without_flags_it_is_the_papers_three_ways_on_one_server() {
        let args = parse(&[]).unwrap();
        use System::*;
        assert_eq!(args.systems(), [Optimistic, Zookeeper, None]);
        let point = args.point(Optimistic).unwrap();
        assert_eq!(
            point.place,
            Deployment::Servers { servers: 1, durability: Durability::Volatile, pacing: true }
        );
        assert_eq!((point.clients, point.concurrency, point.blocks), (1, 16, Option::None));
        assert_eq!((point.block_bytes, point.window_ms), (4096, 2000));
    }

    #[test]
    fn peers_come_by_flag_or_all_at_once() {
        use System::*;
        let systems = |words: &[&str]| parse(words).unwrap().systems();
        assert_eq!(systems(&["--system", "optimistic", "--redis"]), [Optimistic, Redis]);
        assert_eq!(
            systems(&["--system", "none,optimistic", "--peers", "all", "--redis"]),
            [None, Optimistic, Redis, RedisAof, Etcd, ZookeeperCas]
        );
    }

    #[test]
    fn the_place_follows_from_the_address() {
        let place = |uri: &str| Args { store: Some(uri.into()), ..parse(&[]).unwrap() }.place(1);
        assert_eq!(place("mem:"), Deployment::InProcess("mem:".into()));
        assert_eq!(place("nacre://127.0.0.1:1"), Deployment::Existing("nacre://127.0.0.1:1".into()));
    }

    #[test]
    fn figures_are_asked_for_by_number() {
        let args = parse(&["--figure", "2,5", "--quick", "--window", "1s"]).unwrap();
        assert!(
            args.wants(FigureName::Two) && args.wants(FigureName::Five) && !args.wants(FigureName::Three)
        );
        assert_eq!((args.measure().repetitions, args.measure().window), (3, Duration::from_secs(1)));
        assert!(parse(&["--figure", "all"]).unwrap().wants(FigureName::Four));
        assert_eq!(
            args.place(32),
            Deployment::Servers { servers: 32, durability: Durability::Volatile, pacing: true }
        );
    }

    #[test]
    fn nonsense_is_refused() {
        assert!(parse(&["--blocks", "several"]).is_err());
        assert!(parse(&["--block-size", "4 furlongs"]).is_err());
        assert!(parse(&["--system", "hope"]).is_err());
        assert!(parse(&["--quick", "--full"]).is_err());
        assert!(parse(&["--figure", "6"]).is_err());
        let none = parse(&["--clients", "0"]).unwrap();
        assert!(matches!(none.point(System::None), Err(BenchError::Usage(_))));
    }
}
