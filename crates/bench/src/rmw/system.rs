//! The ways to update a block so that no update is lost, and one without coordination.
//!
//! A [`Connection`] belongs to one concurrent operation; connections and names are shared by reference count, without locks.

use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use nacre_object::{
    Answer, ByteRange, Fork, Found, Guard, Intent, ObjectId, ObjectStore, Outcome, RangeRead, Read,
    Transaction,
};
use nacre_rados::raw::RawPool;
use serde::{Deserialize, Serialize};

use super::block;
use super::workload::{Target, Workload};
use crate::BenchError;
use crate::kit::peer::{etcd, redis, zookeeper};

/// A way to coordinate, with the addresses of its servers, as it is sent to a client process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Plan {
    /// Read with version, modify, write on condition that nothing changed, retry.
    Optimistic {
        /// The store.
        store: String,
        /// Proposes the version read plus one, as the paper does, instead of naming the version read.
        propose: bool,
        /// Retries from the read, as the paper does, instead of from the block in the refusal.
        reread: bool,
    },
    /// Read and write without coordination.
    Unsafe {
        /// The store.
        store: String,
    },
    /// Write fresh blocks, without reading them.
    Write {
        /// The store.
        store: String,
        /// Makes the writes conditional on the block being fresh.
        conditional: bool,
    },
    /// Take the object's lock in ZooKeeper, read, write, release.
    Locks {
        /// The store.
        store: String,
        /// The address of ZooKeeper.
        address: String,
        /// The number of sessions per client.
        connections: u32,
    },
    /// Redis: WATCH, GET, MULTI, SET, EXEC.
    Redis {
        /// The address of the server.
        address: String,
    },
    /// etcd: a transaction that compares the revision.
    Etcd {
        /// The address of the server.
        address: String,
        /// The number of connections per client.
        connections: u32,
    },
    /// ZooKeeper: `setData` with the version.
    ZookeeperCas {
        /// The address of the server.
        address: String,
        /// The number of sessions per client.
        connections: u32,
    },
    /// Whole RADOS objects, each written if its version is still the one that was read.
    Librados {
        /// The pool.
        pool: String,
    },
}

impl Plan {
    /// Returns the store that it uses, if any.
    pub(crate) fn store(&self) -> Option<&str> {
        match self {
            Self::Optimistic { store, .. }
            | Self::Unsafe { store }
            | Self::Write { store, .. }
            | Self::Locks { store, .. } => Some(store),
            _ => None,
        }
    }
}

/// The cost of one update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    /// The number of writes that were tried, including the successful one.
    pub(crate) attempts: u32,
}

/// The names of a workload's objects and forks, made once.
pub(crate) struct Names {
    workload: Workload,
    objects: Vec<ObjectId>,
    forks: Vec<Fork>,
}

/// The connection of one concurrent operation to a system.
pub(crate) enum Connection {
    Optimistic { blocks: Blocks, propose: bool, reread: bool },
    Unsafe { blocks: Blocks },
    Write { blocks: Blocks, conditional: bool },
    Locks { blocks: Blocks, session: zookeeper_client::Client, nodes: Rc<Vec<String>> },
    Redis { connection: Box<redis::Connection>, names: Rc<Names> },
    Etcd { client: Box<etcd::Client>, names: Rc<Names> },
    ZookeeperCas { session: zookeeper_client::Client, names: Rc<Names> },
    Librados { pool: RawPool, names: Rc<Names> },
}

/// The blocks of a workload on a store.
#[derive(Clone)]
pub(crate) struct Blocks {
    store: Arc<dyn ObjectStore>,
    names: Rc<Names>,
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
    let blocks = || match &store {
        Some(store) => Ok(Blocks { store: store.clone(), names: names.clone() }),
        None => Err(BenchError::Process("a client was not given the store that its plan names".into())),
    };
    let mut opened = Vec::with_capacity(concurrency as usize);
    match plan {
        Plan::Optimistic { propose, reread, .. } => {
            for _ in 0..concurrency {
                opened.push(Connection::Optimistic { blocks: blocks()?, propose: *propose, reread: *reread });
            }
        }
        Plan::Unsafe { .. } => {
            for _ in 0..concurrency {
                opened.push(Connection::Unsafe { blocks: blocks()? });
            }
        }
        Plan::Write { conditional, .. } => {
            for _ in 0..concurrency {
                opened.push(Connection::Write { blocks: blocks()?, conditional: *conditional });
            }
        }
        Plan::Locks { address, connections, .. } => {
            let sessions = zookeeper_sessions(address, (*connections).min(concurrency)).await?;
            let nodes: Vec<String> =
                (0..workload.objects).map(|object| format!("/{}", workload.object_name(object))).collect();
            for node in &nodes {
                zookeeper::make_node(&sessions[0], node).await?;
            }
            let nodes = Rc::new(nodes);
            for session in sessions.iter().cycle().take(concurrency as usize) {
                opened.push(Connection::Locks {
                    blocks: blocks()?,
                    session: session.clone(),
                    nodes: nodes.clone(),
                });
            }
        }
        Plan::Redis { address } => {
            for _ in 0..concurrency {
                let connection = Box::new(redis::Connection::open(address).await?);
                opened.push(Connection::Redis { connection, names: names.clone() });
            }
        }
        Plan::Etcd { address, connections } => {
            let mut clients = Vec::new();
            for _ in 0..(*connections).min(concurrency).max(1) {
                clients.push(Box::new(etcd::Client::connect(address).await?));
            }
            for client in clients.iter().cycle().take(concurrency as usize) {
                opened.push(Connection::Etcd { client: client.clone(), names: names.clone() });
            }
        }
        Plan::ZookeeperCas { address, connections } => {
            let sessions = zookeeper_sessions(address, (*connections).min(concurrency)).await?;
            zookeeper::make_node(&sessions[0], &format!("/{}", workload.prefix)).await?;
            for session in sessions.iter().cycle().take(concurrency as usize) {
                opened.push(Connection::ZookeeperCas { session: session.clone(), names: names.clone() });
            }
        }
        Plan::Librados { pool } => {
            let pool = RawPool::open(pool).await?;
            for _ in 0..concurrency {
                opened.push(Connection::Librados { pool: pool.clone(), names: names.clone() });
            }
        }
    }
    Ok(opened)
}

/// Opens `sessions` sessions, at least one.
async fn zookeeper_sessions(
    address: &str,
    sessions: u32,
) -> Result<Vec<zookeeper_client::Client>, BenchError> {
    let mut clients = Vec::new();
    for _ in 0..sessions.max(1) {
        clients.push(zookeeper::connect(address).await?);
    }
    Ok(clients)
}

impl Connection {
    /// Updates one block as `writer`, retrying until it succeeds.
    ///
    /// # Errors
    /// If the store or the peer fails.
    pub(crate) async fn update(&mut self, target: &Target, writer: u32) -> Result<Taken, BenchError> {
        match self {
            Connection::Optimistic { blocks, propose, reread } => {
                blocks.update_optimistically(target, writer, *propose, *reread).await
            }
            Connection::Unsafe { blocks } => {
                blocks.update_unsafely(target, writer).await?;
                Ok(Taken { attempts: 1 })
            }
            Connection::Write { blocks, conditional } => {
                let fresh = Bytes::new();
                blocks.write(target, writer, fresh, conditional.then_some(0)).await?;
                Ok(Taken { attempts: 1 })
            }
            Connection::Locks { blocks, session, nodes } => {
                let held = zookeeper::acquire(session, &nodes[target.object as usize]).await?;
                blocks.update_unsafely(target, writer).await?;
                zookeeper::release(session, held).await?;
                Ok(Taken { attempts: 1 })
            }
            Connection::Redis { connection, names } => {
                let key = names.key(target);
                let mut attempts = 1;
                loop {
                    let block = connection.watch_and_get(&key).await?.unwrap_or_default();
                    let block = names.changed(target, block, writer)?;
                    if connection.set_if_unchanged(&key, &block).await? {
                        return Ok(Taken { attempts });
                    }
                    attempts += 1;
                }
            }
            Connection::Etcd { client, names } => {
                let key = Bytes::from(names.key(target));
                let mut attempts = 1;
                let mut found = client.get(key.clone()).await?;
                loop {
                    let block = names.changed(target, found.value, writer)?;
                    match client.put_if_unchanged(key.clone(), block, found.revision).await? {
                        None => return Ok(Taken { attempts }),
                        Some(fresh) => found = fresh,
                    }
                    attempts += 1;
                }
            }
            Connection::ZookeeperCas { session, names } => {
                let path = names.node(target);
                let mut attempts = 1;
                loop {
                    let (block, version) = match zookeeper::get(session, &path).await? {
                        Some((block, version)) => (block, Some(version)),
                        None => (Bytes::new(), None),
                    };
                    let block = names.changed(target, block, writer)?;
                    if zookeeper::set_if_unchanged(session, &path, &block, version).await? {
                        return Ok(Taken { attempts });
                    }
                    attempts += 1;
                }
            }
            Connection::Librados { pool, names } => {
                let key = names.key(target);
                let mut attempts = 1;
                loop {
                    let (block, version) = pool.read(&key, names.workload.block_bytes as usize).await?;
                    let block = names.changed(target, block, writer)?;
                    if pool.write_if(&key, version, &block).await? {
                        return Ok(Taken { attempts });
                    }
                    attempts += 1;
                }
            }
        }
    }

    /// Reads one block, for the checker.
    ///
    /// # Errors
    /// If the store or the peer fails.
    pub(crate) async fn read(&mut self, target: &Target) -> Result<Bytes, BenchError> {
        match self {
            Connection::Optimistic { blocks, .. }
            | Connection::Unsafe { blocks }
            | Connection::Write { blocks, .. }
            | Connection::Locks { blocks, .. } => Ok(blocks.read(target, Intent::Look).await?.data),
            Connection::Redis { connection, names } => {
                Ok(connection.get(&names.key(target)).await?.unwrap_or_default())
            }
            Connection::Etcd { client, names } => Ok(client.get(names.key(target).into()).await?.value),
            Connection::ZookeeperCas { session, names } => {
                let found = zookeeper::get(session, &names.node(target)).await?;
                Ok(found.map(|(block, _)| block).unwrap_or_default())
            }
            // The checker is the last to see the block, which is of no use to anybody then.
            Connection::Librados { pool, names } => {
                let key = names.key(target);
                let (block, version) = pool.read(&key, names.workload.block_bytes as usize).await?;
                if version > 0 {
                    pool.remove(&key).await?;
                }
                Ok(block)
            }
        }
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
}

impl Blocks {
    async fn read(&self, target: &Target, intent: Intent) -> Result<RangeRead, BenchError> {
        let (object, fork, range) = self.place(target);
        let transaction = Transaction::new().read(Read::Range { fork, range, intent });
        match self.store.apply(object, transaction).await? {
            Outcome::Done(mut done) => match done.answers.pop() {
                Some(Answer::Range(read)) => Ok(read),
                _ => Err(BenchError::Process("the store did not answer a read with a range".into())),
            },
            Outcome::Refused(_) => Err(BenchError::Process("the store refused a read without guards".into())),
        }
    }

    async fn update_optimistically(
        &self,
        target: &Target,
        writer: u32,
        propose: bool,
        reread: bool,
    ) -> Result<Taken, BenchError> {
        let (object, fork, range) = self.place(target);
        let mut found = self.read(target, Intent::Update).await?;
        let mut attempts = 1;
        loop {
            let block = self.names.changed(target, found.data, writer)?;
            let guard = match propose {
                false => Guard::Region { fork: fork.clone(), range, version: found.version },
                true => Guard::Proposal { fork: fork.clone(), range, version: found.version + 1 },
            };
            let transaction = Transaction::new().guard(guard).write(fork.clone(), range.offset, block);
            match self.store.apply(object, transaction).await? {
                Outcome::Done(_) => return Ok(Taken { attempts }),
                Outcome::Refused(_) if reread => found = self.read(target, Intent::Update).await?,
                Outcome::Refused(refusal) => match refusal.found {
                    Found::Region(region) if region.next.is_none() => found = region,
                    _ => found = self.read(target, Intent::Update).await?,
                },
            }
            attempts += 1;
        }
    }

    async fn update_unsafely(&self, target: &Target, writer: u32) -> Result<(), BenchError> {
        let found = self.read(target, Intent::Look).await?;
        self.write(target, writer, found.data, None).await
    }

    /// Writes a block after one more update, on condition that its version is still `version`, if one is given. A
    /// refusal is an error, because the callers expect no contention.
    async fn write(
        &self,
        target: &Target,
        writer: u32,
        block: Bytes,
        version: Option<u64>,
    ) -> Result<(), BenchError> {
        let (object, fork, range) = self.place(target);
        let block = self.names.changed(target, block, writer)?;
        let mut transaction = Transaction::new();
        if let Some(version) = version {
            transaction = transaction.if_version(fork.clone(), range, version);
        }
        match self.store.apply(object, transaction.write(fork, range.offset, block)).await? {
            Outcome::Done(_) => Ok(()),
            Outcome::Refused(_) => {
                let text = "a write that nobody contends with was refused";
                Err(BenchError::Process(format!("{}: {text}", self.names.key(target))))
            }
        }
    }

    fn place(&self, target: &Target) -> (&ObjectId, Fork, ByteRange) {
        let object = &self.names.objects[target.object as usize];
        let fork = self.names.forks[target.fork as usize].clone();
        (object, fork, self.names.workload.range(target))
    }
}
