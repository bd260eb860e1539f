//! Entry points of the fuzz targets: nothing panics, whatever the bytes are.

use bytes::{Bytes, BytesMut};
use nacre_rpc::{Frame, Kind, Outbox};

use crate::role::authority::Authority;
use crate::role::record;
use crate::wire;

/// Decodes bytes as a message of a rank, whose kind is the first byte, and as its records. What is decoded stays the same when
/// it is encoded and decoded again.
pub fn wire(bytes: &[u8]) {
    if let Some(record) = record::decode(bytes) {
        assert_eq!(record::decode(&record::encode(&record)), Some(record));
    }
    if let Some(authority) = Authority::decode(bytes) {
        assert_eq!(Authority::decode(&authority.encode()), Some(authority));
    }
    let Some((code, body)) = bytes.split_first() else { return };
    let (kind, body) = (Kind::new(wire::META, *code), Bytes::copy_from_slice(body));
    let _ = wire::get_attach(&body);
    let _ = wire::get_attached(&body);
    let _ = wire::get_moved(&body);
    if let Ok(revoked) = wire::get_revoked(&body) {
        assert_eq!(wire::get_revoked(&wire::revoked(&revoked)), Ok(revoked));
    }
    if let Ok(reply) = wire::get_reply(kind, &body) {
        let frame = frame(|outbox| wire::put_reply(outbox, 1, &reply));
        assert_eq!(frame.map(|frame| wire::get_reply(frame.kind, &frame.body)), Some(Ok(reply)));
    }
    if let Ok((id, call)) = wire::get_call(kind, &body) {
        let frame = frame(|outbox| wire::put_call(outbox, 1, &id, &call));
        assert_eq!(frame.map(|frame| wire::get_call(frame.kind, &frame.body)), Some(Ok((id, call))));
    }
}

fn frame(put: impl FnOnce(&mut Outbox)) -> Option<Frame> {
    let (mut outbox, mut bytes) = (Outbox::default(), BytesMut::new());
    put(&mut outbox);
    outbox.copy_to(&mut bytes);
    nacre_rpc::frame::take(&mut bytes).ok().flatten()
}
