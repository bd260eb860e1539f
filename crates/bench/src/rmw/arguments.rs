//! What a person can say to `nacre bench rmw`.

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;

use super::run::{Coordination, Place, Point};
use crate::BenchError;
use crate::quantity::{Limit, parse_bytes, parse_duration, parse_limit};
use crate::server::Keep;

/// Update shared blocks from many clients at once, and see what coordination costs.
///
/// Every operation picks a block at random, reads it, changes it and writes it back. The study starts its own
/// servers and client processes, measures a window after a warm-up, repeats, and proves after every run that no
/// update was lost.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// How to coordinate; several separated by commas [default: optimistic,zookeeper,none]
    #[arg(long, value_enum, value_delimiter = ',', value_name = "WAY,…", hide_default_value = true)]
    pub way: Vec<Coordination>,

    /// Measure Redis too: WATCH, MULTI and EXEC on values in memory
    #[arg(long, help_heading = "Peers")]
    pub redis: bool,
    /// Measure Redis with every write synced to disk (appendfsync always) too
    #[arg(long, help_heading = "Peers")]
    pub redis_aof: bool,
    /// Measure etcd too: transactions that compare revisions
    #[arg(long, help_heading = "Peers")]
    pub etcd: bool,
    /// Measure ZooKeeper as a store too: setData with the version
    #[arg(long, help_heading = "Peers")]
    pub zookeeper_cas: bool,
    /// Which peers to measure too, in place of the flags above
    #[arg(long, value_enum, help_heading = "Peers")]
    pub peers: Option<Peers>,

    /// Use this store instead of starting servers; mem: and file:PATH run in this process, with threads as clients
    #[arg(long = "on", value_name = "URI", help_heading = "Servers and clients")]
    pub on: Option<String>,
    /// Server processes to start
    #[arg(long, default_value_t = 1, value_name = "N", help_heading = "Servers and clients")]
    pub servers: u32,
    /// How the started servers keep the blocks
    #[arg(long, value_enum, default_value_t, help_heading = "Servers and clients")]
    pub keep: Keep,
    /// Have the servers not pace blocks under contention
    #[arg(long, help_heading = "Servers and clients")]
    pub no_pacing: bool,
    /// Client processes to start
    #[arg(long, default_value_t = 1, value_name = "N", help_heading = "Servers and clients")]
    pub clients: u32,
    /// Concurrent operations of each client
    #[arg(long, default_value_t = 16, value_name = "N", help_heading = "Servers and clients")]
    pub concurrency: u32,
    /// ZooKeeper sessions, or etcd connections, of each client
    #[arg(long, default_value_t = 4, value_name = "N", help_heading = "Servers and clients")]
    pub connections: u32,
    /// Where servers and peers put their files [default: the folder for temporary files]
    #[arg(long, value_name = "FOLDER", help_heading = "Servers and clients")]
    pub folder: Option<PathBuf>,

    /// Objects [default: one per server]
    #[arg(long, value_name = "N", help_heading = "Blocks")]
    pub objects: Option<u32>,
    /// Forks of each object
    #[arg(long, default_value_t = 1, value_name = "N", help_heading = "Blocks")]
    pub forks: u32,
    /// Blocks of each fork, or "unlimited" for a fresh one each time
    #[arg(long, default_value = "unlimited", value_parser = parse_limit, help_heading = "Blocks")]
    pub blocks: Limit,
    /// Size of a block
    #[arg(long, default_value = "4KiB", value_parser = parse_bytes, value_name = "SIZE", help_heading = "Blocks")]
    pub block_size: u64,
    /// Have the writes propose the version that was read plus one, as the paper's protocol does
    #[arg(long, help_heading = "Blocks")]
    pub propose: bool,
    /// Have retries begin with a read, as the paper's protocol does, instead of with what the refusal says
    #[arg(long, help_heading = "Blocks")]
    pub reread: bool,

    /// Time before the measured window
    #[arg(long, default_value = "500ms", value_parser = parse_duration, value_name = "TIME", help_heading = "Measuring")]
    pub warm_up: Duration,
    /// Length of the measured window
    #[arg(long, default_value = "2s", value_parser = parse_duration, value_name = "TIME", help_heading = "Measuring")]
    pub window: Duration,
    /// How often to measure each point
    #[arg(long, default_value_t = 5, value_name = "N", help_heading = "Measuring")]
    pub repeat: u32,
    /// Where all randomness comes from
    #[arg(long, default_value_t = 1, help_heading = "Measuring")]
    pub seed: u64,

    /// Write all results, raw and summed up, with the machine's description, to this file
    #[arg(long, value_name = "FILE", help_heading = "Results")]
    pub json: Option<PathBuf>,
}

/// Several peers at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Peers {
    /// All of them.
    All,
    /// None, whatever the flags say.
    None,
}

impl Args {
    /// The ways and peers that were asked for, in the order of the table.
    pub(crate) fn coordinations(&self) -> Vec<Coordination> {
        let mut ways = match self.way.as_slice() {
            [] => vec![Coordination::Optimistic, Coordination::Zookeeper, Coordination::None],
            ways => ways.to_vec(),
        };
        let flags = [
            (self.redis, Coordination::Redis),
            (self.redis_aof, Coordination::RedisAof),
            (self.etcd, Coordination::Etcd),
            (self.zookeeper_cas, Coordination::ZookeeperCas),
        ];
        for (flag, peer) in flags {
            let asked = self.peers.map_or(flag, |peers| peers == Peers::All);
            if asked && !ways.contains(&peer) {
                ways.push(peer);
            }
        }
        ways
    }

    /// Where the blocks are kept.
    pub(crate) fn place(&self) -> Place {
        match &self.on {
            None => Place::Servers { servers: self.servers, keep: self.keep, pacing: !self.no_pacing },
            Some(uri) if uri.starts_with("mem:") || uri.starts_with("file:") => Place::InProcess(uri.clone()),
            Some(uri) => Place::Existing(uri.clone()),
        }
    }

    /// The point that the parameters describe, for one way.
    pub(crate) fn point(&self, coordination: Coordination) -> Result<Point, BenchError> {
        let usage = |text: &str| BenchError::Usage(text.into());
        if self.servers == 0 || self.clients == 0 || self.concurrency == 0 || self.repeat == 0 {
            return Err(usage("servers, clients, concurrency and repetitions are at least 1 each"));
        }
        if self.window.is_zero() {
            return Err(usage("the measured window must have a length"));
        }
        let block_bytes = u32::try_from(self.block_size).map_err(|_| usage("the block size is too large"))?;
        Ok(Point {
            coordination,
            place: self.place(),
            clients: self.clients,
            concurrency: self.concurrency,
            objects: self.objects.unwrap_or(self.servers),
            forks: self.forks,
            blocks: self.blocks.count(),
            block_bytes,
            warm_up_ms: self.warm_up.as_millis() as u64,
            window_ms: self.window.as_millis() as u64,
            seed: self.seed,
            propose: self.propose,
            reread: self.reread,
            connections: self.connections,
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn parse(words: &[&str]) -> Result<Args, clap::Error> {
        Line::try_parse_from([&["rmw"], words].concat()).map(|line| line.args)
    }

    #[test]
    fn the_definition_is_sound() {
        use clap::CommandFactory;
        Line::command().debug_assert();
    }

    #[test]
    fn without_flags_it_is_the_papers_three_ways_on_one_server() {
        let args = parse(&[]).unwrap();
        use Coordination::*;
        assert_eq!(args.coordinations(), [Optimistic, Zookeeper, None]);
        let point = args.point(Optimistic).unwrap();
        assert_eq!(point.place, Place::Servers { servers: 1, keep: Keep::Volatile, pacing: true });
        assert_eq!((point.clients, point.concurrency, point.blocks), (1, 16, Option::None));
        assert_eq!((point.block_bytes, point.window_ms), (4096, 2000));
    }

    #[test]
    fn peers_come_by_flag_or_all_at_once() {
        use Coordination::*;
        let ways = |words: &[&str]| parse(words).unwrap().coordinations();
        assert_eq!(ways(&["--way", "optimistic", "--redis"]), [Optimistic, Redis]);
        assert_eq!(
            ways(&["--way", "none,optimistic", "--peers", "all", "--redis"]),
            [None, Optimistic, Redis, RedisAof, Etcd, ZookeeperCas]
        );
    }

    #[test]
    fn the_place_follows_from_the_address() {
        let place = |uri: &str| parse(&["--on", uri]).unwrap().place();
        assert_eq!(place("mem:"), Place::InProcess("mem:".into()));
        assert_eq!(place("nacre://127.0.0.1:1"), Place::Existing("nacre://127.0.0.1:1".into()));
    }

    #[test]
    fn nonsense_is_refused() {
        assert!(parse(&["--blocks", "several"]).is_err());
        assert!(parse(&["--block-size", "4 furlongs"]).is_err());
        assert!(parse(&["--way", "hope"]).is_err());
        let none = parse(&["--clients", "0"]).unwrap();
        assert!(matches!(none.point(Coordination::None), Err(BenchError::Usage(_))));
    }
}
