//! Stores whose writes are wrong.

use super::*;

/// Creates a store that replaces forks in its own way, where that is all that a transaction does. `replace` gets the
/// object, the fork, the fork that replaces it, and the content of the latter.
fn replacing(
    replace: impl Fn(&MemoryStore, &ObjectId, &Fork, &Fork, bytes::Bytes) -> Result<Outcome>
    + Send
    + Sync
    + 'static,
) -> Box<dyn ObjectStore> {
    applying(move |store, object, tx| {
        let [WriteOp::ReplaceFork { fork, from }] = &tx.writes[..] else { return applied(store, object, tx) };
        let size = store.model().object(object).and_then(|state| state.fork_size(from));
        if fork == from
            || size.is_none_or(|size| size > 1 << 20)
            || !tx.guards.is_empty()
            || !tx.reads.is_empty()
        {
            return applied(store, object, tx);
        }
        let read = Transaction::new().read_range(from.clone(), ByteRange::ALL);
        let Outcome::Done(mut done) = applied(store, object, read)? else { unreachable!() };
        let Answer::Range(found) = done.answers.remove(0) else { unreachable!() };
        replace(store, object, fork, from, found.data)
    })
}

#[test]
fn wrong_writes() {
    let zeros = |fork: &Fork, range: ByteRange| WriteOp::Extents {
        fork: fork.clone(),
        extents: vec![(range.offset, vec![0; range.len.min(1 << 20) as usize].into())],
    };
    let lost = Mutex::new(0);
    caught(vec![
        (
            "zeroing does nothing",
            writes(|write| {
                if matches!(write, WriteOp::Zero { .. }) {
                    *write = WriteOp::Create
                }
            }),
        ),
        (
            "zeroing writes zeros",
            writes(move |write| {
                if let WriteOp::Zero { fork, range } = write {
                    *write = zeros(fork, *range);
                }
            }),
        ),
        (
            "zeroing spares the last byte",
            writes(|write| {
                if let WriteOp::Zero { range, .. } = write {
                    range.len = range.len.saturating_sub(1);
                }
            }),
        ),
        (
            "removing a fork truncates it",
            writes(|write| {
                if let WriteOp::RemoveFork { fork } = write {
                    *write = WriteOp::Truncate { fork: fork.clone(), size: 0 };
                }
            }),
        ),
        (
            "an append begins at 0",
            writes(|write| {
                if let WriteOp::Append { fork, data } = write {
                    *write = WriteOp::Extents { fork: fork.clone(), extents: vec![(0, data.clone())] };
                }
            }),
        ),
        (
            "appends come before the other writes",
            hearing(|tx| tx.writes.sort_by_key(|write| !matches!(write, WriteOp::Append { .. }))),
        ),
        (
            "only the first append is made",
            hearing(|tx| {
                let mut first = true;
                tx.writes
                    .retain(|write| !matches!(write, WriteOp::Append { .. }) || std::mem::take(&mut first));
            }),
        ),
        (
            "an append of nothing does nothing",
            writes(|write| {
                if matches!(write, WriteOp::Append { data, .. } if data.is_empty()) {
                    *write = WriteOp::Create;
                }
            }),
        ),
        (
            "replacing a fork does nothing",
            writes(|write| {
                if matches!(write, WriteOp::ReplaceFork { .. }) {
                    *write = WriteOp::Create
                }
            }),
        ),
        (
            "replacing a fork goes the other way",
            writes(|write| {
                if let WriteOp::ReplaceFork { fork, from } = write {
                    std::mem::swap(fork, from);
                }
            }),
        ),
        (
            "replacing by a missing fork removes",
            hearing(|tx| {
                for write in std::mem::take(&mut tx.writes) {
                    if let WriteOp::ReplaceFork { fork, from } = &write {
                        // Behind it, the source makes the difference: it is there only if it was none.
                        let keep = WriteOp::Extents { fork: from.clone(), extents: Vec::new() };
                        let again = WriteOp::ReplaceFork { fork: fork.clone(), from: from.clone() };
                        let gone = WriteOp::RemoveFork { fork: from.clone() };
                        tx.writes.extend([keep, again, gone]);
                    } else {
                        tx.writes.push(write);
                    }
                }
            }),
        ),
        (
            "replacing a fork copies it",
            replacing(|store, object, fork, _, content| {
                let empty = WriteOp::Truncate { fork: fork.clone(), size: 0 };
                let copy = WriteOp::Extents { fork: fork.clone(), extents: vec![(0, content)] };
                applied(store, object, Transaction::new().change(empty).change(copy))
            }),
        ),
        (
            "replacing a fork writes over it",
            replacing(|store, object, fork, from, content| {
                let copy = WriteOp::Extents { fork: fork.clone(), extents: vec![(0, content)] };
                let gone = WriteOp::RemoveFork { fork: from.clone() };
                applied(store, object, Transaction::new().change(copy).change(gone))
            }),
        ),
        (
            "replacing a fork fills its holes",
            replacing(|store, object, fork, from, content| {
                let empty = WriteOp::Truncate { fork: fork.clone(), size: 0 };
                let copy = WriteOp::Extents { fork: fork.clone(), extents: vec![(0, content)] };
                let gone = WriteOp::RemoveFork { fork: from.clone() };
                applied(store, object, Transaction::new().change(empty).change(copy).change(gone))
            }),
        ),
        (
            "replacing a fork by itself removes it",
            hearing(|tx| {
                for write in &mut tx.writes {
                    if let WriteOp::ReplaceFork { fork, from } = write
                        && fork == from
                    {
                        *write = WriteOp::RemoveFork { fork: fork.clone() };
                    }
                }
            }),
        ),
        (
            "truncating leaves no hole to the end",
            hearing(move |tx| {
                for write in std::mem::take(&mut tx.writes) {
                    if let WriteOp::Truncate { fork, size } = &write {
                        let range = ByteRange::new(0, *size);
                        tx.writes.extend([WriteOp::RemoveFork { fork: fork.clone() }, zeros(fork, range)]);
                    } else {
                        tx.writes.push(write);
                    }
                }
            }),
        ),
        (
            "empty extents make no fork",
            hearing(|tx| {
                tx.writes.iter_mut().for_each(|write| {
                    if matches!(write, WriteOp::Extents { extents, .. } if extents.iter().all(|(_, b)| b.is_empty())) {
                        *write = WriteOp::Create;
                    }
                });
            }),
        ),
        (
            "the first of overlapping extents wins",
            writes(|write| {
                if let WriteOp::Extents { extents, .. } = write {
                    extents.reverse();
                }
            }),
        ),
        (
            "offsets wrap at 4 GiB",
            writes(|write| {
                if let WriteOp::Extents { extents, .. } = write {
                    extents.iter_mut().for_each(|(offset, _)| *offset %= 1 << 32);
                }
            }),
        ),
        ("writes take effect backwards", hearing(|tx| tx.writes.reverse())),
        ("only the first write takes effect", hearing(|tx| tx.writes.truncate(1))),
        ("a read makes the object", hearing(|tx| tx.writes.push(WriteOp::Create))),
        (
            "removing a missing key writes nothing",
            hearing(|tx| tx.writes.retain(|write| !matches!(write, WriteOp::RemoveKey { .. }))),
        ),
        (
            "removing keys does nothing",
            writes(|write| {
                if matches!(write, WriteOp::RemoveKey { .. }) {
                    *write = WriteOp::Create
                }
            }),
        ),
        (
            "attributes are keys",
            writes(|write| {
                if let WriteOp::SetAttribute { name, value } = write {
                    *write = WriteOp::SetKey { key: name.clone(), value: value.clone() };
                }
            }),
        ),
        (
            "an acknowledged write is lost now and then",
            hearing(move |tx| {
                let mut count = lost.lock().unwrap();
                *count += 1;
                if *count % 97 == 0 {
                    tx.writes.clear();
                }
            }),
        ),
        (
            "what is past the end is cut off",
            hearing(|tx| {
                for write in &mut tx.writes {
                    if let WriteOp::Truncate { size, .. } = write {
                        *size = (*size).min(OFFSET_MAX);
                    }
                }
            }),
        ),
        (
            "every write takes a version of its own",
            applying(|store, object, tx| {
                let first =
                    Transaction { writes: tx.writes.first().cloned().into_iter().collect(), ..tx.clone() };
                let outcome = applied(store, object, first)?;
                if let Outcome::Done(_) = outcome {
                    for write in tx.writes.into_iter().skip(1) {
                        applied(store, object, Transaction::new().change(write))?;
                    }
                }
                Ok(outcome)
            }),
        ),
        (
            "writes take effect before a guard is found to fail",
            applying(|store, object, tx| {
                let outcome = applied(store, object, tx.clone())?;
                if matches!(&outcome, Outcome::Refused(refusal) if refusal.guard > 0) {
                    applied(store, object, Transaction { writes: tx.writes, ..Transaction::new() })?;
                }
                Ok(outcome)
            }),
        ),
        (
            "reads see the writes",
            applying(|store, object, tx| {
                let write = Transaction { guards: tx.guards, writes: tx.writes, ..Transaction::new() };
                let outcome = applied(store, object, write)?;
                let Outcome::Done(done) = outcome else { return Ok(outcome) };
                let read = Transaction { reads: tx.reads, ..Transaction::new() };
                let Outcome::Done(Done { answers, .. }) = applied(store, object, read)? else {
                    unreachable!()
                };
                Ok(Outcome::Done(Done { answers, ..done }))
            }),
        ),
    ]);
}
