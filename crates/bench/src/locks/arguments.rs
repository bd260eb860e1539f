//! The arguments of `nacre bench locks`.

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use nacre_quantity::{parse_size, parse_time};

use super::point::{MethodName, Point, ProtocolName, Table};
use crate::BenchError;

/// Lock patterns of many small regions from many concurrent clients, and measure the cost of each way to describe them
///
/// The study starts its own servers and client processes, as many of one as of the other. Every client locks regions of
/// one byte at equal distances, with one request for each region (posix), for 64 (list), or for all (datatype), by each
/// of the three protocols. Servers that unroll patterns into their tree are compared with servers that keep the
/// description. After every run, the servers' own counts are checked against what was requested. Without --figure and
/// --targets, all combinations are measured with the given numbers of clients, without contention.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Ways to describe the bytes to the servers, separated by commas
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        value_name = "METHOD,…",
        default_value = "posix,list,datatype"
    )]
    pub methods: Vec<MethodName>,
    /// Protocols, separated by commas
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        value_name = "PROTOCOL,…",
        default_value = "two-phase,one-try,alt-try"
    )]
    pub protocols: Vec<ProtocolName>,
    /// Do not measure servers that unroll patterns
    #[arg(long)]
    pub no_unrolled: bool,

    /// Numbers of clients, each with as many servers, without contention [default: 1,2,4]
    #[arg(long, value_delimiter = ',', value_name = "N,…", help_heading = "Servers and clients")]
    pub pairs: Vec<u32>,
    /// Number of clients, and of servers, in the figures with contention [default: 4]
    #[arg(long, alias = "contenders", value_name = "N", help_heading = "Servers and clients")]
    pub contended: Option<u32>,
    /// Clients of the largest simulated cluster [default: 10000]
    #[arg(long, value_name = "N", help_heading = "Servers and clients")]
    pub simulated_clients: Option<u32>,
    /// Servers of the simulated clusters
    #[arg(long, default_value_t = 32, value_name = "N", help_heading = "Servers and clients")]
    pub simulated_servers: u32,
    /// Folder for the files of servers and peers [default: the folder for temporary files]
    #[arg(long, value_name = "FOLDER", help_heading = "Servers and clients")]
    pub folder: Option<PathBuf>,

    /// Regions of each client
    #[arg(long, default_value = "128k", value_parser = parse_size, value_name = "N", help_heading = "Regions")]
    pub regions: u64,
    /// Distances of the regions, separated by commas [default: 64; the figures have their own]
    #[arg(
        long,
        value_delimiter = ',',
        value_parser = parse_size,
        value_name = "SIZE,…",
        help_heading = "Regions"
    )]
    pub separations: Vec<u64>,
    /// Shares of a client's range, in percent, that its neighbour locks too, in the figures with contention
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "PERCENT,…",
        default_value = "0,25,50,75,100",
        value_parser = nacre_quantity::count_parser::<u32>(0..=100),
        help_heading = "Regions"
    )]
    pub overlaps: Vec<u32>,

    /// Lock an eighth of the regions, and simulate a tenth of the clients, for a first look
    #[arg(long, help_heading = "Measuring")]
    pub quick: bool,
    /// Maximum time to acquire everything once; where it would take longer, there are fewer regions, and the result
    /// says how many [default: 2s]
    #[arg(long, value_parser = parse_time, value_name = "TIME", help_heading = "Measuring")]
    pub bound: Option<Duration>,
    /// Number of repetitions of each point [default: 3]
    #[arg(long, value_name = "N", help_heading = "Measuring")]
    pub repeat: Option<u32>,

    /// Measure and draw the paper's figures 4 to 7, or the simulated one; several separated by commas
    #[arg(long, value_enum, value_delimiter = ',', value_name = "FIGURE,…", help_heading = "Results")]
    pub figure: Vec<FigureName>,
    /// Measure Nacre's targets on two processors, and the peers
    #[arg(long, alias = "reach", conflicts_with = "figure", help_heading = "Results")]
    pub targets: bool,
    /// Folder for the figures
    #[arg(long, value_name = "FOLDER", default_value = ".", help_heading = "Results")]
    pub out: PathBuf,
    /// Write all results, raw and summarised, with the machine's description, to this file as JSON
    #[arg(long, value_name = "FILE", help_heading = "Results")]
    pub results: Option<PathBuf>,
}

/// A figure of the paper, or the one beyond it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FigureName {
    /// Rates over the number of clients, regions 64 bytes apart.
    #[value(name = "4")]
    Four,
    /// Rates over the number of clients, regions 4096 bytes apart.
    #[value(name = "5")]
    Five,
    /// Rates over the overlap, regions 64 bytes apart.
    #[value(name = "6")]
    Six,
    /// Rates over the overlap, regions 4096 bytes apart.
    #[value(name = "7")]
    Seven,
    /// Rates over the number of clients in a simulation.
    Simulated,
    /// All figures.
    All,
}

impl Args {
    /// Returns whether a figure is requested.
    pub(super) fn wants(&self, figure: FigureName) -> bool {
        self.figure.contains(&figure) || self.figure.contains(&FigureName::All)
    }

    /// Returns the number of repetitions.
    pub(super) fn repetitions(&self) -> u32 {
        self.repeat.unwrap_or(3)
    }

    /// Returns the longest time for one acquisition.
    pub(super) fn bound(&self) -> Duration {
        self.bound.unwrap_or(Duration::from_secs(if self.quick { 1 } else { 2 }))
    }

    /// Returns the number of regions of each client.
    pub(super) fn regions(&self) -> u64 {
        if self.quick { (self.regions / 8).max(1) } else { self.regions }
    }

    /// Returns the numbers of clients, and of servers, without contention.
    pub(super) fn pairs(&self) -> Vec<u32> {
        if self.pairs.is_empty() { vec![1, 2, 4] } else { self.pairs.clone() }
    }

    /// Returns the number of clients, and of servers, with contention.
    pub(super) fn contended(&self) -> u32 {
        self.contended.unwrap_or(4)
    }

    /// Checks what belongs together.
    ///
    /// # Errors
    /// [`BenchError::Usage`].
    pub(super) fn check(&self) -> Result<(), BenchError> {
        let usage = |text: &str| Err(BenchError::Usage(text.into()));
        let counts = [self.repetitions(), self.contended(), self.simulated_servers];
        if counts.contains(&0)
            || self.pairs.contains(&0)
            || self.regions == 0
            || self.simulated_clients == Some(0)
        {
            return usage("clients, servers, regions and repetitions are at least 1 each");
        }
        if self.separations.iter().any(|separation| *separation < 2) {
            return usage("regions of one byte that do not touch are at least 2 bytes apart");
        }
        let range = self.separations.iter().max().unwrap_or(&4096).checked_mul(self.regions);
        if range.is_none_or(|range| range > RANGE_BYTES_MAX) || self.pairs.iter().any(|pairs| *pairs > 1024) {
            return usage("the ranges of all clients together reach beyond the end of a file");
        }
        if self.bound().is_zero() {
            return usage("the time bound must have a length");
        }
        Ok(())
    }

    /// Returns the points of all combinations of methods and protocols with one place and one shape. Tables are grouped,
    /// since servers have one each.
    pub(super) fn combinations(&self, place: &Point) -> Vec<Point> {
        let mut points = Vec::new();
        for table in [Table::Described, Table::Unrolled] {
            for &method in &self.methods {
                for &protocol in &self.protocols {
                    // A region by itself, or 64 of them, are no different when they are unrolled.
                    let beside =
                        table == Table::Unrolled && (self.no_unrolled || method != MethodName::Datatype);
                    if !beside {
                        points.push(Point { method, protocol, table, ..place.clone() });
                    }
                }
            }
        }
        points
    }

    /// Returns the points without contention at some distance of the regions.
    pub(super) fn scaling(&self, figure: Option<&str>, separation_bytes: u64) -> Vec<Point> {
        let place = |pairs| self.place(figure, separation_bytes, pairs, None);
        self.pairs().into_iter().flat_map(|pairs| self.combinations(&place(pairs))).collect()
    }

    /// Returns the points with contention at some distance of the regions.
    pub(super) fn contention(&self, figure: &str, separation_bytes: u64) -> Vec<Point> {
        let place = |overlap| self.place(Some(figure), separation_bytes, self.contended(), Some(overlap));
        let mut points: Vec<Point> =
            self.overlaps.iter().flat_map(|&overlap| self.combinations(&place(overlap))).collect();
        // Servers are started once for each table.
        points.sort_by_key(|point| point.table);
        points
    }

    fn place(&self, figure: Option<&str>, separation_bytes: u64, pairs: u32, overlap: Option<u32>) -> Point {
        Point {
            figure: figure.map(str::to_owned),
            method: MethodName::Datatype,
            protocol: ProtocolName::AltTry,
            table: Table::Described,
            pairs,
            regions: self.regions(),
            separation_bytes,
            overlap_percent: overlap,
        }
    }

    /// Returns the requested points.
    pub(super) fn points(&self) -> Vec<Point> {
        let mut points = Vec::new();
        if self.figure.is_empty() {
            let separations = if self.separations.is_empty() { &[64][..] } else { &self.separations };
            return separations.iter().flat_map(|&separation| self.scaling(None, separation)).collect();
        }
        for (figure, name, separation) in [(FigureName::Four, "4", 64), (FigureName::Five, "5", 4096)] {
            if self.wants(figure) {
                points.extend(self.scaling(Some(name), separation));
            }
        }
        for (figure, name, separation) in [(FigureName::Six, "6", 64), (FigureName::Seven, "7", 4096)] {
            if self.wants(figure) {
                points.extend(self.contention(name, separation));
            }
        }
        points
    }
}

/// The longest range of a client: that of a thousand clients with a thousand patterns each fits into a file.
const RANGE_BYTES_MAX: u64 = 1 << 42;

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Args, clap::Error> {
        crate::kit::parse(words)
    }

    #[test]
    fn without_flags_it_is_all_combinations_and_three_unrolled() {
        let args = parse(&[]).unwrap();
        args.check().unwrap();
        let points = args.points();
        assert_eq!(points.len(), 3 * (9 + 3));
        assert!(points.iter().all(|point| point.regions == 128 << 10 && point.separation_bytes == 64));
        assert!(points.iter().all(|point| point.overlap_percent.is_none() && point.figure.is_none()));
        let unrolled = points.iter().filter(|point| point.table == Table::Unrolled);
        assert!(unrolled.clone().all(|point| point.method == MethodName::Datatype));
        assert_eq!(unrolled.count(), 9);
    }

    #[test]
    fn figures_have_the_distances_and_overlaps_of_the_paper() {
        let points = parse(&["--figure", "all", "--contended", "32"]).unwrap().points();
        let of = |figure: &str| {
            let of_figure = points.iter().filter(|point| point.figure.as_deref() == Some(figure));
            of_figure.cloned().collect::<Vec<_>>()
        };
        assert!(
            of("5").iter().all(|point| point.separation_bytes == 4096 && point.overlap_percent.is_none())
        );
        assert_eq!(of("6").len(), 5 * 12);
        assert!(of("7").iter().all(|point| point.separation_bytes == 4096 && point.pairs == 32));
        let mut overlaps: Vec<u32> = of("6").iter().filter_map(|point| point.overlap_percent).collect();
        overlaps.sort_unstable();
        overlaps.dedup();
        assert_eq!(overlaps, [0, 25, 50, 75, 100]);
    }

    #[test]
    fn counts_are_typed_as_sizes_are() {
        let regions = |text: &str| parse(&["--regions", text]).map(|args| args.regions);
        assert_eq!(regions("128k").unwrap(), 128 << 10);
        assert_eq!(regions("1000").unwrap(), 1000);
        assert!(regions("many").is_err());
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        assert!(parse(&["--overlaps", "101"]).is_err());
        assert!(parse(&["--methods", "nothing"]).is_err());
        for words in [
            &["--pairs", "0"][..],
            &["--separations", "1"],
            &["--regions", "0"],
            &["--repeat", "0"],
            &["--regions", "1000000000000000"],
        ] {
            assert!(matches!(parse(words).unwrap().check(), Err(BenchError::Usage(_))), "{words:?}");
        }
    }
}
