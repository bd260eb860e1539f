//! The bytes of a map in its object: header, entries, settings and records of epochs. `docs/map.md` has the layout.
//!
//! All numbers are little-endian. Each value begins with its format's version. What does not decode to its last byte is
//! refused, and what decodes encodes to the same bytes again.

use bytes::Bytes;
use nacre_object::{ErrorKind, Key, StoreError};

use crate::limit::*;
use crate::state::{Change, Header, Incarnation, Limits, Old, Record, Space, Updated, Value};
use crate::update::UpdateId;
use crate::validator::Validator;

/// The version of all formats.
const FORMAT: u8 = 1;

/// Bytes that are read from front to back.
pub(crate) struct Reader<'a> {
    subject: &'static str,
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Begins to read a value whose first byte is the version of its format.
    pub(crate) fn begin(subject: &'static str, bytes: &'a [u8]) -> Result<Self, StoreError> {
        let mut reader = Self { subject, rest: bytes };
        match reader.u8()? {
            FORMAT => Ok(reader),
            version => Err(reader.wrong(format_args!("it has format {version}, of a newer program"))),
        }
    }

    pub(crate) fn wrong(&self, why: impl std::fmt::Display) -> StoreError {
        StoreError::new(ErrorKind::Corrupt, format!("{} cannot be read: {why}", self.subject))
    }

    pub(crate) fn take(&mut self, count: usize) -> Result<&'a [u8], StoreError> {
        let Some((taken, rest)) = self.rest.split_at_checked(count) else {
            return Err(self.wrong("it ends too early"));
        };
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], StoreError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, StoreError> {
        Ok(self.array::<1>()?[0])
    }

    pub(crate) fn u32(&mut self) -> Result<u32, StoreError> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, StoreError> {
        self.array().map(u64::from_le_bytes)
    }

    fn flag(&mut self) -> Result<bool, StoreError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(self.wrong(format_args!("{other} is neither yes nor no"))),
        }
    }

    /// Reads a length of at most `max`, and as many bytes.
    pub(crate) fn bytes(&mut self, max: usize) -> Result<&'a [u8], StoreError> {
        let len = self.u32()? as usize;
        if len > max {
            return Err(self.wrong(format_args!("{len} bytes where at most {max} may be")));
        }
        self.take(len)
    }

    pub(crate) fn text(&mut self, max: usize) -> Result<String, StoreError> {
        let bytes = self.bytes(max)?;
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(text.to_owned()),
            Err(error) => Err(self.wrong(error)),
        }
    }

    pub(crate) fn end(self) -> Result<(), StoreError> {
        match self.rest.len() {
            0 => Ok(()),
            more => Err(self.wrong(format_args!("{more} bytes follow its end"))),
        }
    }
}

/// Begins a value with the version of its format.
pub(crate) fn begin(capacity: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(capacity + 1);
    out.push(FORMAT);
    out
}

pub(crate) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    // Everything that is encoded is bounded far below 4 GiB.
    out.extend((bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(bytes);
}

/// Encodes a header.
pub(crate) fn encode_header(header: &Header) -> Bytes {
    let mut out = begin(56);
    out.extend(header.incarnation.0);
    for number in [header.epoch, header.version, header.oldest, header.entries, header.bytes] {
        out.extend(number.to_le_bytes());
    }
    out.into()
}

/// Decodes a header.
pub(crate) fn decode_header(bytes: &[u8]) -> Result<Header, StoreError> {
    let mut reader = Reader::begin("the header of a map", bytes)?;
    let header = Header {
        incarnation: Incarnation(reader.array()?),
        epoch: reader.u64()?,
        version: reader.u64()?,
        oldest: reader.u64()?,
        entries: reader.u64()?,
        bytes: reader.u64()?,
    };
    let is_beyond = header.epoch.max(header.version) > u64::MAX >> 1;
    if header.epoch == 0 || header.oldest == 0 || header.oldest > header.epoch || is_beyond {
        return Err(reader.wrong("its epochs cannot be"));
    }
    reader.end()?;
    Ok(header)
}

/// Encodes the value of an entry or a setting.
pub(crate) fn encode_value(value: &Value) -> Bytes {
    let mut out = begin(16 + value.value.len());
    out.extend(value.version.to_le_bytes());
    out.extend(value.epoch.to_le_bytes());
    out.extend_from_slice(&value.value);
    out.into()
}

/// Decodes the value of an entry or a setting.
pub(crate) fn decode_value(bytes: &Bytes) -> Result<Value, StoreError> {
    let mut reader = Reader::begin("an entry of a map", bytes)?;
    let (version, epoch) = (reader.u64()?, reader.u64()?);
    let len = reader.rest.len();
    if len > VALUE_BYTES_MAX {
        return Err(reader.wrong(format_args!("its value has {len} bytes")));
    }
    Ok(Value { value: bytes.slice(bytes.len() - len..), version, epoch })
}

/// Returns the number of bytes that a change takes in a record.
pub(crate) fn change_bytes(change: &Change) -> usize {
    let old = change.old.as_ref().map_or(0, |old| 20 + old.value.len());
    let new = change.new.as_ref().map_or(0, |new| 4 + new.len());
    1 + 4 + change.name.as_bytes().len() + 8 + 1 + old + 1 + new
}

/// Returns the number of bytes that an update takes in a record, without its changes.
pub(crate) fn updated_bytes(author: &str) -> usize {
    16 + 4 + author.len() + 4
}

/// The bytes of a record without updates.
pub(crate) const RECORD_HEAD_BYTES: usize = 1 + 8 + 8 + 4;

/// Encodes the record of an epoch.
pub(crate) fn encode_record(record: &Record) -> Bytes {
    let mut out = begin(256);
    out.extend(record.epoch.to_le_bytes());
    out.extend(record.created_ms.to_le_bytes());
    out.extend((record.updates.len() as u32).to_le_bytes());
    for update in &record.updates {
        out.extend(update.id.0);
        put_bytes(&mut out, update.author.as_bytes());
        out.extend((update.changes.len() as u32).to_le_bytes());
        for change in &update.changes {
            out.push(change.space as u8);
            put_bytes(&mut out, change.name.as_bytes());
            out.extend(change.version.to_le_bytes());
            out.push(change.old.is_some().into());
            if let Some(old) = &change.old {
                out.extend(old.version.to_le_bytes());
                out.extend(old.epoch.to_le_bytes());
                put_bytes(&mut out, &old.value);
            }
            out.push(change.new.is_some().into());
            if let Some(new) = &change.new {
                put_bytes(&mut out, new);
            }
        }
    }
    out.into()
}

/// Decodes the record of an epoch.
pub(crate) fn decode_record(bytes: &Bytes) -> Result<Record, StoreError> {
    let mut reader = Reader::begin("the record of an epoch", bytes)?;
    let (epoch, created_ms) = (reader.u64()?, reader.u64()?);
    let count = reader.u32()? as usize;
    if count > UPDATES_PER_EPOCH_MAX {
        return Err(reader.wrong(format_args!("{count} updates")));
    }
    let mut updates = Vec::with_capacity(count);
    for _ in 0..count {
        let id = UpdateId(reader.array()?);
        let author = reader.text(AUTHOR_BYTES_MAX)?;
        let count = reader.u32()? as usize;
        if count > CHANGES_MAX {
            return Err(reader.wrong(format_args!("{count} changes in one update")));
        }
        let mut changes = Vec::with_capacity(count.min(reader.rest.len() / 16));
        for _ in 0..count {
            changes.push(decode_change(&mut reader, bytes)?);
        }
        updates.push(Updated { id, author, changes });
    }
    reader.end()?;
    Ok(Record { epoch, created_ms, updates })
}

fn decode_change(reader: &mut Reader<'_>, all: &Bytes) -> Result<Change, StoreError> {
    let space = match reader.u8()? {
        0 => Space::Entry,
        1 => Space::Setting,
        other => return Err(reader.wrong(format_args!("{other} is not a space of names"))),
    };
    let name = Key::new(all.slice_ref(reader.bytes(ENTRY_NAME_BYTES_MAX)?))?;
    let version = reader.u64()?;
    let old = match reader.flag()? {
        true => {
            let (version, epoch) = (reader.u64()?, reader.u64()?);
            Some(Old { value: all.slice_ref(reader.bytes(VALUE_BYTES_MAX)?), version, epoch })
        }
        false => None,
    };
    let new = match reader.flag()? {
        true => Some(all.slice_ref(reader.bytes(VALUE_BYTES_MAX)?)),
        false => None,
    };
    Ok(Change { space, name, version, old, new })
}

/// Encodes a map's limits.
pub(crate) fn encode_limits(limits: &Limits) -> Bytes {
    let mut out = begin(24);
    for number in [limits.history, limits.entries, limits.bytes] {
        out.extend(number.to_le_bytes());
    }
    out.into()
}

/// Decodes a map's limits.
pub(crate) fn decode_limits(bytes: &[u8]) -> Result<Limits, StoreError> {
    let mut reader = Reader::begin("the limits of a map", bytes)?;
    let limits = Limits { history: reader.u64()?, entries: reader.u64()?, bytes: reader.u64()? };
    limits.check().map_err(|why| reader.wrong(why))?;
    reader.end()?;
    Ok(limits)
}

/// Encodes a validator.
pub(crate) fn encode_validator(validator: &Validator) -> Bytes {
    let mut out = begin(64 + validator.text.len());
    put_bytes(&mut out, &validator.prefix);
    put_bytes(&mut out, validator.text.as_bytes());
    out.into()
}

/// Decodes a validator.
pub(crate) fn decode_validator(bytes: &Bytes) -> Result<Validator, StoreError> {
    let mut reader = Reader::begin("a validator of a map", bytes)?;
    let prefix = bytes.slice_ref(reader.bytes(ENTRY_NAME_BYTES_MAX)?);
    let text = reader.text(VALIDATOR_BYTES_MAX)?;
    reader.end()?;
    Ok(Validator { prefix, text })
}

/// Decodes bytes as every kind of value, and checks that what decodes encodes to the same bytes: for the fuzz target.
pub fn fuzz(bytes: &[u8]) {
    let bytes = Bytes::copy_from_slice(bytes);
    let same = |again: Bytes| assert_eq!(again, bytes);
    let _ = decode_header(&bytes).map(|header| same(encode_header(&header)));
    let _ = decode_value(&bytes).map(|value| same(encode_value(&value)));
    let _ = decode_record(&bytes).map(|record| same(encode_record(&record)));
    let _ = decode_limits(&bytes).map(|limits| same(encode_limits(&limits)));
    let _ = decode_validator(&bytes).map(|validator| same(encode_validator(&validator)));
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    fn record() -> Record {
        let old = Old { value: Bytes::from_static(b"one"), version: 3, epoch: 2 };
        let name = |name: &str| name.parse::<Key>().unwrap();
        let set = Change {
            space: Space::Entry,
            name: name("a"),
            version: 4,
            old: Some(old),
            new: Some("two".into()),
        };
        let gone = Change { space: Space::Setting, name: name("limits"), version: 5, old: None, new: None };
        let author = "ada".to_owned();
        let updates = vec![Updated { id: UpdateId([7; 16]), author, changes: vec![set, gone] }];
        Record { epoch: 9, created_ms: 1000, updates }
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn the_formats_are_what_they_were() {
        let header = Header {
            incarnation: Incarnation([1; 16]),
            epoch: 2,
            version: 3,
            oldest: 1,
            entries: 4,
            bytes: 5,
        };
        let numbers = "0200000000000000030000000000000001000000000000000400000000000000".to_owned()
            + "0500000000000000";
        assert_eq!(hex(&encode_header(&header)), format!("01{}{numbers}", "01".repeat(16)));
        let value = Value { value: "v".into(), version: 3, epoch: 2 };
        assert_eq!(hex(&encode_value(&value)), "010300000000000000020000000000000076");
        let limits = Limits { history: 1, entries: 2, bytes: 3 };
        assert_eq!(hex(&encode_limits(&limits)), "01010000000000000002000000000000000300000000000000");
        let validator = Validator { prefix: "p".into(), text: "t".to_owned() };
        assert_eq!(hex(&encode_validator(&validator)), "0101000000700100000074");
        let update = format!("{}0300000061646102000000", "07".repeat(16));
        let set = "0001000000610400000000000000010300000000000000020000000000000003000000\
                   6f6e65010300000074776f";
        let gone = "01060000006c696d69747305000000000000000000";
        let head = "010900000000000000e80300000000000001000000";
        assert_eq!(hex(&encode_record(&record())), format!("{head}{update}{set}{gone}"));
    }

    #[test]
    fn a_record_takes_as_many_bytes_as_are_counted_for_it() {
        let record = record();
        let update = &record.updates[0];
        let counted = RECORD_HEAD_BYTES
            + updated_bytes(&update.author)
            + update.changes.iter().map(change_bytes).sum::<usize>();
        assert_eq!(encode_record(&record).len(), counted);
    }

    #[test]
    fn what_is_damaged_is_refused_or_reads_as_what_it_is() {
        let seed = std::env::var("NACRE_SEED").ok().map_or_else(rand::random, |text| text.parse().unwrap());
        println!("NACRE_SEED={seed}");
        let mut random = StdRng::seed_from_u64(seed);
        let header = Header {
            incarnation: Incarnation([1; 16]),
            epoch: 2,
            version: 3,
            oldest: 1,
            entries: 4,
            bytes: 5,
        };
        let sound = [
            encode_header(&header),
            encode_record(&record()),
            encode_value(&Value { value: "v".into(), version: 3, epoch: 2 }),
            encode_limits(&Limits::default()),
            encode_validator(&Validator { prefix: "p".into(), text: "text".to_owned() }),
        ];
        sound.iter().for_each(|bytes| fuzz(bytes));
        for _ in 0..50_000 {
            let mut bytes = sound[random.random_range(0..sound.len())].to_vec();
            for _ in 0..random.random_range(1..4) {
                let at = random.random_range(0..bytes.len());
                match random.random_range(0..4) {
                    0 => bytes[at] = random.random(),
                    1 => bytes.truncate(at.max(1)),
                    2 => bytes.insert(at, random.random()),
                    _ => bytes[at] ^= 1 << random.random_range(0..8),
                }
            }
            fuzz(&bytes);
            crate::log::fuzz(&bytes);
        }
        assert!(decode_record(&encode_record(&record()).slice(1..)).is_err());
        let mut newer = encode_header(&header).to_vec();
        newer[0] = 2;
        assert!(decode_header(&newer).unwrap_err().message.contains("newer program"));
    }
}
