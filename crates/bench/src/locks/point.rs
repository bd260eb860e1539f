//! A measured point: its parameters, and the results of its repetitions.

use nacre::lock::{Datatype, Description, Method, Protocol};
use nacre_lock::{Pattern, PatternError, Region, Stripe};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};

use crate::kit::statistic::Spread;

/// The number of consecutive bytes that are one server's, as in the paper.
pub(crate) const STRIPE_BYTES: u64 = 64 << 10;

/// The way to describe the bytes to the servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum MethodName {
    /// A request for each region.
    Posix,
    /// A request for every 64 regions of a server.
    List,
    /// One request for each server.
    Datatype,
}

/// The protocol by which locks are acquired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum ProtocolName {
    /// In file order, one server at a time.
    TwoPhase,
    /// From all servers at once, then in file order.
    OneTry,
    /// From all servers at once and in file order, by turns.
    AltTry,
}

impl MethodName {
    /// Returns the name in tables and legends.
    pub fn name(self) -> &'static str {
        match self {
            Self::Posix => "posix",
            Self::List => "list",
            Self::Datatype => "datatype",
        }
    }
}

impl From<MethodName> for Method {
    fn from(name: MethodName) -> Method {
        match name {
            MethodName::Posix => Method::Posix,
            MethodName::List => Method::List,
            MethodName::Datatype => Method::Datatype,
        }
    }
}

impl ProtocolName {
    /// Returns the name in tables and legends.
    pub fn name(self) -> &'static str {
        match self {
            Self::TwoPhase => "two-phase",
            Self::OneTry => "one-try",
            Self::AltTry => "alt-try",
        }
    }
}

impl From<ProtocolName> for Protocol {
    fn from(name: ProtocolName) -> Protocol {
        match name {
            ProtocolName::TwoPhase => Protocol::TwoPhase,
            ProtocolName::OneTry => Protocol::OneTry,
            ProtocolName::AltTry => Protocol::AltTry,
        }
    }
}

/// The way in which the servers keep what is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Table {
    /// Patterns as they are described.
    Described,
    /// Every region singly.
    Unrolled,
}

/// The parameters of a point.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Point {
    /// The figure that it belongs to, if any.
    pub(crate) figure: Option<String>,
    pub(crate) method: MethodName,
    pub(crate) protocol: ProtocolName,
    pub(crate) table: Table,
    /// The number of clients, and of servers.
    pub(crate) pairs: u32,
    /// The number of regions that each client is to lock.
    pub(crate) regions: u64,
    /// The distance of the starts of two regions of a client.
    pub(crate) separation_bytes: u64,
    /// The share of a client's range that its neighbour locks too; `None` where clients do not meet and wait for each
    /// other between acquiring and releasing.
    pub(crate) overlap_percent: Option<u32>,
}

/// The bytes that a client locks by one operation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Shape {
    /// Regions of one byte at equal distances.
    Strided {
        /// The number of regions.
        regions: u64,
        /// The distance of their starts.
        separation_bytes: u64,
    },
    /// Regions of one byte at random distances.
    Irregular {
        /// The number of regions.
        regions: u64,
    },
    /// One region.
    Contiguous {
        /// Its length.
        bytes: u64,
    },
}

impl Shape {
    /// Returns the length of the range that it lies in.
    pub(crate) fn range_bytes(&self) -> u64 {
        match self {
            Self::Strided { regions, separation_bytes } => regions * separation_bytes,
            Self::Irregular { regions } => regions * IRREGULAR_BYTES,
            Self::Contiguous { bytes } => *bytes,
        }
    }

    /// Returns the bytes, in a file from an offset on.
    pub(crate) fn at(&self, offset: u64) -> Description {
        match self {
            Self::Strided { regions, separation_bytes } => {
                Datatype::byte().hvector(*regions, 1, *separation_bytes as i64).at(offset)
            }
            Self::Irregular { regions } => {
                let mut random = StdRng::seed_from_u64(offset);
                let starts = (0..*regions).map(|slot| {
                    offset + slot * IRREGULAR_BYTES + random.random_range(0..IRREGULAR_BYTES - 1)
                });
                Description::List(starts.map(|start| Region::new(start, 1)).collect())
            }
            Self::Contiguous { bytes } => Description::contiguous(offset, *bytes),
        }
    }

    /// Returns the number of requests into which the bytes, from an offset on, are cut for a number of servers.
    ///
    /// # Errors
    /// The pattern has no normal form.
    pub(crate) fn requests(
        &self,
        offset: u64,
        method: MethodName,
        servers: u32,
    ) -> Result<u64, PatternError> {
        let pattern = Pattern::new(&self.at(offset))?;
        let mut requests = 0;
        for server in 0..servers {
            let own = pattern.restrict(Stripe { bytes: STRIPE_BYTES, servers, server })?;
            let regions = own.region_count();
            requests += match method {
                MethodName::Posix => regions,
                MethodName::List => regions.div_ceil(nacre_lock::client::LIST_REGIONS_MAX as u64),
                MethodName::Datatype => u64::from(regions > 0),
            };
        }
        Ok(requests)
    }
}

/// The bytes of a file in which an irregular pattern has one region.
const IRREGULAR_BYTES: u64 = 64;

/// The result of one repetition.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Measurement {
    /// The number of patterns that each client locked.
    pub(crate) operations: u64,
    /// Regions of all clients ÷ the time in which the last client had acquired all of its own. With contention, the time
    /// in which it had acquired and released them.
    pub(crate) acquired_per_s: f64,
    /// The same for releasing; `None` with contention, where clients do not wait for each other.
    pub(crate) released_per_s: Option<f64>,
    /// The number of requests that the servers held while everything was held, where clients do not meet.
    pub(crate) requests_held: Option<u64>,
    /// The number of calls that the servers took.
    pub(crate) calls: u64,
    /// The number of replies of the servers that told of held bytes.
    pub(crate) grants: u64,
    /// The processor time of the clients, in microseconds.
    pub(crate) client_cpu_us: u64,
    /// The processor time of the servers, in microseconds.
    pub(crate) server_cpu_us: u64,
}

/// A point with its repetitions.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Series {
    pub(crate) point: Point,
    /// The number of regions that each client locked: fewer than the point has where that would take too long.
    pub(crate) regions: u64,
    pub(crate) acquired_per_s: Spread,
    pub(crate) released_per_s: Option<Spread>,
    pub(crate) repetitions: Vec<Measurement>,
}

impl crate::kit::study::Series for Series {
    type Subject = (Point, Size);
    type Measurement = Measurement;

    fn of((point, size): &(Point, Size), repetitions: Vec<Measurement>) -> Self {
        let released: Vec<f64> = repetitions.iter().filter_map(|m| m.released_per_s).collect();
        Self {
            point: point.clone(),
            regions: size.regions,
            acquired_per_s: Spread::of(repetitions.iter().map(|m| m.acquired_per_s)),
            released_per_s: (!released.is_empty()).then(|| Spread::of(released)),
            repetitions,
        }
    }

    fn into_repetitions(self) -> Vec<Measurement> {
        self.repetitions
    }
}

/// The size of a measurement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    /// The number of regions that each client locks.
    pub(crate) regions: u64,
    /// The number of such patterns in a phase.
    pub(crate) operations: u64,
}

impl Point {
    /// Returns the bytes of a client, given the number of its regions.
    pub(super) fn shape(&self, regions: u64) -> Shape {
        Shape::Strided { regions, separation_bytes: self.separation_bytes }
    }

    /// Returns the distance of the ranges of two neighbours, given the number of regions of each.
    pub(super) fn neighbour_bytes(&self, regions: u64) -> u64 {
        let apart = regions * u64::from(100 - self.overlap_percent.unwrap_or(0)) / 100;
        apart * self.separation_bytes
    }

    /// Returns whether two points can be measured with the same servers and clients, one after the other.
    pub(crate) fn is_beside(&self, other: &Self) -> bool {
        (self.pairs, self.table) == (other.pairs, other.table)
    }

    /// Returns whether two points show the same lock at different overlaps.
    pub(crate) fn is_compared_with(&self, other: &Self) -> bool {
        let overlaps = self.overlap_percent.is_some() && other.overlap_percent.is_some();
        overlaps && *self == Self { overlap_percent: self.overlap_percent, ..other.clone() }
    }

    /// Returns the name in legends.
    pub(crate) fn label(&self) -> String {
        let unrolled = if self.table == Table::Unrolled { ", unrolled" } else { "" };
        format!("{}-{}{unrolled}", self.method.name(), self.protocol.name())
    }

    /// Returns a one-line description.
    pub(crate) fn title(&self) -> String {
        let figure = self.figure.as_ref().map(|figure| format!("figure {figure}, ")).unwrap_or_default();
        let overlap =
            self.overlap_percent.map(|percent| format!(", {percent} % overlap")).unwrap_or_default();
        format!("{figure}{}, {} pairs, {} B apart{overlap}", self.label(), self.pairs, self.separation_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_share_as_much_as_the_overlap_says() {
        let point = Point {
            figure: None,
            method: MethodName::Datatype,
            protocol: ProtocolName::OneTry,
            table: Table::Described,
            pairs: 2,
            regions: 1000,
            separation_bytes: 64,
            overlap_percent: None,
        };
        for (overlap, shared) in [(0, 0), (25, 250), (50, 500), (75, 750), (100, 1000)] {
            let point = Point { overlap_percent: Some(overlap), ..point.clone() };
            let shape = point.shape(1000);
            let pattern =
                |client: u64| Pattern::new(&shape.at(client * point.neighbour_bytes(1000))).unwrap();
            let (one, other) = (pattern(0), pattern(1));
            let common = one.regions().filter(|region| other.next_region(region.offset) == Some(*region));
            assert_eq!(common.count(), shared, "{overlap}");
        }
        assert_eq!(point.neighbour_bytes(1000), 64_000);
    }

    #[test]
    fn requests_are_counted_as_the_paper_counts_them() {
        let shape = Shape::Strided { regions: 128 << 10, separation_bytes: 64 };
        let requests = |method, servers| shape.requests(0, method, servers).unwrap();
        assert_eq!(requests(MethodName::Posix, 32), 128 << 10);
        assert_eq!(requests(MethodName::List, 32), 2 << 10);
        assert_eq!(requests(MethodName::Datatype, 32), 32);
        assert_eq!(requests(MethodName::Datatype, 1), 1);
    }

    #[test]
    fn irregular_regions_have_no_pattern() {
        let shape = Shape::Irregular { regions: 1000 };
        let pattern = Pattern::new(&shape.at(1 << 20)).unwrap();
        assert_eq!((pattern.region_count(), pattern.byte_count()), (1000, 1000));
        assert!(pattern.bounds().unwrap().end() <= (1 << 20) + shape.range_bytes());
        assert_eq!(shape.at(64), shape.at(64));
    }
}
