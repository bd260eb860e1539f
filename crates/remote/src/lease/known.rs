//! The knowledge of an object that a client has: answers to reads of it, all at one version.
//!
//! Keys are known one by one, whichever reads asked for them. Of a range whose keys were read as a page it is also known that there are no
//! others, so a page of a directory answers the look-ups of all names in it, of those too that are not there.

use std::collections::{HashMap, VecDeque};

use bytes::Bytes;
use nacre_object::{Answer, Done, Intent, Key, KeyPage, KeyRange, ReadOp, Versioned, VersionedKeyPage};

/// The maximum number of bytes of one answer that is kept.
const ANSWER_BYTES_MAX: usize = 128 << 10;
/// The bytes that an answer or a key takes besides its contents, about.
const OVERHEAD_BYTES: usize = 160;
/// The maximum number of ranges all of whose keys are known. Without one, keys that are there are known all the same.
const RANGES_MAX: usize = 64;

#[derive(Debug, Default)]
pub(super) struct Known {
    /// The version of the object, and whether it exists; `None` while nothing is known.
    state: Option<(u64, bool)>,
    /// The keys, with their values; `None` of those that are not there.
    keys: HashMap<Key, Option<Value>>,
    /// The ranges that have no other keys.
    ranges: VecDeque<KeyRange>,
    /// The answers to reads of other kinds than one key.
    answers: HashMap<ReadOp, Answer>,
    bytes: usize,
}

/// The value of a key, with its version if that was asked for.
#[derive(Debug)]
struct Value {
    bytes: Bytes,
    version: Option<u64>,
}

impl Known {
    /// Returns the bytes of what is known, about.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the version of the object at which it is known; `None` while nothing is.
    pub fn version(&self) -> Option<u64> {
        self.state.map(|(version, _)| version)
    }

    /// Forgets everything. Returns its bytes.
    pub fn clear(&mut self) -> usize {
        std::mem::take(self).bytes
    }

    /// Answers reads, if all that they ask for is known.
    pub fn answer(&self, reads: &[ReadOp]) -> Option<Done> {
        let (version, existed) = self.state?;
        let answers = reads.iter().map(|read| self.answer_to(read)).collect::<Option<Vec<Answer>>>()?;
        Some(Done { version, existed, answers })
    }

    fn answer_to(&self, read: &ReadOp) -> Option<Answer> {
        Some(match read {
            ReadOp::Key { key } => Answer::Value(self.value(key)?.map(|value| value.bytes.clone())),
            ReadOp::VersionedKey { key, .. } => Answer::VersionedValue(match self.value(key)? {
                Some(value) => Some(Versioned { value: value.bytes.clone(), version: value.version? }),
                None => None,
            }),
            read => self.answers.get(read)?.clone(),
        })
    }

    /// Returns what is known of a key: its value, or that there is none.
    fn value(&self, key: &Key) -> Option<Option<&Value>> {
        match self.keys.get(key) {
            Some(value) => Some(value.as_ref()),
            None => self.ranges.iter().any(|range| range.contains(key.as_bytes())).then_some(None),
        }
    }

    /// Learns the answers to reads, unless something is known of a later version. What is known of an earlier one is forgotten.
    pub fn learn(&mut self, reads: &[ReadOp], done: &Done) {
        match self.version() {
            Some(version) if version > done.version => return,
            Some(version) if version == done.version => {}
            _ => *self = Known { state: Some((done.version, done.existed)), ..Known::default() },
        }
        for (read, answer) in reads.iter().zip(&done.answers) {
            match (read, answer) {
                (ReadOp::Key { key }, Answer::Value(value)) => {
                    self.learn_key(key, value.as_ref().map(|value| (value, None)));
                }
                (ReadOp::VersionedKey { key, .. }, Answer::VersionedValue(value)) => {
                    self.learn_key(key, value.as_ref().map(|value| (&value.value, Some(value.version))));
                }
                (read, answer) => self.learn_answer(read, answer),
            }
        }
    }

    fn learn_key(&mut self, key: &Key, value: Option<(&Bytes, Option<u64>)>) {
        let is_new = matches!(
            (self.value(key), value),
            (None, _) | (Some(Some(Value { version: None, .. })), Some((_, Some(_))))
        );
        if !is_new {
            return;
        }
        let mut bytes = OVERHEAD_BYTES;
        let Some(key) = copy_key(key, &mut bytes) else { return };
        let value = value.map(|(value, version)| Value { bytes: copy(value, &mut bytes), version });
        if bytes <= ANSWER_BYTES_MAX && self.keys.insert(key, value).is_none() {
            self.bytes += bytes;
        }
    }

    fn learn_answer(&mut self, read: &ReadOp, answer: &Answer) {
        if self.answers.contains_key(read) {
            return;
        }
        let mut bytes = OVERHEAD_BYTES;
        let Some(read) = detached_read(read, &mut bytes) else { return };
        let Some(answer) = detached_answer(answer, &mut bytes).filter(|_| bytes <= ANSWER_BYTES_MAX) else {
            return;
        };
        if let (ReadOp::VersionedKeys { range, values: true, .. }, Answer::VersionedKeys(page)) =
            (&read, &answer)
        {
            self.learn_page(range, page);
        }
        self.bytes += bytes;
        self.answers.insert(read, answer);
    }

    /// Learns the keys of a page, and up to which there are no others.
    fn learn_page(&mut self, range: &KeyRange, page: &VersionedKeyPage) {
        let mut covered = range.clone();
        if page.more {
            let Some((last, _)) = page.entries.last() else { return };
            // The least key behind the last one.
            covered.before = Some([last.as_bytes(), &[0]].concat().into());
        }
        for (key, value) in &page.entries {
            // The bytes are those of the answer.
            let value = Value { bytes: value.value.clone(), version: Some(value.version) };
            if self.keys.insert(key.clone(), Some(value)).is_none() {
                self.bytes += OVERHEAD_BYTES;
            }
        }
        if self.ranges.len() >= RANGES_MAX {
            self.ranges.pop_front();
        }
        self.ranges.push_back(covered);
    }
}

/// Returns whether the answer to a read may be kept. Those who are about to change something are for the server to see.
pub(super) fn is_kept(read: &ReadOp) -> bool {
    match read {
        ReadOp::Stat | ReadOp::Key { .. } | ReadOp::Keys { .. } | ReadOp::VersionedKeys { .. } => true,
        ReadOp::VersionedKey { intent, .. } => *intent == Intent::Look,
        _ => false,
    }
}

/// Returns a copy of a read that keeps no buffer in which it was received, and counts its bytes; `None` if its answer is not kept whole.
fn detached_read(read: &ReadOp, bytes: &mut usize) -> Option<ReadOp> {
    *bytes += 64;
    Some(match read {
        ReadOp::Stat => ReadOp::Stat,
        ReadOp::Keys { range, limit, values } => {
            ReadOp::Keys { range: copy_range(range, bytes), limit: *limit, values: *values }
        }
        ReadOp::VersionedKeys { range, limit, values } => {
            ReadOp::VersionedKeys { range: copy_range(range, bytes), limit: *limit, values: *values }
        }
        _ => return None,
    })
}

fn detached_answer(answer: &Answer, bytes: &mut usize) -> Option<Answer> {
    *bytes += 64;
    Some(match answer {
        Answer::Stat(stat) => Answer::Stat(stat.clone()),
        Answer::Keys(page) => {
            let entries = page.entries.iter();
            let entries = entries.map(|(key, value)| Some((copy_key(key, bytes)?, copy(value, bytes))));
            Answer::Keys(KeyPage { entries: entries.collect::<Option<_>>()?, more: page.more })
        }
        Answer::VersionedKeys(page) => {
            let entries = page.entries.iter();
            let entries =
                entries.map(|(key, value)| Some((copy_key(key, bytes)?, copy_versioned(value, bytes))));
            let entries = entries.collect::<Option<_>>()?;
            Answer::VersionedKeys(VersionedKeyPage { entries, more: page.more })
        }
        _ => return None,
    })
}

fn copy(value: &Bytes, bytes: &mut usize) -> Bytes {
    *bytes += value.len() + 48;
    Bytes::copy_from_slice(value)
}

fn copy_key(key: &Key, bytes: &mut usize) -> Option<Key> {
    *bytes += key.as_bytes().len() + 48;
    // It was a key before.
    Key::new(Bytes::copy_from_slice(key.as_bytes())).ok()
}

fn copy_versioned(value: &Versioned, bytes: &mut usize) -> Versioned {
    Versioned { value: copy(&value.value, bytes), version: value.version }
}

fn copy_range(range: &KeyRange, bytes: &mut usize) -> KeyRange {
    let mut bound = |bound: &Option<Bytes>| bound.as_ref().map(|bound| copy(bound, bytes));
    let (after, before) = (bound(&range.after), bound(&range.before));
    KeyRange { after, before, prefix: copy(&range.prefix, bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        name.parse().unwrap()
    }

    fn versioned(value: &str, version: u64) -> Versioned {
        Versioned { value: Bytes::copy_from_slice(value.as_bytes()), version }
    }

    fn page_of(prefix: &str, after: &str) -> ReadOp {
        let after = Some(Bytes::copy_from_slice(after.as_bytes()));
        let range = KeyRange { after, ..KeyRange::prefix(Bytes::copy_from_slice(prefix.as_bytes())) };
        ReadOp::VersionedKeys { range, limit: 2, values: true }
    }

    fn done(version: u64, answers: Vec<Answer>) -> Done {
        Done { version, existed: true, answers }
    }

    /// The knowledge from a page of two keys that begin with `e`, and from a key before them.
    fn known(more: bool) -> Known {
        let entries = vec![(key("eb"), versioned("1", 3)), (key("ed"), versioned("2", 4))];
        let answers = vec![Answer::Value(None), Answer::VersionedKeys(VersionedKeyPage { entries, more })];
        let mut known = Known::default();
        known.learn(&[ReadOp::Key { key: key("c") }, page_of("e", "ea")], &done(7, answers));
        known
    }

    /// Asks for a key with its version.
    fn ask(known: &Known, name: &str) -> Option<Option<Versioned>> {
        let done = known.answer(&[ReadOp::versioned_key(key(name))])?;
        assert_eq!((done.version, done.existed), (7, true));
        match &done.answers[..] {
            [Answer::VersionedValue(value)] => Some(value.clone()),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_page_answers_for_each_of_its_keys_and_for_those_between_that_are_not_there() {
        for more in [false, true] {
            let known = known(more);
            assert_eq!(ask(&known, "eb"), Some(Some(versioned("1", 3))));
            assert_eq!(ask(&known, "ed"), Some(Some(versioned("2", 4))));
            assert_eq!(ask(&known, "ec"), Some(None));
            // In front of the page, and behind it, where there are more.
            assert_eq!(ask(&known, "ea"), None);
            assert_eq!(ask(&known, "eda"), (!more).then_some(None));
            assert_eq!(ask(&known, "f"), None);
            // The same page once more, and several reads in one, of which one is not known.
            assert!(known.answer(&[page_of("e", "ea")]).is_some());
            let reads = [ReadOp::Key { key: key("eb") }, ReadOp::Key { key: key("c") }];
            let answers = vec![Answer::Value(Some("1".into())), Answer::Value(None)];
            assert_eq!(known.answer(&reads), Some(done(7, answers)));
            assert_eq!(known.answer(&[&reads[..], &[ReadOp::Stat]].concat()), None);
        }
    }

    #[test]
    fn a_key_that_was_read_without_its_version_is_no_answer_for_one_with_it() {
        let mut known = Known::default();
        let (plain, with_version) = (ReadOp::Key { key: key("k") }, ReadOp::versioned_key(key("k")));
        known.learn(std::slice::from_ref(&plain), &done(7, vec![Answer::Value(Some("v".into()))]));
        assert!(known.answer(std::slice::from_ref(&plain)).is_some());
        assert_eq!(ask(&known, "k"), None);
        let bytes = known.bytes();
        let answer = Answer::VersionedValue(Some(versioned("v", 5)));
        known.learn(std::slice::from_ref(&with_version), &done(7, vec![answer]));
        assert_eq!(ask(&known, "k"), Some(Some(versioned("v", 5))));
        assert!(known.answer(&[plain]).is_some());
        assert_eq!(known.bytes(), bytes, "it is there once");
    }

    #[test]
    fn everything_is_of_one_version_and_the_latest() {
        let mut known = known(false);
        let read = [ReadOp::Key { key: key("eb") }];
        known.learn(&read, &done(6, vec![Answer::Value(Some("late".into()))]));
        assert_eq!(ask(&known, "eb"), Some(Some(versioned("1", 3))));
        known.learn(&read, &done(8, vec![Answer::Value(Some("new".into()))]));
        assert_eq!(known.answer(&read), Some(done(8, vec![Answer::Value(Some("new".into()))])));
        assert_eq!((known.version(), known.answer(&[ReadOp::Key { key: key("ed") }])), (Some(8), None));
        assert!(known.clear() > 0);
        assert_eq!((known.version(), known.bytes(), known.answer(&read)), (None, 0, None));
    }
}
