//! Two hosts, each in a network namespace of its own, race on one object; one loses its link for a while.
//!
//! Needs root, and `ip` (Debian: iproute2). All traffic stays on virtual links of this machine.

mod cluster;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use cluster::{Cluster, open};
use nacre_object::testkit::block_on;
use nacre_object::{
    Answer, ByteRange, Fork, Intent, ObjectId, ObjectStore, Outcome, ReadOp, Refusal, Transaction,
};

/// An address of a block that is set aside for tests between devices (RFC 2544).
const CLUSTER: &str = "198.18.231.1";
const INCREMENTS: u32 = 250;

fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split(' ')).output();
    let output = output.expect("ip is missing; on Debian: apt-get install -y iproute2");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "this test needs root, to make network namespaces: ip {arguments}: {said}"
    );
}

/// Two namespaces with a link to this machine each, on which the cluster has an address that both reach.
struct Hosts(u32);

impl Hosts {
    fn new() -> Self {
        let hosts = Self(std::process::id());
        let number = hosts.0;
        ip(&format!("addr replace {CLUSTER}/32 dev lo"));
        for host in 0..2 {
            let (name, near, far) =
                (hosts.name(host), format!("nh{host}-{number}"), format!("nf{host}-{number}"));
            let net = format!("198.18.231.{}", 8 + 4 * host);
            let address =
                |last: u32| format!("{}{}", &net[..net.rfind('.').unwrap() + 1], 8 + 4 * host + last);
            ip(&format!("netns add {name}"));
            ip(&format!("link add {near} type veth peer name {far} netns {name}"));
            ip(&format!("addr add {}/30 dev {near}", address(1)));
            ip(&format!("link set {near} up"));
            ip(&format!("-n {name} addr add {}/30 dev {far}", address(2)));
            ip(&format!("-n {name} link set lo up"));
            ip(&format!("-n {name} link set {far} up"));
            ip(&format!("-n {name} route add {CLUSTER}/32 via {}", address(1)));
        }
        hosts
    }

    fn name(&self, host: u32) -> String {
        format!("nacre-{}-{host}", self.0)
    }

    fn link(&self, host: u32, state: &str) {
        ip(&format!("link set nh{host}-{} {state}", self.0));
    }

    fn run(&self, host: u32, uri: &str) -> Child {
        let mut process = Command::new("ip");
        process.args(["netns", "exec", &self.name(host)]).arg(std::env::current_exe().unwrap());
        process.args(["--exact", "client_on_a_host", "--nocapture"]).env("NACRE_TEST_HOST", uri);
        process.stdout(Stdio::piped()).spawn().unwrap()
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        // A namespace takes its links along.
        for host in 0..2 {
            Command::new("ip").args(["netns", "del", &self.name(host)]).status().ok();
        }
        Command::new("ip").args(["addr", "del", &format!("{CLUSTER}/32"), "dev", "lo"]).status().ok();
    }
}

/// Runs the client of one of the hosts, which counts. Not a test by itself.
#[test]
fn client_on_a_host() {
    let Ok(uri) = std::env::var("NACRE_TEST_HOST") else { return };
    let (store, object) = (open(&uri), ObjectId::try_from("counter").unwrap());
    let range = ByteRange::new(0, 4);
    for _ in 0..INCREMENTS {
        let read = ReadOp::Range { fork: Fork::DEFAULT, range, intent: Intent::Update };
        let Outcome::Done(done) = block_on(store.apply(&object, Transaction::new().read(read))).unwrap()
        else {
            unreachable!("there is no guard")
        };
        let Some(Answer::Range(mut read)) = done.answers.into_iter().next() else {
            unreachable!("a range was asked for")
        };
        loop {
            let count = read.data[..].try_into().map_or(0, u32::from_le_bytes) + 1;
            let write = Transaction::new().if_version(Fork::DEFAULT, range, read.version);
            let write = write.write(Fork::DEFAULT, 0, count.to_le_bytes().to_vec());
            match block_on(store.apply(&object, write)).unwrap() {
                Outcome::Done(_) => {
                    println!("counted {count}");
                    break;
                }
                Outcome::Refused(Refusal { found: nacre_object::Found::Region(found), .. }) => read = found,
                Outcome::Refused(refusal) => unreachable!("{refusal:?}"),
            }
        }
    }
}

#[test]
fn two_hosts_race_on_one_object() {
    let hosts = Hosts::new();
    let cluster = Cluster::start("hosts", &["--host", CLUSTER]);
    let uri = cluster.uri("hosts");
    let mut clients: Vec<Child> = (0..2).map(|host| hosts.run(host, &uri)).collect();
    let (sender, counted) = std::sync::mpsc::channel();
    let readers: Vec<_> = clients
        .iter_mut()
        .map(|client| {
            let (lines, sender) = (BufReader::new(client.stdout.take().unwrap()).lines(), sender.clone());
            std::thread::spawn(move || {
                for line in lines.map_while(Result::ok) {
                    if let Some((_, count)) = line.split_once("counted ") {
                        sender.send(count.parse::<u32>().unwrap()).unwrap();
                    }
                }
            })
        })
        .collect();
    drop(sender);
    let mut counts = BTreeSet::new();
    for count in counted {
        assert!(counts.insert(count), "{count} was counted twice: an update was lost");
        // One host loses its link in the midst of it, until the other one has gone on.
        match counts.len() {
            100 => hosts.link(0, "down"),
            200 => hosts.link(0, "up"),
            _ => {}
        }
    }
    for (client, reader) in clients.iter_mut().zip(readers) {
        reader.join().unwrap();
        assert!(client.wait().unwrap().success());
    }
    assert_eq!(counts, (1..=2 * INCREMENTS).collect(), "some updates are missing");
}
