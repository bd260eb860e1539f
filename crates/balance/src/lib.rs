//! Load balancing by programs, after Mantle (Sevilla et al., *Malacology*, sections 5.1 and 6.2).
//!
//! A [`Policy`] is a program in Lua that sees the [`Metrics`] of all ranks and says how much load one of them sends to each
//! of the others. A [`Balancer`] makes moves of resources of that, within the [`Settings`]; the [`Ledger`] judges what they
//! gained. [`simulate`](simulate()) runs the same over a trace, a [`Driver`] at a rank. Which policy is in force is an entry
//! of a map, which names an object with the text ([`Registry`]). Reflectors share out groups by the same policies.
//!
//! ```
//! use std::sync::Arc;
//!
//! use nacre_balance::{Policy, Settings, Trace, shipped, simulate};
//!
//! let trace = r#"{"trace": 1, "ranks": 3, "capacity": 10, "seconds": 60}
//! {"kind": "sequencer", "name": "orders", "load": 7}
//! {"kind": "sequencer", "name": "events", "load": 8}"#;
//! let trace = Trace::read(trace.as_bytes())?;
//! let policy = shipped("sequencer").unwrap();
//! let policy = Arc::new(Policy::new(policy.name, 1, policy.text)?);
//! let simulated = simulate(&trace, &policy, &Settings::default(), 3)?;
//! assert_eq!(simulated.steps.last().unwrap().loads, [8.0, 7.0, 0.0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! `docs/balance.md` describes policies, settings and commands.

#![forbid(unsafe_code)]

pub mod decide;
mod driver;
mod fuzz;
mod ledger;
pub mod limit;
pub mod metric;
mod migration;
mod policy;
mod publish;
mod reflector;
mod registry;
mod resource;
mod select;
mod setting;
mod shipped;
mod simulate;
mod trace;

pub use decide::{Balancer, Decision, Move, Note, Tick};
pub use driver::{Driver, Migrate, Sense};
pub use fuzz::fuzz;
pub use ledger::Ledger;
pub use metric::{Counter, Counters, Metrics};
pub use migration::{Migration, Phase};
pub use policy::{Choice, Evaluated, Policy, PolicyError, View, check_name};
pub use publish::{LOAD_OBJECT, MadeMove, Participants, Published, participants, publish, published};
pub use reflector::{GroupLoad, REFLECTORS_OBJECT, Reflector, present, published_reflectors};
pub use registry::{BalanceError, InForce, MAP, POLICY_ENTRY, Past, Registry, Stored};
pub use resource::{Kind, Resource, ResourceId, Strays};
pub use select::select;
pub use setting::{Mode, Pattern, Selector, Settings};
pub use shipped::{SHIPPED, Shipped, shipped};
pub use simulate::{Simulated, Step, simulate, simulate_until};
pub use trace::{Change, Trace};
