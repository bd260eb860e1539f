//! Which plane: the one that was asked for, or the best that works here.

use std::sync::Arc;

use super::kernel::Kernel;
use super::{Batch, Kind, Plane, PlaneError, Ring, Sendto, Xdp};
use crate::forward::Listeners;

/// What planes may be told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlaneOptions {
    /// The devices that members are behind, by name. None named is all that are up and not loopback.
    pub devices: Vec<String>,
    /// How many groups a table in the kernel has room for; 0 for the usual.
    pub groups_max: u32,
    /// How many members a table in the kernel has room for; 0 for the usual.
    pub members_max: u32,
}

/// Makes a plane, or says why it does not work here.
pub fn open(
    kind: Kind,
    listeners: &Arc<Listeners>,
    options: &PlaneOptions,
) -> Result<Box<dyn Plane>, PlaneError> {
    match kind {
        Kind::Sendto => Ok(Box::new(Sendto::new(listeners.clone()))),
        Kind::Batch => Ok(Box::new(Batch::new(listeners.clone()))),
        Kind::Kernel => Ok(Box::new(Kernel::open(listeners, options)?)),
        Kind::Ring => Ok(Box::new(Ring::new(listeners.clone())?)),
        Kind::Xdp => Ok(Box::new(Xdp::open(listeners, options)?)),
    }
}

/// The best plane that works here, and a sentence on why it is that one: what was tried before it, and why that failed.
pub fn auto(
    listeners: &Arc<Listeners>,
    options: &PlaneOptions,
) -> Result<(Box<dyn Plane>, String), PlaneError> {
    let mut failed = String::new();
    for kind in [Kind::Xdp, Kind::Kernel, Kind::Ring, Kind::Batch] {
        match open(kind, listeners, options) {
            Ok(plane) if failed.is_empty() => return Ok((plane, format!("the {kind} plane works here"))),
            Ok(plane) => return Ok((plane, format!("the {kind} plane, as {failed}"))),
            Err(error) if failed.is_empty() => failed = error.to_string(),
            Err(error) => failed = format!("{failed}; {error}"),
        }
    }
    open(Kind::Sendto, listeners, options).map(|plane| (plane, format!("the sendto plane, as {failed}")))
}
