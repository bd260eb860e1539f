//! One rule of rates for the program and for user space: whatever part of a member's datagrams each of them judges, and
//! however often the member leaves and joins, they admit together what a naive model admits.

use std::collections::HashMap;
use std::net::SocketAddr;

use nacre_planes::forward::{Listeners, read_clocks};
use nacre_planes::plane::kernel::Kernel;
use nacre_planes::plane::{Plane, PlaneOptions};
use nacre_planes::testbed::Testbed;
use nacre_reflect::rate::{Owner, Rate};
use nacre_reflect::table::{GroupId, GroupOptions, Path, Table, Terms};

use crate::fuzz::{Random, plain_frame};
use crate::run::run;

const LOOPBACK: u32 = 1;
const ID: GroupId = GroupId { port: 7400, id: 0 };

/// A rate so slow that only its burst counts here.
fn burst(copies: u64) -> Rate {
    Rate { copy_ns: 1_000_000_000_000, burst_ns: copies * 1_000_000_000_000 }
}

#[derive(Clone, Copy)]
struct Client {
    address: SocketAddr,
    identity: Option<u8>,
    echo: Option<bool>,
}

#[test]
fn the_program_and_user_space_keep_one_rule_of_rates() {
    let seed = std::env::var("NACRE_SEED").ok().and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or_else(|| std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64);
    println!("NACRE_SEED={seed}");
    let mut testbed = Testbed::new().unwrap();
    testbed.namespace("f").unwrap().run(move || {
        let listeners = Listeners::open(&["0.0.0.0:7400".parse().unwrap()]).unwrap();
        let mut random = Random(seed);
        let (mut by_program, mut by_user, mut refused) = (0, 0, 0);
        for round in 0..12 {
            let mut plane = Kernel::open(&listeners, &PlaneOptions::default()).unwrap();
            let program = plane.program().unwrap().fd().unwrap().try_clone().unwrap();
            let (member_rate, address_rate) = (burst(50), [None, Some(burst(120))][round % 2]);
            let group_rate = [Rate::UNLIMITED, burst(300)][round / 2 % 2];
            let mut table = Table::new();
            let options = GroupOptions { member_rate, address_rate, group_rate, ..GroupOptions::default() };
            let group = table.set_group(ID, options);
            let local: SocketAddr = "10.0.0.1:7400".parse().unwrap();
            let path = Path { device: LOOPBACK, local };
            // Two addresses with three ports each, and two ports of each that show an identity, of which there are two.
            let mut clients: Vec<Client> = (0..10_u8)
                .map(|at| Client {
                    address: SocketAddr::from(([10, 0, 1, 1 + at % 2], 1000 + u16::from(at))),
                    identity: (at >= 6).then_some(at / 2 % 2),
                    echo: None,
                })
                .collect();
            let mut buckets: HashMap<Owner, u64> = HashMap::new();
            let mut of_group = 0;
            for step in 0..400 {
                let at = random.below(clients.len());
                let client = clients[at];
                let owner = match client.identity {
                    Some(identity) => Owner::Identity([identity; 16]),
                    None => Owner::of_address(client.address.ip()),
                };
                if client.echo.is_none() || random.one_in(3) {
                    let known = table.member_of(ID, client.address);
                    if let Some(member) = known.filter(|_| random.one_in(2)) {
                        table.leave(member);
                    }
                    let echo = random.one_in(2);
                    clients[at].echo = Some(echo);
                    table.join_on(
                        group,
                        path,
                        client.address,
                        Terms { echo, owner, sends: true, receives: true },
                        0,
                    );
                    table.age(read_clocks().ns);
                    table.take_changes(|table, change| plane.follow(table, change).unwrap());
                    continue;
                }
                let copies = u64::from(table.group(group).live) - u64::from(client.echo == Some(false));
                let now_ns = read_clocks().ns;
                let rate = match client.identity {
                    Some(_) => member_rate,
                    None => address_rate.unwrap_or(member_rate),
                };
                let bucket = buckets.entry(owner).or_default();
                let expected =
                    match (rate.after(*bucket, now_ns, copies), group_rate.after(of_group, now_ns, copies)) {
                        (Some(after), Some(after_group)) => {
                            (*bucket, of_group) = (after, after_group);
                            true
                        }
                        _ => false,
                    };
                let admitted = if random.one_in(2) {
                    let member = table.member_of(ID, client.address).unwrap();
                    let shared = plane.buckets(table.member(member).bucket, group);
                    let admitted = table.admit(member, read_clocks().ns, copies, shared);
                    by_user += u32::from(admitted);
                    admitted
                } else {
                    run(&program, &plain_frame(client.address, local, b"payload"), 0).unwrap();
                    let done = plane.done();
                    assert_eq!(done.datagrams + done.over_rate, 1, "{done:?}");
                    by_program += done.datagrams;
                    done.datagrams == 1
                };
                refused += u32::from(!expected);
                assert_eq!(admitted, expected, "step {step} of round {round}, NACRE_SEED={seed}");
            }
        }
        assert!(by_program > 50 && by_user > 50 && refused > 500, "{by_program} {by_user} {refused}");
    });
}
