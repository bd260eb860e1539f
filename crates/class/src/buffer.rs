//! The byte buffers of a call: `bufferlist` in scripts.

use bytes::Bytes;

/// The number of a buffer in its call.
pub(crate) type BufferId = u32;

#[derive(Debug)]
enum Buffer {
    /// Bytes that others may share: the store's answers, the input.
    Shared(Bytes),
    /// Bytes that were appended to.
    Own(Vec<u8>),
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
            // Just long enough: most buffers are appended to once, and such a list becomes shared bytes as it is.
            let mut own = Vec::with_capacity(shared.len() + bytes.len());
            own.extend_from_slice(shared);
            *buffer = Buffer::Own(own);
        }
        if let Buffer::Own(own) = buffer {
            own.extend_from_slice(bytes);
        }
    }

    /// Returns whether a buffer has its bytes for itself, so that appending copies only what is appended.
    pub fn is_own(&self, id: BufferId) -> bool {
        matches!(self.buffers.get(id as usize), Some(Buffer::Own(_)))
    }

    /// Takes a buffer's bytes out of it.
    pub fn take(&mut self, id: BufferId) -> Bytes {
        let Some(buffer) = self.buffers.get_mut(id as usize) else { return Bytes::new() };
        match std::mem::replace(buffer, Buffer::Shared(Bytes::new())) {
            Buffer::Shared(bytes) => bytes,
            Buffer::Own(bytes) => bytes.into(),
        }
    }

    /// Returns a buffer's bytes, as they are now, shared from now on.
    pub fn freeze(&mut self, id: BufferId) -> Bytes {
        let Some(buffer) = self.buffers.get_mut(id as usize) else { return Bytes::new() };
        if let Buffer::Own(own) = buffer {
            *buffer = Buffer::Shared(std::mem::take(own).into());
        }
        match buffer {
            Buffer::Shared(bytes) => bytes.clone(),
            Buffer::Own(_) => Bytes::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn appending_changes_no_bytes_that_others_have() {
        let mut buffers = Buffers::default();
        let given = Bytes::from_static(b"ab");
        let id = buffers.add(given.clone());
        buffers.append(id, b"c");
        let frozen = buffers.freeze(id);
        buffers.append(id, b"d");
        buffers.append(id, b"e");
        assert_eq!((&given[..], &frozen[..], buffers.get(id)), (&b"ab"[..], &b"abc"[..], &b"abcde"[..]));
        assert_eq!(buffers.take(id), "abcde");
        assert!(buffers.get(id).is_empty() && buffers.take(7).is_empty());
    }
}
