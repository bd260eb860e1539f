//! The thread of a lock server: time, records and fences.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use nacre_object::limit::FENCED_SESSIONS_MAX;
use nacre_object::{
    Answer, ErrorKind, Escaped, Fences, ObjectId, ObjectStore, Outcome, ReadOp, StoreError, Transaction,
    WriteOp,
};
use tokio::sync::oneshot;

use super::core::Shared;
use super::ledger::{Change, Ledger};
use crate::clock;
use crate::message::{FileName, SessionId};

/// The pause after the first failed attempt to write a record or a fence; it doubles with each further failure.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// The longest time that the end of the server waits for its records.
const END_MAX: Duration = Duration::from_secs(5);

type Writing = Pin<Box<dyn Future<Output = (Ledger, Vec<Change>)> + Send>>;

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
            core.forget_lapsed();
            if idle.is_some() {
                let changes = core.changes();
                if let Some(ledger) = idle.take_if(|_| !changes.is_empty()) {
                    writing = Some(Box::pin(write(ledger, changes)));
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
            Some(ActiveFence { session, file, floor }) = fences.next(), if !fences.is_empty() => {
                shared.core.lock().counts.fences += 1;
                shared.with(|server, _, out| {
                    if let Some(floor) = floor {
                        server.set_floor(&file, floor, out);
                    }
                    server.fenced(session, &file, out);
                });
            }
            (ledger, changes) = written => {
                writing = None;
                idle = Some(ledger);
                shared.core.lock().changed(&changes);
            }
        }
    }
    if tokio::time::timeout(END_MAX, end(&shared, idle, writing)).await.is_err() {
        tracing::warn!("the lock server's records cannot be written; it will begin with a grace period");
    }
}

/// Writes the records that are left. A server without sessions notes that its successor needs no grace period, because whoever
/// has no session has nothing to assert.
async fn end(shared: &Shared, idle: Option<Ledger>, writing: Option<Writing>) {
    // The end of the last session is among those records, or being written.
    let mut written = match (idle, writing) {
        (Some(ledger), _) => (ledger, Vec::new()),
        (None, Some(writing)) => writing.await,
        (None, None) => return,
    };
    let mut ledger = loop {
        let changes = {
            let mut core = shared.core.lock();
            core.changed(&written.1);
            core.changes()
        };
        match changes.is_empty() {
            true => break written.0,
            false => written = write(written.0, changes).await,
        }
    };
    let clean = {
        let core = shared.core.lock();
        // One that had no session itself notes it for a predecessor, whose sessions cannot come back after the grace period.
        let is_noted = core.backlog.has_begun() || ledger.used;
        is_noted && core.backlog.records() == 0 && core.server.is_unused()
    };
    if !clean {
        return;
    }
    let written = match ledger.take(&[Change::End]) {
        Ok(writes) => ledger.write(&writes).await,
        Err(error) => Err(error),
    };
    if let Err(error) = written {
        tracing::warn!("{error}; the lock server will begin with a grace period");
    }
}

/// Makes changes durable, however often it takes.
async fn write(mut ledger: Ledger, changes: Vec<Change>) -> (Ledger, Vec<Change>) {
    let mut pause = PAUSE_MIN;
    // Taken in once, however often they are written: what a session's end strikes off is known only before.
    let writes = ledger.take(&changes);
    loop {
        let written = match &writes {
            Ok(writes) => ledger.write(writes).await,
            Err(error) => Err(error.clone()),
        };
        let Err(error) = written else { return (ledger, changes) };
        tracing::error!(
            "the lock server cannot write its records, and until it can it grants no exclusive lock in a file that is new \
             to its session, and opens no session after a restart: {error}"
        );
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// A fence that is up.
struct ActiveFence {
    session: SessionId,
    file: FileName,
    /// The session below which the object refuses all, if it does.
    floor: Option<SessionId>,
}

/// Raises a session's fence at a file's object, however often it takes.
async fn fence(objects: Arc<dyn ObjectStore>, session: SessionId, file: FileName) -> ActiveFence {
    let mut pause = PAUSE_MIN;
    loop {
        match raise(&*objects, session, &file).await {
            Ok(floor) => {
                tracing::info!("lock session {session} is fenced at object \"{}\"", Escaped::of(&*file));
                return ActiveFence { session, file, floor };
            }
            Err(error) => tracing::error!(
                "lock session {session} cannot be fenced at object \"{}\", and what it held stays locked until \
                 then: {error}",
                Escaped::of(&*file)
            ),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Returns the session below which the object refuses all, if it does.
async fn raise(
    objects: &dyn ObjectStore,
    session: SessionId,
    file: &FileName,
) -> Result<Option<SessionId>, StoreError> {
    let object = ObjectId::new(file.as_bytes().to_vec())?;
    let write = Transaction::new().read(ReadOp::Fences).change(WriteOp::FenceSession { session: session.0 });
    let before = fences_of(objects.apply(&object, write).await?)?;
    let floor = if before.sessions.len() < FENCED_SESSIONS_MAX {
        before.fence
    } else {
        // One more has raised the fence over the lowest of them, and over all that are lower and not fenced.
        fences_of(objects.apply(&object, Transaction::new().read(ReadOp::Fences)).await?)?.fence
    };
    if floor > before.fence {
        tracing::warn!(
            "object \"{}\" has more than {FENCED_SESSIONS_MAX} fenced sessions, and refuses now all below {floor}; a lock \
             session below that is lost when it locks this file exclusively",
            Escaped::of(&**file)
        );
    }
    Ok((floor > 0).then_some(SessionId(floor)))
}

fn fences_of(outcome: Outcome) -> Result<Fences, StoreError> {
    let unknown = |text: &str| StoreError::new(ErrorKind::Unknown, text);
    let Outcome::Done(done) = outcome else {
        return Err(unknown("the store refused a transaction without guards"));
    };
    match done.answers.into_iter().next() {
        Some(Answer::Fences(fences)) => Ok(fences),
        _ => Err(unknown("the store did not say which sessions are fenced")),
    }
}
