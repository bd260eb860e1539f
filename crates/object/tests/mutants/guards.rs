//! Stores whose guards are wrong.

use super::*;

#[test]
fn wrong_guards() {
    let check = |change: fn(&mut Check)| {
        guards(move |guard| {
            if let Guard::Key { check, .. } | Guard::Attribute { check, .. } = guard {
                change(check);
            }
        })
    };
    caught(vec![
        ("no guard is checked", hearing(|tx| tx.guards.clear())),
        ("only the first guard is checked", hearing(|tx| tx.guards.truncate(1))),
        (
            "only the last guard is checked",
            hearing(|tx| drop(tx.guards.drain(..tx.guards.len().saturating_sub(1)))),
        ),
        ("guards are checked backwards", hearing(|tx| tx.guards.reverse())),
        (
            "existence is not checked",
            guards(|guard| {
                if matches!(guard, Guard::Exists) {
                    *guard = HOLDS
                }
            }),
        ),
        (
            "absence is not checked",
            guards(|guard| {
                if matches!(guard, Guard::Absent) {
                    *guard = HOLDS
                }
            }),
        ),
        (
            "sizes are not checked",
            guards(|guard| {
                if matches!(guard, Guard::Size { .. }) {
                    *guard = HOLDS
                }
            }),
        ),
        (
            "a size is that of the default fork",
            guards(|guard| {
                if let Guard::Size { fork, .. } = guard {
                    *fork = Fork::DEFAULT;
                }
            }),
        ),
        (
            "regions are widened to blocks",
            guards(|guard| {
                if let Guard::Region { range, .. } = guard
                    && range.len > 0
                    && range.end() < 1 << 40
                {
                    let (start, end) = (range.offset / 512 * 512, range.end().next_multiple_of(512));
                    *range = ByteRange::from(start..end);
                }
            }),
        ),
        (
            "the last byte of a region is not guarded",
            guards(|guard| {
                if let Guard::Region { range, .. } = guard {
                    range.len = range.len.saturating_sub(1);
                }
            }),
        ),
        (
            "a region may be newer by one",
            guards(|guard| {
                if let Guard::Region { version, .. } = guard {
                    *version = version.saturating_add(1);
                }
            }),
        ),
        (
            "a proposal may equal the region's version",
            guards(|guard| {
                if let Guard::Proposal { version, .. } = guard {
                    *version += 1;
                }
            }),
        ),
        (
            "a proposal does not stamp",
            guards(|guard| {
                if let Guard::Proposal { fork, range, version } = guard
                    && let Some(below) = version.checked_sub(1)
                {
                    *guard = Guard::Region { fork: fork.clone(), range: *range, version: below };
                }
            }),
        ),
        (
            "versions are not checked",
            guards(|guard| {
                if matches!(guard, Guard::Version { .. }) {
                    *guard = HOLDS
                }
            }),
        ),
        (
            "an object may be newer than a version",
            guards(|guard| {
                if let Guard::Version { version } = guard {
                    *guard = Guard::Region { fork: Fork::DEFAULT, range: ByteRange::ALL, version: *version };
                }
            }),
        ),
        (
            "fences are not checked",
            guards(|guard| {
                if matches!(guard, Guard::Fence { .. }) {
                    *guard = HOLDS
                }
            }),
        ),
        (
            "a fence refuses its own token",
            guards(|guard| {
                if let Guard::Fence { token } = guard {
                    *token = token.saturating_sub(1);
                }
            }),
        ),
        (
            "attributes are looked up among keys",
            guards(|guard| {
                if let Guard::Attribute { name, check } = guard {
                    *guard = Guard::Key { key: name.clone(), check: check.clone() };
                }
            }),
        ),
        (
            "at most is less",
            check(|check| {
                if let Check::LessOrEqual(operand) = check {
                    *check = Check::Less(operand.clone());
                }
            }),
        ),
        (
            "greater is at least",
            check(|check| {
                if let Check::Greater(operand) = check {
                    *check = Check::GreaterOrEqual(operand.clone());
                }
            }),
        ),
        (
            "an empty value counts as none",
            check(|check| {
                if *check == Check::Present {
                    *check = Check::Greater("".into());
                }
            }),
        ),
    ]);
}
