//! Numbers and byte strings as they stand in the store and on the wire: little-endian, with bounded lengths.

use bytes::Bytes;
use nacre_object::{ErrorKind, StoreError};

/// Bytes that are read from front to back.
#[derive(Debug)]
pub struct Reader<'a> {
    subject: &'static str,
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Creates a reader; `subject` names the value in errors.
    pub fn new(subject: &'static str, bytes: &'a [u8]) -> Self {
        Self { subject, rest: bytes }
    }

    /// Creates a reader of a value whose first byte is the version of its format, which must be `format`.
    ///
    /// # Errors
    /// `Corrupt` if it is another one.
    pub fn begin(subject: &'static str, format: u8, bytes: &'a [u8]) -> Result<Self, StoreError> {
        let mut reader = Self::new(subject, bytes);
        match reader.u8()? {
            found if found == format => Ok(reader),
            found => Err(reader.wrong(format_args!("it has format {found}, of another program"))),
        }
    }

    /// Creates a reader of a value whose first byte is the version of its format, which must be 1 to `newest`. Returns that version
    /// too.
    ///
    /// # Errors
    /// `Corrupt` if it is another one.
    pub fn begin_up_to(subject: &'static str, newest: u8, bytes: &'a [u8]) -> Result<(Self, u8), StoreError> {
        let mut reader = Self::new(subject, bytes);
        match reader.u8()? {
            found if (1..=newest).contains(&found) => Ok((reader, found)),
            found => Err(reader.wrong(format_args!("it has format {found}, of another program"))),
        }
    }

    /// Returns the error of a value that cannot be read.
    pub fn wrong(&self, why: impl std::fmt::Display) -> StoreError {
        StoreError::new(ErrorKind::Corrupt, format!("{} cannot be read: {why}", self.subject))
    }

    /// Reads `count` bytes.
    pub fn take(&mut self, count: usize) -> Result<&'a [u8], StoreError> {
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

    /// Reads a byte.
    pub fn u8(&mut self) -> Result<u8, StoreError> {
        Ok(self.array::<1>()?[0])
    }

    /// Reads a number of 4 bytes.
    pub fn u32(&mut self) -> Result<u32, StoreError> {
        self.array().map(u32::from_le_bytes)
    }

    /// Reads a number of 8 bytes.
    pub fn u64(&mut self) -> Result<u64, StoreError> {
        self.array().map(u64::from_le_bytes)
    }

    /// Reads a signed number of 8 bytes.
    pub fn i64(&mut self) -> Result<i64, StoreError> {
        self.array().map(i64::from_le_bytes)
    }

    /// Reads a byte that is 0 or 1.
    pub fn flag(&mut self) -> Result<bool, StoreError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(self.wrong(format_args!("{other} is neither yes nor no"))),
        }
    }

    /// Reads a count of at most `max`.
    pub fn count(&mut self, max: usize) -> Result<usize, StoreError> {
        let count = self.u32()? as usize;
        if count > max {
            return Err(self.wrong(format_args!("a count of {count} where at most {max} may be")));
        }
        Ok(count)
    }

    /// Reads a length of at most `max`, and as many bytes.
    pub fn bytes(&mut self, max: usize) -> Result<Bytes, StoreError> {
        let len = self.count(max)?;
        self.take(len).map(Bytes::copy_from_slice)
    }

    /// Reads a length of at most `max`, and as many bytes of text.
    pub fn text(&mut self, max: usize) -> Result<String, StoreError> {
        let len = self.count(max)?;
        match std::str::from_utf8(self.take(len)?) {
            Ok(text) => Ok(text.to_owned()),
            Err(error) => Err(self.wrong(error)),
        }
    }

    /// Checks that everything was read.
    pub fn end(self) -> Result<(), StoreError> {
        match self.rest.len() {
            0 => Ok(()),
            more => Err(self.wrong(format_args!("{more} bytes follow its end"))),
        }
    }
}

/// Bytes that are written from front to back.
#[derive(Debug, Default)]
pub struct Writer(Vec<u8>);

impl Writer {
    /// Creates an empty writer.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a writer of a value that begins with the version of its format.
    pub fn begin(format: u8) -> Self {
        Self(vec![format])
    }

    /// Writes a byte.
    pub fn u8(&mut self, number: u8) -> &mut Self {
        self.0.push(number);
        self
    }

    /// Writes a number of 4 bytes.
    pub fn u32(&mut self, number: u32) -> &mut Self {
        self.0.extend(number.to_le_bytes());
        self
    }

    /// Writes a number of 8 bytes.
    pub fn u64(&mut self, number: u64) -> &mut Self {
        self.0.extend(number.to_le_bytes());
        self
    }

    /// Writes a signed number of 8 bytes.
    pub fn i64(&mut self, number: i64) -> &mut Self {
        self.0.extend(number.to_le_bytes());
        self
    }

    /// Writes yes or no.
    pub fn flag(&mut self, flag: bool) -> &mut Self {
        self.u8(flag.into())
    }

    /// Writes a count.
    pub fn count(&mut self, count: usize) -> &mut Self {
        // Everything that is encoded is bounded far below 4 Gi.
        self.u32(count as u32)
    }

    /// Writes bytes, after their length.
    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.count(bytes.len());
        self.0.extend_from_slice(bytes);
        self
    }

    /// Returns what was written.
    pub fn finish(&mut self) -> Bytes {
        std::mem::take(&mut self.0).into()
    }
}
