//! The replies of `extent.lua`.

use bytes::{Buf, Bytes};
use nacre_object::{
    Answer, ByteRange, ErrorKind, Escaped, Extent, ExtentKind, Fork, ForkPage, Found, Guard, Key, KeyPage,
    RangeRead, ReadOp, Refusal, Stat, StoreError, Transaction, Versioned, VersionedKeyPage,
};

use crate::fences;
use crate::name::unescaped;
use crate::record::{
    Author, Changed, ForkRecord, Header, Token, decode_key, decode_key_version, decode_value,
};

/// A call's output.
pub(crate) enum Reply {
    /// A guard did not hold.
    Refused(Refusal),
    /// The answers to the reads, and the header of the object as it stood.
    Answered(Vec<Answer>, Header),
    /// The object would have this many attributes.
    Crowded(u32),
    /// An append would end past the last offset. The fork's size, and the length of what was to be appended.
    TooFar(u64, usize),
    /// The value of this key is not a record of Nacre's.
    Corrupt(Bytes),
    /// The script itself failed.
    Failed(String),
    /// A later version of Nacre wrote the object, in this format.
    Newer(u8),
    /// The call would have taken longer than a call may.
    Exhausted,
    /// The call would have made the object, or removed it, without a mark in the index of names.
    Unindexed,
}

/// Decodes the output of a call that did not change the object, of which it was told that `floor` is what an object shows of
/// which there is no trace. Returns `None` if it is not a reply to the transaction.
pub(crate) fn decode(
    transaction: &Transaction,
    output: Bytes,
    floor: u64,
) -> Option<Result<Reply, StoreError>> {
    let mut text = Decoder(output, floor);
    Some(Ok(match text.u8()? {
        1 => {
            let header = text.header()?;
            let index = text.u32()? as usize;
            let found = match transaction.guards.get(index)? {
                Guard::Exists | Guard::Absent | Guard::Version { .. } => {
                    Found::Object { exists: header.exists }
                }
                Guard::Region { .. } | Guard::Proposal { .. } => Found::Region(text.range()?),
                Guard::Key { key: name, .. } | Guard::Attribute { name, .. } => {
                    let letter =
                        if matches!(transaction.guards[index], Guard::Key { .. }) { b'k' } else { b'a' };
                    match text.entry(name, |stored| decode_value(letter, stored, &header))? {
                        Ok(value) => Found::Value(value),
                        Err(error) => return Some(Err(error)),
                    }
                }
                Guard::Fence { .. } => Found::Fence(header.fence),
                Guard::KeyVersion { .. } => Found::KeyVersion(text.u64()?),
                Guard::Size { .. } => Found::Size(text.u64()?),
            };
            Reply::Refused(Refusal { guard: index, found, version: header.version })
        }
        2 => {
            let header = text.header()?;
            let mut answers = Vec::with_capacity(transaction.reads.len());
            for read in &transaction.reads {
                match text.answer(read, &header)? {
                    Ok(answer) => answers.push(answer),
                    Err(error) => return Some(Err(error)),
                }
            }
            Reply::Answered(answers, header)
        }
        3 => Reply::Crowded(text.u32()?),
        4 => Reply::Corrupt(text.0),
        5 => Reply::Failed(String::from_utf8_lossy(&text.0).into_owned()),
        7 => Reply::Newer(text.u8()?),
        8 => Reply::Exhausted,
        9 => Reply::Unindexed,
        10 => Reply::TooFar(text.u64()?, text.u32()? as usize),
        _ => return None,
    }))
}

/// Decodes the output of a call that changed the object, with the answers that came along: that to the [read of a
/// size](crate::request::SizeRead), if it had one.
pub(crate) fn changed(output: &Bytes, tells_size: bool) -> Option<(Changed, Vec<Answer>)> {
    if !tells_size {
        return Some((Changed::decode(output)?, Vec::new()));
    }
    let (changed, told) = Changed::decode_before(output)?;
    let (size, floor) = told.split_first_chunk::<8>()?;
    let mut version = [0; 8];
    version[..7].copy_from_slice(<&[u8; 7]>::try_from(floor).ok()?);
    let (version, size) = (u64::from_le_bytes(version), u64::from_le_bytes(*size));
    Some((changed, vec![Answer::Range(RangeRead { version, size, ..RangeRead::default() })]))
}

/// Returns the result of a change that the OSD made without saying at which version, from the header that was found, or not
/// found, afterwards. No failure may say that nothing was changed.
pub(crate) fn unsaid(token: &Token, found: Result<Header, StoreError>) -> Result<Changed, StoreError> {
    const WHY: &str = "the OSD made the change without saying at which version";
    match found {
        Ok(header) if header.author == Author::Token(*token) => Ok(Changed::from(&header)),
        Ok(_) => {
            let text = format!("{WHY}, and the object was changed again since");
            Err(StoreError::new(ErrorKind::Unknown, text))
        }
        Err(error) => Err(error.with_kind(ErrorKind::Unknown).context(WHY)),
    }
}

/// Returns the failure of a change that the OSD made without saying what its transaction had read.
pub(crate) fn unread() -> StoreError {
    let text = "the OSD made the change without saying what the transaction had read";
    StoreError::new(ErrorKind::Unknown, text)
}

/// Returns an object at a glance, from its header.
pub(crate) fn stat(header: &Header) -> Stat {
    Stat {
        exists: header.exists,
        version: header.version,
        fence: header.fence,
        forks: header.forks.into(),
        bytes: header.bytes(),
        keys: header.keys.into(),
        attributes: header.attributes.into(),
    }
}

/// Returns the error for an entry that is not one of Nacre's. The caller adds the object.
pub(crate) fn corrupt(key: &[u8]) -> StoreError {
    StoreError::new(ErrorKind::Corrupt, format!("key \"{}\" holds no record of Nacre", Escaped(key)))
}

/// A decoder of a reply, with the floor. Every length is checked before it is used.
struct Decoder(Bytes, u64);

impl Decoder {
    fn u8(&mut self) -> Option<u8> {
        self.0.try_get_u8().ok()
    }

    fn u16(&mut self) -> Option<u16> {
        self.0.try_get_u16_le().ok()
    }

    fn u32(&mut self) -> Option<u32> {
        self.0.try_get_u32_le().ok()
    }

    fn u64(&mut self) -> Option<u64> {
        self.0.try_get_u64_le().ok()
    }

    fn bytes(&mut self, length: usize) -> Option<Bytes> {
        (self.0.len() >= length).then(|| self.0.split_to(length))
    }

    /// Decodes a stored header behind its length, which is zero if there is no trace of the object.
    fn header(&mut self) -> Option<Header> {
        let length = self.u16()?.into();
        let text = self.bytes(length)?;
        if text.is_empty() { Some(Header::absent(self.1)) } else { Header::decode(&text).ok() }
    }

    /// Decodes what is stored under a name, if anything is.
    fn entry<T>(
        &mut self,
        name: &Key,
        decode: impl FnOnce(&Bytes) -> Option<T>,
    ) -> Option<Result<Option<T>, StoreError>> {
        if self.u8()? == 0 {
            return Some(Ok(None));
        }
        let length = self.u32()? as usize;
        let stored = self.bytes(length)?;
        Some(decode(&stored).map(Some).ok_or_else(|| corrupt(name.as_bytes())))
    }

    fn range(&mut self) -> Option<RangeRead> {
        let (version, size, next, count) = (self.u64()?, self.u64()?, self.u64()?, self.u32()?);
        let mut extents = Vec::with_capacity((count as usize).min(self.0.len() / 25));
        for _ in 0..count {
            let (start, end, version, kind) = (self.u64()?, self.u64()?, self.u64()?, self.u8()?);
            let kind = if kind == 1 { ExtentKind::Data } else { ExtentKind::Hole };
            extents.push(Extent { range: ByteRange::from(start..end), version, kind });
        }
        let (from, length, segments) = (self.u64()?, self.u64()?, self.u32()? as usize);
        let mut places = Vec::with_capacity(segments.min(self.0.len() / 12));
        for _ in 0..segments {
            places.push((self.u64()?.checked_sub(from)?, u64::from(self.u32()?)));
        }
        let data = match places[..] {
            // The common case, one segment that is all of the data, is not copied.
            [(0, all)] if all == length => self.bytes(usize::try_from(all).ok()?)?,
            _ => {
                if length > nacre_object::limit::REPLY_BYTES_MAX as u64 {
                    return None;
                }
                let mut data = vec![0; length as usize];
                for (at, length) in places {
                    let (at, length) = (usize::try_from(at).ok()?, length as usize);
                    data.get_mut(at..at.checked_add(length)?)?.copy_from_slice(&self.bytes(length)?);
                }
                data.into()
            }
        };
        Some(RangeRead { data, extents, version, size, next: (next != u64::MAX).then_some(next) })
    }

    fn answer(&mut self, read: &ReadOp, header: &Header) -> Option<Result<Answer, StoreError>> {
        Some(Ok(match read {
            ReadOp::Range { .. } | ReadOp::Extents { .. } => Answer::Range(self.range()?),
            ReadOp::Stat => Answer::Stat(stat(header)),
            ReadOp::Forks { .. } => {
                let (count, more) = (self.u32()?, self.u8()? != 0);
                let mut page = ForkPage { entries: Vec::new(), more };
                for _ in 0..count {
                    let length = self.u16()?.into();
                    let key = self.bytes(length)?;
                    let length = self.u16()?.into();
                    let value = self.bytes(length)?;
                    let name = key.get(1..).and_then(unescaped).and_then(|name| Fork::new(name).ok());
                    let size = ForkRecord::decode(&key, &value).and_then(|record| record.size);
                    let Some(entry) = name.zip(size) else { return Some(Err(corrupt(&key))) };
                    page.entries.push(entry);
                }
                Answer::Forks(page)
            }
            ReadOp::Key { key: name } | ReadOp::Attribute { name } => {
                let letter = if matches!(read, ReadOp::Key { .. }) { b'k' } else { b'a' };
                let found = self.entry(name, |stored| decode_value(letter, stored, header))?;
                return Some(found.map(Answer::Value));
            }
            ReadOp::VersionedKey { key, .. } => {
                let found = self.entry(key, |stored| decode_key(stored, header))?;
                return Some(found.map(Answer::VersionedValue));
            }
            ReadOp::Keys { values, .. } => {
                let found = self.key_page(|stored| value_of(b'k', *values, stored, header))?;
                return Some(found.map(|(entries, more)| Answer::Keys(KeyPage { entries, more })));
            }
            ReadOp::Attributes => {
                let found = self.key_page(|stored| value_of(b'a', true, stored, header))?;
                return Some(found.map(|(entries, more)| Answer::Keys(KeyPage { entries, more })));
            }
            ReadOp::VersionedKeys { values, .. } => {
                let found = self.key_page(|stored| versioned_of(*values, stored, header))?;
                return Some(
                    found.map(|(entries, more)| Answer::VersionedKeys(VersionedKeyPage { entries, more })),
                );
            }
            ReadOp::Fences => {
                let length = self.u32()? as usize;
                let record = Some(self.bytes(length)?).filter(|record| !record.is_empty());
                let found = fences::decode(header, record.as_ref());
                return Some(found.map(Answer::Fences).ok_or_else(|| corrupt(fences::KEY)));
            }
        }))
    }

    /// Decodes a page of keys or attributes, each with what `decode` makes of its entry; tells whether there are more.
    fn key_page<T>(&mut self, decode: impl Fn(&Bytes) -> Option<T>) -> Option<Result<Page<T>, StoreError>> {
        let (count, more) = (self.u32()?, self.u8()? != 0);
        let mut entries = Vec::new();
        for _ in 0..count {
            let length = self.u16()?.into();
            let key = self.bytes(length)?;
            let length = self.u32()? as usize;
            let stored = self.bytes(length)?;
            let name = key.get(1..).and_then(unescaped).and_then(|name| Key::new(name).ok());
            let Some(entry) = name.zip(decode(&stored)) else { return Some(Err(corrupt(&key))) };
            entries.push(entry);
        }
        Some(Ok((entries, more)))
    }
}

/// A page of keys or attributes, and whether there are more.
pub(crate) type Page<T> = (Vec<(Key, T)>, bool);

/// Returns the value of an entry, or nothing of it where values are not asked for; `None` if it is unsound.
pub(crate) fn value_of(letter: u8, values: bool, stored: &Bytes, header: &Header) -> Option<Bytes> {
    if values { decode_value(letter, stored, header) } else { Some(Bytes::new()) }
}

/// Returns the version of a key's entry, with its value if values are asked for; `None` if it is unsound.
pub(crate) fn versioned_of(values: bool, stored: &Bytes, header: &Header) -> Option<Versioned> {
    if values {
        return decode_key(stored, header);
    }
    let version = decode_key_version(stored, header)?;
    Some(Versioned { value: Bytes::new(), version })
}

#[cfg(test)]
mod tests {
    use nacre_object::{Fences, KeyRange};
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    fn transaction() -> Transaction {
        let key = Key::try_from("k").unwrap();
        Transaction::new()
            .read_range(Fork::DEFAULT, ByteRange::new(0, 8))
            .read(ReadOp::Stat)
            .read(ReadOp::Forks { after: None, limit: 9 })
            .read(ReadOp::Key { key })
            .read(ReadOp::Keys { range: KeyRange::all(), limit: 9, values: true })
            .read(ReadOp::VersionedKeys { range: KeyRange::all(), limit: 9, values: false })
            .read(ReadOp::Fences)
    }

    /// Returns an answer of the class to that request.
    fn output() -> Vec<u8> {
        let header = Header {
            exists: true,
            version: 3,
            tail: 8,
            live: 8,
            forks: 1,
            size_low: 8,
            keys: 1,
            unversioned: 1,
            sessions: 2,
            ..Header::default()
        };
        let value = crate::record::encode_key(b"red", 2);
        let mut out = vec![2, 92, 0];
        out.extend(header.encode());
        out.extend([3_u64, 8, u64::MAX].iter().flat_map(|number| number.to_le_bytes()));
        out.extend(1_u32.to_le_bytes());
        out.extend([0_u64, 8, 3].iter().flat_map(|number| number.to_le_bytes()));
        out.push(1);
        out.extend([0_u64, 8].iter().flat_map(|number| number.to_le_bytes()));
        out.extend(1_u32.to_le_bytes());
        out.extend(0_u64.to_le_bytes());
        out.extend(8_u32.to_le_bytes());
        out.extend(b"eight by");
        // No forks, then the value of a key, then a page with that key.
        out.extend([0; 5]);
        out.push(1);
        out.extend((value.len() as u32).to_le_bytes());
        out.extend(&value);
        out.extend([1, 0, 0, 0, 0]);
        out.extend([2, 0]);
        out.extend(b"kk");
        out.extend((value.len() as u32).to_le_bytes());
        out.extend(&value);
        // The same with its version alone, and two fenced sessions.
        out.extend([1, 0, 0, 0, 0]);
        out.extend([2, 0]);
        out.extend(b"kk");
        out.extend(17_u32.to_le_bytes());
        out.extend(&value[..17]);
        let sessions = fences::encode(&[5, 9]);
        out.extend((sessions.len() as u32).to_le_bytes());
        out.extend(sessions);
        out
    }

    #[test]
    fn a_reply_is_taken_apart() {
        let Some(Ok(Reply::Answered(answers, header))) = decode(&transaction(), output().into(), 0) else {
            panic!("not an answer");
        };
        assert_eq!((answers.len(), header.version), (7, 3));
        let Answer::Range(range) = &answers[0] else { panic!("not a range") };
        assert_eq!(&range.data[..], b"eight by");
        assert_eq!(answers[3], Answer::Value(Some("red".into())));
        let Answer::VersionedKeys(page) = &answers[5] else { panic!("not a page of keys with versions") };
        assert_eq!(page.entries[0].1, Versioned { value: Bytes::new(), version: 2 });
        assert_eq!(answers[6], Answer::Fences(Fences { fence: 0, sessions: vec![5, 9] }));
    }

    #[test]
    fn a_size_comes_with_a_change_or_the_output_is_none() {
        let change = [&[1_u8][..], &9_u64.to_le_bytes(), &[0; 8]].concat();
        let whole = [&change[..], &5_u64.to_le_bytes(), &7_u64.to_le_bytes()[..7]].concat();
        let (made, answers) = changed(&Bytes::copy_from_slice(&whole), true).unwrap();
        assert_eq!((made.exists, made.version), (true, 9));
        let read = RangeRead { version: 7, size: 5, ..RangeRead::default() };
        assert_eq!(answers, [Answer::Range(read)]);
        assert_eq!(changed(&change.into(), false), Some((made, Vec::new())));
        for end in 0..whole.len() {
            assert_eq!(changed(&Bytes::copy_from_slice(&whole[..end]), true), None, "cut at {end}");
        }
        assert_eq!(changed(&[&whole[..], &[0]].concat().into(), true), None, "too long");
        assert_eq!(changed(&whole.into(), false), None);
    }

    #[test]
    fn a_change_without_an_answer_is_never_said_not_to_have_been_made() {
        let token = [7; 16];
        let header = Header { exists: true, version: 3, author: Author::Token(token), ..Header::default() };
        assert_eq!(unsaid(&token, Ok(header)), Ok(Changed::from(&header)));
        let other = Header { author: Author::Token([8; 16]), ..header };
        assert_eq!(unsaid(&token, Ok(other)).unwrap_err().kind, ErrorKind::Unknown);
        for kind in [ErrorKind::Unavailable, ErrorKind::Io, ErrorKind::Corrupt, ErrorKind::Closed] {
            let error = unsaid(&token, Err(StoreError::new(kind, "no answer"))).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Unknown);
            assert!(error.message.contains("made the change") && error.message.contains("no answer"));
        }
    }

    #[test]
    fn replies_that_are_cut_or_changed_never_panic() {
        let (whole, transaction, seed) = (output(), transaction(), rand::random());
        let mut random = StdRng::seed_from_u64(seed);
        println!("seed {seed}");
        for end in 0..whole.len() {
            assert!(decode(&transaction, Bytes::copy_from_slice(&whole[..end]), 0).is_none(), "cut at {end}");
        }
        for _ in 0..50_000 {
            let mut bytes = whole.clone();
            for _ in 0..random.random_range(1..6) {
                let at = random.random_range(0..bytes.len());
                bytes[at] = if random.random() {
                    random.random()
                } else {
                    [0, 1, 0x7f, 0xff][random.random_range(0..4)]
                };
            }
            if random.random() {
                bytes.truncate(random.random_range(0..=bytes.len()));
            }
            drop(decode(&transaction, bytes.into(), 0));
        }
    }
}
