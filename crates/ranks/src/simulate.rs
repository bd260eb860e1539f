//! The algorithms without a machine: in small worlds where every order of events can be produced, to find mistakes; and
//! in large ones where time is modelled, to see what a small machine cannot show.
//!
//! - [`world`]: some ranks, a tree, and a network, in one value, whose owner decides what happens next.
//! - [`history`]: runs such a world to its end with random delays, from a seed.
//! - [`exhaustive`]: runs it through every possible order of events.
//! - [`timed`]: a discrete-event simulation of time, with the costs of [`model`], on a [`tree`] of up to 110 million files, which
//!   gives an [`outcome`].

pub mod exhaustive;
pub mod history;
pub mod model;
pub mod outcome;
pub mod timed;
pub mod tree;
pub mod world;
