//! Sequencers and capabilities: the rank under schedules with faults, the records and messages, and the whole over a network.

#[path = "rank/decide.rs"]
mod decide;
#[path = "rank/migrate.rs"]
mod migrate;
#[path = "rank/moves.rs"]
mod moves;
#[path = "rank/network.rs"]
mod network;
#[path = "rank/schedule.rs"]
mod schedule;
#[path = "rank/simulation.rs"]
mod simulation;
#[path = "rank/steps.rs"]
mod steps;
