//! Striped byte streams: their geometry, which object holds which byte, and the record of what they consist of.

pub mod record;

use std::ops::Range;

use crate::ByteRange;

/// The way in which a stream's bytes are dealt out to objects: stripes of `unit_bytes` go round `width` objects until each
/// of them holds `object_bytes`, then round the next `width` ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    /// The length of a stripe in bytes.
    pub unit_bytes: u32,
    /// The number of objects that are written side by side.
    pub width: u32,
    /// The maximum number of bytes in an object, a multiple of the stripe's length.
    pub object_bytes: u64,
}

impl Default for Layout {
    fn default() -> Self {
        Self { unit_bytes: 1 << 20, width: 4, object_bytes: 64 << 20 }
    }
}

/// A piece of a byte range of a stream: what one object holds of it, without a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The number of the object.
    pub object: u64,
    /// The range in the object.
    pub offset: u64,
    /// The length in bytes.
    pub len: u64,
    /// The offset in the stream.
    pub at: u64,
}

impl Layout {
    /// Returns the layout with smaller objects, and stripes that fit in them, where a store lets an object have `object_bytes_max` bytes
    /// only: half as many as that at most, since what is overwritten may take as much again until it is compacted.
    pub fn within(self, object_bytes_max: u64) -> Self {
        let most = object_bytes_max / 2;
        let unit = u64::from(self.unit_bytes).min(most).max(4096) / 4096 * 4096;
        let object_bytes = (self.object_bytes.min(most) / unit).max(1) * unit;
        // Stripes do not get longer, unless they were shorter than any may be.
        Self { unit_bytes: unit as u32, object_bytes, ..self }
    }

    /// Returns whether the layout can be used.
    pub fn is_sound(&self) -> bool {
        (4096..=16 << 20).contains(&self.unit_bytes)
            && (1..=1024).contains(&self.width)
            && self.object_bytes.is_multiple_of(self.unit_bytes.into())
            && (1..=1 << 40).contains(&self.object_bytes)
    }

    /// Returns the place of a byte of a stream: the number of its object, the offset there, and the number of bytes that
    /// follow in the same stripe, itself counted.
    fn place(&self, at: u64) -> (u64, u64, u64) {
        let (unit, width) = (u64::from(self.unit_bytes), u64::from(self.width));
        let round_bytes = width * self.object_bytes;
        let (round, inside) = (at / round_bytes, at % round_bytes);
        let stripe = inside / unit;
        let offset = stripe / width * unit + inside % unit;
        (round * width + stripe % width, offset, unit - inside % unit)
    }

    /// Cuts a range of a stream into pieces, in ascending order.
    pub fn pieces(&self, offset: u64, len: u64) -> impl Iterator<Item = Piece> + use<> {
        let layout = *self;
        let end = offset.saturating_add(len);
        let mut at = offset;
        std::iter::from_fn(move || {
            let left = end.checked_sub(at).filter(|left| *left > 0)?;
            let (object, offset, rest) = layout.place(at);
            let piece = Piece { object, offset, len: rest.min(left), at };
            at += piece.len;
            Some(piece)
        })
    }

    /// Returns the number of objects, from the first one on, that streams up to a size are in.
    pub fn objects(&self, size: u64) -> u64 {
        let Some(last) = size.checked_sub(1) else { return 0 };
        let (unit, width) = (u64::from(self.unit_bytes), u64::from(self.width));
        let round_bytes = width * self.object_bytes;
        let in_last_round = (last % round_bytes / unit + 1).min(width);
        last / round_bytes * width + in_last_round
    }

    /// Returns the numbers, of the first `objects` objects, of those in whose rounds bytes from one offset to another are.
    pub fn objects_behind(&self, objects: u64, from: u64, to: u64) -> Range<u64> {
        let Some(last) = to.checked_sub(1).filter(|last| from <= *last) else { return 0..0 };
        let width = u64::from(self.width);
        let round_bytes = width * self.object_bytes;
        let end = objects.min((last / round_bytes + 1) * width);
        (from / round_bytes * width).min(end)..end
    }

    /// Returns the range of an object that holds bytes of a stream from one offset to another and no byte before that; what
    /// lies behind the stream in between is no loss. `None` if there is none.
    pub fn region_behind(&self, object: u64, from: u64, to: u64) -> Option<ByteRange> {
        let width = u64::from(self.width);
        let round_bytes = width * self.object_bytes;
        let round_begin = object / width * round_bytes;
        let begin = self.first_behind(object % width, from.saturating_sub(round_begin));
        let end = match to >= round_begin + round_bytes {
            true => self.object_bytes,
            false => self.first_behind(object % width, to.saturating_sub(round_begin)),
        };
        (begin < end).then(|| ByteRange::from(begin..end))
    }

    /// Returns the offset in an object of a round, the `column`th, of the first byte of it that is not before `inside`.
    fn first_behind(&self, column: u64, inside: u64) -> u64 {
        let (unit, width) = (u64::from(self.unit_bytes), u64::from(self.width));
        let (row, rest) = (inside / (unit * width), inside % (unit * width));
        row * unit + rest.saturating_sub(column * unit).min(unit)
    }
}
