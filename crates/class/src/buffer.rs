//! The byte buffers of a call: `bufferlist` in scripts.

use bytes::{Bytes, BytesMut};

/// The number of a buffer in its call.
pub(crate) type BufferId = u32;

#[derive(Debug)]
enum Buffer {
    /// Bytes that others may share: the store's answers, the input.
    Shared(Bytes),
    /// Bytes that were appended to.
    Own(BytesMut),
}

/// The memory that a buffer takes in the list, which grows by doubling, in bytes.
pub(crate) const BUFFER_BYTES: usize = 2 * size_of::<Buffer>();

/// The buffers of one call. They go with it, so scripts need no finalizers.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    buffers: Vec<Buffer>,
}

impl Buffers {
    /// Adds a buffer.
    pub fn add(&mut self, bytes: Bytes) -> BufferId {
        self.buffers.push(Buffer::Shared(bytes));
        // Each buffer costs at least a userdata's memory, which is bounded far below 2^32 of them.
        (self.buffers.len() - 1) as BufferId
    }

    /// Returns a buffer's bytes; none for a number that no buffer has.
    pub fn get(&self, id: BufferId) -> &[u8] {
        match self.buffers.get(id as usize) {
            Some(Buffer::Shared(bytes)) => bytes,
            Some(Buffer::Own(bytes)) => bytes,
            None => &[],
        }
    }

    /// Appends bytes to a buffer.
    pub fn append(&mut self, id: BufferId, bytes: &[u8]) {
        let Some(buffer) = self.buffers.get_mut(id as usize) else { return };
        if let Buffer::Shared(shared) = buffer {
            *buffer = Buffer::Own(BytesMut::from(&shared[..]));
        }
        if let Buffer::Own(own) = buffer {
            own.extend_from_slice(bytes);
        }
    }

    /// Returns whether a buffer has its bytes for itself, so that appending copies only what is appended.
    pub fn is_own(&self, id: BufferId) -> bool {
        matches!(self.buffers.get(id as usize), Some(Buffer::Own(_)))
    }

    /// Returns a buffer's bytes, as they are now, shared from now on.
    pub fn freeze(&mut self, id: BufferId) -> Bytes {
        let Some(buffer) = self.buffers.get_mut(id as usize) else { return Bytes::new() };
        if let Buffer::Own(own) = buffer {
            *buffer = Buffer::Shared(std::mem::take(own).freeze());
        }
        match buffer {
            Buffer::Shared(bytes) => bytes.clone(),
            Buffer::Own(_) => Bytes::new(),
        }
    }
}
