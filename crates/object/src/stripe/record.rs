//! The record of a stream: an attribute of its head that says which contents the stream has.

use std::hash::{BuildHasher, RandomState};
use std::time::SystemTime;

use bytes::Bytes;

use super::Layout;
use crate::limit::OFFSET_MAX;
use crate::{Check, ErrorKind, Found, Guard, Key, ObjectId, StoreError};

/// The attribute of the head that holds the record.
pub const RECORD: &str = "nacre.stream";
/// The prefix of the ids of the objects that hold the bytes of streams.
pub const PREFIX: &str = "nacre/stream/";
/// The maximum number of contents of a stream: the present one, those under way, those to be removed.
pub const CONTENTS_MAX: usize = 16;

/// The state of a content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It is the stream's.
    Present,
    /// It is being put.
    Pending,
    /// Its objects are to be removed.
    Dead,
}

/// One content, in objects of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Content {
    /// Its number: random, so that no other content of any stream has it.
    pub number: u128,
    /// The way in which its bytes are dealt out to its objects.
    pub layout: Layout,
    /// Its state.
    pub state: State,
    /// The number of objects, from the first one on, that may exist.
    pub objects: u64,
    /// The size in bytes.
    pub size: u64,
    /// The greatest size that it ever had.
    pub reached: u64,
    /// The time at which its writer last said that it goes on, in seconds.
    pub alive_at: u64,
    /// The number of objects, from the first one on, that were all written: none of them is missing.
    pub dense: u64,
    /// A hash of the id of the head that it was begun for; 0 if that was not noted.
    pub owner: u64,
}

/// The record of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// False as long as the first content is being put: there is no stream yet.
    pub created: bool,
    /// The layout of the next content.
    pub layout: Layout,
    /// All contents that have objects, or may have.
    pub contents: Vec<Content>,
}

/// The condition that an object is no stream: it has no record, or one that says that there is no stream yet.
#[derive(Clone, Debug)]
pub struct NoStream {
    name: Key,
    /// The record as it was last found.
    record: Option<Bytes>,
}

impl NoStream {
    /// Creates the condition for an object of which no record is known.
    ///
    /// # Errors
    /// Those of a name of an attribute, which this one does not have.
    pub fn new() -> Result<NoStream, StoreError> {
        Ok(NoStream { name: Key::try_from(RECORD)?, record: None })
    }

    /// Returns the guard for the next attempt at a transaction.
    pub fn guard(&self) -> Guard {
        let check = self.record.clone().map_or(Check::Absent, Check::Equal);
        Guard::Attribute { name: self.name.clone(), check }
    }

    /// Handles a refusal by the guard. The transaction is to be tried again with the next one.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if the object is a stream.
    pub fn refused(&mut self, found: Found) -> Result<(), StoreError> {
        self.record = match found {
            Found::Value(record) => record,
            _ => None,
        };
        match self.record.as_deref().map(Record::decode) {
            None | Some(Some(Record { created: false, .. })) => Ok(()),
            // A record that cannot be read may be that of a newer version.
            Some(_) => {
                let text = "it is a stream, and stays as it is: store the content as a stream, or remove the stream first";
                Err(StoreError::new(ErrorKind::Invalid, text))
            }
        }
    }
}

/// The format without `dense` and `owner`. Records to which these say nothing are written in it still.
const FORMAT_PLAIN: u8 = 1;
const FORMAT: u8 = 2;
const RECORD_HEAD_BYTES: usize = 3 + LAYOUT_BYTES;
const LAYOUT_BYTES: usize = 16;
const PLAIN_CONTENT_BYTES: usize = 16 + LAYOUT_BYTES + 1 + 4 * 8;
const CONTENT_BYTES: usize = PLAIN_CONTENT_BYTES + 2 * 8;

impl Record {
    /// Encodes the record.
    pub fn encode(&self) -> Bytes {
        let plain = self.contents.iter().all(|content| (content.dense, content.owner) == (0, 0));
        let format = if plain { FORMAT_PLAIN } else { FORMAT };
        let mut out = vec![format, u8::from(self.created), self.contents.len() as u8];
        encode_layout(&self.layout, &mut out);
        for content in &self.contents {
            out.extend(content.number.to_le_bytes());
            encode_layout(&content.layout, &mut out);
            out.push(content.state as u8);
            for number in [content.objects, content.size, content.reached, content.alive_at] {
                out.extend(number.to_le_bytes());
            }
            if !plain {
                out.extend(content.dense.to_le_bytes());
                out.extend(content.owner.to_le_bytes());
            }
        }
        out.into()
    }

    /// Decodes a record; `None` if it is none of a known format.
    pub fn decode(record: &[u8]) -> Option<Record> {
        let (head, rest) = record.split_at_checked(RECORD_HEAD_BYTES)?;
        let &[format, created @ 0..=1, count, ref layout @ ..] = head else { return None };
        let len = match format {
            FORMAT_PLAIN => PLAIN_CONTENT_BYTES,
            FORMAT => CONTENT_BYTES,
            _ => return None,
        };
        let contents =
            rest.chunks(len).map(|bytes| decode_content(bytes, len)).collect::<Option<Vec<_>>>()?;
        let present = contents.iter().filter(|content| content.state == State::Present).count();
        let sound = contents.len() == usize::from(count) && count as usize <= CONTENTS_MAX && present <= 1;
        sound.then_some(Record { created: created == 1, layout: decode_layout(layout)?, contents })
    }

    /// Returns the present content.
    pub fn present(&self) -> Option<&Content> {
        self.contents.iter().find(|content| content.state == State::Present)
    }

    /// Returns the size of the stream in bytes.
    pub fn size(&self) -> u64 {
        self.present().map_or(0, |content| content.size)
    }

    /// Returns a content that is not dead, to be changed.
    pub fn content_mut(&mut self, number: u128) -> Option<&mut Content> {
        self.contents.iter_mut().find(|content| content.number == number && content.state != State::Dead)
    }

    /// Takes the present content away: its objects are to be removed.
    pub fn bury_present(&mut self) {
        for content in self.contents.iter_mut().filter(|content| content.state == State::Present) {
            content.state = State::Dead;
        }
    }

    /// Adds a content of the stream with a head.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] if there are [`CONTENTS_MAX`] already.
    pub fn begin(&mut self, head: &ObjectId, state: State) -> Result<Content, StoreError> {
        if self.contents.len() >= CONTENTS_MAX {
            let text =
                format!("{CONTENTS_MAX} contents of it are being put, or were left by writers that died");
            return Err(StoreError::new(ErrorKind::Busy, text));
        }
        let half = |salt: u8| u128::from(RandomState::new().hash_one(salt));
        let number = half(0) << 64 | half(1);
        let (layout, owner) = (self.layout, hash(head));
        let content = Content {
            number,
            layout,
            state,
            objects: 0,
            size: 0,
            reached: 0,
            alive_at: now(),
            dense: 0,
            owner,
        };
        self.contents.push(content);
        Ok(content)
    }
}

fn encode_layout(layout: &Layout, out: &mut Vec<u8>) {
    out.extend(layout.unit_bytes.to_le_bytes());
    out.extend(layout.width.to_le_bytes());
    out.extend(layout.object_bytes.to_le_bytes());
}

fn decode_layout(bytes: &[u8]) -> Option<Layout> {
    let (unit_bytes, rest) = bytes.split_first_chunk()?;
    let (width, rest) = rest.split_first_chunk()?;
    let (unit_bytes, width) = (u32::from_le_bytes(*unit_bytes), u32::from_le_bytes(*width));
    let object_bytes = u64::from_le_bytes(*rest.first_chunk()?);
    Some(Layout { unit_bytes, width, object_bytes }).filter(Layout::is_sound)
}

fn decode_content(bytes: &[u8], len: usize) -> Option<Content> {
    if bytes.len() != len {
        return None;
    }
    let (number, rest) = bytes.split_first_chunk()?;
    let (layout, rest) = rest.split_at_checked(LAYOUT_BYTES)?;
    let (state, rest) = rest.split_first()?;
    let state = match state {
        0 => State::Present,
        1 => State::Pending,
        2 => State::Dead,
        _ => return None,
    };
    let (numbers, _) = rest.as_chunks::<8>();
    let number_at = |at: usize| numbers.get(at).map(|bytes| u64::from_le_bytes(*bytes));
    let [objects, size, reached, alive_at] = [number_at(0)?, number_at(1)?, number_at(2)?, number_at(3)?];
    let [dense, owner] = [4, 5].map(|at| number_at(at).unwrap_or(0));
    let layout = decode_layout(layout)?;
    // Whatever is within the size has an object, and no byte lies behind the greatest size.
    let sound = size <= reached && reached <= OFFSET_MAX && objects >= layout.objects(size);
    let number = u128::from_le_bytes(*number);
    let content = Content { number, layout, state, objects, size, reached, alive_at, dense, owner };
    (sound && dense <= objects).then_some(content)
}

/// Returns the time in seconds, as records note it.
pub fn now() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_secs()
}

/// Returns the hash of a head's id, which is never 0.
fn hash(head: &ObjectId) -> u64 {
    xxhash_rust::xxh3::xxh3_64(head.as_bytes()).max(1)
}

impl Content {
    /// Returns the prefix of the ids of its objects.
    pub fn prefix(&self) -> String {
        format!("{PREFIX}{:032x}/", self.number)
    }

    /// Returns the id of one of its objects.
    pub fn object(&self, index: u64) -> ObjectId {
        // It has at least one byte and far fewer than an id may have.
        ObjectId::new(format!("{}{index:016x}", self.prefix())).expect("an id of a few dozen bytes")
    }

    /// Returns whether it was begun for another head, from which the record was copied: its objects belong to that one.
    pub fn is_foreign(&self, head: &ObjectId) -> bool {
        self.owner != 0 && self.owner != hash(head)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(state: State) -> Content {
        let layout = Layout { unit_bytes: 4096, width: 3, object_bytes: 8192 };
        Content {
            number: 7 << 64 | 9,
            layout,
            state,
            objects: 5,
            size: 30_000,
            reached: 40_000,
            alive_at: 11,
            dense: 0,
            owner: 0,
        }
    }

    #[test]
    fn the_record_is_pinned() {
        let contents = vec![content(State::Present), content(State::Dead)];
        let record = Record { created: true, layout: Layout::default(), contents };
        let text = record.encode();
        let hex: String = text.iter().take(84).map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(
            hex,
            "010102000010000400000000000004000000000900000000000000070000000000000000100000030000000020000000000000\
             000500000000000000307500000000000040\
             9c0000000000000b00000000000000"
        );
        assert_eq!(Record::decode(&text), Some(record));
    }

    #[test]
    fn a_record_with_owners_is_pinned() {
        let owned = Content { dense: 4, owner: hash(&"a".try_into().unwrap()), ..content(State::Present) };
        let contents = vec![owned, content(State::Dead)];
        let record = Record { created: true, layout: Layout::default(), contents };
        let text = record.encode();
        let hex: String = text.iter().take(100).map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(
            hex,
            "020102000010000400000000000004000000000900000000000000070000000000000000100000030000000020000000000000\
             000500000000000000307500000000000040\
             9c0000000000000b0000000000000004000000000000001f4e961eb632c6e6"
        );
        assert_eq!(Record::decode(&text), Some(record));
    }

    #[test]
    fn what_is_no_record_is_refused_and_never_panics() {
        for owner in [0, 77] {
            let pending = Content { owner, ..content(State::Pending) };
            refuses_damage(&Record { created: false, layout: Layout::default(), contents: vec![pending] });
        }
    }

    fn refuses_damage(sound: &Record) {
        let whole = sound.encode();
        for end in 0..whole.len() {
            assert_eq!(Record::decode(&whole[..end]), None, "cut at {end}");
        }
        assert_eq!(Record::decode(&[&whole[..], &[0]].concat()), None);
        // Two present contents, a size behind what was reached, more bytes than objects.
        let two = Record { contents: vec![content(State::Present); 2], ..sound.clone() };
        assert_eq!(Record::decode(&two.encode()), None);
        for wrong in [
            Content { size: 50_000, ..content(State::Present) },
            Content { objects: 1, ..content(State::Present) },
            Content { reached: u64::MAX, ..content(State::Present) },
            Content { dense: 6, ..content(State::Present) },
        ] {
            let record = Record { contents: vec![wrong], ..sound.clone() };
            assert_eq!(Record::decode(&record.encode()), None, "{wrong:?}");
        }
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        for _ in 0..20_000 {
            let mut bytes = whole.to_vec();
            for _ in 0..3 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let at = (state >> 33) as usize % bytes.len();
                bytes[at] = (state >> 24) as u8;
            }
            if let Some(record) = Record::decode(&bytes) {
                assert!(record.layout.is_sound() && record.contents.len() <= CONTENTS_MAX);
            }
        }
    }
}
