//! Lock servers and clients in worlds of their own, to find mistakes in the rules.
//!
//! - [`exhaustive`]: small systems in every possible order of events.
//!
//! Both run the real state machines. They also run them with a rule broken, which they have to notice.

pub mod exhaustive;
