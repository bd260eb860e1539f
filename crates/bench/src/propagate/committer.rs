//! The side that makes updates: versions of a class, or epochs of a map, one after the other.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use nacre::map::{Proposer, Update};
use nacre::{Key, Object};
use nacre_class::{Bounds, Record, Registry, Runtime, StoreRegistry, validate};
use tokio::net::UdpSocket;

use super::point::{Point, Way};
use super::{CLASS, MAP, PUSHED, text};
use crate::BenchError;
use crate::kit::machine::now_ns;
use crate::kit::server;

/// The time for which a notification waits for its acknowledgements.
const NOTIFY_TIMEOUT: Duration = Duration::from_secs(30);

/// The times of an update, in nanoseconds of the machine's clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    pub(super) requested_ns: u64,
    pub(super) committed_ns: u64,
}

/// The maker of updates.
pub(super) struct Committer {
    what: What,
    /// The object whose watchers are sent what is new, where they are.
    pushed: Option<Object>,
    /// The socket for datagrams to a group, where there is one, and the group.
    socket: Option<UdpSocket>,
    group: Option<SocketAddr>,
    version: u64,
}

enum What {
    Class { registry: StoreRegistry, runtime: Runtime },
    Map { proposer: Proposer, entry: Key },
}

impl Committer {
    /// Connects to the store.
    pub(super) async fn open(way: Way, uri: &str) -> Result<Self, BenchError> {
        let store = server::open(uri).await?;
        let what = match way {
            Way::Map => {
                let proposer = store.map(MAP)?.proposer(Default::default());
                What::Map { proposer, entry: Key::new(CLASS)? }
            }
            _ => {
                let registry = StoreRegistry::new(Arc::new(store.clone()));
                What::Class { registry, runtime: Runtime::new(1) }
            }
        };
        let pushes = way == Way::Push || way.relays();
        let pushed = if pushes { Some(store.object(PUSHED)?) } else { None };
        let socket = match way {
            Way::Reflect => {
                let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await;
                Some(socket.map_err(BenchError::io("open a socket"))?)
            }
            _ => None,
        };
        Ok(Self { what, pushed, socket, group: None, version: 0 })
    }

    /// Returns the address from which datagrams are sent, if they are.
    pub(super) fn address(&self) -> Result<Option<SocketAddr>, BenchError> {
        let address = self.socket.as_ref().map(UdpSocket::local_addr).transpose();
        address.map_err(BenchError::io("find the own address"))
    }

    /// Has datagrams sent to a group.
    pub(super) fn send_to(&mut self, group: SocketAddr) {
        self.group = Some(group);
    }

    /// Returns the version that was made last.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// Makes the next version, and tells those who wait to be told. The check of the class is before the request, as it needs no store.
    pub(super) async fn commit(&mut self) -> Result<Times, BenchError> {
        let version = self.version + 1;
        let text = text(version);
        let times = match &self.what {
            What::Class { registry, runtime } => {
                let class = validate(runtime, CLASS, text.clone(), Bounds::default()).map_err(failed)?;
                let record = Record {
                    version,
                    text: class.text.to_vec(),
                    methods: class.methods.clone(),
                    bounds: class.bounds,
                    removed: false,
                    restored: None,
                    made_s: 0,
                };
                let requested_ns = now_ns();
                if !registry.add(CLASS, record).await? {
                    return Err(BenchError::Process("another program changes the class of the study".into()));
                }
                Times { requested_ns, committed_ns: now_ns() }
            }
            What::Map { proposer, entry } => {
                let update = Update::new("study").set(entry.clone(), text.clone());
                let requested_ns = now_ns();
                let committed = proposer.propose(update).await.map_err(failed)?;
                let committed_ns = now_ns();
                if committed.epoch != version {
                    return Err(BenchError::Process("another program changes the map of the study".into()));
                }
                Times { requested_ns, committed_ns }
            }
        };
        self.version = version;
        let mut payload = BytesMut::with_capacity(8 + text.len());
        payload.put_u64_le(version);
        payload.extend_from_slice(&text);
        let payload = payload.freeze();
        if let (Some(socket), Some(group)) = (&self.socket, self.group) {
            socket.send_to(&payload, group).await.map_err(BenchError::io("send a datagram"))?;
        }
        if let Some(pushed) = &self.pushed {
            let notified = pushed.notify(payload, NOTIFY_TIMEOUT).await?;
            if !notified.missed.is_empty() {
                let text = format!("{} servers did not acknowledge an update", notified.missed.len());
                return Err(BenchError::Lost(text));
            }
        }
        Ok(times)
    }

    /// Makes a number of versions at the point's pace.
    pub(super) async fn run(&mut self, point: &Point, updates: u64) -> Result<Vec<Times>, BenchError> {
        // By then every server is told to look.
        tokio::time::sleep(START).await;
        let mut times = Vec::with_capacity(updates as usize);
        let mut next = tokio::time::Instant::now();
        for _ in 0..updates {
            tokio::time::sleep_until(next).await;
            times.push(self.commit().await?);
            next = (next + point.pace()).max(tokio::time::Instant::now());
        }
        Ok(times)
    }
}

/// The time that servers are given to read that a round begins.
const START: Duration = Duration::from_millis(150);

/// Returns an error of classes or maps as one of the study.
pub(super) fn failed(error: impl std::fmt::Display) -> BenchError {
    BenchError::Process(error.to_string())
}

/// Returns what a notification carries: a version and its text. `None` if it is none of the study's.
pub(super) fn decode(payload: &Bytes) -> Option<(u64, Bytes)> {
    let (version, _) = payload.split_first_chunk::<8>()?;
    Some((u64::from_le_bytes(*version), payload.slice(8..)))
}
