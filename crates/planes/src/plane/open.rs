//! The choice of the plane: the kind that was asked for, or the best that works here.

use std::sync::Arc;

use super::kernel::Kernel;
use super::{Batch, Plane, PlaneError, PlaneKind, Ring, Sendto, Xdp};
use crate::forward::Listeners;

/// Options of planes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlaneOptions {
    /// The names of the devices that members are behind. If empty, all that are up and not loopback.
    pub devices: Vec<String>,
    /// The greatest number of groups in the tables of programs in the kernel; 0 for the default.
    pub groups_max: u32,
    /// The greatest number of members in the tables of programs in the kernel; 0 for the default.
    pub members_max: u32,
    /// The number of copies of a datagram below which the `xdp` plane leaves them to the program at the traffic-control
    /// hook.
    pub driver_copies_min: u32,
}

/// Makes a plane of this kind.
///
/// # Errors
/// [`PlaneError`] if it does not work here.
pub fn open(
    kind: PlaneKind,
    listeners: &Arc<Listeners>,
    options: &PlaneOptions,
) -> Result<Box<dyn Plane>, PlaneError> {
    match kind {
        PlaneKind::Sendto => Ok(Box::new(Sendto::new(listeners.clone()))),
        PlaneKind::Batch => Ok(Box::new(Batch::new(listeners.clone()))),
        PlaneKind::Kernel => Ok(Box::new(Kernel::open(listeners, options)?)),
        PlaneKind::Ring => Ok(Box::new(Ring::new(listeners.clone())?)),
        PlaneKind::Xdp => Ok(Box::new(Xdp::open(listeners, options)?)),
    }
}

/// The number of copies from which on they cost less in the driver than at the traffic-control hook, where a datagram
/// costs less before the first copy (measured on virtual pairs: experiments/reflect).
const DRIVER_COPIES_MIN: u32 = 9;

/// Makes the best plane that works here. Returns it with a sentence on the choice: the planes tried before it, and why
/// they failed.
pub fn auto(
    listeners: &Arc<Listeners>,
    options: &PlaneOptions,
) -> Result<(Box<dyn Plane>, String), PlaneError> {
    let options = &PlaneOptions { driver_copies_min: DRIVER_COPIES_MIN, ..options.clone() };
    let mut failed = String::new();
    for kind in [PlaneKind::Xdp, PlaneKind::Kernel, PlaneKind::Ring, PlaneKind::Batch] {
        match open(kind, listeners, options) {
            Ok(plane) if failed.is_empty() => return Ok((plane, format!("the {kind} plane works here"))),
            Ok(plane) => return Ok((plane, format!("the {kind} plane, as {failed}"))),
            Err(error) if failed.is_empty() => failed = error.to_string(),
            Err(error) => failed = format!("{failed}; {error}"),
        }
    }
    open(PlaneKind::Sendto, listeners, options).map(|plane| (plane, format!("the sendto plane, as {failed}")))
}
