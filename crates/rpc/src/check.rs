//! Round-trip checks of the decoders on arbitrary bytes, for fuzzing and tests.

use bytes::{Bytes, BytesMut};

use crate::control;
use crate::frame::{self, CONTROL, Frame, MessageKind};
use crate::outbox::Outbox;

/// Decodes every frame in `bytes`: the connection's own messages here, all others through `decode`, which is given the
/// control messages as well. Returns the number of frames.
///
/// # Panics
///
/// If a decoded message differs after it was encoded again.
pub fn decode_all(bytes: &[u8], mut decode: impl FnMut(&Frame)) -> usize {
    let mut buffer = BytesMut::from(bytes);
    let mut frames = 0;
    while let Ok(Some(frame)) = frame::take(&mut buffer) {
        match frame.kind {
            MessageKind::ERROR => decode_error(&frame),
            kind if kind.service == CONTROL => {
                decode_control(&frame);
                decode(&frame);
            }
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
    // Invalid UTF-8 in the text is replaced, which may make it longer.
    let again = Frame { body: retake(outbox, frame), ..frame.clone() };
    assert!(control::get_failure(&again).is_ok());
}

fn decode_control(frame: &Frame) {
    let mut outbox = Outbox::default();
    match frame.kind {
        MessageKind::CANCEL => {
            let Ok(service) = control::get_cancel(&frame.body) else { return };
            control::put_cancel(&mut outbox, service, frame.id);
        }
        MessageKind::WINDOW => {
            let Ok(bytes) = control::get_window(&frame.body) else { return };
            control::put_window(&mut outbox, frame.id, bytes as u32);
        }
        MessageKind::EVENT => {
            let Ok((sequence, payload)) = control::get_event(frame) else { return };
            control::put_event(&mut outbox, frame.flags, frame.id, sequence, &payload);
        }
        MessageKind::END => {
            let Ok(error) = control::get_end(&frame.body) else { return };
            control::put_end(&mut outbox, frame.id, error.as_ref());
            // Invalid UTF-8 in the text is replaced, which may make it longer.
            assert_eq!(
                control::get_end(&retake(outbox, frame)).map(|end| end.is_some()),
                Ok(error.is_some())
            );
            return;
        }
        MessageKind::BEGIN | MessageKind::BEGUN => {
            let Ok(beginning) = control::get_beginning(&frame.body) else { return };
            control::put_beginning(&mut outbox, frame.kind, frame.id, &beginning);
            let again = retake(outbox, frame);
            assert_eq!(control::get_beginning(&again), Ok(beginning));
            assert!(frame.body.starts_with(&again), "what a later version adds stands behind");
            return;
        }
        _ => return,
    }
    assert_eq!(retake(outbox, frame), frame.body);
}

/// Returns the body of the only frame in an outbox. Its header must be that of `frame`, except for the length.
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
