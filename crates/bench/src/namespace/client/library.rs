//! The operations of clients that use the library.

use std::time::Instant;

use bytes::Bytes;
use nacre::fs::{Creation, Credentials, Ino, InodeKind, PAGE_ENTRIES_MAX, Rank};

use super::{Orders, Progress, Work, content, failed, listed, lost, name};
use crate::BenchError;

/// The clients that use the library: each has the rank of one of the connections.
pub(super) struct Library {
    pub(super) ranks: Vec<Rank>,
    pub(super) user: Credentials,
    pub(super) directories: Vec<Ino>,
}

impl Library {
    /// Does the work of one client.
    pub(super) async fn go(
        &self,
        orders: &Orders,
        place: usize,
        made: u32,
        work: Work,
        begin: Instant,
    ) -> Result<Progress, BenchError> {
        let mut progress = Progress::new()?;
        for number in work.numbers(made) {
            if work.is_over(begin) {
                break;
            }
            let started = Instant::now();
            let entries = self.step(orders, place, made, work, number).await?;
            progress.add(started.elapsed(), entries);
        }
        Ok(progress)
    }

    /// Does one operation, and returns the number of entries that were listed.
    async fn step(
        &self,
        orders: &Orders,
        place: usize,
        made: u32,
        work: Work,
        number: u32,
    ) -> Result<u64, BenchError> {
        let (rank, user, directory) =
            (&self.ranks[place % self.ranks.len()], &self.user, self.directories[place]);
        let (client, bytes) = (orders.first + place as u32, orders.file_bytes);
        match work {
            Work::Create { .. } => {
                let (name, creation) = (name(client, number, false), Creation::new(InodeKind::File, 0o644));
                let file = rank.create(user, directory, name.as_bytes(), creation).await.map_err(failed)?;
                if bytes > 0 {
                    let content = Bytes::from(content(bytes, client, number));
                    rank.write_file(file.ino, 0, content).await.map_err(failed)?;
                }
            }
            Work::Check { renamed } => {
                let name = name(client, number, renamed);
                let file = rank.lookup(user, directory, name.as_bytes()).await.map_err(failed)?;
                let read = rank.read_file(file.ino, 0, bytes as usize + 1).await.map_err(failed)?;
                if read[..] != content(bytes, client, number)[..] {
                    return Err(lost(&name, "holds something else than was written"));
                }
            }
            Work::Stat => {
                let name = name(client, number, false);
                let found = rank.lookup(user, directory, name.as_bytes()).await.map_err(failed)?;
                if found.size != u64::from(bytes) {
                    return Err(lost(&name, "has another size"));
                }
            }
            Work::Rename => {
                let (old, new) = (name(client, number, false), name(client, number, true));
                let (from, to) = ((directory, old.as_bytes()), (directory, new.as_bytes()));
                rank.rename(user, from, to, false).await.map_err(failed)?;
            }
            Work::List { entries, .. } => {
                let (mut after, mut found) = (Bytes::new(), 0);
                loop {
                    let page = rank.readdir(user, directory, &after, PAGE_ENTRIES_MAX, false).await;
                    let page = page.map_err(failed)?;
                    found += page.entries.len() as u64;
                    match page.entries.last() {
                        Some(last) if page.more => after = last.name.clone(),
                        _ => break,
                    }
                }
                return listed(found, entries, made);
            }
            Work::Unlink => {
                let name = name(client, number, true);
                rank.unlink(user, directory, name.as_bytes()).await.map_err(failed)?;
            }
        }
        Ok(0)
    }
}
