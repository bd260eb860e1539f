//! Lock servers and clients in worlds of their own, to find mistakes in the rules.
//!
//! - [`exhaustive`]: small systems in every possible order of events.
//! - [`history`]: larger ones from a seed, with delays, broken connections, crashes, pauses and drifting clocks.
//!
//! Both run the real state machines. They also run them with a rule broken, which they have to notice.

pub mod exhaustive;
pub mod history;
