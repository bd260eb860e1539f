//! The kit that all studies share. A study says what it varies and what it measures; the kit has the rest:
//!
//! - `arguments`: flags that many studies have;
//! - `study`: a study from its start to its end, the turns in which subjects are measured, and what ends it early;
//! - `report`: results as JSON in a file and as tables, with the machine; `table`, `figure`, `quantity` for showing them;
//! - `target`: targets of Nacre, reached or not; `statistic`, `latency`, `machine` for what they are compared with;
//! - `process`, `server`, `peer`: client processes, servers and peers, ended by their process ids;
//! - `usage`: the time, processor time and memory of a program that runs to its end;
//! - `span`, `positions`: the proof that no position of a sequencer or a log was given out twice, by ranges and one by one;
//!   `tally`: the positions that the clients of a process take, counted over time;
//! - `simulation`: nodes, the network between them, and events, for studies of more machines than there are.

pub(crate) mod arguments;
pub(crate) mod figure;
pub(crate) mod latency;
pub(crate) mod machine;
pub(crate) mod peer;
pub(crate) mod positions;
pub(crate) mod process;
pub(crate) mod quantity;
pub(crate) mod report;
pub(crate) mod server;
pub(crate) mod simulation;
pub(crate) mod span;
pub(crate) mod statistic;
pub(crate) mod study;
pub(crate) mod table;
pub(crate) mod tally;
pub(crate) mod target;
pub(crate) mod usage;

pub(crate) use statistic::Spread;

/// Parses the arguments of a study, for tests.
#[cfg(test)]
pub(crate) fn parse<A: clap::Args>(words: &[&str]) -> Result<A, clap::Error> {
    let command = A::augment_args(clap::Command::new("study")).args_override_self(true);
    A::from_arg_matches(&command.try_get_matches_from([&["study"], words].concat())?)
}
