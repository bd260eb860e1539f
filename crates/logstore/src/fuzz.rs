//! Entry points of the fuzz targets: decoders on any bytes, with the checksums out of the way.

use bytes::Bytes;

use crate::record::{self, Binding};
use crate::remains;
use crate::scan::Scan;
use crate::segment::FORMAT_VERSION;
use crate::snapshot;

/// Decodes a body of a record, and walks through the bytes as if they were a segment, in every format.
pub fn record(bytes: &[u8]) {
    let bytes = Bytes::copy_from_slice(bytes);
    for format in 1..=FORMAT_VERSION {
        // The identity begins with the magic number of format 1, so that the fuzzer's corpus serves both.
        let binding = Binding::new(format, b"NREC............", 1);
        let _ = record::decode(&bytes, binding, 0);
        // A head around the bytes, so that its checksum does not hide the body from the fuzzer.
        let mut head = vec![0; record::HEAD_BYTES_MIN];
        head.extend_from_slice(&bytes);
        let stamp = record::Stamp { binding, offset: 128, sequence: 1, synced: 0 };
        record::seal_head(&mut head, 1 << 16, stamp);
        let _ = record::decode(&head.into(), binding, 128);
        let _ = Scan::new(bytes.clone(), binding, 0).count();
    }
}

/// Decodes a snapshot of the index, the sound part of a damaged one, and items of one of its frames.
pub fn snapshot_items(bytes: &[u8]) {
    let store = b"NREC............";
    let _ = snapshot::decode_snapshot(Bytes::copy_from_slice(bytes), store);
    let _ = remains::salvage_snapshot(&Bytes::copy_from_slice(bytes), store);
    let _ = snapshot::decode_items(Bytes::copy_from_slice(bytes));
}
