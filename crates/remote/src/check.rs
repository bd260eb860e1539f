//! Round-trip checks of the decoders on arbitrary bytes, for fuzzing and tests.

use bytes::Bytes;
use nacre_object::{Answer, Found, Outcome, RangeRead, Transaction, WriteOp};
use nacre_rpc::check::retake;
use nacre_rpc::{Frame, Outbox};

use crate::{call, join, kind, once, reply, request};

/// The memory that a decoded message may take beyond a multiple of its bytes.
const SLACK_BYTES: usize = 1024;
/// The largest multiple allowed: an operation takes at least four bytes, and less than 128 in memory.
const FACTOR: usize = 48;

/// Decodes every frame in `bytes`, and returns the number of frames.
///
/// # Panics
///
/// If a decoded message takes much more memory than its bytes, or differs after it was encoded again.
pub fn decode_all(bytes: &[u8]) -> usize {
    nacre_rpc::check::decode_all(bytes, decode)
}

/// Decodes one frame in every way that a peer would.
fn decode(frame: &Frame) {
    let body_bytes = frame.body.len();
    let fits = |footprint: usize| {
        assert!(
            footprint <= FACTOR * body_bytes + SLACK_BYTES,
            "{footprint} bytes of memory from {body_bytes}"
        );
    };
    let mut outbox = Outbox::default();
    match frame.kind {
        kind::APPLY => {
            let Ok((object, transaction)) = request::get_apply(&frame.body) else { return };
            fits(transaction_footprint(&transaction));
            if transaction.validate().is_err() {
                return;
            }
            if request::put_apply(&mut outbox, frame.id, &object, &transaction).is_ok() {
                assert_eq!(request::get_apply(&retake(outbox, frame)), Ok((object, transaction)));
            }
        }
        kind::LIST => {
            let Ok((after, limit)) = request::get_list(&frame.body) else { return };
            request::put_list(&mut outbox, frame.id, after.as_ref(), limit);
            assert_eq!(request::get_list(&retake(outbox, frame)), Ok((after, limit)));
        }
        kind::DONE | kind::REFUSED => {
            let Ok(Ok(outcome)) = reply::get_outcome(frame) else { return };
            fits(outcome_footprint(&outcome));
            let written = reply::put_outcome(&mut outbox, frame.id, &outcome);
            assert_eq!(written, Ok(body_bytes));
            let again = Frame { body: retake(outbox, frame), ..frame.clone() };
            assert_eq!(reply::get_outcome(&again), Ok(Ok(outcome)));
        }
        kind::OPEN_WRITER => {
            let Ok((writer, epoch)) = once::get_open(&frame.body) else { return };
            once::put_open(&mut outbox, frame.id, &writer, epoch);
            assert_eq!(retake(outbox, frame), frame.body);
        }
        kind::WRITER_OPENED => {
            let Ok(window) = once::get_opened(&frame.body) else { return };
            once::put_opened(&mut outbox, frame.id, &window);
            assert_eq!(retake(outbox, frame), frame.body);
        }
        kind::APPLY_ONCE => {
            let Ok((attempt, rest)) = once::get_attempt(&frame.body) else { return };
            let Ok((object, transaction)) = request::get_apply(&rest) else { return };
            fits(transaction_footprint(&transaction));
            if transaction.validate().is_err() {
                return;
            }
            if once::put_apply_once(&mut outbox, frame.id, &attempt, &object, &transaction).is_ok() {
                let (again, rest) = once::get_attempt(&retake(outbox, frame)).unwrap_or_else(|error| {
                    panic!("what was encoded is not decoded: {error}");
                });
                assert_eq!((again, request::get_apply(&rest)), (attempt, Ok((object, transaction))));
            }
        }
        kind::DONE_ONCE | kind::REFUSED_ONCE => {
            let Ok((Ok(outcome), Some(position))) = once::get_outcome(frame) else { return };
            fits(outcome_footprint(&outcome));
            let written = once::put_outcome_once(&mut outbox, frame.id, &outcome, position);
            assert_eq!(written, Ok(body_bytes));
            let again = Frame { body: retake(outbox, frame), ..frame.clone() };
            assert_eq!(once::get_outcome(&again), Ok((Ok(outcome), Some(position))));
        }
        kind::LISTED => {
            let Ok(Ok(objects)) = reply::get_listed(frame) else { return };
            fits(objects.capacity() * size_of::<nacre_object::ObjectId>());
            reply::put_listed(&mut outbox, frame.id, &objects);
            assert_eq!(retake(outbox, frame), frame.body);
        }
        kind::CALL => {
            let Ok((method, argument)) = call::get_call(&frame.body) else { return };
            assert!(call::put_call(&mut outbox, frame.id, &method, &argument).is_ok());
            assert_eq!(retake(outbox, frame), frame.body);
        }
        kind::JOIN => {
            let Ok(proof) = join::get_join(&frame.body) else { return };
            join::put_join(&mut outbox, frame.id, proof.as_ref());
            assert_eq!(retake(outbox, frame), frame.body);
        }
        kind::JOINED | kind::MEMBERS => {
            let Ok(answer) = join::get_answer(frame) else { return };
            if let join::Answer::Members(membership) = &answer {
                let names = membership.members().names();
                fits(size_of_val(names) + names.iter().map(String::capacity).sum::<usize>());
            }
            join::put_answer(&mut outbox, frame.id, &answer);
            assert_eq!(retake(outbox, frame), frame.body);
        }
        _ => {}
    }
}

fn transaction_footprint(transaction: &Transaction) -> usize {
    let Transaction { guards, reads, writes } = transaction;
    let extents: usize = writes
        .iter()
        .map(|write| match write {
            WriteOp::Extents { extents, .. } => extents.capacity() * size_of::<(u64, Bytes)>(),
            _ => 0,
        })
        .sum();
    size_of_val(&guards[..]) + size_of_val(&reads[..]) + size_of_val(&writes[..]) + extents
}

fn outcome_footprint(outcome: &Outcome) -> usize {
    let range = |range: &RangeRead| range.extents.capacity() * size_of::<nacre_object::Extent>();
    match outcome {
        Outcome::Refused(refusal) => match &refusal.found {
            Found::Region(read) => range(read),
            _ => 0,
        },
        Outcome::Done(done) => {
            let answers = done.answers.iter().map(|answer| match answer {
                Answer::Range(read) => range(read),
                Answer::Forks(page) => page.entries.capacity() * size_of::<(nacre_object::Fork, u64)>(),
                Answer::Keys(page) => page.entries.capacity() * size_of::<(nacre_object::Key, Bytes)>(),
                Answer::VersionedKeys(page) => {
                    page.entries.capacity() * size_of::<(nacre_object::Key, nacre_object::Versioned)>()
                }
                Answer::Fences(fences) => fences.sessions.capacity() * size_of::<u64>(),
                Answer::Stat(_) | Answer::Value(_) | Answer::VersionedValue(_) => 0,
            });
            done.answers.capacity() * size_of::<Answer>() + answers.sum::<usize>()
        }
    }
}
