//! The thread of a lock server: time, records and fences.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use nacre_object::{ErrorKind, ObjectId, ObjectStore, StoreError, Transaction, Write};
use tokio::sync::oneshot;

use super::core::Shared;
use super::ledger::{Change, Ledger};
use crate::clock;
use crate::message::{FileName, SessionId};
use crate::server::Output;

/// The pause after the first failed attempt to write a record or a fence; it doubles with each further failure.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Orders whose records are being made durable.
struct Batch {
    changes: Vec<Change>,
    outputs: VecDeque<Output>,
}

type Writing = Pin<Box<dyn Future<Output = (Ledger, Batch)> + Send>>;

/// Runs until `stopped` is dropped.
pub(super) async fn run(
    shared: Arc<Shared>,
    ledger: Ledger,
    objects: Arc<dyn ObjectStore>,
    mut stopped: oneshot::Receiver<()>,
) {
    let mut idle = Some(ledger);
    let mut writing: Option<Writing> = None;
    let mut fences = FuturesUnordered::new();
    loop {
        let due = {
            let mut core = shared.core.lock();
            let mut out = Vec::new();
            core.server.tick(clock::now(), &mut out);
            core.carry(out, None);
            core.sweep();
            if idle.is_some() {
                let (changes, outputs) = (core.changes(), std::mem::take(&mut core.queue));
                match idle.take_if(|_| !changes.is_empty()) {
                    Some(ledger) => {
                        core.writing = true;
                        writing = Some(Box::pin(write(ledger, Batch { changes, outputs })));
                    }
                    // They waited for a batch that is durable now.
                    None => outputs.into_iter().for_each(|output| core.carry_out(output)),
                }
            }
            for (session, file) in core.raises.drain(..) {
                fences.push(fence(objects.clone(), session, file));
            }
            core.sleeps_until = core.server.next_deadline();
            core.sleeps_until
        };
        let sleep = async {
            match due {
                Some(due) => tokio::time::sleep(due.saturating_sub(clock::now())).await,
                None => std::future::pending().await,
            }
        };
        let written = async {
            match &mut writing {
                Some(writing) => writing.await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = &mut stopped => break,
            () = shared.work.notified() => {}
            () = sleep => {}
            Some((session, file)) = fences.next(), if !fences.is_empty() => {
                shared.core.lock().counts.fences += 1;
                shared.with(|server, _, out| server.fenced(session, &file, out));
            }
            (ledger, batch) = written => {
                writing = None;
                idle = Some(ledger);
                let mut core = shared.core.lock();
                core.changed(&batch.changes);
                core.writing = false;
                for output in batch.outputs {
                    core.carry_out(output);
                }
            }
        }
    }
    // Whoever has no session has nothing to assert, so a server that had none needs no grace period.
    let clean = {
        let core = shared.core.lock();
        core.begun && core.queue.is_empty() && core.server.is_unused()
    };
    if let Some(mut ledger) = idle.filter(|_| clean) {
        let written = match ledger.take(&[Change::End]) {
            Ok(writes) => ledger.write(&writes).await,
            Err(error) => Err(error),
        };
        if let Err(error) = written {
            tracing::warn!("{error}; the lock server will begin with a grace period");
        }
    }
}

/// Makes changes durable, however often it takes.
async fn write(mut ledger: Ledger, batch: Batch) -> (Ledger, Batch) {
    let mut pause = PAUSE_MIN;
    // Taken in once, however often they are written: what a session's end strikes off is known only before.
    let writes = ledger.take(&batch.changes);
    loop {
        let written = match &writes {
            Ok(writes) => ledger.write(writes).await,
            Err(error) => Err(error.clone()),
        };
        let Err(error) = written else { return (ledger, batch) };
        tracing::error!("the lock server cannot write its records, and grants nothing until it can: {error}");
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Raises a session's fence at a file's object, however often it takes.
async fn fence(objects: Arc<dyn ObjectStore>, session: SessionId, file: FileName) -> (SessionId, FileName) {
    let mut pause = PAUSE_MIN;
    loop {
        match raise(&*objects, session, &file).await {
            Ok(()) => {
                tracing::info!("lock session {session} is fenced at object \"{}\"", shown(&file));
                return (session, file);
            }
            Err(error) => tracing::error!(
                "lock session {session} cannot be fenced at object \"{}\", and what it held stays locked until \
                 then: {error}",
                shown(&file)
            ),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Returns the name of a file as that of its object, in which everything that is not printable is escaped.
fn shown(file: &FileName) -> String {
    ObjectId::try_from(&**file).map_or_else(|_| String::new(), |object| object.to_string())
}

async fn raise(objects: &dyn ObjectStore, session: SessionId, file: &FileName) -> Result<(), StoreError> {
    let object = ObjectId::new(file.as_bytes().to_vec())?;
    let transaction = Transaction::new().change(Write::FenceSession { session: session.0 });
    match objects.apply(&object, transaction).await? {
        nacre_object::Outcome::Done(_) => Ok(()),
        nacre_object::Outcome::Refused(_) => {
            Err(StoreError::new(ErrorKind::Unknown, "the store refused a transaction without guards"))
        }
    }
}
