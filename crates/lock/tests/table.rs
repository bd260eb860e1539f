//! The lock table against a table that keeps every byte by itself, and the rules of its lines by example.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use nacre_lock::table::{
    AcquireOutcome, Acquired, Indexing, Mode, Owner, RequestKey, ResumedRequest, Table, TableError,
};
use nacre_lock::{Block, Datatype, OFFSET_MAX, Pattern, Region};
use rand::{Rng, SeedableRng, rngs::StdRng};

const INDEXINGS: [Indexing; 2] = [Indexing::Described, Indexing::Unrolled];

fn table(indexing: Indexing) -> Table {
    Table::new(indexing, 1 << 20)
}

fn owner(program: u64) -> Owner {
    Owner { program, operation: 0 }
}

fn contiguous(from: u64, to: u64) -> Pattern {
    Pattern::contiguous(from, to - from).unwrap()
}

fn progress(last: impl Into<Option<u64>>, next: impl Into<Option<u64>>) -> Acquired {
    Acquired { last: last.into(), next: next.into() }
}

/// A table that knows every byte of a file of [`Naive::BYTES`] bytes.
#[derive(Default)]
struct Naive {
    requests: BTreeMap<RequestKey, NaiveRequest>,
    /// The line for each byte: place, request. Requests of one operation share a place.
    lines: BTreeMap<u64, BTreeSet<(u64, RequestKey)>>,
    places: u64,
}

struct NaiveRequest {
    owner: Owner,
    mode: Mode,
    bytes: BTreeSet<u64>,
    held: BTreeSet<u64>,
    until: Option<u64>,
}

impl NaiveRequest {
    fn next(&self) -> Option<u64> {
        self.bytes.difference(&self.held).next().copied()
    }

    fn progress(&self) -> Acquired {
        progress(self.held.last().copied(), self.next())
    }
}

impl Naive {
    const BYTES: u64 = 24;

    fn held_against(&self, request: RequestKey, byte: u64) -> bool {
        let asking = &self.requests[&request];
        self.requests.values().any(|other| {
            other.owner != asking.owner && other.mode.conflicts(asking.mode) && other.held.contains(&byte)
        })
    }

    fn line_against(&self, request: RequestKey, byte: u64) -> bool {
        let asking = &self.requests[&request];
        if self.requests.values().any(|other| other.owner == asking.owner && other.held.contains(&byte)) {
            return false;
        }
        let Some(line) = self.lines.get(&byte) else { return false };
        let own = line.iter().find(|entry| self.requests[&entry.1].owner == asking.owner);
        let own = own.map_or(u64::MAX, |entry| entry.0);
        line.iter().any(|entry| entry.0 < own && self.requests[&entry.1].mode.conflicts(asking.mode))
    }

    /// Returns whether the request came to `until`.
    fn advance(&mut self, request: RequestKey, until: u64) -> bool {
        while let Some(byte) = self.requests[&request].next().filter(|byte| *byte < until) {
            if self.held_against(request, byte) || self.line_against(request, byte) {
                return false;
            }
            self.requests.get_mut(&request).unwrap().held.insert(byte);
        }
        true
    }

    fn stand(&mut self, request: RequestKey, until: u64) {
        let byte = self.requests[&request].next().unwrap();
        let asking = self.requests[&request].owner;
        self.places += 1;
        let line = self.lines.entry(byte).or_default();
        let own = line.iter().find(|entry| self.requests[&entry.1].owner == asking).map(|entry| entry.0);
        line.insert((own.unwrap_or(self.places), request));
        self.requests.get_mut(&request).unwrap().until = Some(until);
    }

    fn leave(&mut self, request: RequestKey) -> Option<u64> {
        for line in self.lines.values_mut() {
            line.retain(|entry| entry.1 != request);
        }
        self.lines.retain(|_, line| !line.is_empty());
        self.requests.get_mut(&request).unwrap().until.take()
    }

    fn serve_all(&mut self, from: u64, woken: &mut Vec<ResumedRequest>) {
        for byte in from..Self::BYTES {
            while let Some((_, first)) = self.lines.get(&byte).and_then(|line| line.first()).copied() {
                if self.held_against(first, byte) {
                    break;
                }
                let until = self.leave(first).unwrap();
                self.requests.get_mut(&first).unwrap().held.insert(byte);
                if self.advance(first, until) {
                    let progress = self.requests[&first].progress();
                    woken.push(ResumedRequest { request: first, progress, exhausted: false });
                } else {
                    self.stand(first, until);
                }
            }
        }
    }

    fn release_from(
        &mut self,
        request: RequestKey,
        offset: u64,
        woken: &mut Vec<ResumedRequest>,
    ) -> Acquired {
        if let Some(byte) = self.requests[&request].until.and(self.requests[&request].next()) {
            self.leave(request);
            // The line that it left comes first, and only that one can have changed.
            self.serve_all(byte, woken);
        }
        self.requests.get_mut(&request).unwrap().held.retain(|byte| *byte < offset);
        self.serve_all(0, woken);
        self.requests[&request].progress()
    }

    fn check_safety(&self) {
        for (key, request) in &self.requests {
            for byte in &request.held {
                assert!(!self.held_against(*key, *byte), "byte {byte} is held in conflicting modes");
            }
        }
        for (byte, line) in &self.lines {
            assert!(self.held_against(line.first().unwrap().1, *byte), "somebody waits for a free byte");
        }
    }
}

fn random_pattern(random: &mut StdRng) -> Pattern {
    let regions: Vec<Region> = match random.random_range(0..4) {
        0 => {
            let offset = random.random_range(0..Naive::BYTES - 1);
            vec![Region::new(offset, random.random_range(1..=Naive::BYTES - offset))]
        }
        1 => {
            let stride = random.random_range(2..6);
            (0..Naive::BYTES / stride).map(|i| Region::new(i * stride, 1)).collect()
        }
        _ => (0..Naive::BYTES).filter(|_| random.random_bool(0.3)).map(|at| Region::new(at, 1)).collect(),
    };
    Pattern::list(&regions).unwrap()
}

fn bytes(pattern: &Pattern) -> BTreeSet<u64> {
    pattern.regions().flat_map(|region| region.offset..region.end()).collect()
}

/// The tables of both indexings and the naive one, which are to agree at every step.
fn compare(seed: u64, steps: usize) {
    let mut random = StdRng::seed_from_u64(seed);
    let mut tables = INDEXINGS.map(table);
    let mut naive = Naive::default();
    for step in 0..steps {
        let keys: Vec<RequestKey> = naive.requests.keys().copied().collect();
        let pick = |random: &mut StdRng| keys[random.random_range(0..keys.len())];
        let mut expected = Vec::new();
        let mut woken: [Vec<ResumedRequest>; 2] = Default::default();
        match random.random_range(0..10) {
            0..=3 if keys.len() < 9 => {
                let key = step as RequestKey;
                let pattern = random_pattern(&mut random);
                let owner =
                    Owner { program: random.random_range(0..4), operation: random.random_range(0..2) };
                let sibling = naive.requests.values().find(|other| other.owner == owner);
                let any = if random.random_bool(0.5) { Mode::Shared } else { Mode::Exclusive };
                let mode = sibling.map_or(any, |other| other.mode);
                for table in &mut tables {
                    table.add(key, owner, mode, pattern.clone()).unwrap();
                }
                let bytes = bytes(&pattern);
                naive
                    .requests
                    .insert(key, NaiveRequest { owner, mode, bytes, held: BTreeSet::new(), until: None });
            }
            0..=6 if !keys.is_empty() => {
                let key = pick(&mut random);
                if naive.requests[&key].until.is_some() {
                    for table in &mut tables {
                        assert_eq!(table.try_acquire(key), Err(TableError::Waits));
                    }
                } else if random.random_bool(0.5) {
                    naive.advance(key, OFFSET_MAX);
                    for table in &mut tables {
                        assert_eq!(
                            table.try_acquire(key),
                            Ok(naive.requests[&key].progress()),
                            "seed {seed}"
                        );
                    }
                } else {
                    let until = random.random_range(0..=Naive::BYTES);
                    let done = naive.advance(key, until);
                    if !done {
                        naive.stand(key, until);
                    }
                    let progress = naive.requests[&key].progress();
                    let reached =
                        if done { AcquireOutcome::Done(progress) } else { AcquireOutcome::Waits(progress) };
                    for table in &mut tables {
                        assert_eq!(table.acquire(key, until), Ok(reached), "seed {seed}");
                    }
                }
            }
            7 if !keys.is_empty() => {
                let key = pick(&mut random);
                let offset = random.random_range(0..Naive::BYTES);
                let left = naive.release_from(key, offset, &mut expected);
                for (table, woken) in tables.iter_mut().zip(&mut woken) {
                    assert_eq!(table.release_from(key, offset, woken), Ok(left), "seed {seed}");
                    assert_eq!(*woken, expected, "seed {seed}");
                }
            }
            8..=9 if !keys.is_empty() => {
                let key = pick(&mut random);
                naive.release_from(key, 0, &mut expected);
                naive.requests.remove(&key);
                for (table, woken) in tables.iter_mut().zip(&mut woken) {
                    table.release(key, woken).unwrap();
                    assert_eq!(*woken, expected, "seed {seed}");
                }
            }
            _ => {}
        }
        naive.check_safety();
        for table in &tables {
            for (key, request) in &naive.requests {
                let view = table.view(*key).unwrap();
                assert_eq!(view.progress, request.progress(), "seed {seed}, request {key}");
                assert_eq!(view.waits, request.until.is_some(), "seed {seed}, request {key}");
            }
            assert_eq!(table.len(), naive.requests.len());
            for byte in 0..Naive::BYTES {
                let line: Vec<RequestKey> = table.line(byte).collect();
                let expected: Vec<RequestKey> =
                    naive.lines.get(&byte).into_iter().flatten().map(|entry| entry.1).collect();
                assert_eq!(line, expected, "seed {seed}, byte {byte}");
            }
        }
    }
    // When everybody has released, nothing is left behind.
    for table in &mut tables {
        for key in naive.requests.keys() {
            table.release(*key, &mut Vec::new()).unwrap();
        }
        assert!(table.is_empty());
        assert_eq!((table.ranges(), table.waiters()), (0, 0));
    }
}

#[test]
fn agrees_with_a_table_of_bytes() {
    let runs = std::env::var("NACRE_LOCK_HISTORIES").map_or(1_500, |runs| runs.parse().unwrap());
    let first = std::env::var("NACRE_SEED").map_or(1, |seed| seed.parse().unwrap());
    for seed in first..first + runs {
        compare(seed, 120);
    }
}

#[test]
fn a_request_waits_for_the_byte_where_another_stands_and_not_for_its_pattern() {
    for indexing in INDEXINGS {
        let mut table = table(indexing);
        for (key, from, to) in [(1, 0, 16), (2, 5, 11), (3, 5, 6)] {
            table.add(key, owner(key), Mode::Exclusive, contiguous(from, to)).unwrap();
        }
        assert_eq!(table.acquire(1, 8), Ok(AcquireOutcome::Done(progress(7, 8))));
        assert_eq!(table.acquire(2, OFFSET_MAX), Ok(AcquireOutcome::Waits(progress(None, 5))));
        // The second waits at 5 for 5 to 10; the first goes on to 8 and beyond at once.
        assert_eq!(table.acquire(1, 9), Ok(AcquireOutcome::Done(progress(8, 9))));
        // Who does not want to wait stops at 5 as well.
        assert_eq!(table.try_acquire(3), Ok(progress(None, 5)));
        let mut woken = Vec::new();
        table.release_from(1, 5, &mut woken).unwrap();
        assert_eq!(woken, [ResumedRequest { request: 2, progress: progress(10, None), exhausted: false }]);
    }
}

#[test]
fn readers_that_come_later_do_not_starve_a_writer() {
    for indexing in INDEXINGS {
        let mut table = table(indexing);
        for (key, mode) in [(1, Mode::Shared), (2, Mode::Exclusive), (3, Mode::Shared), (4, Mode::Shared)] {
            table.add(key, owner(key), mode, contiguous(0, 100)).unwrap();
        }
        assert_eq!(table.try_acquire(1), Ok(progress(99, None)));
        assert!(matches!(table.acquire(2, OFFSET_MAX), Ok(AcquireOutcome::Waits(_))));
        assert!(matches!(table.acquire(3, OFFSET_MAX), Ok(AcquireOutcome::Waits(_))));
        assert_eq!(table.try_acquire(4), Ok(progress(None, 0)));
        let mut woken = Vec::new();
        table.release(1, &mut woken).unwrap();
        assert_eq!(woken.iter().map(|woken| woken.request).collect::<Vec<_>>(), [2]);
        table.release(2, &mut woken).unwrap();
        assert_eq!(woken.iter().map(|woken| woken.request).collect::<Vec<_>>(), [2, 3]);
    }
}

#[test]
fn readers_behind_a_writer_that_gives_up_are_served() {
    for indexing in INDEXINGS {
        let mut table = table(indexing);
        for (key, mode) in [(1, Mode::Shared), (2, Mode::Exclusive), (3, Mode::Shared), (4, Mode::Shared)] {
            table.add(key, owner(key), mode, contiguous(0, 8)).unwrap();
            _ = table.acquire(key, OFFSET_MAX).unwrap();
        }
        let mut woken = Vec::new();
        table.release(2, &mut woken).unwrap();
        assert_eq!(woken.iter().map(|woken| woken.request).collect::<Vec<_>>(), [3, 4]);
    }
}

#[test]
fn requests_of_one_operation_never_wait_for_each_other() {
    for indexing in INDEXINGS {
        let mut table = table(indexing);
        for key in [1, 2] {
            table.add(key, owner(7), Mode::Exclusive, contiguous(0, 8)).unwrap();
        }
        table.add(3, owner(8), Mode::Exclusive, contiguous(4, 12)).unwrap();
        assert_eq!(table.try_acquire(1), Ok(progress(7, None)));
        assert!(matches!(table.acquire(3, OFFSET_MAX), Ok(AcquireOutcome::Waits(_))));
        // Another operation stands in line for byte 4, but this one holds it.
        assert_eq!(table.try_acquire(2), Ok(progress(7, None)));
        let mut woken = Vec::new();
        table.release(1, &mut woken).unwrap();
        assert_eq!(woken, []);
        table.release(2, &mut woken).unwrap();
        assert_eq!(woken.len(), 1);
        assert_eq!(table.add(4, owner(8), Mode::Shared, contiguous(0, 1)), Err(TableError::MixedModes));
    }
}

#[test]
fn ten_thousand_waiters_get_one_byte_in_the_order_in_which_they_came() {
    for indexing in INDEXINGS {
        let mut table = table(indexing);
        const WAITERS: u64 = 10_000;
        for key in 0..=WAITERS {
            table.add(key, owner(key), Mode::Exclusive, contiguous(77, 78)).unwrap();
            _ = table.acquire(key, OFFSET_MAX).unwrap();
        }
        assert_eq!(table.waiters() as u64, WAITERS);
        let mut woken = Vec::new();
        for key in 0..WAITERS {
            table.release(key, &mut woken).unwrap();
            assert_eq!(woken.pop().map(|woken| woken.request), Some(key + 1));
            assert!(woken.is_empty());
        }
    }
}

#[test]
fn locks_that_are_asserted_again_are_held_unless_they_conflict() {
    for indexing in INDEXINGS {
        let mut table = table(indexing);
        let strided = Pattern::new(&Datatype::byte().vector(16, 1, 4).at(0)).unwrap();
        assert_eq!(table.install(1, owner(1), Mode::Exclusive, strided.clone(), 10), Ok(progress(8, 12)));
        assert_eq!(table.install(2, owner(2), Mode::Shared, strided, 9), Err(TableError::Held(0)));
        assert!(!table.contains(2));
        assert_eq!(table.install(2, owner(2), Mode::Shared, contiguous(9, 20), 20), Ok(progress(19, None)));
        assert_eq!(table.try_acquire(1), Ok(progress(8, 12)));
    }
}

#[test]
fn an_unrolled_table_refuses_what_is_too_long_to_unroll() {
    let mut table = Table::new(Indexing::Unrolled, 100);
    let pattern = Pattern::new(&Datatype::byte().vector(101, 1, 4).at(0)).unwrap();
    assert_eq!(table.add(1, owner(1), Mode::Shared, pattern), Err(TableError::TooManyRegions(100)));
    assert!(table.is_empty());
}

/// Irregular offsets in a span, with a remainder or the one behind it when divided by 9.
fn irregular(regions: usize, span: u64, remainder: u64, seed: u64) -> Vec<Region> {
    let mut random = StdRng::seed_from_u64(seed);
    let offset = |_| random.random_range(0..span / 9) * 9 + remainder + random.random_range(0..2);
    let offsets: BTreeSet<u64> = (0..regions).map(offset).collect();
    offsets.into_iter().map(|offset| Region::new(offset, 1)).collect()
}

#[test]
fn long_lists_are_compared_to_the_end() {
    let mut table = table(Indexing::Described);
    let mut lists = [irregular(20_000, 1 << 20, 0, 1), irregular(20_000, 1 << 20, 4, 2)];
    // They share their last byte.
    lists.iter_mut().for_each(|list| list.push(Region::new(2 << 20, 1)));
    let [first, second] = lists.map(|list| Pattern::list(&list).unwrap());
    let last = second.end_before(2 << 20).unwrap() - 1;
    table.add(1, owner(1), Mode::Exclusive, first).unwrap();
    table.add(2, owner(2), Mode::Exclusive, second).unwrap();
    assert_eq!(table.try_acquire(1).unwrap().next, None);
    assert_eq!(table.try_acquire(2), Ok(progress(last, 2 << 20)));
}

#[test]
fn patterns_that_take_too_long_to_compare_are_refused_in_bounded_time() {
    let repeated = |list: &[Region], span: u64| {
        let block = |region: &Region| Block { count: region.length, displacement: region.offset as i64 };
        let blocks = list.iter().map(block).collect();
        let of = Datatype::Hindexed { blocks, of: Box::new(Datatype::byte()) };
        Pattern::new(&of.hvector(1 << 40, 1, span as i64).at(0)).unwrap()
    };
    let mut table = table(Indexing::Described);
    let span = 9 << 17;
    table.add(1, owner(1), Mode::Exclusive, repeated(&irregular(2_000, span, 0, 1), span)).unwrap();
    assert_eq!(table.try_acquire(1).unwrap().next, None);
    let second = repeated(&irregular(2_000, span, 4, 2), span + 9);
    table.add(2, owner(2), Mode::Exclusive, second).unwrap();
    assert_eq!(table.try_acquire(2), Err(TableError::TooIrregular));
    table.release(1, &mut Vec::new()).unwrap();
    assert_eq!(table.try_acquire(2).unwrap().next, None);
}

#[test]
fn the_holders_of_the_byte_waited_for_are_named() {
    for indexing in INDEXINGS {
        let mut table = table(indexing);
        for key in [1, 2, 3] {
            let end = if key == 3 { 4 } else { 10 };
            table.add(key, owner(key), Mode::Shared, contiguous(0, end)).unwrap();
            table.try_acquire(key).unwrap();
        }
        table.add(9, owner(9), Mode::Exclusive, contiguous(5, 6)).unwrap();
        _ = table.acquire(9, OFFSET_MAX).unwrap();
        let mut named: HashMap<RequestKey, Owner> = HashMap::new();
        table.blockers(9, |request, owner| named.insert(request, owner).is_none());
        assert_eq!(named, HashMap::from([(1, owner(1)), (2, owner(2))]));
    }
}

/// Irregular regions behind byte 0; two lists of them, one shifted by 3, share no byte.
fn spread(shift: u64) -> Vec<Region> {
    let (mut at, mut seed) = (0_u64, 7_u64);
    let region = |_| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        at += 8 + (seed >> 33) % 1000 * 8;
        Region::new(at + shift, 1 + (seed >> 50) % 2)
    };
    (0..1500).map(region).collect()
}

#[test]
fn a_release_that_wakes_many_irregular_requests_leaves_work_over_and_refuses_none() {
    const WAITERS: u64 = 40;
    let mut table = table(Indexing::Described);
    // Requests of one operation, which hold the same bytes, and each of which has to be compared with.
    let held = Pattern::list(&spread(0)).unwrap();
    for key in 100..200 {
        table.add(key, owner(100), Mode::Exclusive, held.clone()).unwrap();
        assert_eq!(table.try_acquire(key).unwrap().next, None);
    }
    table.add(0, owner(0), Mode::Exclusive, contiguous(0, 1)).unwrap();
    table.try_acquire(0).unwrap();
    let regions: Vec<Region> = std::iter::once(Region::new(0, 1)).chain(spread(3)).collect();
    let wanted = Pattern::list(&regions).unwrap();
    for key in 1..=WAITERS {
        table.add(key, owner(key), Mode::Shared, wanted.clone()).unwrap();
        assert!(matches!(table.acquire(key, OFFSET_MAX), Ok(AcquireOutcome::Waits(_))));
    }
    let mut woken = Vec::new();
    table.release(0, &mut woken).unwrap();
    let before = woken.len() as u64;
    assert!(before < WAITERS, "one call went through all comparisons");
    assert!(table.has_left_over());
    let waiting = (1..=WAITERS).filter(|key| table.view(*key).is_some_and(|view| view.waits)).count();
    assert_eq!(table.waiters(), waiting, "one that goes on later waits too");
    // The next one has its byte and goes on later; meanwhile it waits, and may give up.
    let gone = before + 1;
    assert_eq!(table.acquire(gone, OFFSET_MAX), Err(TableError::Waits));
    table.release(gone, &mut woken).unwrap();
    for _ in 0..2 * WAITERS {
        table.resume(&mut woken);
    }
    assert!(!table.has_left_over());
    let order: Vec<RequestKey> = woken.iter().map(|woken| woken.request).collect();
    assert_eq!(order, (1..=WAITERS).filter(|key| *key != gone).collect::<Vec<_>>());
    assert!(woken.iter().all(|woken| !woken.exhausted && woken.progress.next.is_none()), "{woken:?}");
    let waits = |key| table.view(key).is_some_and(|view| view.waits);
    assert!(!(1..=WAITERS).any(waits) && table.waiters() == 0);
}

#[test]
fn a_comparison_with_very_many_irregular_patterns_is_given_up_and_one_with_some_is_not() {
    let [held, requested] = [0, 3].map(|shift| Pattern::list(&spread(shift)).unwrap());
    let mut table = Table::new(Indexing::Described, 1 << 20);
    let mut holders = 0;
    let mut add = |table: &mut Table, more: u64| {
        for _ in 0..more {
            holders += 1;
            let owner = Owner { program: holders, operation: 1 };
            table.add(holders, owner, Mode::Shared, held.clone()).unwrap();
            table.try_acquire(holders).unwrap();
        }
    };
    let ask = |table: &mut Table| {
        let owner = Owner { program: 0, operation: 1 };
        table.add(0, owner, Mode::Exclusive, requested.clone()).unwrap();
        let answer = table.try_acquire(0);
        let progress = table.progress(0).unwrap();
        table.release(0, &mut Vec::new()).unwrap();
        (answer, progress)
    };
    add(&mut table, 100);
    assert_eq!(ask(&mut table).0.unwrap().next, None, "no byte is held by another");
    add(&mut table, 3000);
    let (answer, progress) = ask(&mut table);
    assert_eq!(
        (answer, progress.last),
        (Err(TableError::TooIrregular), None),
        "it was not compared with all"
    );
}
