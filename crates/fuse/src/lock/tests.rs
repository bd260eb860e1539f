use std::sync::atomic::AtomicUsize;

use super::*;

const INO: u64 = 7;

fn ignore(_: &str) {}

fn piece(owner: u64, mode: Mode, bytes: Range<u64>) -> Piece {
    Piece { bytes, mode, owner, handle: owner, process: owner as u32 }
}

/// Begins the locks of two mounts. They share a session, in which locks exclude each other like those of two sessions.
async fn two() -> [SharedLocks; 2] {
    let store = nacre::open("mem:").unwrap();
    [
        SharedLocks::begin(store.clone(), ignore).await.unwrap(),
        SharedLocks::begin(store, ignore).await.unwrap(),
    ]
}

async fn attempt(locks: &SharedLocks, owner: u64, mode: Mode, bytes: Range<u64>) -> Result<(), Errno> {
    locks.lock(INO, piece(owner, mode, bytes), false, 0).await
}

#[tokio::test(flavor = "multi_thread")]
async fn mounts_exclude_each_other_on_the_same_bytes_only() {
    let [one, two] = two().await;
    attempt(&one, 1, Mode::Exclusive, 0..100).await.unwrap();
    attempt(&two, 2, Mode::Exclusive, 100..200).await.unwrap();
    assert_eq!(attempt(&two, 2, Mode::Shared, 99..101).await, Err(Errno::EAGAIN));
    // Nothing was lost by the attempt, which would have split what the second one holds.
    assert_eq!(attempt(&one, 1, Mode::Shared, 100..101).await, Err(Errno::EAGAIN));
    // The middle of what is locked can be unlocked.
    one.unlock(INO, 1, 1, 40..60).await.unwrap();
    attempt(&two, 2, Mode::Exclusive, 40..60).await.unwrap();
    assert_eq!(attempt(&two, 2, Mode::Shared, 39..40).await, Err(Errno::EAGAIN));
    assert_eq!(attempt(&two, 2, Mode::Shared, 60..61).await, Err(Errno::EAGAIN));
    // Those of another file are others.
    two.lock(INO + 1, piece(9, Mode::Exclusive, 0..100), false, 0).await.unwrap();
    // The end of an open file unlocks what was locked by way of it, and nothing else.
    one.close(INO, 1).await;
    attempt(&two, 3, Mode::Exclusive, 0..40).await.unwrap();
    assert_eq!(attempt(&one, 4, Mode::Shared, 40..41).await, Err(Errno::EAGAIN));
    two.flush(INO, 2).await;
    attempt(&one, 4, Mode::Shared, 40..200).await.unwrap();
    one.flush(INO, 4).await;
    two.flush(INO, 3).await;
    // Files of which nothing is locked are forgotten.
    assert_eq!((one.files.lock().len(), two.files.lock().len()), (0, 1));
    let standings = (one.handles.lock().len(), two.handles.lock().len());
    assert_eq!(standings, (0, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_in_vain_keeps_what_was_held() {
    let [one, two] = two().await;
    attempt(&one, 1, Mode::Shared, 0..10).await.unwrap();
    attempt(&two, 2, Mode::Shared, 0..10).await.unwrap();
    assert_eq!(attempt(&one, 1, Mode::Exclusive, 0..10).await, Err(Errno::EAGAIN));
    two.flush(INO, 2).await;
    assert_eq!(attempt(&two, 2, Mode::Exclusive, 0..10).await, Err(Errno::EAGAIN));
    attempt(&one, 1, Mode::Exclusive, 0..10).await.unwrap();
    assert_eq!(attempt(&two, 2, Mode::Shared, 0..10).await, Err(Errno::EAGAIN));
    attempt(&one, 1, Mode::Shared, 0..10).await.unwrap();
    attempt(&two, 2, Mode::Shared, 0..10).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_in_the_way_is_shown() {
    let [one, two] = two().await;
    attempt(&one, 1, Mode::Exclusive, 10..20).await.unwrap();
    let wanted = || piece(2, Mode::Shared, 0..15);
    assert_eq!(one.test(INO, wanted(), 0).await.unwrap(), Some(piece(1, Mode::Exclusive, 10..20)));
    let found = two.test(INO, wanted(), 0).await.unwrap().unwrap();
    assert_eq!((found.bytes, found.mode, found.process), (0..15, Mode::Exclusive, 0));
    assert_eq!(two.test(INO, piece(2, Mode::Exclusive, 0..10), 0).await.unwrap(), None);
    // A test locks nothing.
    attempt(&one, 1, Mode::Exclusive, 0..10).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn random_locks_of_two_mounts_are_granted_as_if_every_byte_were_kept() {
    let mounts = two().await;
    let mut seed = 11_u64;
    let mut below = |bound: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % bound
    };
    // For each owner, of which each mount has two, the mode of each byte.
    let mut model = [[None::<Mode>; 16]; 4];
    let mut counts = [0; 2];
    for _ in 0..300 {
        let (owner, start) = (below(4), below(16));
        let bytes = start..start + 1 + below(16 - start);
        let held = bytes.start as usize..bytes.end as usize;
        let mount = &mounts[owner as usize % 2];
        let mode = if below(2) == 0 { Mode::Exclusive } else { Mode::Shared };
        match below(5) {
            0 | 1 => {
                mount.unlock(INO, owner, owner, bytes).await.unwrap();
                model[owner as usize][held].fill(None);
            }
            2 if below(4) == 0 => {
                mount.flush(INO, owner).await;
                model[owner as usize].fill(None);
            }
            _ => {
                let conflicts = model.iter().enumerate().any(|(other, modes)| {
                    let mut modes = modes[held.clone()].iter().flatten();
                    other as u64 != owner && modes.any(|held| held.conflicts(mode))
                });
                let expected = if conflicts { Err(Errno::EAGAIN) } else { Ok(()) };
                assert_eq!(attempt(mount, owner, mode, bytes).await, expected);
                counts[usize::from(conflicts)] += 1;
                if !conflicts {
                    model[owner as usize][held].fill(Some(mode));
                }
            }
        }
    }
    assert!(counts.iter().all(|count| *count > 20), "{counts:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_ends_when_the_bytes_are_unlocked_on_either_mount() {
    let [one, two] = two().await.map(Arc::new);
    attempt(&one, 1, Mode::Exclusive, 0..10).await.unwrap();
    let waits = |locks: &Arc<SharedLocks>, owner| {
        let locks = locks.clone();
        tokio::spawn(async move {
            locks.lock(INO, piece(owner, Mode::Shared, 5..6), true, 0).await.unwrap();
        })
    };
    let (here, there) = (waits(&one, 2), waits(&two, 3));
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!here.is_finished() && !there.is_finished());
    one.flush(INO, 1).await;
    here.await.unwrap();
    there.await.unwrap();
}

static REPORTED: AtomicUsize = AtomicUsize::new(0);

fn count(_: &str) {
    REPORTED.fetch_add(1, Ordering::SeqCst);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_locked_fails_once_the_session_is_lost_until_it_is_closed() {
    let store = nacre::open("mem:").unwrap();
    let locks = SharedLocks::begin(store.clone(), count).await.unwrap();
    attempt(&locks, 1, Mode::Exclusive, 0..10).await.unwrap();
    attempt(&locks, 2, Mode::Shared, 10..20).await.unwrap();
    locks.flush(INO, 2).await;
    assert!(locks.holds(1) && locks.holds(2) && locks.holds(3));
    store.end_locks().await;
    assert!(!locks.holds(1));
    assert!(locks.holds(2) && locks.holds(3), "nothing was locked by way of them");
    assert_eq!(attempt(&locks, 1, Mode::Shared, 50..60).await, Err(Errno::EIO));
    assert_eq!(locks.unlock(INO, 1, 1, 0..10).await, Err(Errno::EIO));
    // Others go on, in a new session.
    attempt(&locks, 3, Mode::Exclusive, 0..10).await.unwrap();
    locks.flush(INO, 1).await;
    assert!(!locks.holds(1));
    locks.close(INO, 1).await;
    assert!(locks.holds(1));
    while REPORTED.load(Ordering::SeqCst) == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[test]
fn offsets_are_bounded_by_those_that_can_be_locked() {
    assert_eq!(between(0, 9), 0..10);
    assert_eq!(between(0, i64::MAX as u64), 0..GATE.start);
    assert_eq!(between(u64::MAX, u64::MAX), GATE.start - 1..GATE.start);
    assert_eq!(between(5, 4), 5..6);
}

#[test]
fn pending_signals_count_unless_they_are_blocked() {
    let status = |thread: &str, process: &str, blocked: &str| {
        format!(
            "Name:\tx\nSigQ:\t0/1\nSigPnd:\t{thread}\nShdPnd:\t{process}\nSigBlk:\t{blocked}\nSigIgn:\t00000001\n"
        )
    };
    assert!(!is_signalled(&status("0000000000000000", "0000000000000000", "0000000000000000")));
    assert!(is_signalled(&status("0000000000000100", "0000000000000000", "0000000000000000")));
    assert!(is_signalled(&status("0000000000000000", "0000000000004000", "0000000000000001")));
    assert!(!is_signalled(&status("0000000000004000", "0000000000004000", "0000000000004000")));
    assert!(!is_signalled(""));
}
