//! Random histories: calls of several ranks at the same time, whose requests take effect in any order, with ranks that go
//! away at any step and replies that are lost. After each round the others finish what was left, and the tree must be one
//! that some order of the calls makes: nothing is lost, nothing is doubled, and the check finds nothing.
//!
//! `NACRE_META_HISTORIES` is the number of histories, `NACRE_SEED` runs one of them again.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use bytes::Bytes;
use nacre_meta::inode::{Ino, InodeKind};
use nacre_meta::{Creation, Credentials, Error, Limits, Rank, RankOptions, SetAttributes};
use nacre_object::{Check, Guard, Transaction, WriteOp};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::model::{Call, Node, Outcome, Tree};
use crate::scheduler::{Sabotage, SlowStore, at_once, poll};

const NAMES: [&str; 4] = ["a", "b", "c", "d"];
/// The rounds of one history.
const ROUNDS: usize = 6;

/// The settings of a history.
#[derive(Clone, Copy, Default)]
struct Setting {
    /// True if directories are split at two entries, and everything is counted in a quota.
    is_large: bool,
    sabotage: Option<Sabotage>,
}

fn open(store: &SlowStore, setting: Setting) -> Arc<Rank> {
    let time = AtomicI64::new(1);
    let clock = Arc::new(move || time.fetch_add(1, Ordering::Relaxed));
    let split_entries = setting.is_large.then_some(1);
    let options = RankOptions { create: true, clock: Some(clock), split_entries, ..RankOptions::default() };
    Arc::new(at_once(store, Rank::open(Arc::new(store.clone()), options)).unwrap())
}

/// Reads the whole tree.
fn read(store: &SlowStore, rank: &Rank) -> Result<Tree, String> {
    at_once(store, async {
        let root = Credentials::root();
        let mut nodes = BTreeMap::new();
        let mut waiting = vec![Ino::ROOT];
        while let Some(ino) = waiting.pop() {
            let found = rank.stat(ino).await.map_err(|error| format!("stat of {ino}: {error}"))?;
            let mut node = Node { mode: found.mode, content: String::new(), entries: None };
            if found.kind == InodeKind::Directory {
                let page = rank.readdir(&root, ino, b"", 1024, true).await;
                let page = page.map_err(|error| format!("list of {ino}: {error}"))?;
                let mut entries = BTreeMap::new();
                for listed in page.entries {
                    let name = String::from_utf8(listed.name.to_vec()).unwrap();
                    entries.insert(name, listed.ino.0);
                    if !nodes.contains_key(&listed.ino.0) {
                        waiting.push(listed.ino);
                    }
                }
                node.entries = Some(entries);
            } else {
                let content = rank.read_file(ino, 0, 1 << 20).await;
                let content = content.map_err(|error| format!("content of {ino}: {error}"))?;
                node.content = String::from_utf8(content.to_vec()).unwrap();
            }
            nodes.insert(ino.0, node);
        }
        Ok(Tree::new(nodes))
    })
}

fn random_call(random: &mut StdRng, tree: &Tree, count: &mut u32) -> Call {
    let all: Vec<u64> = tree.nodes.keys().copied().collect();
    let directories: Vec<u64> =
        tree.nodes.iter().filter(|(_, node)| node.entries.is_some()).map(|(ino, _)| *ino).collect();
    let any = |random: &mut StdRng| all[random.random_range(0..all.len())];
    let directory = |random: &mut StdRng| directories[random.random_range(0..directories.len())];
    let name = |random: &mut StdRng| NAMES[random.random_range(0..NAMES.len())].to_owned();
    // An entry that is there, most of the time.
    let entry = |random: &mut StdRng| {
        let at = directory(random);
        let names: Vec<&String> = tree.nodes[&at].entries.iter().flatten().map(|(name, _)| name).collect();
        match names.len() {
            0 => (at, name(random)),
            len => (at, names[random.random_range(0..len)].clone()),
        }
    };
    match random.random_range(0..100) {
        0..14 => Call::Create(directory(random), name(random)),
        14..26 => Call::Mkdir(directory(random), name(random)),
        26..38 => {
            let (at, name) = entry(random);
            Call::Unlink(at, name)
        }
        38..48 => {
            let (at, name) = entry(random);
            Call::Rmdir(at, name)
        }
        48..58 => Call::Link(any(random), directory(random), name(random)),
        58..86 => {
            let (at, from) = entry(random);
            Call::Rename(at, from, directory(random), name(random))
        }
        86..92 => {
            *count += 1;
            Call::Put(any(random), format!("content {count}"))
        }
        92..95 => Call::Chmod(any(random), 0o700 + random.random_range(0..64)),
        _ => {
            let (at, name) = entry(random);
            Call::Lookup(at, name)
        }
    }
}

async fn run(rank: Arc<Rank>, call: Call) -> Outcome {
    let root = Credentials::root();
    match call {
        Call::Create(directory, name) => {
            let creation = Creation::new(InodeKind::File, 0o644);
            let created = rank.create(&root, Ino(directory), name.as_bytes(), creation).await?;
            Ok(Some(created.ino.0))
        }
        Call::Mkdir(directory, name) => {
            let creation = Creation::new(InodeKind::Directory, 0o755);
            let created = rank.create(&root, Ino(directory), name.as_bytes(), creation).await?;
            Ok(Some(created.ino.0))
        }
        Call::Unlink(directory, name) => {
            rank.unlink(&root, Ino(directory), name.as_bytes()).await.map(|()| None)
        }
        Call::Rmdir(directory, name) => {
            rank.rmdir(&root, Ino(directory), name.as_bytes()).await.map(|()| None)
        }
        Call::Link(ino, directory, name) => {
            rank.link(&root, Ino(ino), Ino(directory), name.as_bytes()).await.map(|_| None)
        }
        Call::Rename(from, name, to, new) => {
            let (from, to) = ((Ino(from), name.as_bytes()), (Ino(to), new.as_bytes()));
            rank.rename(&root, from, to, false).await.map(|()| None)
        }
        Call::Put(ino, content) => {
            let mut put = rank.put(&root, Ino(ino)).await?;
            put.write(content.as_bytes()).await?;
            put.commit().await.map(|_| None)
        }
        Call::Chmod(ino, mode) => {
            let set = SetAttributes { mode: Some(mode), ..SetAttributes::default() };
            rank.set_attributes(&root, Ino(ino), &set).await.map(|_| None)
        }
        Call::Lookup(directory, name) => {
            let found = rank.lookup(&root, Ino(directory), name.as_bytes()).await?;
            Ok(Some(found.ino.0))
        }
    }
}

/// A call with what is known of its result: `None` if it was dropped, or may or may not have taken effect.
type Seen = (Call, Option<Outcome>);

/// Returns whether some order of the calls, with or without those whose results nobody knows, explains the results and
/// the tree.
fn is_explained(before: &Tree, calls: &[Seen], after: &Tree) -> bool {
    let shape = after.shape();
    explain(before, calls, &mut vec![false; calls.len()], &shape)
}

fn explain(tree: &Tree, calls: &[Seen], used: &mut Vec<bool>, shape: &crate::model::Shape) -> bool {
    // A call that failed had no effect; that it could fail is checked elsewhere.
    let is_needed = |seen: &Seen| matches!(&seen.1, Some(Ok(_)));
    let is_over = calls.iter().zip(&*used).all(|(seen, used)| *used || !is_needed(seen));
    if is_over && tree.shape() == *shape {
        return true;
    }
    for index in 0..calls.len() {
        if used[index] || matches!(&calls[index].1, Some(Err(_))) {
            continue;
        }
        let mut next = tree.clone();
        let result = next.apply(&calls[index].0);
        let fits = match (&calls[index].1, &result) {
            (None, result) => result.is_ok(),
            // The model's inodes have other numbers.
            (Some(Ok(Some(seen))), Ok(Some(ino))) => seen == ino || *ino >= 1 << 60,
            (Some(Ok(_)), result) => result.is_ok(),
            (Some(Err(_)), _) => false,
        };
        if fits {
            used[index] = true;
            if explain(&next, calls, used, shape) {
                return true;
            }
            used[index] = false;
        }
    }
    false
}

/// Returns whether a call can fail in some order of the others.
fn can_fail(before: &Tree, calls: &[Seen], failed: usize, used: &mut Vec<bool>) -> bool {
    let is_gone = matches!(&calls[failed].0, Call::Link(ino, ..) if before.gone.contains_key(ino));
    if is_gone || before.clone().apply(&calls[failed].0).is_err() {
        return true;
    }
    for index in 0..calls.len() {
        if used[index] || index == failed || matches!(&calls[index].1, Some(Err(_))) {
            continue;
        }
        let mut next = before.clone();
        if next.apply(&calls[index].0).is_ok() {
            used[index] = true;
            if can_fail(&next, calls, failed, used) {
                return true;
            }
            used[index] = false;
        }
    }
    false
}

/// Checks that results and tree are explained by some order of the calls.
fn compare(before: &Tree, seen: &[Seen], after: &Tree) -> Result<(), String> {
    if !is_explained(before, seen, after) {
        let (was, is) = (before.shape(), after.shape());
        return Err(format!("no order of the calls explains the tree\n  was {was:#?}\n  is {is:#?}"));
    }
    for index in 0..seen.len() {
        let has_failed = matches!(&seen[index].1, Some(Err(error)) if !matches!(error, Error::Store(_)));
        if has_failed && !can_fail(before, seen, index, &mut vec![false; seen.len()]) {
            return Err(format!("call {index} fails for no reason"));
        }
    }
    Ok(())
}

/// Counts of what happened in histories, to see that they exercise something.
#[derive(Default, Debug)]
pub struct Counts {
    calls: u64,
    crashes: u64,
    lost: u64,
    late: u64,
    steps: u64,
    renames_across: u64,
    fragments: u64,
    /// Inodes that had no objects at the end of a round.
    unmade: u64,
}

fn history(seed: u64, counts: &mut Counts, setting: Setting) -> Result<(), String> {
    let mut random = StdRng::seed_from_u64(seed);
    let store = SlowStore::default();
    let open = |store: &SlowStore| open(store, setting);
    let mut ranks = vec![open(&store), open(&store)];
    if setting.is_large {
        let limits = Limits { bytes: Some(1 << 20), entries: Some(1000) };
        at_once(&store, ranks[0].set_quota(&Credentials::root(), Ino::ROOT, limits))
            .map_err(|error| error.to_string())?;
    }
    if let Some(sabotage) = setting.sabotage {
        store.sabotage(sabotage);
    }
    // A call that splits a directory has more steps to go away at.
    let crash_max = if setting.is_large { 60 } else { 20 };
    // A tree to begin with, so that most calls find something.
    let mut count = 0;
    for _ in 0..10 {
        let tree = read(&store, &ranks[0])?;
        let call = random_call(&mut random, &tree, &mut count);
        let _ = at_once(&store, run(ranks[0].clone(), call));
    }
    // Calls that nobody knows the results of, and whose intents may be finished by whoever comes upon them yet.
    let mut left: Vec<Seen> = Vec::new();
    for round in 0..ROUNDS {
        let before = read(&store, &ranks[0])?;
        // Calls name inodes by their numbers, which each rank has to have looked up.
        read(&store, &ranks[1])?;
        let number = random.random_range(1..=3);
        let mut seen: Vec<Seen> = Vec::new();
        let mut futures: Vec<Option<Pin<Box<dyn Future<Output = Outcome>>>>> = Vec::new();
        let mut owners = Vec::new();
        for _ in 0..number {
            let call = random_call(&mut random, &before, &mut count);
            counts.calls += 1;
            counts.renames_across += u64::from(matches!(&call, Call::Rename(from, _, to, _) if from != to));
            let owner = random.random_range(0..ranks.len());
            futures.push(Some(Box::pin(run(ranks[owner].clone(), call.clone()))));
            owners.push(owner);
            seen.push((call, None));
        }
        // The step at which a rank goes away, if one does.
        let crash = random
            .random_bool(0.7)
            .then(|| (random.random_range(0..crash_max), random.random_range(0..ranks.len())));
        let mut log = String::new();
        let mut idle = 0;
        for step in 0.. {
            if step > 20_000 {
                return Err(format!("round {round} does not end: {seen:?}"));
            }
            for (index, future) in futures.iter_mut().enumerate() {
                if let Some(running) = future
                    && let Some(result) = poll(&store, index, running)
                {
                    *future = None;
                    let is_known = !matches!(&result, Err(error) if error.is_unknown());
                    log += &format!("\n  step {step}: call {index} gives {result:?}");
                    seen[index].1 = is_known.then_some(result);
                }
            }
            if let Some((at, owner)) = crash
                && at == step
                && futures.iter().any(Option::is_some)
            {
                counts.crashes += 1;
                log += &format!("\n  step {step}: rank {owner} goes away");
                for index in 0..futures.len() {
                    if owners[index] == owner && futures[index].take().is_some() {
                        store.orphan(index);
                    }
                }
                ranks[owner] = open(&store);
            }
            if futures.iter().all(Option::is_none) {
                break;
            }
            let waiting = store.waiting();
            // A call may wait for another one that has just ended; then it is polled again.
            idle = if waiting.is_empty() { idle + 1 } else { 0 };
            if waiting.is_empty() && idle < 4 {
                continue;
            }
            if waiting.is_empty() {
                return Err(format!("round {round} waits for nothing: {seen:?}"));
            }
            let (id, caller) = waiting[random.random_range(0..waiting.len())];
            counts.steps += 1;
            match (caller, random.random_range(0..400)) {
                (None, 0..40) => store.drop_request(id),
                (None, _) => {
                    counts.late += 1;
                    store.perform(id, false);
                }
                (Some(_), 0) => {
                    counts.lost += 1;
                    store.perform(id, true);
                }
                (Some(_), 1) => {
                    counts.lost += 1;
                    store.lose(id);
                }
                (Some(_), _) => store.perform(id, false),
            }
        }
        // What is still on its way comes before or after the check.
        let settle = |random: &mut StdRng| {
            for (id, _) in store.waiting() {
                match random.random_bool(0.5) {
                    true => store.perform(id, false),
                    false => store.drop_request(id),
                }
            }
        };
        let is_late = random.random_bool(0.3);
        if !is_late {
            settle(&mut random);
        }
        let wrong = |text: String, seen: &[Seen]| {
            format!("seed {seed}, round {round}: {text}\n  calls {seen:#?}{log}")
        };
        if !is_late && round + 1 < ROUNDS && random.random_bool(0.5) {
            // Nobody checks: whoever comes by finishes what was left. So the tree is whole, whatever else is in the store.
            let after = read(&store, &ranks[0]).map_err(|text| wrong(text, &seen))?;
            seen.append(&mut left);
            compare(&before, &seen, &after).map_err(|text| wrong(text, &seen))?;
            let has_intent =
                |call: &Call| matches!(call, Call::Rename(..) | Call::Link(..) | Call::Rmdir(..));
            left = seen.into_iter().filter(|(call, result)| result.is_none() && has_intent(call)).collect();
            continue;
        }
        let doctor = open(&store);
        let report = at_once(&store, doctor.check(true)).map_err(|error| error.to_string())?;
        if let Some(finding) = report.findings.iter().find(|finding| !finding.repaired) {
            return Err(wrong(format!("the check finds: {}", finding.text), &seen));
        }
        // Nothing that could happen in a round is more than something left to be done.
        let is_damage = |text: &str| {
            let damages = [
                "has no inode",
                "not among the links",
                "two entries",
                "is in",
                "another kind",
                "not reached",
                "a link without an entry",
            ];
            damages.iter().any(|damage| text.contains(damage))
        };
        if let Some(finding) = report.findings.iter().find(|finding| is_damage(&finding.text)) {
            return Err(wrong(format!("the check mends: {}", finding.text), &seen));
        }
        if is_late {
            settle(&mut random);
        }
        let again = at_once(&store, doctor.check(true)).map_err(|error| error.to_string())?;
        let third = at_once(&store, doctor.check(false)).map_err(|error| error.to_string())?;
        if !is_late && !again.findings.is_empty() || !third.findings.is_empty() {
            return Err(wrong(format!("the second check finds {again:?}, the third {third:?}"), &seen));
        }
        // The logs of the ranks are closed: they go on with new ones.
        ranks = vec![open(&store), open(&store)];
        let after = read(&store, &ranks[0]).map_err(|text| wrong(text, &seen))?;
        seen.append(&mut left);
        compare(&before, &seen, &after).map_err(|text| wrong(text, &seen))?;
        // Not every inode has an object, but every object is that of an inode in the tree.
        let names: BTreeSet<String> = after.nodes.keys().map(|ino| Ino(*ino).object().to_string()).collect();
        let mut objects = store.objects();
        objects.retain(|object| object.starts_with("nacre/fs/i/"));
        if let Some(object) = objects.iter().find(|object| !names.contains(*object)) {
            return Err(wrong(format!("object {object} is in the store, and not in the tree"), &seen));
        }
        counts.unmade += (names.len() - objects.len()) as u64;
    }
    counts.fragments +=
        store.objects().iter().filter(|object| object.starts_with("nacre/fs/e/")).count() as u64;
    Ok(())
}

/// Runs histories. Returns their number and what happened, or nothing if it was only one, of a seed that was given.
fn run_histories(number: u64, setting: Setting) -> Option<(u64, Counts)> {
    let seed = std::env::var("NACRE_SEED").ok().map(|seed| seed.parse().expect("NACRE_SEED is a number"));
    let histories = std::env::var("NACRE_META_HISTORIES").map_or(number, |number| number.parse().unwrap());
    let seeds = seed.map_or(0..histories, |seed| seed..seed + 1);
    let mut counts = Counts::default();
    for seed in seeds.clone() {
        if let Err(text) = history(seed, &mut counts, setting) {
            panic!("{text}\nNACRE_SEED={seed} runs it again");
        }
    }
    println!("{} histories: {counts:?}", seeds.end - seeds.start);
    seed.is_none().then_some((histories, counts))
}

#[test]
fn nothing_is_lost_or_doubled_whatever_goes_away_in_the_middle() {
    if let Some((histories, counts)) = run_histories(600, Setting::default()) {
        assert!(
            counts.crashes > histories / 2 && counts.late > histories / 8 && counts.lost > histories / 10
        );
        assert!(counts.renames_across > histories);
        assert!(counts.unmade > histories / 2, "{counts:?}");
    }
}

#[test]
fn nothing_is_lost_or_doubled_while_directories_are_split_and_quotas_are_counted() {
    if let Some((histories, counts)) = run_histories(400, Setting { is_large: true, ..Setting::default() }) {
        assert!(counts.crashes > histories / 4 && counts.late > histories / 8, "{counts:?}");
        assert!(counts.fragments > histories, "{counts:?}");
    }
}

/// Returns whether a fault in the protocol is noticed in a few hundred histories.
fn is_noticed(sabotage: Sabotage) -> bool {
    is_noticed_in(Setting { sabotage: Some(sabotage), ..Setting::default() })
}

fn is_noticed_in(setting: Setting) -> bool {
    let run = |seed| history(seed, &mut Counts::default(), setting);
    let failure = (0..2_000).find_map(|seed| run(seed).err());
    println!("{}", failure.as_deref().unwrap_or("nothing").lines().next().unwrap_or_default());
    failure.is_some()
}

fn sets(transaction: &Transaction, name: &[u8]) -> bool {
    let sets = |write: &WriteOp| matches!(write, WriteOp::SetKey { key, .. } if key.as_bytes() == name);
    transaction.writes.iter().any(sets)
}

/// Returns an entry of a file or a directory without what its inode is to be.
fn without_first_record(entry: &Bytes) -> Bytes {
    // Behind the format, the inode, the link and the kind.
    [&entry[..18], &[0]].concat().into()
}

#[test]
fn a_step_of_intents_that_is_left_out_is_noticed() {
    // Objects are claimed, and others change them nevertheless.
    assert!(is_noticed(|_, transaction| {
        transaction.guards.retain(
            |guard| !matches!(guard, Guard::Key { key, check: Check::Absent } if key.as_bytes() == b"c"),
        );
    }));
    // Objects are not claimed.
    assert!(is_noticed(|_, transaction| {
        if sets(transaction, b"c") {
            transaction.writes.clear();
        }
    }));
    // A helper that was asleep claims an object again.
    assert!(is_noticed(|_, transaction| {
        if sets(transaction, b"c") {
            transaction.guards.truncate(1);
        }
    }));
    // A committed intent's changes are made whether the claim stands or not.
    assert!(is_noticed(|_, transaction| {
        transaction.guards.retain(
            |guard| !matches!(guard, Guard::Key { key, check: Check::Equal(_) } if key.as_bytes() == b"c"),
        );
    }));
    // An inode without an object is made again after it was removed.
    assert!(is_noticed(|object, transaction| {
        if object.to_string().starts_with("nacre/fs/i/") && sets(transaction, b"a") {
            transaction.guards.retain(|guard| !matches!(guard, Guard::Version { version: 0 }));
        }
    }));
    // A rename leaves out what an inode without an object is.
    assert!(is_noticed(|_, transaction| {
        let is_rename = transaction
            .writes
            .iter()
            .any(|write| matches!(write, WriteOp::RemoveKey { key } if key.as_bytes().starts_with(b"e")));
        for write in transaction.writes.iter_mut().filter(|_| is_rename) {
            if let WriteOp::SetKey { key, value } = write
                && key.as_bytes().starts_with(b"e")
            {
                *value = without_first_record(value);
            }
        }
    }));
    // A link leaves a directory without a trace.
    assert!(is_noticed(|_, transaction| {
        transaction.writes.retain(
            |write| !matches!(write, WriteOp::SetKey { key, .. } if key.as_bytes().starts_with(b"g")),
        );
    }));
}

/// Returns whether a transaction is a step of an intent in which an object is claimed, and stays so.
fn is_within_claim(transaction: &Transaction) -> bool {
    let is_claim =
        |guard: &Guard| matches!(guard, Guard::Key { key, check: Check::Equal(_) } if key.as_bytes() == b"c");
    let ends = |write: &WriteOp| matches!(write, WriteOp::RemoveKey { key } if key.as_bytes() == b"c");
    transaction.guards.iter().any(is_claim) && !transaction.writes.iter().any(ends)
}

#[test]
fn a_step_of_a_split_that_is_left_out_is_noticed() {
    fn notice(sabotage: Sabotage) -> bool {
        is_noticed_in(Setting { is_large: true, sabotage: Some(sabotage) })
    }
    // Entries do not arrive where they are moved to.
    assert!(notice(|_, transaction| {
        if is_within_claim(transaction) {
            transaction.writes.retain(|write| !matches!(write, WriteOp::SetKey { .. }));
        }
    }));
    // Entries stay where they were too.
    assert!(notice(|_, transaction| {
        if is_within_claim(transaction) {
            transaction.writes.retain(|write| !matches!(write, WriteOp::RemoveKey { .. }));
        }
    }));
}
