//! Stores whose keys have wrong versions.

use bytes::Bytes;

use super::*;

#[test]
fn wrong_key_versions() {
    let guarded = |change: fn(&mut Guard)| {
        guards(move |guard| {
            if matches!(guard, Guard::KeyVersion { .. }) {
                change(guard);
            }
        })
    };
    // Changes the versions that reads show, given that of the object.
    let shown = |change: fn(&mut Versioned, u64)| {
        saying(move |outcome| {
            let Outcome::Done(done) = outcome else { return };
            for answer in &mut done.answers {
                match answer {
                    Answer::VersionedValue(Some(found)) => change(found, done.version),
                    Answer::VersionedKeys(page) => {
                        page.entries.iter_mut().for_each(|(_, found)| change(found, done.version));
                    }
                    _ => {}
                }
            }
        })
    };
    let pages = |change: fn(&mut VersionedKeyPage)| {
        answering(move |answer| {
            if let Answer::VersionedKeys(page) = answer {
                change(page);
            }
        })
    };
    // Sets keys in another way, given what the key holds.
    let setting = |change: fn(Option<&Bytes>, &Key, &Bytes) -> Option<WriteOp>| {
        applying(move |store, object, mut tx| {
            let state = store.model().object(object).cloned().unwrap_or_default();
            for write in &mut tx.writes {
                if let WriteOp::SetKey { key, value } = write
                    && let Some(other) = change(state.keys().get(key), key, value)
                {
                    *write = other;
                }
            }
            applied(store, object, tx)
        })
    };
    caught(vec![
        ("versions of keys are not checked", guarded(|guard| *guard = HOLDS)),
        (
            "an absent key is at every version",
            applying(|store, object, mut tx| {
                let state = store.model().object(object).cloned().unwrap_or_default();
                for guard in &mut tx.guards {
                    if let Guard::KeyVersion { key, version } = guard
                        && state.key_version(key) == 0
                    {
                        *version = 0;
                    }
                }
                applied(store, object, tx)
            }),
        ),
        (
            "a key may be older than its version",
            applying(|store, object, mut tx| {
                let state = store.model().object(object).cloned().unwrap_or_default();
                for guard in &mut tx.guards {
                    if let Guard::KeyVersion { key, version } = guard {
                        let found = state.key_version(key);
                        if found <= *version {
                            *version = found;
                        }
                    }
                }
                applied(store, object, tx)
            }),
        ),
        (
            "version 0 is that of any key",
            guarded(|guard| {
                if let Guard::KeyVersion { version: 0, .. } = guard {
                    *guard = HOLDS;
                }
            }),
        ),
        (
            "the object's version counts for all its keys",
            guarded(|guard| {
                if let Guard::KeyVersion { version, .. } = guard
                    && *version > 0
                {
                    *guard = Guard::Version { version: *version };
                }
            }),
        ),
        (
            "a key that is set to its value again keeps its version",
            setting(|old, _, value| (old == Some(value)).then_some(WriteOp::Create)),
        ),
        (
            "refusals do not show the key's version",
            saying(|outcome| {
                if let Outcome::Refused(Refusal { found: Found::KeyVersion(version), .. }) = outcome {
                    *version = 0;
                }
            }),
        ),
        (
            "refusals show the object's version",
            saying(|outcome| {
                if let Outcome::Refused(refusal) = outcome
                    && let Found::KeyVersion(version @ 1..) = &mut refusal.found
                {
                    *version = refusal.version;
                }
            }),
        ),
        ("every key has the object's version", shown(|found, version| found.version = version)),
        ("versions begin at 0", shown(|found, _| found.version -= 1)),
        (
            "a page shows the version of its first key",
            pages(|page| {
                let first = page.entries.first().map_or(0, |(_, found)| found.version);
                page.entries.iter_mut().for_each(|(_, found)| found.version = first);
            }),
        ),
        (
            "values are left out of pages with versions",
            pages(|page| page.entries.iter_mut().for_each(|(_, found)| found.value.clear())),
        ),
        ("pages with versions never have more", pages(|page| page.more = false)),
        (
            "values are always given with versions",
            reads(|read| {
                if let ReadOp::VersionedKeys { values, .. } = read {
                    *values = true;
                }
            }),
        ),
        (
            "values with versions are taken from no budget",
            applying(|store, object, tx| {
                let single = |read: &ReadOp| {
                    applied(store, object, Transaction::new().read(read.clone())).map(|outcome| match outcome
                    {
                        Outcome::Done(mut done) => done.answers.pop(),
                        Outcome::Refused(_) => None,
                    })
                };
                let mut alone = Vec::new();
                for read in &tx.reads {
                    alone.push(match read {
                        ReadOp::VersionedKeys { .. } => single(read)?,
                        _ => None,
                    });
                }
                let mut outcome = applied(store, object, tx)?;
                if let Outcome::Done(done) = &mut outcome {
                    for (answer, alone) in done.answers.iter_mut().zip(alone) {
                        if let Some(alone) = alone {
                            *answer = alone;
                        }
                    }
                }
                Ok(outcome)
            }),
        ),
    ]);
}
