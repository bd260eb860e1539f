//! Quantities formatted for people.

pub use nacre_quantity::{count, grouped, size};
