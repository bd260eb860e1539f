//! Propagation to more servers than a machine can hold: the relays of the study on modelled nodes and a modelled network, with the times
//! of service that were measured in the same run.
//!
//! Each server has a processor of its own, and takes one message after the other. The same parameters give the same run.

use serde::Serialize;

use super::point::{Distribution, Series, Way};
use super::relay::Relay;
use crate::BenchError;
use crate::kit::server::Durability;
use crate::kit::simulation::{Events, Network, Node};

/// The network, which is an assumption: links of 10 Gbit/s.
pub(super) const NETWORK: Network = Network { latency_ns: 25_000, link_bytes_per_s: 1_250_000_000 };
/// The length of a message without a text, and of one with a text.
const HEAD_BYTES: u64 = 64;
const RECORD_BYTES: u64 = HEAD_BYTES + super::TEXT_BYTES as u64;
/// The least time of service: processor time is counted in hundredths of a second, so a short run may show none.
const SERVICE_NS_MIN: u64 = 500;

/// The times of service of a way.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Service {
    /// The time that the store spends on an update for each server that it tells.
    pub(super) store_ns: u64,
    /// The time that a server spends on an update; where servers pass records on, for each message that it sends or receives.
    pub(super) server_ns: u64,
}

/// A simulated update.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Simulated {
    pub(super) way: Way,
    pub(super) servers: u32,
    pub(super) fan_out: u32,
    #[serde(flatten)]
    pub(super) service: Service,
    pub(super) network: Network,
    /// From the commit until the update is live, over all servers.
    pub(super) live: Distribution,
    pub(super) messages: u64,
    /// The time for which the store worked on the update.
    pub(super) store_busy_us: f64,
}

/// A message on its way to a server, or to the store.
enum Event {
    /// A server is told that something is new.
    Told(u32),
    /// The store is asked what is new, by a server.
    Asked(u32),
    /// A server gets the record.
    Record(u32),
}

/// Simulates one update.
///
/// # Errors
/// If a server was not reached.
pub(super) fn simulate(
    way: Way,
    servers: u32,
    fan_out: u32,
    service: Service,
    network: Network,
) -> Result<Simulated, BenchError> {
    let mut store = Node::default();
    let mut nodes = vec![Node::default(); servers as usize];
    let relaying = if way.relays() { servers } else { 0 };
    let mut relays: Vec<Relay> =
        (0..relaying).map(|place| Relay::new(way, place, servers, fan_out)).collect();
    let mut live: Vec<Option<u64>> = vec![None; servers as usize];
    let mut events = Events::default();
    let (mut messages, mut store_ns) = (0, 0);
    // Where servers ask back, half of the store's time is for the event and half for the answer.
    let asks_back = way == Way::Watch;
    let part = if asks_back { 2 } else { 1 };
    let told = if way.relays() { servers.min(1) } else { servers };
    for place in 0..told {
        let sent = store.take(0, service.store_ns / part);
        store_ns += service.store_ns / part;
        let bytes = if asks_back { HEAD_BYTES } else { RECORD_BYTES };
        let arrives = network.send(sent, bytes, &mut store, &mut nodes[place as usize]);
        events.add(arrives, if asks_back { Event::Told(place) } else { Event::Record(place) });
        messages += 1;
    }
    while let Some((now, event)) = events.pop() {
        match event {
            Event::Told(place) => {
                let node = &mut nodes[place as usize];
                let asked = node.take(now, service.server_ns / part);
                events.add(network.send(asked, HEAD_BYTES, node, &mut store), Event::Asked(place));
                messages += 1;
            }
            Event::Asked(place) => {
                let answered = store.take(now, service.store_ns / part);
                store_ns += service.store_ns / part;
                let arrives = network.send(answered, RECORD_BYTES, &mut store, &mut nodes[place as usize]);
                events.add(arrives, Event::Record(place));
                messages += 1;
            }
            Event::Record(place) => {
                // Like the study's servers, it passes the record on before it makes that live.
                let targets = relays.get_mut(place as usize).map(|relay| relay.take(1).map(<[u32]>::to_vec));
                let targets = match targets {
                    // It is known already.
                    Some(None) => {
                        nodes[place as usize].take(now, service.server_ns);
                        continue;
                    }
                    Some(Some(targets)) => targets,
                    None => Vec::new(),
                };
                for target in targets {
                    let Ok([from, to]) = nodes.get_disjoint_mut([place as usize, target as usize]) else {
                        continue;
                    };
                    let sent = from.take(now, service.server_ns);
                    events.add(network.send(sent, RECORD_BYTES, from, to), Event::Record(target));
                    messages += 1;
                }
                live[place as usize] = Some(nodes[place as usize].take(now, service.server_ns / part));
            }
        }
    }
    let mut times: Vec<u64> = live.iter().flatten().copied().collect();
    if times.len() != live.len() {
        let text = format!("simulated: {} of {servers} servers were reached", times.len());
        return Err(BenchError::Process(text));
    }
    times.sort_unstable();
    Ok(Simulated {
        way,
        servers,
        fan_out,
        service,
        network,
        live: Distribution::of(&times),
        messages,
        store_busy_us: store_ns as f64 / 1e3,
    })
}

/// Returns the times of service of a way, as its largest measured point without a disk shows them: processor times, each divided by the
/// messages that it was for. `None` if the way was not measured.
pub(super) fn service(series: &[Series], way: Way) -> Option<Service> {
    let known = series.iter().filter(|one| {
        one.point.way == way && one.point.durability == Durability::Volatile && one.point.per_process == 1
    });
    let known = known.max_by_key(|one| one.point.servers)?;
    let servers = f64::from(known.point.servers);
    let told = if way.relays() { 1.0 } else { servers };
    let messages = match way {
        // Each server receives the record once, and all but the first are sent it.
        Way::Tree => (2.0 * servers - 1.0) / servers,
        Way::Gossip => 2.0 * f64::from(known.point.fan_out.min(known.point.servers - 1).max(1)),
        _ => 1.0,
    };
    let ns = |us: f64| ((us * 1e3) as u64).max(SERVICE_NS_MIN);
    let server_us = known.median(|one| one.server_cpu_us.unwrap_or_default());
    Some(Service {
        store_ns: ns(known.median(|one| one.store_cpu_us) / told),
        server_ns: ns(server_us / messages),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVICE: Service = Service { store_ns: 10_000, server_ns: 4000 };

    fn run(way: Way, servers: u32, fan_out: u32) -> Simulated {
        simulate(way, servers, fan_out, SERVICE, NETWORK).unwrap()
    }

    #[test]
    fn one_server_takes_the_time_of_its_messages() {
        // The record of 1,088 bytes is 870 ns on the link.
        assert_eq!(run(Way::Push, 1, 8).live.max_us, (10_000 + 870 + 25_000 + 4000) as f64 / 1e3);
        let watched = run(Way::Watch, 1, 8);
        assert_eq!((watched.messages, watched.store_busy_us), (3, 10.0));
    }

    #[test]
    fn a_store_that_tells_everybody_is_busy_for_as_long_as_that_takes() {
        let (few, many) = (run(Way::Push, 100, 8), run(Way::Push, 10_000, 8));
        assert!((few.store_busy_us, many.store_busy_us) == (1000.0, 100_000.0));
        assert!(many.live.max_us > 100_000.0);
        assert!(run(Way::Tree, 10_000, 8).live.max_us < many.live.max_us / 10.0);
    }

    #[test]
    fn everybody_is_reached_by_every_way_and_again_in_the_same_time() {
        for (way, messages) in [(Way::Watch, 3000), (Way::Push, 1000), (Way::Tree, 1000), (Way::Gossip, 4001)]
        {
            let one = run(way, 1000, if way == Way::Gossip { 4 } else { 8 });
            assert_eq!(one.messages, messages, "{way:?}");
            assert_eq!(one, run(way, 1000, one.fan_out));
        }
    }
}
