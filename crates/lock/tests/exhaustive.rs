//! Small systems of lock servers and clients in every order of events. `NACRE_LOCK_STATES` searches larger ones, of up to so
//! many states each.

use nacre_lock::client::{Method, Protocol};
use nacre_lock::table::{Indexing, Mode};
use nacre_lock::testkit::exhaustive::{Broken, Rule, System, search};
use nacre_lock::{Pattern, Region};

const METHODS: [Method; 3] = [Method::Posix, Method::List, Method::Datatype];
const PROTOCOLS: [Protocol; 3] = [Protocol::TwoPhase, Protocol::OneTry, Protocol::AltTry];

fn bytes(bytes: &[u64]) -> Pattern {
    Pattern::list(&bytes.iter().map(|at| Region::new(*at, 1)).collect::<Vec<_>>()).unwrap()
}

/// Bytes 0, 2, 4 … are the first server's, the others the second's.
fn system(clients: &[(Mode, &[u64])], method: Method, protocol: Protocol) -> System {
    System {
        servers: 2,
        stripe_bytes: 1,
        indexing: Indexing::Described,
        clients: clients.iter().map(|(mode, at)| (*mode, bytes(at))).collect(),
        method,
        protocol,
        first_may_give_up: false,
        broken: Broken::Nothing,
    }
}

fn states_max() -> Option<usize> {
    std::env::var("NACRE_LOCK_STATES").ok().map(|states| states.parse().unwrap())
}

#[track_caller]
fn holds(system: &System) -> usize {
    let seen = search(system, states_max().unwrap_or(400_000));
    let seen = seen.unwrap_or_else(|violation| panic!("{violation:?} in {system:?}"));
    assert!(seen.ends > 0);
    seen.states
}

#[test]
fn two_clients_that_want_the_same_bytes_of_two_servers_always_finish() {
    use Mode::{Exclusive, Shared};
    let mut states = 0;
    for protocol in PROTOCOLS {
        for method in METHODS {
            for modes in [(Exclusive, Exclusive), (Shared, Exclusive), (Shared, Shared)] {
                states += holds(&system(&[(modes.0, &[0, 1]), (modes.1, &[0, 1])], method, protocol));
                states += holds(&system(&[(modes.0, &[0, 3]), (modes.1, &[1, 2, 3])], method, protocol));
            }
        }
        let four: &[u64] = &[0, 1, 2, 3];
        states += holds(&system(&[(Exclusive, four), (Exclusive, four)], Method::Datatype, protocol));
    }
    eprintln!("{states} states");
}

#[test]
fn three_clients_always_finish() {
    use Mode::{Exclusive, Shared};
    let mut states = 0;
    for protocol in PROTOCOLS {
        let clients: [(Mode, &[u64]); 3] = [(Exclusive, &[0, 1]), (Exclusive, &[1, 2]), (Shared, &[0, 1])];
        states += holds(&system(&clients, Method::Datatype, protocol));
    }
    eprintln!("{states} states");
}

#[test]
fn a_client_that_gives_up_while_it_waits_leaves_nothing_behind() {
    let mut states = 0;
    for protocol in PROTOCOLS {
        for (method, at) in [(Method::Posix, (&[0_u64, 1]) as &[u64]), (Method::Datatype, &[0, 1, 2])] {
            let clients = [(Mode::Exclusive, at), (Mode::Exclusive, at)];
            let system = System { first_may_give_up: true, ..system(&clients, method, protocol) };
            states += holds(&system);
        }
    }
    eprintln!("{states} states");
}

#[test]
fn unrolled_tables_do_the_same() {
    for protocol in PROTOCOLS {
        let clients: [(Mode, &[u64]); 2] = [(Mode::Exclusive, &[0, 1, 2]), (Mode::Exclusive, &[1, 2, 3])];
        let described = system(&clients, Method::Datatype, protocol);
        let unrolled = System { indexing: Indexing::Unrolled, ..described.clone() };
        assert_eq!(holds(&unrolled), holds(&described));
    }
}

#[test]
fn larger_systems_hold_too_if_states_are_given() {
    let Some(_) = states_max() else { return };
    use Mode::{Exclusive, Shared};
    for protocol in PROTOCOLS {
        for method in [Method::List, Method::Datatype] {
            for modes in [[Exclusive; 3], [Shared, Exclusive, Exclusive], [Shared, Shared, Exclusive]] {
                let four: &[u64] = &[0, 1, 2, 3];
                let clients = modes.map(|mode| (mode, four));
                eprintln!(
                    "{protocol:?} {method:?} {modes:?}: {}",
                    holds(&system(&clients, method, protocol))
                );
            }
        }
    }
}

#[test]
fn a_broken_rule_is_noticed() {
    let clients: [(Mode, &[u64]); 2] = [(Mode::Exclusive, &[0, 1]), (Mode::Exclusive, &[0, 1])];
    for (protocol, broken, rule) in [
        (Protocol::OneTry, Broken::KeepsOutOfOrder, Rule::Deadlock),
        (Protocol::AltTry, Broken::KeepsOutOfOrder, Rule::Deadlock),
        (Protocol::AltTry, Broken::NeverWaits, Rule::Livelock),
        (Protocol::TwoPhase, Broken::AllShared, Rule::Safety),
    ] {
        let system = System { broken, ..system(&clients, Method::Datatype, protocol) };
        let violation = search(&system, 1_000_000).expect_err("the broken rule went unnoticed");
        assert_eq!(violation.rule, rule, "{protocol:?}, {broken:?}");
    }
}
