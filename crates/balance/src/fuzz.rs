//! Bytes as all that the balancer reads from outside: for the fuzz target, and for tests.

use std::time::Duration;

use nacre_class::Bounds;

use crate::limit::BOUNDS;
use crate::policy::Policy;
use crate::trace::Trace;
use crate::{publish, registry};

/// Reads bytes as an entry of the map, as what a rank publishes, as a trace and as a policy, and checks that what can be read
/// can be read again once it is written.
pub fn fuzz(bytes: &[u8]) {
    registry::fuzz(bytes);
    publish::fuzz(bytes);
    let _ = Trace::read(bytes);
    if let Ok(text) = std::str::from_utf8(bytes) {
        let bounds = Bounds { instructions: 200_000, wall: Duration::from_secs(60), ..BOUNDS };
        if let Err(error) = Policy::with_bounds("fuzz", 1, text, bounds) {
            assert!(!error.to_string().contains('\n'), "{error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shipped::SHIPPED;

    #[test]
    fn whatever_is_read_is_read_or_refused() {
        let entry = r#"{"format":1,"version":7,"policy":{"name":"hash","object":"o"},"settings":{"pins":{"group:1":2}}}"#;
        let load = r#"{"format":1,"rank":0,"at_ms":5,"policy":["hash",7],"metrics":{"all_load":1.5,"further":{"x":1}},
            "resources":[{"id":"group:1","load":0.5}],"moves":[{"at_ms":1,"made":{"id":"group:1","load":0.5,"from":0,"to":1,
            "mode":"proxy-half","is_pin":false}}],"migrations":[{"id":"group:1","from":"a","to":"b","phase":"asking","since_ms":1,
            "members":2}],"reflector":{"address":"h:1","ids":3,"settings":"x","groups":[{"group":"7400/1","location":"l",
            "members":2,"datagrams_per_second":1.5,"copies_per_second":3}]}}"#;
        let trace = r#"{"trace":1,"ranks":2}
            {"kind":"subtree","name":"/%","count":3,"load":1}"#;
        let policy = SHIPPED[0].text;
        // A machine is made for each policy, which takes a while.
        for (valid, step) in [(entry, 1), (load, 1), (trace, 1), (policy, 17)] {
            fuzz(valid.as_bytes());
            for at in (0..valid.len()).step_by(step) {
                fuzz(&valid.as_bytes()[..at]);
                for byte in [b'9', b'"', 0xff] {
                    let mut damaged = valid.as_bytes().to_vec();
                    damaged[at] = byte;
                    fuzz(&damaged);
                }
            }
        }
        assert!(registry::fuzz(entry.as_bytes()) && publish::fuzz(load.as_bytes()));
    }
}
