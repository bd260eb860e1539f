//! Entry points of the fuzz targets: nothing panics, whatever the bytes are.

use bytes::{Bytes, BytesMut};
use nacre_rpc::{MessageKind, Outbox};

use crate::message::Call;
use crate::{Description, Pattern, Stripe, wire};

/// The number of steps of a search, few enough that the fuzzer goes on.
const STEPS: u32 = 1000;

/// Decodes bytes as a description; what is decoded stays the same as bytes and as text, and its pattern can be asked.
pub fn description(bytes: &[u8]) {
    let Ok(description) = Description::decode(bytes) else { return };
    assert_eq!(Description::decode(&description.encode()).as_ref(), Ok(&description));
    assert_eq!(description.to_string().parse().as_ref(), Ok(&description));
    ask(&description);
}

/// Parses bytes as text; what is parsed stays the same as text and as bytes, and its pattern can be asked.
pub fn text(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(description) = text.parse::<Description>() else { return };
    assert_eq!(description.to_string().parse().as_ref(), Ok(&description));
    assert_eq!(Description::decode(&description.encode()).as_ref(), Ok(&description));
    ask(&description);
}

fn ask(description: &Description) {
    let Ok(pattern) = Pattern::new(description) else { return };
    let Some(bounds) = pattern.bounds() else {
        assert_eq!((pattern.region_count(), pattern.byte_count()), (0, 0));
        return;
    };
    assert_eq!(pattern.next_region(0).map(|region| region.offset), Some(bounds.offset));
    assert_eq!(pattern.end_before(u64::MAX), Some(bounds.end()));
    let middle = bounds.offset + bounds.length / 2;
    let (before, from) = (pattern.before(middle), pattern.from(middle));
    assert_eq!(before.byte_count() + from.byte_count(), pattern.byte_count());
    assert!(!matches!(before.search_common(&from, 0, STEPS), crate::Search::Found(_)));
    let stripe = Stripe { bytes: 64 << 10, servers: 5, server: 2 };
    if let Ok(mine) = pattern.restrict(stripe) {
        let _ = mine.count(u64::from(STEPS));
        let _ = mine.search_common(&pattern.from(middle), 0, STEPS);
        let _ = mine.search_common(&mine.from(middle), 0, STEPS);
    }
}

/// Decodes bytes as a message of the lock service: the first byte is its kind. What is decoded stays the same when it is
/// encoded and decoded again.
pub fn wire(bytes: &[u8]) {
    let Some((code, body)) = bytes.split_first() else { return };
    let (kind, body) = (MessageKind::new(wire::LOCK, *code), Bytes::copy_from_slice(body));
    let _ = wire::get_attach(&body);
    let _ = wire::get_slot(&body);
    let _ = wire::get_numbered(&body);
    if let Ok(reply) = wire::get_reply(kind, &body) {
        let (kind, body) = wire::reply(&reply);
        assert_eq!(wire::get_reply(kind, &body.into()), Ok(reply));
    }
    if let Ok((call, reply)) = wire::get_event(&body) {
        assert_eq!(wire::get_event(&wire::event(call, &reply)), Ok((call, reply)));
    }
    if let Ok((number, Ok(call))) = wire::get_call(kind, &body) {
        let description = match &call {
            Call::Acquire { spec: Some(spec), .. } | Call::Assert { spec, .. } => {
                let _ = spec.pattern.search_next(0, STEPS);
                Bytes::from(Description::contiguous(0, 1).encode())
            }
            _ => Bytes::new(),
        };
        let mut outbox = Outbox::default();
        assert_eq!(wire::put_call(&mut outbox, 1, number, &call, &description), Ok(()));
        let mut frame = BytesMut::new();
        outbox.copy_to(&mut frame);
        let frame = nacre_rpc::frame::take(&mut frame).ok().flatten();
        let again = frame.map(|frame| wire::get_call(frame.kind, &frame.body));
        assert!(matches!(again, Some(Ok((again, Ok(_)))) if again == number));
    }
}
