//! The window of a store's latest writes, by which repetitions are recognised.
//!
//! Every write with a token has a position: the number of such writes before it. The window keeps the latest ones in a
//! ring of fixed size, 34 bytes each. Looking up a token happens only when a client repeats a write, so there is no index
//! that each write would have to keep in order. It goes through the tags of all writes, two bytes each, many at a time:
//! a few microseconds, whoever asks and however often. The tags are keyed, so nobody can choose tokens that share one.
//!
//! Invariants:
//! - the entry with position `p` stands at `p` modulo the capacity, or was overwritten by a later one;
//! - every write with a position from [`Window::begin`] on is in the window, except those that are being inserted by
//!   others at the moment: who looks a token up must hold the lock of its object.

use std::hash::{BuildHasher, RandomState};

use crate::once::{WRITER_BYTES, WriteToken};

/// The number of writes that a window keeps at most, unless its store is small.
pub const WINDOW_WRITES_MAX: usize = 65_536;

/// The latest writes of a store.
#[derive(Clone, Debug)]
pub struct Window {
    /// The ring; shorter than its capacity as long as it was never full.
    ring: Vec<Entry>,
    /// The tag of each entry.
    tags: Vec<u16>,
    /// The key of the tags.
    key: [u64; 3],
    capacity: usize,
    /// The position from which on the window is complete, if none was overwritten.
    since: u64,
    /// The position behind the last write.
    end: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    writer: [u8; WRITER_BYTES],
    /// The number of the write, times two, plus one if the object existed before it.
    number: u64,
    /// The version of the write; 0 where there is no entry.
    version: u64,
}

const EMPTY: Entry = Entry { writer: [0; WRITER_BYTES], number: 0, version: 0 };

/// The number of tags that are compared before there is a look at the result: so it is done without a branch for each.
const TAGS_AT_ONCE: usize = 64;

/// A write that took effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// Its token.
    pub token: WriteToken,
    /// The version that was stamped on it.
    pub version: u64,
    /// True if the object existed before it.
    pub existed: bool,
}

/// The knowledge that a window has of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recall {
    /// A write that was applied.
    Applied {
        /// The version that was stamped on it.
        version: u64,
        /// True if the object existed before it.
        existed: bool,
    },
    /// A write that was not applied.
    New,
    /// The window does not go back far enough to tell.
    Unknown,
}

impl Window {
    /// Creates an empty window for the writes from position `since` on, which keeps at most `capacity` of them, at least
    /// one.
    pub fn new(capacity: usize, since: u64) -> Self {
        let random = RandomState::new();
        let key = [0, 1, 2].map(|number| random.hash_one(number));
        let (ring, tags) = (Vec::new(), Vec::new());
        Self { ring, tags, key, capacity: capacity.max(1), since, end: since }
    }

    /// Returns the tag of a token.
    fn tag(&self, token: &WriteToken) -> u16 {
        let writer = u128::from_le_bytes(token.writer);
        let product = |left: u64, right: u64| {
            let product = u128::from(left) * u128::from(right);
            product as u64 ^ (product >> 64) as u64
        };
        let writer = product(writer as u64 ^ self.key[0], (writer >> 64) as u64 ^ self.key[1]);
        (product(writer ^ token.sequence, self.key[2] | 1) >> 48) as u16
    }

    /// Adds a write. Positions may come out of order.
    pub fn insert(&mut self, position: u64, token: &WriteToken, version: u64, existed: bool) {
        if self.end > position.saturating_add(self.capacity as u64) {
            // A later write has taken its place already.
            return;
        }
        if self.ring.capacity() == 0 {
            // In one piece, so that no write has to wait for the ring to be moved. Its pages cost nothing until they
            // are used.
            self.ring.reserve_exact(self.capacity);
            self.tags.reserve_exact(self.capacity);
        }
        let at = (position % self.capacity as u64) as usize;
        if at >= self.ring.len() {
            self.ring.resize(at + 1, EMPTY);
            self.tags.resize(at + 1, 0);
        }
        let number = token.sequence << 1 | u64::from(existed);
        self.ring[at] = Entry { writer: token.writer, number, version };
        self.tags[at] = self.tag(token);
        self.end = self.end.max(position + 1);
    }

    /// Looks up a write of which every attempt was sent when the window's position was at least `since`.
    pub fn recall(&self, token: &WriteToken, since: u64) -> Recall {
        let begin = self.begin();
        // All of the window, not only what is behind `since`: a position that a store told before it lost its latest
        // writes may be greater than that of a write which came later.
        // What is older than that may still be in the ring; it is certain too.
        match self.find(token) {
            Some(Entry { number, version, .. }) => {
                Recall::Applied { version: *version, existed: number & 1 == 1 }
            }
            None if since >= begin => Recall::New,
            None => Recall::Unknown,
        }
    }

    /// Returns the entry of a token.
    fn find(&self, token: &WriteToken) -> Option<&Entry> {
        let tag = self.tag(token);
        let (blocks, rest) = self.tags.as_chunks::<TAGS_AT_ONCE>();
        let holds = |block: &[u16]| block.iter().fold(0, |held, other| held | u16::from(*other == tag)) != 0;
        let holding = blocks.iter().enumerate().filter(|(_, block)| holds(*block));
        let holding = holding.flat_map(|(index, _)| index * TAGS_AT_ONCE..(index + 1) * TAGS_AT_ONCE);
        let rest = self.tags.len() - rest.len()..self.tags.len();
        holding.chain(rest).map(|at| &self.ring[at]).find(|entry| {
            entry.number >> 1 == token.sequence && entry.writer == token.writer && entry.version > 0
        })
    }

    /// Returns the latest writes before position `end`, at most `most`, with the position of the first: what
    /// [`Window::recover`] takes. No write before that position may still be on its way into the window.
    pub fn latest(&self, end: u64, most: usize) -> (u64, Vec<Written>) {
        let end = end.min(self.end);
        let first = self.begin().max(end.saturating_sub(most as u64)).min(end);
        let entry = |position: u64| self.ring[(position % self.capacity as u64) as usize];
        let written = |entry: Entry| Written {
            token: WriteToken { writer: entry.writer, sequence: entry.number >> 1 },
            version: entry.version,
            existed: entry.number & 1 == 1,
        };
        (first, (first..end).map(entry).map(written).collect())
    }

    /// Adds writes from position `first` on, which may be from before those that are there. The window goes back to
    /// `first` then, if there is nothing missing between.
    pub fn recover(&mut self, first: u64, writes: &[Written]) {
        let end = first + writes.len() as u64;
        if first < self.since && end >= self.since {
            self.since = first;
            self.end = self.end.max(end);
        }
        for (position, write) in (first..).zip(writes) {
            self.insert(position, &write.token, write.version, write.existed);
        }
    }

    /// Returns the position of the oldest write that is certain to be in the window.
    pub fn begin(&self) -> u64 {
        self.since.max(self.end.saturating_sub(self.capacity as u64))
    }

    /// Returns the position behind the last write.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Returns the memory that the window takes, in bytes.
    pub fn held_bytes(&self) -> usize {
        self.ring.capacity() * size_of::<Entry>() + self.tags.capacity() * size_of::<u16>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(sequence: u64) -> WriteToken {
        WriteToken { writer: *b"a writer's name.", sequence }
    }

    fn applied(version: u64, existed: bool) -> Recall {
        Recall::Applied { version, existed }
    }

    #[test]
    fn writes_are_recalled_until_others_take_their_places() {
        let mut window = Window::new(4, 100);
        assert_eq!(window.recall(&token(1), 100), Recall::New);
        assert_eq!(window.recall(&token(1), 99), Recall::Unknown, "from before the window");
        for number in 0..4 {
            window.insert(100 + number, &token(number), number + 1, number > 0);
        }
        assert_eq!(window.recall(&token(0), 100), applied(1, false));
        assert_eq!(window.recall(&token(3), 100), applied(4, true));
        assert_eq!(window.recall(&token(3), 50), applied(4, true), "what is found is certain");
        assert_eq!(window.recall(&token(0), 200), applied(1, false), "before the position that is named");
        let other = WriteToken { writer: [7; 16], sequence: 3 };
        assert_eq!(window.recall(&other, 100), Recall::New, "another writer's number");
        window.insert(104, &token(4), 5, true);
        assert_eq!((window.begin(), window.end()), (101, 105));
        assert_eq!(window.recall(&token(0), 100), Recall::Unknown, "it was overwritten");
        assert_eq!(window.recall(&token(9), 100), Recall::Unknown);
        assert_eq!(window.recall(&token(9), 101), Recall::New);
        assert_eq!(window.recall(&token(1), 101), applied(2, true));
    }

    #[test]
    fn writes_of_many_writers_are_told_apart() {
        let mut window = Window::new(1000, 0);
        let of = |number: u64| {
            let mut writer = [7; WRITER_BYTES];
            writer[15] = (number % 3) as u8;
            WriteToken { writer, sequence: number / 3 }
        };
        for number in 0..2500 {
            window.insert(number, &of(number), number + 1, number % 2 == 0);
        }
        for number in 0..4000 {
            let expected = match number {
                0..1500 => Recall::Unknown,
                1500..2500 => applied(number + 1, number % 2 == 0),
                _ => Recall::New,
            };
            let since = number.min(2500);
            assert_eq!(window.recall(&of(number), since), expected, "{number}");
        }
    }

    #[test]
    fn positions_may_come_out_of_order() {
        let mut window = Window::new(3, 7);
        for position in [9, 7, 8, 11, 10] {
            window.insert(position, &token(position), position, false);
        }
        for position in 9..12 {
            assert_eq!(window.recall(&token(position), 9), applied(position, false));
        }
        // One that comes so late that its place is taken.
        window.insert(8, &token(8), 8, false);
        assert_eq!(window.recall(&token(11), 9), applied(11, false));
        assert_eq!(window.recall(&token(8), 8), Recall::Unknown);
    }

    #[test]
    fn a_window_goes_on_where_another_one_ended() {
        let mut before = Window::new(8, 0);
        for number in 0..20 {
            before.insert(number, &token(number), number + 1, number % 2 == 0);
        }
        let (first, writes) = before.latest(18, 4);
        assert_eq!((first, writes.len()), (14, 4));
        assert_eq!(before.latest(18, 100).0, 12, "what was overwritten is gone");
        assert_eq!(before.latest(0, 5), (0, vec![]));
        let mut after = Window::new(8, 17);
        after.insert(17, &token(17), 18, false);
        after.insert(18, &token(18), 19, true);
        after.recover(first, &writes);
        assert_eq!((after.begin(), after.end()), (14, 19));
        assert_eq!(after.recall(&token(14), 14), applied(15, true));
        assert_eq!(after.recall(&token(99), 14), Recall::New);
        assert_eq!(after.recall(&token(99), 13), Recall::Unknown);
        // Something is missing between: what is known of it is found, and nothing more is certain.
        let mut apart = Window::new(8, 18);
        apart.recover(first, &writes[..2]);
        assert_eq!((apart.begin(), apart.end()), (18, 18));
        assert_eq!(apart.recall(&token(99), 14), Recall::Unknown);
    }

    #[test]
    fn the_memory_is_bounded() {
        let mut window = Window::new(WINDOW_WRITES_MAX, 1 << 60);
        assert_eq!(window.held_bytes(), 0);
        for number in 0..3 * WINDOW_WRITES_MAX as u64 {
            window.insert((1 << 60) + number, &token(number), number + 1, true);
        }
        assert_eq!(window.held_bytes(), 34 * WINDOW_WRITES_MAX);
        assert_eq!(window.begin(), (1 << 60) + 2 * WINDOW_WRITES_MAX as u64);
    }
}
