//! Fences by session: what is fenced stays so, whatever happens to the object.

use super::trial::*;
use super::{Case, Failure};
use crate::limit::*;
use crate::*;

pub(super) const CASES: &[Case] = &[
    ("fences/one session", one_session),
    ("fences/raised over sessions", raised),
    ("fences/removal", removal),
    ("fences/more sessions than are kept", folded),
    ("fences/extremes", extremes),
];

fn fence(session: u64) -> WriteOp {
    WriteOp::FenceSession { session }
}

/// Returns the fences of some sessions above a fence.
fn fences(fence: u64, sessions: impl IntoIterator<Item = u64>) -> Fences {
    Fences { fence, sessions: sessions.into_iter().collect() }
}

fn by(session: u64) -> Transaction {
    tx().guard(Guard::Fence { token: session })
}

/// Checks of some sessions whether they pass.
fn passing(t: &Trial<'_>, object: &ObjectId, sessions: &[(u64, bool)]) -> Result<(), Failure> {
    for (session, passes) in sessions {
        let outcome = t.apply(object, by(*session))?;
        same!(matches!(outcome, Outcome::Done(_)), *passes, "whether session {session} passes");
    }
    Ok(())
}

fn one_session(t: &Trial<'_>) -> Result<(), Failure> {
    let a = t.object("a");
    same!(t.fences(&a)?, Fences::default(), "an object that never was has no fences");
    let done = t.done(&a, by(5).change(fence(5)))?;
    same!((done.version, t.stat(&a)?.exists), (1, true), "a fence takes a version, and makes the object");
    same!(t.fences(&a)?, fences(0, [5]), "one session is fenced");
    same!(t.stat(&a)?.fence, 0, "and the fence does not rise");
    let refusal = t.refused(&a, by(5).write(Fork::DEFAULT, 0, "late"))?;
    let expected = Refusal { guard: 0, found: Found::Fence(0), version: 1 };
    same!(refusal, expected, "its requests are refused, with the fence that stands");
    passing(t, &a, &[(0, true), (4, true), (6, true)])?;
    t.done(&a, by(4).change(fence(9)).change(fence(7)).change(fence(9)).change(fence(5)))?;
    same!(t.fences(&a)?, fences(0, [5, 7, 9]), "sessions are listed once, in ascending order");
    passing(t, &a, &[(4, true), (5, false), (6, true), (7, false), (8, true), (9, false), (10, true)])?;
    // Two guards are two sessions.
    same!(t.refused(&a, by(6).guard(Guard::Fence { token: 7 }))?.guard, 1, "each guard is checked");
    Ok(())
}

fn raised(t: &Trial<'_>) -> Result<(), Failure> {
    let a = t.object("a");
    t.done(&a, [3, 6, 9].into_iter().fold(tx(), |tx, session| tx.change(fence(session))))?;
    t.done(&a, tx().change(WriteOp::RaiseFence { token: 6 }))?;
    same!(t.fences(&a)?, fences(6, [6, 9]), "the fence takes over what is below it");
    passing(t, &a, &[(3, false), (5, false), (6, false), (7, true), (8, true), (9, false), (10, true)])?;
    let refusal = t.refused(&a, by(9))?;
    same!(refusal.found, Found::Fence(6), "a fenced session above the fence finds it lower than its number");
    t.done(&a, tx().change(fence(2)))?;
    same!(t.fences(&a)?, fences(6, [6, 9]), "what is below the fence is fenced already");
    t.done(&a, tx().change(WriteOp::RaiseFence { token: 4 }))?;
    same!(t.fences(&a)?, fences(6, [6, 9]), "and the fence does not fall");
    t.done(&a, tx().change(fence(20)).change(WriteOp::RaiseFence { token: 15 }).change(fence(12)))?;
    same!(t.fences(&a)?, fences(15, [20]), "fences of one transaction are set in order");
    Ok(())
}

fn removal(t: &Trial<'_>) -> Result<(), Failure> {
    let a = t.object("a");
    t.done(&a, tx().write(Fork::DEFAULT, 0, "x").change(fence(8)).change(WriteOp::RaiseFence { token: 5 }))?;
    t.done(&a, tx().change(WriteOp::Remove))?;
    same!(t.fences(&a)?, fences(5, [8]), "a removal keeps fences");
    t.refused(&a, by(8).change(WriteOp::Create))?;
    same!(t.stat(&a)?.exists, false, "who is fenced cannot make the object again");
    t.done(&a, tx().change(fence(9)).change(WriteOp::Remove).change(fence(7)))?;
    same!((t.fences(&a)?, t.stat(&a)?.exists), (fences(5, [7, 8, 9]), true), "also within a transaction");
    t.done(&a, by(6).change(WriteOp::Remove))?;
    let done = t.done(&a, by(10).guard(Guard::Absent).write(Fork::DEFAULT, 0, "y"))?;
    same!(
        (done.existed, t.fences(&a)?),
        (false, fences(5, [7, 8, 9])),
        "and they stay when it is made again"
    );
    Ok(())
}

fn folded(t: &Trial<'_>) -> Result<(), Failure> {
    let a = t.object("a");
    // Every second session from 100 on, the later ones first.
    let sessions: Vec<u64> = (0..FENCED_SESSIONS_MAX as u64).map(|index| 100 + 2 * index).collect();
    let fill = sessions[1..].iter().rev().fold(tx(), |tx, session| tx.change(fence(*session)));
    t.done(&a, fill)?;
    t.done(&a, tx().change(fence(100)))?;
    same!(t.fences(&a)?, fences(0, sessions.clone()), "as many sessions are kept as are allowed");
    t.done(&a, tx().change(fence(102)))?;
    same!(t.fences(&a)?, fences(0, sessions.clone()), "one that is kept already is not one more");
    passing(t, &a, &[(99, true), (100, false), (101, true)])?;
    // One more, above all the others, in their midst, and below them.
    t.done(&a, tx().change(fence(9000)))?;
    let after = |fence: u64, more: &[u64]| {
        let mut all: Vec<u64> = sessions.iter().copied().chain(more.iter().copied()).collect();
        all.sort_unstable();
        fences(fence, all.into_iter().filter(|session| *session >= fence))
    };
    same!(t.fences(&a)?, after(101, &[9000]), "one more raises the fence above the lowest");
    passing(t, &a, &[(99, false), (100, false), (101, true), (102, false), (103, true), (9000, false)])?;
    t.done(&a, tx().change(fence(103)))?;
    same!(t.fences(&a)?, after(103, &[103, 9000]), "whatever its place");
    passing(t, &a, &[(101, false), (102, false), (103, false), (104, false), (105, true)])?;
    t.done(&a, tx().change(WriteOp::RaiseFence { token: 107 }))?;
    same!(t.fences(&a)?.sessions.len(), FENCED_SESSIONS_MAX - 3, "a raised fence makes room");
    let more = tx().change(fence(9001)).change(fence(9002)).change(fence(9003));
    t.done(&a, more)?;
    let full = after(107, &[9000, 9001, 9002, 9003]);
    same!(t.fences(&a)?, full, "and sessions fit into it");
    t.done(&a, tx().change(fence(107)))?;
    same!(t.fences(&a)?, fences(108, full.sessions), "the lowest may be the one that was one too many");
    Ok(())
}

fn extremes(t: &Trial<'_>) -> Result<(), Failure> {
    let a = t.object("a");
    t.done(&a, tx().change(fence(0)).change(fence(u64::MAX)))?;
    same!(t.fences(&a)?, fences(0, [0, u64::MAX]), "any number is a session's");
    passing(t, &a, &[(0, false), (1, true), (u64::MAX - 1, true), (u64::MAX, false)])?;
    t.done(&a, tx().change(WriteOp::RaiseFence { token: u64::MAX }))?;
    same!(t.fences(&a)?, fences(u64::MAX, [u64::MAX]), "the fence of all numbers leaves none");
    passing(t, &a, &[(0, false), (u64::MAX, false)])?;
    Ok(())
}
