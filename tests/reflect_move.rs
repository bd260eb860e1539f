//! A location that moves while its members talk: every member hears everybody once and in order, whatever moves where.

mod harness;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use harness::Server;
use harness::reflect::{Reflector, relocate, until};
use nacre_reflect::client::{Client, ClientEvent};
use nacre_reflect::member::{MemberOptions, Wanted};

/// The interval between a member's datagrams.
const INTERVAL: Duration = Duration::from_millis(3);

/// What a member sent and heard.
struct Heard {
    /// How many datagrams it sent.
    sent: u64,
    /// What it heard from each, in order.
    from: Vec<Vec<u64>>,
    /// How often it lost its reflector.
    lost: u32,
}

/// Members of one location that talk all the time.
struct Talk {
    stop: Arc<AtomicBool>,
    quiet: Arc<AtomicBool>,
    members: Vec<JoinHandle<Heard>>,
}

impl Talk {
    /// Has members join, and when all of them are in, talk in datagrams of this length.
    fn begin(members: usize, location: &str, reflectors: &[SocketAddr], bytes: usize) -> Talk {
        let (stop, quiet) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let all_in = Arc::new(Barrier::new(members + 1));
        let begin = |number| {
            let (stop, quiet, all_in) = (stop.clone(), quiet.clone(), all_in.clone());
            let wanted = Wanted::Location { name: location.to_owned(), reflectors: reflectors.to_vec() };
            let mut client = Client::new(wanted, MemberOptions::default()).unwrap();
            std::thread::spawn(move || {
                while client.target().is_none() {
                    client.poll(Duration::from_millis(100)).unwrap();
                }
                all_in.wait();
                let mut heard = Heard { sent: 0, from: vec![Vec::new(); members], lost: 0 };
                let mut next = Instant::now();
                while !stop.load(Ordering::Relaxed) {
                    let now = Instant::now();
                    if now >= next && !quiet.load(Ordering::Relaxed) {
                        next = now + INTERVAL;
                        let mut payload = vec![number as u8; bytes];
                        payload[..8].copy_from_slice(&(heard.sent + 1).to_le_bytes());
                        if client.send(&payload).is_ok() {
                            heard.sent += 1;
                        }
                    }
                    let wait = next.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
                    let mut event = client.poll(wait).unwrap();
                    while let Some(this) = event {
                        match this {
                            ClientEvent::Datagram { payload, .. } => {
                                let number = u64::from_le_bytes(payload[..8].try_into().unwrap());
                                assert_eq!(payload.len(), bytes);
                                heard.from[usize::from(payload[8])].push(number);
                            }
                            ClientEvent::Member(nacre_reflect::member::MemberEvent::Lost { .. }) => {
                                heard.lost += 1;
                            }
                            ClientEvent::Member(_) => {}
                        }
                        event = client.poll(Duration::ZERO).unwrap();
                    }
                }
                heard
            })
        };
        let members = (0..members).map(begin).collect();
        all_in.wait();
        Talk { stop, quiet, members }
    }

    /// Ends the talk, once what was sent last has had time to come.
    fn end(self) -> Vec<Heard> {
        self.quiet.store(true, Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(700));
        self.stop.store(true, Ordering::Relaxed);
        self.members.into_iter().map(|member| member.join().unwrap()).collect()
    }
}

/// Checks that everybody heard all others once and in order.
#[track_caller]
fn check_all_heard(heard: &[Heard]) {
    let mut wrong = Vec::new();
    for (to, hears) in heard.iter().enumerate() {
        assert_eq!(hears.lost, 0, "member {to} lost its reflector");
        for (from, sends) in heard.iter().enumerate().filter(|(from, _)| *from != to) {
            let came = &hears.from[from];
            let mut sorted = came.clone();
            sorted.sort_unstable();
            let disordered = came.windows(2).filter(|pair| pair[1] < pair[0]).count();
            sorted.dedup();
            let (lost, doubled) = (sends.sent - sorted.len() as u64, came.len() - sorted.len());
            if (lost, doubled, disordered) != (0, 0, 0) {
                let first = sorted.iter().zip(1..).find(|(came, number)| **came != *number);
                wrong.push(format!(
                    "{to} of {from}'s {}: {lost} lost (first {first:?}), {doubled} twice, {disordered} out of order",
                    sends.sent
                ));
            }
        }
        assert!(hears.from[to].is_empty(), "member {to} heard itself");
    }
    let sent: u64 = heard.iter().map(|heard| heard.sent).sum();
    println!("{} members sent {sent} datagrams; wrong: {wrong:#?}", heard.len());
    assert!(sent > 100);
    assert!(wrong.is_empty(), "{wrong:#?}");
}

fn control(reflector: &Reflector, name: &str) -> u64 {
    reflector.report()["control"][name].as_u64().unwrap_or_else(|| panic!("{name} is counted"))
}

/// Waits until so many members are in a group.
#[track_caller]
fn until_in(reflector: &Reflector, group: u32, members: u64) {
    reflector.until(group, "all are there", |report| report["members"] == members);
}

const TALK: Duration = Duration::from_millis(400);

#[test]
fn a_location_moves_and_nobody_misses_a_datagram() {
    let store = Server::in_memory();
    let flags = ["--store", &store.uri];
    let (old, new) = (Reflector::start(&flags), Reflector::start(&flags));
    relocate(&old.admin, "harbour", &old.group(1));
    let talk = Talk::begin(6, "harbour", &[old.address], 40);
    std::thread::sleep(TALK);
    relocate(&old.admin, "harbour", &new.group(2));
    let told = Instant::now();
    until_in(&new, 2, 6);
    println!("all had moved after {:?}", told.elapsed());
    std::thread::sleep(TALK);
    check_all_heard(&talk.end());
    assert_eq!(control(&old, "relay_members_handed"), 6);
    assert_eq!(control(&old, "relays_begun"), 1);
    assert_eq!(control(&new, "relays_lost") + control(&old, "relays_lost"), 0);
}
