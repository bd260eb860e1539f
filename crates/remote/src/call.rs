//! The bodies of the administration's messages: a method's name and JSON texts.

use bytes::Bytes;
use nacre_rpc::{Cursor, Outbox, WireError};

use crate::admin::METHOD_BYTES_MAX;
use crate::kind;

/// Writes a call. Returns the length of its body, as an error if it is too long; nothing is written in that case.
pub fn put_call(outbox: &mut Outbox, id: u64, method: &str, argument: &Bytes) -> Result<usize, usize> {
    let open = outbox.begin(kind::CALL, id);
    let method = &method.as_bytes()[..method.len().min(METHOD_BYTES_MAX)];
    outbox.u8(method.len() as u8);
    outbox.slice(method);
    outbox.payload(argument);
    outbox.end(open)
}

/// Reads a call: the method and its argument.
pub fn get_call(body: &Bytes) -> Result<(String, Bytes), WireError> {
    let mut cursor = Cursor::new(body);
    let len = cursor.u8()? as usize;
    if len > METHOD_BYTES_MAX {
        return Err(WireError::Malformed("the name of a method is too long"));
    }
    let Ok(method) = String::from_utf8(cursor.bytes(len)?.to_vec()) else {
        return Err(WireError::Malformed("the name of a method is not UTF-8"));
    };
    let argument = cursor.bytes(cursor.left())?;
    Ok((method, argument))
}
