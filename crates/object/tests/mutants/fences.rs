//! Stores that fence the wrong sessions.

use nacre_object::limit::FENCED_SESSIONS_MAX;

use super::*;

/// Returns the fences of an object.
fn fences_of(store: &MemoryStore, object: &ObjectId) -> Fences {
    store.model().object(object).map(|state| state.fences()).unwrap_or_default()
}

#[test]
fn wrong_fences() {
    let fencing = |change: fn(&MemoryStore, &ObjectId, u64) -> WriteOp| {
        applying(move |store, object, mut tx| {
            for write in &mut tx.writes {
                if let WriteOp::FenceSession { session } = write {
                    *write = change(store, object, *session);
                }
            }
            applied(store, object, tx)
        })
    };
    let listed = |change: fn(&mut Fences)| {
        answering(move |answer| {
            if let Answer::Fences(fences) = answer {
                change(fences);
            }
        })
    };
    caught(vec![
        ("sessions are not fenced", fencing(|_, _, _| WriteOp::Create)),
        (
            "a session is fenced with those before it",
            fencing(|_, _, session| WriteOp::RaiseFence { token: session.saturating_add(1) }),
        ),
        (
            "the session after it is fenced",
            fencing(|_, _, session| WriteOp::FenceSession { session: session.saturating_add(1) }),
        ),
        (
            "sessions are numbers of 32 bits",
            fencing(|_, _, session| WriteOp::FenceSession { session: u64::from(session as u32) }),
        ),
        (
            "the fence rises above any session below it",
            fencing(|store, object, session| match fences_of(store, object).fence {
                fence if session < fence => WriteOp::RaiseFence { token: fence.saturating_add(1) },
                _ => WriteOp::FenceSession { session },
            }),
        ),
        (
            "one session less is kept",
            fencing(|store, object, session| {
                let fences = fences_of(store, object);
                match fences.sessions.first() {
                    Some(lowest) if fences.sessions.len() == FENCED_SESSIONS_MAX - 1 => {
                        WriteOp::RaiseFence { token: lowest + 1 }
                    }
                    _ => WriteOp::FenceSession { session },
                }
            }),
        ),
        (
            "a session too many is not fenced",
            fencing(|store, object, session| match fences_of(store, object).sessions.len() {
                FENCED_SESSIONS_MAX => WriteOp::Create,
                _ => WriteOp::FenceSession { session },
            }),
        ),
        (
            "a session too many raises the fence above itself",
            fencing(|store, object, session| match fences_of(store, object).sessions.len() {
                FENCED_SESSIONS_MAX => WriteOp::RaiseFence { token: session.saturating_add(1) },
                _ => WriteOp::FenceSession { session },
            }),
        ),
        (
            "only the fence is checked",
            applying(|store, object, mut tx| {
                let fences = fences_of(store, object);
                for guard in &mut tx.guards {
                    if let Guard::Fence { token } = guard
                        && *token >= fences.fence
                    {
                        *guard = HOLDS;
                    }
                }
                applied(store, object, tx)
            }),
        ),
        (
            "only fenced sessions are checked",
            applying(|store, object, mut tx| {
                let fences = fences_of(store, object);
                for guard in &mut tx.guards {
                    if let Guard::Fence { token } = guard
                        && *token < fences.fence
                    {
                        *guard = HOLDS;
                    }
                }
                applied(store, object, tx)
            }),
        ),
        (
            "a fenced session is shown as the fence",
            applying(|store, object, tx| {
                let tokens: Vec<_> = tx.guards.clone();
                let mut outcome = applied(store, object, tx)?;
                if let Outcome::Refused(Refusal { guard, found: Found::Fence(fence), .. }) = &mut outcome
                    && let Guard::Fence { token } = &tokens[*guard]
                {
                    *fence = (*fence).max(token.saturating_add(1));
                }
                Ok(outcome)
            }),
        ),
        (
            "the fences of a removed object are lost",
            saying(|outcome| {
                if let Outcome::Done(done) = outcome
                    && !done.existed
                {
                    for answer in &mut done.answers {
                        if let Answer::Fences(fences) = answer {
                            fences.sessions.clear();
                        }
                    }
                }
            }),
        ),
        ("fenced sessions are not listed", listed(|fences| fences.sessions.clear())),
        ("the latest sessions come first", listed(|fences| fences.sessions.reverse())),
        ("the fence is not shown with the sessions", listed(|fences| fences.fence = 0)),
        (
            "a session at the fence is not listed",
            listed(|fences| fences.sessions.retain(|s| *s > fences.fence)),
        ),
    ]);
}
