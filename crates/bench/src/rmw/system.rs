//! The ways to update a block so that no update is lost, and one without coordination.
//!
//! A [`Connection`] belongs to one concurrent operation; connections and names are shared by reference count, without locks.

use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::try_join_all;
use nacre_object::{
    Answer, ByteRange, Fork, Guard, Intent, ObjectId, ObjectStore, Outcome, ReadOp, Transaction,
};
use nacre_rados::raw::RawPool;
use serde::{Deserialize, Serialize};

use super::block;
use super::point::System;
use super::workload::{Target, Workload};
use crate::BenchError;
use crate::kit::peer::{etcd, redis, zookeeper};
use crate::kit::server;

/// A system under test with the addresses of its servers, as it is sent to a client process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Plan {
    pub(crate) system: System,
    /// The store, or the pool of raw librados; empty where the blocks are stored in a peer.
    pub(crate) store: String,
    /// The address of the peer, if the system needs one.
    pub(crate) address: String,
    /// The number of sessions or connections per client, for ZooKeeper and etcd.
    pub(crate) connections: u32,
    /// Proposes the version read plus one, as the paper does, instead of naming the version read.
    pub(crate) propose: bool,
    /// Retries from the read, as the paper does, instead of from the block in the refusal.
    pub(crate) reread: bool,
}

impl Plan {
    /// Opens Nacre's store, if the blocks are there.
    pub(crate) async fn open_store(&self) -> Result<Option<Arc<dyn ObjectStore>>, BenchError> {
        Ok(match self.system.is_on_nacre() {
            true => Some(Arc::new(server::open(&self.store).await?)),
            false => None,
        })
    }
}

/// The names of a workload's objects and forks, made once.
pub(crate) struct Names {
    workload: Workload,
    objects: Vec<ObjectId>,
    forks: Vec<Fork>,
}

/// The connection of one concurrent operation to a system.
pub(crate) struct Connection {
    names: Rc<Names>,
    blocks: Blocks,
    way: Way,
}

/// The way in which a connection updates a block.
#[derive(Clone)]
enum Way {
    /// Read, write if nothing changed, retry.
    Optimistic,
    /// Read and write without coordination.
    Unsafe,
    /// Write a fresh block without reading it, on condition that it is fresh or without one.
    Fresh { conditional: bool },
    /// Take the object's lock in ZooKeeper, read, write, release.
    Locks { session: zookeeper_client::Client, nodes: Rc<Vec<String>> },
}

/// The place where blocks are stored: there they have versions, and can be written if theirs is still the one that was
/// read. A block that is not there has version 0.
enum Blocks {
    Nacre {
        store: Arc<dyn ObjectStore>,
        propose: bool,
        reread: bool,
    },
    /// A connection, which itself watches the block that was read.
    Redis(Box<redis::Connection>),
    Etcd(Box<etcd::Client>),
    Zookeeper(zookeeper_client::Client),
    Librados(RawPool),
}

/// A block as it was read.
struct Found {
    block: Bytes,
    version: u64,
}

/// The outcome of a conditional write.
enum Written {
    Done,
    /// The version was another one. The present block comes with the refusal, where the system tells it.
    Refused(Option<Found>),
}

/// Opens `concurrency` connections as planned. `store` is given where it is in this process or is shared.
pub(crate) async fn open(
    plan: &Plan,
    workload: &Workload,
    concurrency: u32,
    store: Option<Arc<dyn ObjectStore>>,
) -> Result<Vec<Connection>, BenchError> {
    let names = Rc::new(Names {
        objects: workload.object_ids()?,
        forks: workload.fork_names()?,
        workload: workload.clone(),
    });
    let (address, count) = (&plan.address, concurrency as usize);
    let shared = plan.connections.min(concurrency).max(1);
    let blocks: Vec<Blocks> = match plan.system {
        System::Redis | System::RedisAof => {
            let connections = try_join_all((0..count).map(|_| redis::Connection::open(address))).await?;
            connections.into_iter().map(|connection| Blocks::Redis(Box::new(connection))).collect()
        }
        System::Etcd => {
            let clients = try_join_all((0..shared).map(|_| etcd::Client::connect(address))).await?;
            clients.iter().cycle().take(count).map(|client| Blocks::Etcd(Box::new(client.clone()))).collect()
        }
        System::ZookeeperCas => {
            let sessions = zookeeper_sessions(address, shared).await?;
            zookeeper::make_node(&sessions[0], &format!("/{}", workload.prefix)).await?;
            sessions.iter().cycle().take(count).cloned().map(Blocks::Zookeeper).collect()
        }
        System::Librados => {
            let pool = RawPool::open(&plan.store).await?;
            (0..count).map(|_| Blocks::Librados(pool.clone())).collect()
        }
        System::Optimistic | System::Zookeeper | System::None | System::WriteIf | System::Write => {
            let missing = "a client was not given the store that its plan names";
            let store = store.ok_or_else(|| BenchError::Process(missing.into()))?;
            let (propose, reread) = (plan.propose, plan.reread);
            (0..count).map(|_| Blocks::Nacre { store: store.clone(), propose, reread }).collect()
        }
    };
    let ways = match plan.system {
        System::None => vec![Way::Unsafe],
        System::WriteIf => vec![Way::Fresh { conditional: true }],
        System::Write => vec![Way::Fresh { conditional: false }],
        System::Zookeeper => {
            let sessions = zookeeper_sessions(address, shared).await?;
            let nodes = (0..workload.objects).map(|object| format!("/{}", workload.object_name(object)));
            let nodes = Rc::new(nodes.collect::<Vec<_>>());
            for node in &*nodes {
                zookeeper::make_node(&sessions[0], node).await?;
            }
            sessions.into_iter().map(|session| Way::Locks { session, nodes: nodes.clone() }).collect()
        }
        _ => vec![Way::Optimistic],
    };
    let opened = blocks.into_iter().zip(ways.iter().cycle());
    Ok(opened.map(|(blocks, way)| Connection { names: names.clone(), blocks, way: way.clone() }).collect())
}

/// Opens a number of sessions.
async fn zookeeper_sessions(
    address: &str,
    sessions: u32,
) -> Result<Vec<zookeeper_client::Client>, BenchError> {
    try_join_all((0..sessions).map(|_| zookeeper::connect(address))).await
}

impl Connection {
    /// Updates one block as `writer`, retrying until it succeeds. Returns the number of writes that were tried.
    ///
    /// # Errors
    /// If the store or the peer fails.
    pub(crate) async fn update(&mut self, target: &Target, writer: u32) -> Result<u32, BenchError> {
        let Self { names, blocks, way } = self;
        match way {
            Way::Optimistic => {
                let mut found = blocks.read(names, target, Intent::Update).await?;
                let mut attempts = 1;
                loop {
                    let block = names.changed(target, found.block, writer)?;
                    found = match blocks.write(names, target, block, Some(found.version)).await? {
                        Written::Done => return Ok(attempts),
                        Written::Refused(Some(present)) => present,
                        Written::Refused(None) => blocks.read(names, target, Intent::Update).await?,
                    };
                    attempts += 1;
                }
            }
            Way::Unsafe => update_unsafely(names, blocks, target, writer).await?,
            Way::Fresh { conditional } => {
                let block = names.changed(target, Bytes::new(), writer)?;
                let written = blocks.write(names, target, block, conditional.then_some(0)).await?;
                uncontended(names, target, written)?;
            }
            Way::Locks { session, nodes } => {
                let held = zookeeper::acquire(session, &nodes[target.object as usize]).await?;
                update_unsafely(names, blocks, target, writer).await?;
                zookeeper::release(session, held).await?;
            }
        }
        Ok(1)
    }

    /// Reads one block, for the checker.
    ///
    /// # Errors
    /// If the store or the peer fails.
    pub(crate) async fn read(&mut self, target: &Target) -> Result<Bytes, BenchError> {
        let found = self.blocks.read(&self.names, target, Intent::Look).await?;
        // The checker is the last to see a raw object, which is of no use to anybody then.
        if let Blocks::Librados(pool) = &self.blocks
            && found.version > 0
        {
            pool.remove(&self.names.key(target)).await?;
        }
        Ok(found.block)
    }
}

async fn update_unsafely(
    names: &Names,
    blocks: &mut Blocks,
    target: &Target,
    writer: u32,
) -> Result<(), BenchError> {
    let found = blocks.read(names, target, Intent::Look).await?;
    let block = names.changed(target, found.block, writer)?;
    uncontended(names, target, blocks.write(names, target, block, None).await?)
}

/// Fails if a write was refused, where no contention is expected.
fn uncontended(names: &Names, target: &Target, written: Written) -> Result<(), BenchError> {
    match written {
        Written::Done => Ok(()),
        Written::Refused(_) => {
            let text = "a write that nobody contends with was refused";
            Err(BenchError::Process(format!("{}: {text}", names.key(target))))
        }
    }
}

impl Blocks {
    /// Reads a block.
    async fn read(&mut self, names: &Names, target: &Target, intent: Intent) -> Result<Found, BenchError> {
        Ok(match self {
            Self::Nacre { store, .. } => {
                let (object, fork, range) = names.place(target);
                let transaction = Transaction::new().read(ReadOp::Range { fork, range, intent });
                let Outcome::Done(mut done) = store.apply(object, transaction).await? else {
                    return Err(BenchError::Process("the store refused a read without guards".into()));
                };
                match done.answers.pop() {
                    Some(Answer::Range(read)) => Found { block: read.data, version: read.version },
                    _ => {
                        let text = "the store did not answer a read with a range";
                        return Err(BenchError::Process(text.into()));
                    }
                }
            }
            Self::Redis(connection) => {
                let key = names.key(target);
                let block = match intent {
                    Intent::Update => connection.watch_and_get(&key).await?,
                    Intent::Look => connection.get(&key).await?,
                };
                Found { block: block.unwrap_or_default(), version: 0 }
            }
            Self::Etcd(client) => client.get(names.key(target).into()).await?.into(),
            Self::Zookeeper(session) => match zookeeper::get(session, &names.node(target)).await? {
                // Its versions begin at 0.
                Some((block, version)) => Found { block, version: version as u64 + 1 },
                None => Found { block: Bytes::new(), version: 0 },
            },
            Self::Librados(pool) => {
                let bytes = names.workload.block_bytes as usize;
                let (block, version) = pool.read(&names.key(target), bytes).await?;
                Found { block, version }
            }
        })
    }

    /// Writes a block, on condition that its version is still `version`, if one is given; only Nacre's need none.
    async fn write(
        &mut self,
        names: &Names,
        target: &Target,
        block: Bytes,
        version: Option<u64>,
    ) -> Result<Written, BenchError> {
        let condition = version.unwrap_or_default();
        let is_done = match self {
            Self::Nacre { store, propose, reread } => {
                let (object, fork, range) = names.place(target);
                let mut transaction = Transaction::new();
                if let Some(version) = version {
                    transaction = transaction.guard(match propose {
                        false => Guard::Region { fork: fork.clone(), range, version },
                        true => Guard::Proposal { fork: fork.clone(), range, version: version + 1 },
                    });
                }
                match store.apply(object, transaction.write(fork, range.offset, block)).await? {
                    Outcome::Done(_) => true,
                    Outcome::Refused(refusal) => match refusal.found {
                        nacre_object::Found::Region(region) if !*reread && region.next.is_none() => {
                            let present = Found { block: region.data, version: region.version };
                            return Ok(Written::Refused(Some(present)));
                        }
                        _ => false,
                    },
                }
            }
            Self::Redis(connection) => connection.set_if_unchanged(&names.key(target), &block).await?,
            Self::Etcd(client) => {
                match client.put_if_unchanged(names.key(target).into(), block, condition as i64).await? {
                    None => true,
                    Some(present) => return Ok(Written::Refused(Some(present.into()))),
                }
            }
            Self::Zookeeper(session) => {
                let version = condition.checked_sub(1).map(|version| version as i32);
                zookeeper::set_if_unchanged(session, &names.node(target), &block, version).await?
            }
            Self::Librados(pool) => pool.write_if(&names.key(target), condition, &block).await?,
        };
        Ok(if is_done { Written::Done } else { Written::Refused(None) })
    }
}

impl From<etcd::Revised> for Found {
    fn from(found: etcd::Revised) -> Found {
        Found { block: found.value, version: found.revision as u64 }
    }
}

impl Names {
    /// Returns the block's name where every block is a value of its own.
    fn key(&self, target: &Target) -> String {
        format!("{}/{}/{}/{}", self.workload.prefix, target.object, target.fork, target.block)
    }

    /// Returns the block's ZooKeeper path, which needs no nodes in between.
    fn node(&self, target: &Target) -> String {
        format!("/{}/{}-{}-{}", self.workload.prefix, target.object, target.fork, target.block)
    }

    /// Returns the block after one more update.
    ///
    /// # Errors
    /// [`BenchError::Lost`] if the block is torn.
    fn changed(&self, target: &Target, block: Bytes, writer: u32) -> Result<Bytes, BenchError> {
        block::update(block, self.workload.block_bytes, writer)
            .ok_or_else(|| BenchError::Lost(format!("{} reads as torn", self.key(target))))
    }

    /// Returns the block's place where blocks are regions of objects.
    fn place(&self, target: &Target) -> (&ObjectId, Fork, ByteRange) {
        let fork = self.forks[target.fork as usize].clone();
        (&self.objects[target.object as usize], fork, self.workload.range(target))
    }
}
