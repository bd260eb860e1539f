//! Tests of the state machine under random events from seeds, and of the behaviour that its users notice.

use std::collections::HashMap;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::*;

fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// Limits under which a region is tracked from its first failure on.
fn eager() -> PacerLimits {
    PacerLimits { failures_min: 1, ..PacerLimits::default() }
}

/// The region of most tests.
const R: RegionHash = 7;

#[test]
fn nobody_waits_where_nothing_failed() {
    let mut pacer = Pacer::new(PacerLimits::default());
    let mut granted = Vec::new();
    for n in 0..10 {
        assert_eq!(pacer.read(R, ms(n)), Admission::Free);
        pacer.succeeded(R, ms(n), &mut granted);
    }
    assert_eq!((pacer.regions(), granted.len()), (0, 0));
}

#[test]
fn turns_are_taken_only_where_failures_outnumber_successes() {
    let limits = PacerLimits::default();
    let mut pacer = Pacer::new(limits.clone());
    let mut granted = Vec::new();
    // Two writers that meet now and then: one of them fails, and then succeeds.
    for n in 0..100 {
        for _ in 1..limits.failures_min {
            assert_eq!(pacer.refused(R, n, ms(n), &mut granted), Admission::Free);
            assert_eq!(pacer.read(R, ms(n)), Admission::Free);
        }
        pacer.succeeded(R, ms(n), &mut granted);
    }
    assert!(!pacer.is_attentive());
    // Many at once.
    for _ in 1..limits.failures_min {
        assert_eq!(pacer.refused(R, 1, ms(100), &mut granted), Admission::Free);
    }
    assert!(matches!(pacer.refused(R, 1, ms(100), &mut granted), Admission::Turn(_)));
    assert!(matches!(pacer.refused(R, 1, ms(100), &mut granted), Admission::Wait(_)));
    // Failures of long ago do not count for ever.
    let mut pacer = Pacer::new(limits);
    pacer.refused(R, 1, ms(0), &mut granted);
    for n in 0..u64::from(CALM_MAX) {
        pacer.succeeded(R + 1 + n, ms(n), &mut granted);
    }
    assert!(!pacer.is_attentive());
}

#[test]
fn turns_go_in_the_order_of_arrival() {
    let mut pacer = Pacer::new(eager());
    let mut granted = Vec::new();
    let Admission::Turn(first) = pacer.refused(R, 1, ms(0), &mut granted) else {
        panic!("nobody has the turn")
    };
    let mut waiting = Vec::new();
    for n in 0..6 {
        let admission = match n % 2 {
            0 => pacer.read(R, ms(0)),
            _ => pacer.refused(R, 1, ms(0), &mut granted),
        };
        let Admission::Wait(waiter) = admission else { panic!("{first} has the turn") };
        waiting.push(waiter);
    }
    assert!(granted.is_empty());
    for n in 1..=6 {
        pacer.succeeded(R, ms(n), &mut granted);
    }
    assert_eq!(granted, waiting);
    assert_eq!(pacer.waiters(), 0);
}

#[test]
fn a_holder_that_was_overtaken_goes_to_the_end_of_the_queue() {
    let mut pacer = Pacer::new(eager());
    let mut granted = Vec::new();
    let Admission::Turn(holder) = pacer.refused(R, 1, ms(0), &mut granted) else {
        panic!("the turn is free")
    };
    pacer.given(R, holder, 5);
    let Admission::Wait(next) = pacer.read(R, ms(0)) else { panic!("the turn is taken") };
    // Somebody wrote without a condition, so the holder's write with version 5 is refused.
    let admission = pacer.refused(R, 5, ms(1), &mut granted);
    assert!(matches!(admission, Admission::Wait(_)));
    assert_eq!(granted, [next]);
}

#[test]
fn a_turn_lapses_after_a_time_learnt_from_earlier_turns() {
    let limits = eager();
    let mut pacer = Pacer::new(limits.clone());
    let mut granted = Vec::new();
    pacer.refused(R, 1, ms(0), &mut granted);
    let Admission::Wait(dead) = pacer.read(R, ms(0)) else { panic!("the turn is taken") };
    pacer.succeeded(R, Duration::from_micros(500), &mut granted);
    assert_eq!(granted, [dead]);
    let Admission::Wait(next) = pacer.read(R, ms(1)) else { panic!("the turn is taken") };
    granted.clear();
    // Turns took half a millisecond; eight times that is four.
    pacer.expire(ms(4), &mut granted);
    assert!(granted.is_empty());
    pacer.expire(ms(5), &mut granted);
    assert_eq!((granted.as_slice(), pacer.lapsed()), (&[next][..], 1));
    // However long turns take, none holds up the others for more than the limit.
    pacer.succeeded(R, ms(5) + Duration::from_secs(9), &mut granted);
    let later = ms(5) + Duration::from_secs(9);
    pacer.read(R, later);
    let Admission::Wait(last) = pacer.read(R, later) else { panic!("the turn is taken") };
    granted.clear();
    pacer.expire(later + limits.turn_max, &mut granted);
    assert_eq!(granted, [last]);
}

#[test]
fn regions_are_forgotten() {
    let mut pacer = Pacer::new(eager());
    let mut granted = Vec::new();
    // One client alone takes its turns without waiting, and after a few of them is left alone.
    assert!(matches!(pacer.refused(R, 1, ms(0), &mut granted), Admission::Turn(_)));
    let mut turns = 0;
    while pacer.regions() > 0 {
        pacer.succeeded(R, ms(1), &mut granted);
        assert!(!matches!(pacer.read(R, ms(1)), Admission::Wait(_)));
        turns += 1;
        assert!(turns < 100);
    }
    // Where turns only ever lapse, they are given up, and everybody who waits may go.
    assert!(matches!(pacer.refused(R, 1, ms(10), &mut granted), Admission::Turn(_)));
    for _ in 0..100 {
        pacer.read(R, ms(10));
    }
    for n in 1..=u64::from(LAPSES_MAX) {
        pacer.expire(ms(10 + 50 * n), &mut granted);
    }
    assert_eq!((granted.len(), pacer.regions(), pacer.waiters()), (100, 0, 0));
    // Where nothing happens any more, they are forgotten in time.
    assert!(matches!(pacer.refused(R, 1, ms(1000), &mut granted), Admission::Turn(_)));
    pacer.expire(ms(1100), &mut granted);
    assert_eq!(pacer.regions(), 1);
    pacer.expire(ms(2200), &mut granted);
    assert_eq!(pacer.regions(), 0);
}

#[test]
fn full_tables_and_queues_delay_nobody() {
    let limits = PacerLimits { regions_max: 2, waiters_per_region_max: 3, waiters_max: 4, ..eager() };
    let mut pacer = Pacer::new(limits);
    let mut granted = Vec::new();
    for region in 0..2 {
        assert!(matches!(pacer.refused(region, 1, ms(0), &mut granted), Admission::Turn(_)));
    }
    assert_eq!(pacer.refused(2, 1, ms(0), &mut granted), Admission::Free);
    for _ in 0..3 {
        assert!(matches!(pacer.read(0, ms(0)), Admission::Wait(_)));
    }
    assert_eq!(pacer.read(0, ms(0)), Admission::Free);
    assert!(matches!(pacer.read(1, ms(0)), Admission::Wait(_)));
    assert_eq!(pacer.read(1, ms(0)), Admission::Free);
    pacer.check();
}

/// Tests random events on a few regions: no waiter is granted twice, out of order, or after leaving; and once no more
/// requests arrive, every waiter that stayed is granted.
#[test]
fn no_wake_up_is_lost_whatever_happens() {
    for seed in 0..400 {
        let mut random = SmallRng::seed_from_u64(seed);
        let limits = PacerLimits {
            regions_max: random.random_range(1..5),
            failures_min: random.random_range(1..4),
            waiters_per_region_max: random.random_range(1..20),
            waiters_max: random.random_range(1..40),
            ..Default::default()
        };
        let mut pacer = Pacer::new(limits);
        // Who waits, with its region; and who was granted and has not gone on.
        let mut waiting: HashMap<Waiter, RegionHash> = HashMap::new();
        let mut holders: Vec<(Waiter, RegionHash)> = Vec::new();
        let mut latest: HashMap<RegionHash, Waiter> = HashMap::new();
        let mut now = ms(0);
        let mut granted = Vec::new();
        for _ in 0..600 {
            now += Duration::from_micros(random.random_range(0..3000));
            let region = random.random_range(0..4);
            let mut admission = Admission::Free;
            match random.random_range(0..10) {
                0..=2 => admission = pacer.read(region, now),
                3..=5 => admission = pacer.refused(region, random.random_range(0..4), now, &mut granted),
                6..=7 => pacer.succeeded(region, now, &mut granted),
                8 => {
                    let gone = waiting.iter().next().map(|(waiter, region)| (*waiter, *region));
                    let gone = if random.random_bool(0.5) { gone } else { holders.pop() };
                    if let Some((waiter, region)) = gone {
                        waiting.remove(&waiter);
                        pacer.cancel(region, waiter, now, &mut granted);
                    }
                }
                _ => pacer.expire(now, &mut granted),
            }
            for waiter in granted.drain(..) {
                let region = waiting.remove(&waiter);
                let region =
                    region.unwrap_or_else(|| panic!("seed {seed}: {waiter} was granted without waiting"));
                let before = latest.insert(region, waiter).unwrap_or(0);
                assert!(before < waiter, "seed {seed}: {waiter} was granted after {before}");
                holders.push((waiter, region));
            }
            match admission {
                Admission::Wait(waiter) => {
                    waiting.insert(waiter, region);
                }
                Admission::Turn(waiter) => {
                    holders.push((waiter, region));
                    pacer.given(region, waiter, random.random_range(0..4));
                }
                Admission::Free => {}
            }
            pacer.check();
        }
        let mut rounds = 0;
        while !waiting.is_empty() {
            now += ms(50);
            pacer.expire(now, &mut granted);
            for waiter in granted.drain(..) {
                assert!(waiting.remove(&waiter).is_some(), "seed {seed}: {waiter}");
            }
            rounds += 1;
            assert!(rounds < 100, "seed {seed}: {} wait for ever", waiting.len());
        }
    }
}
