//! What the fuzz targets run: decoders on any bytes, with the checksums out of the way.

use bytes::Bytes;

use crate::record;
use crate::scan::Scan;
use crate::snapshot;

/// Decodes a body of a record, and walks through the bytes as if they were a segment.
pub fn record(bytes: &[u8]) {
    let bytes = Bytes::copy_from_slice(bytes);
    let _ = record::decode(&bytes, 1);
    // A head around the bytes, so that its checksum does not hide the body from the fuzzer.
    let mut head = vec![0; record::HEAD_BYTES_MIN];
    head.extend_from_slice(&bytes);
    record::seal_head(&mut head, 1 << 16, record::Stamp { segment: 1, sequence: 1, synced: 0 });
    let _ = record::decode(&head.into(), 1);
    let _ = Scan::new(bytes, 1, 0).count();
}

/// Decodes items of the index.
pub fn snapshot_items(bytes: &[u8]) {
    let _ = snapshot::decode_snapshot(Bytes::copy_from_slice(bytes));
    let _ = snapshot::decode_items(Bytes::copy_from_slice(bytes));
}
