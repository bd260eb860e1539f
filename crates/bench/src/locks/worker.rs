//! A worker of a loop, which locks and unlocks a range that nobody else wants.

use bytes::Bytes;
use nacre::lock::{LockableFile, Mode, Request};

use super::client::{FILE, Service};
use crate::BenchError;
use crate::kit::peer::{etcd, ofd, zookeeper};

/// The length of a range in a loop, and the distance of two of them.
const RANGE_BYTES: u64 = 4096;

/// The place of one worker in a loop: what it locks and unlocks.
pub(super) enum LoopTarget<'a> {
    Nacre { file: &'a LockableFile, request: Request, awaits: bool },
    Ofd { file: &'a ofd::Locks, offset: u64 },
    Zookeeper { client: &'a zookeeper_client::Client, node: String },
    Etcd { client: etcd::Client, name: Bytes, lease: i64 },
}

impl Service {
    /// Returns what a worker of this client locks, and nobody else.
    pub(super) async fn place(
        &self,
        worker: u32,
        number: u32,
        awaits: bool,
    ) -> Result<LoopTarget<'_>, BenchError> {
        let offset = u64::from(number) * RANGE_BYTES;
        let nth = |length: usize| worker as usize % length;
        Ok(match self {
            Self::Nacre { files, .. } => {
                let request = Request::new(offset..offset + RANGE_BYTES / 2, Mode::Exclusive);
                LoopTarget::Nacre { file: &files[nth(files.len())], request, awaits }
            }
            Self::Ofd(file) => LoopTarget::Ofd { file, offset },
            Self::Zookeeper(clients) => {
                let (client, node) = (&clients[nth(clients.len())], format!("/{FILE}-{number}"));
                zookeeper::make_node(client, &node).await?;
                LoopTarget::Zookeeper { client, node }
            }
            Self::Etcd { clients, lease } => {
                let name = Bytes::from(format!("{FILE}-{number}"));
                LoopTarget::Etcd { client: clients[nth(clients.len())].clone(), name, lease: *lease }
            }
        })
    }
}

impl LoopTarget<'_> {
    pub(super) async fn lock_and_unlock(&mut self) -> Result<(), BenchError> {
        match self {
            Self::Nacre { file, request, awaits } => {
                let lock = file.lock_by(request).await?;
                if *awaits {
                    lock.release().await?;
                }
                Ok(())
            }
            Self::Ofd { file, offset } => {
                file.lock(*offset, RANGE_BYTES / 2)?;
                file.unlock(*offset, RANGE_BYTES / 2)
            }
            Self::Zookeeper { client, node } => {
                let held = zookeeper::acquire(client, node).await?;
                zookeeper::release(client, held).await
            }
            Self::Etcd { client, name, lease } => {
                let key = client.lock(name.clone(), *lease).await?;
                client.unlock(key).await
            }
        }
    }
}
