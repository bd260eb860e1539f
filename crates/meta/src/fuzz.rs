//! Entry points of the fuzz targets: nothing panics, whatever the bytes are.

use bytes::{Bytes, BytesMut};
use nacre_rpc::{Frame, MessageKind, Outbox};

use crate::directory::Entry;
use crate::fragment::Bounds;
use crate::inode::Inode;
use crate::intent;
use crate::quota::{Record, Used};
use crate::role::authority::Authority;
use crate::role::{pin, record};
use crate::wire;

/// Decodes bytes as a message of a rank, whose kind is the first byte, and as its records. What is decoded stays the same when
/// it is encoded and decoded again.
pub fn wire(bytes: &[u8]) {
    if let Some(record) = record::decode(bytes) {
        assert_eq!(record::decode(&record::encode(&record)), Some(record));
    }
    let _ = pin::decode(bytes);
    if let Some(authority) = Authority::decode(bytes) {
        assert_eq!(Authority::decode(&authority.encode()), Some(authority));
    }
    let Some((code, body)) = bytes.split_first() else { return };
    let (kind, body) = (MessageKind::new(wire::META, *code), Bytes::copy_from_slice(body));
    let _ = wire::get_attach(&body);
    let _ = wire::get_attached(&body);
    let _ = wire::get_moved(&body);
    if let Ok(introduction) = wire::get_introduction(&body) {
        let frame = frame(|outbox| wire::put_introduction(outbox, 1, &introduction));
        assert_eq!(frame.map(|frame| wire::get_introduction(&frame.body)), Some(Ok(introduction)));
    }
    if let Ok(load) = wire::get_load(&body) {
        let frame = frame(|outbox| wire::put_load(outbox, 1, &load));
        assert_eq!(frame.map(|frame| wire::get_load(&frame.body)), Some(Ok(load)));
    }
    if let Ok(revoked) = wire::get_revoked(&body) {
        assert_eq!(wire::get_revoked(&wire::revoked(&revoked)), Ok(revoked));
    }
    if let Ok(moving) = wire::get_moving(&body) {
        assert_eq!(wire::get_moving(&wire::moving(&moving)), Ok(moving));
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

/// Decodes bytes as the values of the namespace, and checks that what decodes encodes to the same again.
pub fn values(bytes: &[u8]) {
    if let Ok(inode) = Inode::decode(bytes) {
        assert_eq!(inode.encode(), bytes);
    }
    if let Ok(entry) = Entry::decode(bytes) {
        assert_eq!(Entry::decode(&entry.encode()).as_ref(), Ok(&entry));
    }
    if let Ok(bounds) = Bounds::decode(bytes) {
        assert_eq!(bounds.encode(), bytes);
    }
    if let Ok(record) = Record::decode(bytes) {
        assert_eq!(record.encode(), bytes);
    }
    if let Ok(used) = Used::decode(bytes) {
        assert_eq!(used.encode(), bytes);
    }
    if let Ok(parts) = intent::decode(bytes) {
        assert_eq!(intent::decode(&intent::encode(&parts)).as_ref(), Ok(&parts));
    }
}

fn frame(put: impl FnOnce(&mut Outbox)) -> Option<Frame> {
    let (mut outbox, mut bytes) = (Outbox::default(), BytesMut::new());
    put(&mut outbox);
    outbox.copy_to(&mut bytes);
    nacre_rpc::frame::take(&mut bytes).ok().flatten()
}

#[cfg(test)]
mod tests {
    use rand::{Rng, SeedableRng};

    use super::*;
    use crate::directory::Initial;
    use crate::inode::{Ino, InodeKind, Layout};

    #[test]
    fn mutations_of_sound_values_are_refused_or_encode_to_themselves() {
        let mut random = rand::rngs::StdRng::seed_from_u64(5);
        for (kind, quota) in [(InodeKind::File, 0), (InodeKind::Typed("sequencer".to_owned()), 17)] {
            let initial = Initial {
                mode: 0o644,
                uid: 1,
                gid: 2,
                time: 3,
                layout: Layout::default(),
                target: Bytes::from_static(b"hold=10ms"),
                quota,
            };
            let entry = Entry { ino: Ino(9), link: 9, kind, initial: Some(initial) };
            let Some(inode) = entry.first_record(Ino::ROOT) else { panic!("it has a first record") };
            for sound in [entry.encode(), inode.encode()] {
                values(&sound);
                for _ in 0..5_000 {
                    let mut mutated = sound.to_vec();
                    for _ in 0..random.random_range(1..4) {
                        let at = random.random_range(0..mutated.len());
                        mutated[at] = random.random();
                    }
                    mutated.truncate(random.random_range(0..=mutated.len() * 2));
                    values(&mutated);
                }
            }
        }
    }
}
