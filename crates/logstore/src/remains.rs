//! The sound part of a damaged snapshot of the index.

use bytes::Bytes;
use nacre_object::ObjectId;

use crate::binding::FrameBinding;
use crate::codec::{crc32c, flipped_bit};
use crate::node::Node;
use crate::snapshot::{
    FRAME_BYTES_MAX, FRAME_END, FRAME_HEAD_BYTES, Loader, SnapshotHeader, decode_frame, decode_frame_1,
};

/// The sound part of a damaged snapshot.
#[derive(Default)]
pub struct SalvagedSnapshot {
    /// Its header.
    pub header: Option<SnapshotHeader>,
    /// The ends of the segments before its position, in bytes.
    pub segment_ends: Vec<(u32, u64)>,
    /// The objects that are complete.
    pub objects: Vec<(ObjectId, Node)>,
    /// The objects of which a part is missing.
    pub broken: Vec<ObjectId>,
    /// True if nothing at all is missing.
    pub whole: bool,
}

/// Reads the sound part of a snapshot: the objects that no unsound frame has a part of. A frame in which a single
/// flipped bit explains everything that is wrong counts as sound.
pub fn salvage_snapshot(bytes: &Bytes, store: &[u8; 16]) -> SalvagedSnapshot {
    let binding = FrameBinding::new(store);
    let magic = bytes.first_chunk().map_or(0, |word| u32::from_le_bytes(*word));
    let layout = if (magic ^ binding.magic()).count_ones() <= 1 { Layout::Two(binding) } else { Layout::One };
    let mut loader = Loader::default();
    let items = items_said(bytes, binding);
    let mut offset = 0;
    let mut whole = true;
    while offset < bytes.len() {
        let frame = decode_frame(bytes, offset, binding)
            .or_else(|| decode_frame_1(bytes, offset))
            .or_else(|| layout.corrected(bytes, offset));
        if let Some((kind, body, next)) = frame
            && loader.frame(kind, body).is_some()
        {
            offset = next;
            continue;
        }
        // Behind all items only padding can be damaged.
        if items.is_none_or(|items| items != loader.items) {
            whole = false;
            loader.break_off();
        }
        match next_frame(bytes, offset, binding) {
            Some(next) => offset = next,
            None => break,
        }
    }
    loader.finish_fork();
    if !loader.ended {
        loader.break_off();
    }
    if loader.is_broken {
        loader.objects.pop();
    }
    SalvagedSnapshot {
        header: loader.header,
        segment_ends: loader.segment_ends,
        objects: loader.objects,
        broken: loader.broken,
        whole: whole && loader.ended,
    }
}

/// Returns the number of items of a snapshot, by its last frame.
fn items_said(bytes: &Bytes, binding: FrameBinding) -> Option<u64> {
    let at = bytes.len().checked_sub(FRAME_HEAD_BYTES as usize + size_of::<u64>())?;
    match decode_frame(bytes, at, binding)? {
        (FRAME_END, body, _) => body.first_chunk().map(|items| u64::from_le_bytes(*items)),
        _ => None,
    }
}

/// The layout of a snapshot's frames.
#[derive(Clone, Copy)]
enum Layout {
    /// The layout of format 1.
    One,
    /// The layout of format 2.
    Two(FrameBinding),
}

impl Layout {
    /// Decodes a frame that is unsound by one bit.
    fn corrected(self, bytes: &Bytes, at: usize) -> Option<(u8, Bytes, usize)> {
        let rest = bytes.get(at..)?;
        let word = |at: usize| rest.get(at..)?.first_chunk().map(|word| u32::from_le_bytes(*word));
        // What the CRC covers begins with the length in format 2, behind it in format 1.
        let (magic_flips, mask, len_at, head_bytes) = match self {
            Self::One => (0, 0, 0, 8),
            Self::Two(binding) => ((word(0)? ^ binding.magic()).count_ones(), binding.mask(at as u64), 8, 12),
        };
        let (len, crc) = (word(len_at)?, word(4)? ^ mask);
        let flips = std::iter::once(len).chain((0..32).map(|bit| len ^ 1 << bit));
        flips.enumerate().find_map(|(flipped, len)| {
            if len == 0 || len as usize > FRAME_BYTES_MAX {
                return None;
            }
            let mut frame = rest.get(..head_bytes + len as usize)?.to_vec();
            frame[len_at..len_at + 4].copy_from_slice(&len.to_le_bytes());
            let difference = crc32c(&frame[8..]) ^ crc;
            let found = match (flipped > 0, magic_flips, difference) {
                (true, 0, 0) | (false, 0 | 1, 0) => true,
                (false, 0, difference) if difference.count_ones() == 1 => true,
                (false, 0, difference) => {
                    let bit = flipped_bit(frame.len() - 8, difference)?;
                    frame[8 + bit / 8] ^= 1 << (bit % 8);
                    true
                }
                _ => false,
            };
            let (body, next) = (head_bytes + 1, at + frame.len());
            found.then(|| (frame[body - 1], Bytes::from(frame).slice(body..), next))
        })
    }
}

/// Returns the beginning of the next sound frame behind one that is not.
fn next_frame(bytes: &Bytes, at: usize, binding: FrameBinding) -> Option<usize> {
    // What the unsound one says of its length may be right; in format 1 there is nothing else to go by.
    let word = |at: usize| bytes.get(at..)?.first_chunk().map(|word| u32::from_le_bytes(*word) as usize);
    let by_length = [word(at + 8).map(|len| at + 12 + len), word(at).map(|len| at + 8 + len)];
    let sound = |next: usize| {
        decode_frame(bytes, next, binding).is_some()
            || next < bytes.len() && decode_frame_1(bytes, next).is_some()
    };
    let found = by_length.into_iter().flatten().find(|next| sound(*next));
    found.or_else(|| {
        let magic = binding.magic().to_le_bytes();
        let mut starts = bytes[at..].windows(magic.len()).enumerate().skip(1);
        starts.find_map(|(skipped, window)| {
            let next = at + skipped;
            (window == magic && decode_frame(bytes, next, binding).is_some()).then_some(next)
        })
    })
}
