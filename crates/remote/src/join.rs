//! The messages by which a client and a server determine whether they have the same list of members.

use bytes::Bytes;
use nacre_rpc::{Cursor, Frame, Outbox, WireError};

use crate::kind;
use crate::members::{DIGEST_BYTES, MEMBER_NAME_BYTES_MAX, MEMBERS_MAX, Members, Membership};

/// A client's list, by its version and digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proof {
    /// The version.
    pub version: u64,
    /// The digest.
    pub digest: [u8; DIGEST_BYTES],
}

impl Proof {
    /// Returns the proof of having a list.
    pub fn of(members: &Members) -> Proof {
        Proof { version: members.version(), digest: members.digest() }
    }
}

/// A server's answer to a join.
#[derive(Clone, Debug)]
pub enum Answer {
    /// The client's list is the server's; the server is the member at this index.
    Joined(usize),
    /// The client's list differs. Holds the server's list, and the server's place in it.
    Members(Membership),
}

/// Writes a join; without a proof, it is a request for the list.
pub fn put_join(outbox: &mut Outbox, id: u64, proof: Option<&Proof>) {
    let open = outbox.begin(kind::JOIN, id);
    if let Some(proof) = proof {
        outbox.u64(proof.version);
        outbox.slice(&proof.digest);
    }
    // The body is a few bytes long.
    let _ = outbox.end(open);
}

/// Reads a join.
pub fn get_join(body: &Bytes) -> Result<Option<Proof>, WireError> {
    let mut cursor = Cursor::new(body);
    if cursor.left() == 0 {
        return Ok(None);
    }
    let version = cursor.u64()?;
    let bytes = cursor.bytes(DIGEST_BYTES)?;
    cursor.end()?;
    let Some(digest) = bytes.first_chunk() else { return Err(WireError::Truncated) };
    Ok(Some(Proof { version, digest: *digest }))
}

/// Writes the answer to a join.
pub fn put_answer(outbox: &mut Outbox, id: u64, answer: &Answer) {
    let open = match answer {
        Answer::Joined(own) => {
            let open = outbox.begin(kind::JOINED, id);
            outbox.u16(*own as u16);
            open
        }
        Answer::Members(membership) => {
            let open = outbox.begin(kind::MEMBERS, id);
            let members = membership.members();
            outbox.u64(members.version());
            outbox.u16(membership.own() as u16);
            outbox.u16(members.names().len() as u16);
            for name in members.names() {
                outbox.u8(name.len() as u8);
                outbox.slice(name.as_bytes());
            }
            open
        }
    };
    // The limits of a list keep it far below the size of a frame.
    let _ = outbox.end(open);
}

/// Reads the answer to a join. Any other message is an error.
pub fn get_answer(frame: &Frame) -> Result<Answer, WireError> {
    let mut cursor = Cursor::new(&frame.body);
    match frame.kind {
        kind::JOINED => {
            let own = cursor.u16()? as usize;
            cursor.end()?;
            Ok(Answer::Joined(own))
        }
        kind::MEMBERS => {
            let version = cursor.u64()?;
            let (own, count) = (cursor.u16()? as usize, cursor.u16()? as usize);
            if count > MEMBERS_MAX || own >= count {
                return Err(WireError::Malformed("a list of members without the member that sent it"));
            }
            let mut names: Vec<String> = Vec::new();
            for _ in 0..count {
                let len = cursor.u8()? as usize;
                debug_assert!(len <= MEMBER_NAME_BYTES_MAX);
                let Ok(name) = String::from_utf8(cursor.bytes(len)?.to_vec()) else {
                    return Err(WireError::Malformed("the name of a member is not UTF-8"));
                };
                if names.last().is_some_and(|last| *last >= name) {
                    return Err(WireError::Malformed("a list of members that is not in order"));
                }
                names.push(name);
            }
            cursor.end()?;
            Ok(Answer::Members(Membership::at(Members::new(version, names)?, own)))
        }
        _ => Err(WireError::Malformed("this message does not answer a join")),
    }
}
