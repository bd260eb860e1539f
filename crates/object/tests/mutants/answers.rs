//! Stores whose versions or answers are wrong.

use super::*;

#[test]
fn wrong_versions() {
    let generations: Mutex<BTreeMap<ObjectId, u64>> = Mutex::default();
    caught(vec![
        (
            "a removed object begins again",
            applying(move |store, object, tx| {
                let mut generations = generations.lock().unwrap();
                let generation = generations.entry(object.clone()).or_default();
                let name = [object.as_bytes(), &generation.to_be_bytes()].concat();
                let removes = tx.writes == [WriteOp::Remove];
                let outcome = applied(store, &ObjectId::new(name)?, tx)?;
                *generation += u64::from(removes && matches!(outcome, Outcome::Done(_)));
                Ok(outcome)
            }),
        ),
        (
            "the region version is that of the extents listed",
            reading(|read| {
                read.version = read.extents.iter().map(|extent| extent.version).max().unwrap_or(0)
            }),
        ),
        (
            "the region version is that of the first extent",
            reading(|read| read.version = read.extents.first().map_or(0, |extent| extent.version)),
        ),
        (
            "neighbours of different versions are one extent",
            reading(|read| {
                let mut merged: Vec<Extent> = Vec::new();
                for extent in read.extents.drain(..) {
                    match merged.last_mut() {
                        Some(last) if last.range.end() == extent.range.offset && last.kind == extent.kind => {
                            last.range.len += extent.range.len;
                            last.version = last.version.max(extent.version);
                        }
                        _ => merged.push(extent),
                    }
                }
                read.extents = merged;
            }),
        ),
        (
            "large extents are listed in pieces",
            reading(|read| {
                let split = |extent: &Extent| {
                    let first = extent.range.len.min(65_536);
                    let (mut a, mut b) = (*extent, *extent);
                    a.range.len = first;
                    b.range = ByteRange::new(extent.range.offset + first, extent.range.len - first);
                    [a, b].into_iter().filter(|extent| extent.range.len > 0)
                };
                read.extents = read.extents.iter().flat_map(split).collect();
            }),
        ),
        (
            "holes are not listed",
            reading(|read| read.extents.retain(|extent| extent.kind == ExtentKind::Data)),
        ),
        (
            "an outcome has the version before",
            saying(|outcome| {
                if let Outcome::Done(done) = outcome {
                    done.version = done.version.saturating_sub(1);
                }
            }),
        ),
        (
            "a refusal has no version",
            saying(|outcome| {
                if let Outcome::Refused(refusal) = outcome {
                    refusal.version = 0;
                }
            }),
        ),
    ]);
}

#[test]
fn wrong_answers() {
    let pages = |change: fn(&mut KeyPage)| {
        answering(move |answer| {
            if let Answer::Keys(page) = answer {
                change(page);
            }
        })
    };
    let stats = |change: fn(&mut Stat)| {
        answering(move |answer| {
            if let Answer::Stat(stat) = answer {
                change(stat);
            }
        })
    };
    caught(vec![
        ("answers do not say that they were cut", reading(|read| read.next = None)),
        ("a refusal's bytes are missing", {
            saying(|outcome| {
                if let Outcome::Refused(Refusal { found: Found::Region(read), .. }) = outcome {
                    read.data.clear();
                }
            })
        }),
        (
            "refusals do not say which guard",
            saying(|outcome| {
                if let Outcome::Refused(refusal) = outcome {
                    refusal.guard = 0;
                }
            }),
        ),
        (
            "one byte past 64 KiB is wrong",
            reading(|read| {
                if read.data.len() > 65_536 {
                    let mut bytes = read.data.to_vec();
                    bytes[65_536] ^= 1;
                    read.data = bytes.into();
                }
            }),
        ),
        (
            "bytes are padded to the range",
            reading(|read| {
                if let Some(last) = read.extents.last()
                    && read.data.len() < 100
                    && last.range.end() < 100
                {
                    let mut bytes = read.data.to_vec();
                    bytes.push(0);
                    read.data = bytes.into();
                }
            }),
        ),
        ("the size is where the bytes end", reading(|read| read.size = read.data.len() as u64)),
        (
            "an object always existed",
            saying(|outcome| {
                if let Outcome::Done(done) = outcome {
                    done.existed = true;
                }
            }),
        ),
        ("pages never have more", pages(|page| page.more = false)),
        ("pages always have more", pages(|page| page.more = true)),
        ("pages are backwards", pages(|page| page.entries.reverse())),
        ("the fence of a removed object is lost", stats(|stat| stat.fence *= u64::from(stat.exists))),
        ("the version of a removed object is lost", stats(|stat| stat.version *= u64::from(stat.exists))),
        ("keys are not counted", stats(|stat| stat.keys = stat.keys.min(1))),
        (
            "values are always given",
            reads(|read| {
                if let ReadOp::Keys { values, .. } = read {
                    *values = true;
                }
            }),
        ),
        (
            "prefixes are ignored",
            reads(|read| {
                if let ReadOp::Keys { range, .. } = read {
                    range.prefix.clear();
                }
            }),
        ),
        (
            "keys before the end are given with the end",
            reads(|read| {
                if let ReadOp::Keys { range: KeyRange { before: Some(before), .. }, .. } = read {
                    *before = [&before[..], b"\0"].concat().into();
                }
            }),
        ),
        (
            "the intent to update is not understood",
            reads(|read| {
                if matches!(read, ReadOp::Range { intent: Intent::Update, .. }) {
                    *read = ReadOp::Stat;
                }
            }),
        ),
        (
            "pages of forks have one more",
            reads(|read| {
                if let ReadOp::Forks { limit, .. } = read {
                    *limit = limit.saturating_add(1);
                }
            }),
        ),
        (
            "errors are of the wrong kind",
            applying(|store, object, tx| {
                applied(store, object, tx).map_err(|error| StoreError::new(ErrorKind::Io, error.message))
            }),
        ),
        (
            "a transaction against a limit takes effect in part",
            applying(|store, object, mut tx| {
                let result = applied(store, object, tx.clone());
                if result.is_err() && tx.writes.len() > 1 {
                    tx.writes.truncate(1);
                    let _ = applied(store, object, tx);
                }
                result
            }),
        ),
    ]);
}
