//! Members of a location that talk all the time, and what each of them hears.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nacre_reflect::client::{Client, ClientEvent};
use nacre_reflect::member::{MemberOptions, Wanted};

/// Runs a scenario, again if it says that datagrams were lost: on a busy machine a program may stand still for so long that its
/// socket overflows, or that others take it for dead. Once, nothing is lost.
pub fn undisturbed(scenario: impl Fn() -> Result<(), String>) {
    const TRIES: usize = 5;
    for number in 1..=TRIES {
        match scenario() {
            Ok(()) => return,
            Err(lost) => println!("try {number}: {lost}"),
        }
    }
    panic!("each time datagrams were lost");
}

/// The interval between a member's datagrams.
const INTERVAL: Duration = Duration::from_millis(3);

/// What a member sent and heard.
pub struct Heard {
    /// How many datagrams it sent.
    pub sent: u64,
    /// What it heard from each, in order.
    pub from: Vec<Vec<u64>>,
    /// How often it lost its reflector.
    pub lost: u32,
}

/// Members of one location that talk all the time.
pub struct Talk {
    stop: Arc<AtomicBool>,
    quiet: Arc<AtomicBool>,
    /// The numbers of datagrams that all together have sent, and heard.
    counts: Arc<[AtomicU64; 2]>,
    members: Vec<JoinHandle<Heard>>,
}

impl Talk {
    /// Has members join, and when all of them are in, talk in datagrams of this length.
    pub fn begin(members: usize, location: &str, reflectors: &[SocketAddr], bytes: usize) -> Talk {
        Talk::begin_slowly(members, location, reflectors, bytes, INTERVAL)
    }

    /// The same, with another interval between a member's datagrams.
    pub fn begin_slowly(
        members: usize,
        location: &str,
        reflectors: &[SocketAddr],
        bytes: usize,
        interval: Duration,
    ) -> Talk {
        let (stop, quiet) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let counts = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let all_in = Arc::new(Barrier::new(members + 1));
        let begin = |number| {
            let (stop, quiet, all_in) = (stop.clone(), quiet.clone(), all_in.clone());
            let counts = counts.clone();
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
                        next = now + interval;
                        let mut payload = vec![number as u8; bytes];
                        payload[..8].copy_from_slice(&(heard.sent + 1).to_le_bytes());
                        if client.send(&payload).is_ok() {
                            heard.sent += 1;
                            counts[0].fetch_add(1, Ordering::Relaxed);
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
                                counts[1].fetch_add(1, Ordering::Relaxed);
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
        Talk { stop, quiet, counts, members }
    }

    /// Ends the talk, once what was sent last has had time to come.
    pub fn end(self) -> Vec<Heard> {
        self.quiet.store(true, Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(700));
        // Longer where the machine has much else to do.
        let others = self.members.len() as u64 - 1;
        let (from, [sent, heard]) = (Instant::now(), &*self.counts);
        while heard.load(Ordering::Relaxed) < sent.load(Ordering::Relaxed) * others
            && from.elapsed() < Duration::from_secs(10)
        {
            std::thread::sleep(Duration::from_millis(20));
        }
        self.stop.store(true, Ordering::Relaxed);
        self.members.into_iter().map(|member| member.join().unwrap()).collect()
    }
}

/// Checks that everybody heard all others once and in order.
///
/// # Errors
/// A sentence if datagrams are missing. Where no relay broke off (`relays_lost`), none came twice or out of order all the same.
#[track_caller]
pub fn check_all_heard(heard: &[Heard], relays_lost: u64) -> Result<(), String> {
    let mut wrong = Vec::new();
    for (to, hears) in heard.iter().enumerate() {
        if hears.lost > 0 {
            return Err(format!("member {to} lost its reflector"));
        }
        for (from, sends) in heard.iter().enumerate().filter(|(from, _)| *from != to) {
            let came = &hears.from[from];
            let mut sorted = came.clone();
            sorted.sort_unstable();
            let disordered = came.windows(2).filter(|pair| pair[1] < pair[0]).count();
            sorted.dedup();
            let (lost, doubled) = (sends.sent - sorted.len() as u64, came.len() - sorted.len());
            if (lost, doubled, disordered) != (0, 0, 0) {
                assert!(
                    doubled + disordered == 0 || relays_lost > 0,
                    "{to} of {from}'s {}: {doubled} twice, {disordered} out of order",
                    sends.sent
                );
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
    if wrong.is_empty() { Ok(()) } else { Err(format!("{wrong:#?}")) }
}
