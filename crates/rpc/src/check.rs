//! Decodes bytes as both peers would, and checks what must hold whatever they are. For fuzzing and for tests.

use bytes::{Bytes, BytesMut};

use crate::control;
use crate::frame::{self, Frame, Kind};
use crate::outbox::Outbox;

/// Takes frames out of bytes until there is none left, decodes the bodies of the connection's own messages, and hands
/// all others to `decode`. Gives how many frames there were.
///
/// # Panics
///
/// If a decoded message is not the same after it was encoded again.
pub fn decode_all(bytes: &[u8], mut decode: impl FnMut(&Frame)) -> usize {
    let mut buffer = BytesMut::from(bytes);
    let mut frames = 0;
    while let Ok(Some(frame)) = frame::take(&mut buffer) {
        match frame.kind {
            Kind::ERROR => decode_error(&frame),
            _ => decode(&frame),
        }
        frames += 1;
    }
    frames
}

fn decode_error(frame: &Frame) {
    let Ok(error) = control::get_failure(frame) else { return };
    let mut outbox = Outbox::default();
    control::put_error(&mut outbox, frame.id, &error);
    // A text that is not UTF-8 is mended, and may be longer then.
    let again = Frame { body: retake(outbox, frame), ..frame.clone() };
    assert!(control::get_failure(&again).is_ok());
}

/// The body of the one frame in an outbox, which must have the header of `frame` but for the length.
pub fn retake(outbox: Outbox, frame: &Frame) -> Bytes {
    let mut bytes = BytesMut::new();
    outbox.copy_to(&mut bytes);
    match frame::take(&mut bytes) {
        Ok(Some(again)) => {
            assert!(bytes.is_empty() && again.id == frame.id && again.kind == frame.kind);
            again.body
        }
        other => panic!("what was encoded is not a frame: {other:?}"),
    }
}
