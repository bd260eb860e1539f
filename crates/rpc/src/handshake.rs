//! The handshake between two peers.
//!
//! Both send a hello of 16 bytes: the protocol's magic bytes, its version, and whether a key is to be used; in the
//! server's, whether the connection goes on. With a key, the Noise handshake `NNpsk0` follows: its two messages carry
//! fresh ephemeral keys, mixed with the cluster key, so each side proves that it holds that key, to this peer and in
//! this role, and everything after is encrypted and authenticated under keys that cannot be derived later. A server
//! trusts a client only when the first sealed record opens: only then does the client's proof depend on the server's
//! own nonce. Until then a connection has cost the server no more than this function's few hundred bytes.

use std::io;
use std::time::Duration;

use nacre_object::{ErrorKind, StoreError};

use crate::key::ClusterKey;
use crate::limit::{PROTOCOL_VERSION, SEAL_BYTES};
use crate::seal::Seal;
use crate::stream::Stream;

/// The first bytes of every connection, in both directions. The first byte cannot begin a text, and the line end would
/// not survive a transport that rewrites line ends.
pub const MAGIC: [u8; 8] = *b"\x89NACRE\r\n";
/// The bytes of a hello.
pub const HELLO_BYTES: usize = 16;

const NOISE: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
/// The size of an ephemeral key and the seal of an empty payload, in bytes.
const FIRST_BYTES: usize = 32 + SEAL_BYTES;
/// The size of an ephemeral key and a sealed hello, in bytes.
const SECOND_BYTES: usize = 32 + HELLO_BYTES + SEAL_BYTES;
/// The size of a sealed empty record with its length, in bytes.
const PROOF_BYTES: usize = 2 + SEAL_BYTES;

/// The time for which, and the number of bytes up to which, a refused peer is read from before the connection closes.
const REFUSAL_LINGER: Duration = Duration::from_secs(1);
const REFUSAL_BYTES_MAX: usize = 4096;

/// The client's mode: without a key, or with one.
const PLAIN: u8 = 0;
const KEYED: u8 = 1;

/// The server's answer in its hello. The numbers are part of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// The connection goes on.
    Welcome = 0,
    /// The server does not speak the client's version of the protocol; the hello holds the server's own.
    Version = 1,
    /// The server requires the cluster key.
    KeyNeeded = 2,
    /// The client asks the server to prove that it has the cluster key, but it has none.
    NoKey = 3,
    /// The client did not prove that it has the server's key.
    WrongKey = 4,
    /// The server has as many connections as its limit allows.
    Full = 5,
    /// The server accepts only its own user on a Unix socket.
    NonMember = 6,
}

impl Status {
    fn from_code(code: u8) -> Option<Status> {
        use Status::*;
        [Welcome, Version, KeyNeeded, NoKey, WrongKey, Full, NonMember]
            .into_iter()
            .find(|status| *status as u8 == code)
    }

    /// Returns what the server's log says of a peer that got this answer.
    fn reason(self) -> &'static str {
        match self {
            Status::Welcome => "it was welcome",
            Status::Version => "it speaks a version of the protocol that this server does not",
            Status::KeyNeeded => "it gave no key, and this server asks for the cluster's",
            Status::NoKey => "it asks for a proof of the cluster's key, and this server has none",
            Status::WrongKey => "it did not prove that it has the cluster's key",
            Status::Full => "the limit of connections is reached",
            Status::NonMember => "this socket is for the user that the server runs as, who is another one",
        }
    }
}

/// Returns a hello: the magic bytes, the version, and a byte that is the client's mode or the server's status.
pub fn hello(version: u16, byte: u8) -> [u8; HELLO_BYTES] {
    let mut hello = [0; HELLO_BYTES];
    hello[..8].copy_from_slice(&MAGIC);
    hello[8..10].copy_from_slice(&version.to_le_bytes());
    hello[10] = byte;
    hello
}

/// Starts one side of the Noise handshake. The prologue is the client's hello, so that a changed one is detected.
fn noise(key: &ClusterKey, prologue: &[u8], initiator: bool) -> Result<snow::HandshakeState, snow::Error> {
    let builder = snow::Builder::new(NOISE.parse()?).psk(0, key.bytes())?.prologue(prologue)?;
    if initiator { builder.build_initiator() } else { builder.build_responder() }
}

/// The reason why a server does not serve a peer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refused {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("the peer does not speak this protocol")]
    Foreign,
    #[error("the peer was refused: {}", .0.reason())]
    Status(Status),
    #[error("the handshake failed: {0}")]
    Noise(#[from] snow::Error),
}

/// The conditions under which a server accepts a peer.
pub(crate) struct AdmissionPolicy<'a> {
    /// The cluster key, if peers must have it.
    pub(crate) key: Option<&'a ClusterKey>,
    /// The versions of the protocol that every service supports.
    pub(crate) versions: std::ops::RangeInclusive<u16>,
    /// The reason why all peers are refused at present, if they are.
    pub(crate) shut: Option<Status>,
}

/// A peer that was accepted.
pub(crate) struct Guest {
    /// The seal of the connection, if a key is in use.
    pub(crate) seal: Option<Box<Seal>>,
    /// The version of the protocol that the peer speaks.
    pub(crate) version: u16,
}

/// Performs the server's side of the handshake.
pub(crate) async fn accept(stream: &Stream, door: AdmissionPolicy<'_>) -> Result<Guest, Refused> {
    let mut theirs = [0; HELLO_BYTES];
    stream.read_exact(&mut theirs).await?;
    if theirs[..8] != MAGIC {
        return Err(Refused::Foreign);
    }
    let version = u16::from_le_bytes([theirs[8], theirs[9]]);
    let spoken = door.versions.contains(&version);
    let refuse = async |status: Status| -> Result<Guest, Refused> {
        // A client understands the status only in a hello of its own version.
        let version = if spoken { version } else { PROTOCOL_VERSION };
        stream.write_all(&hello(version, status as u8)).await?;
        // Closing a connection while bytes of the peer are unread resets it, and the peer might lose the reason.
        let _ = tokio::time::timeout(REFUSAL_LINGER, stream.discard(REFUSAL_BYTES_MAX)).await;
        Err(Refused::Status(status))
    };
    if !spoken {
        return refuse(Status::Version).await;
    }
    if let Some(status) = door.shut {
        return refuse(status).await;
    }
    let welcome = hello(version, Status::Welcome as u8);
    let key = match (theirs[10], door.key) {
        (PLAIN, None) if theirs[11..] == [0; 5] => {
            stream.write_all(&welcome).await?;
            return Ok(Guest { seal: None, version });
        }
        (KEYED, Some(key)) if theirs[11..] == [0; 5] => key,
        (PLAIN, Some(_)) => return refuse(Status::KeyNeeded).await,
        (KEYED, None) => return refuse(Status::NoKey).await,
        _ => return Err(Refused::Foreign),
    };
    let mut first = [0; FIRST_BYTES];
    stream.read_exact(&mut first).await?;
    let mut state = noise(key, &theirs, false)?;
    if state.read_message(&first, &mut []).is_err() {
        return refuse(Status::WrongKey).await;
    }
    // The hello is sent in the clear for every client, and once more under the seal, so that it cannot be forged.
    let mut answer = [0; HELLO_BYTES + SECOND_BYTES];
    answer[..HELLO_BYTES].copy_from_slice(&welcome);
    state.write_message(&welcome, &mut answer[HELLO_BYTES..])?;
    stream.write_all(&answer).await?;
    let mut transport = state.into_transport_mode()?;
    let mut proof = [0; PROOF_BYTES];
    stream.read_exact(&mut proof).await?;
    if proof[..2] != (SEAL_BYTES as u16).to_le_bytes() {
        return Err(Refused::Foreign);
    }
    transport.read_message(&proof[2..], &mut [])?;
    Ok(Guest { seal: Some(Box::new(Seal::new(transport))), version })
}

/// Performs the client's side of the handshake. Returns the seal of the connection, if a key is in use.
pub(crate) async fn introduce(
    stream: &Stream,
    key: Option<&ClusterKey>,
) -> Result<Option<Box<Seal>>, StoreError> {
    let denied = |why: &str| StoreError::new(ErrorKind::Denied, why);
    let broken = |error: io::Error| match error.kind() {
        io::ErrorKind::UnexpectedEof => StoreError::new(
            ErrorKind::Unavailable,
            "it closed the connection without a greeting; is it a nacre server?",
        ),
        _ => StoreError::new(ErrorKind::Unavailable, error.to_string()),
    };
    // A failed computation is a limitation of this side, not a fault of the peer.
    let failed = |error: snow::Error| {
        StoreError::new(ErrorKind::Unsupported, format!("the connection cannot be encrypted: {error}"))
    };

    let ours = hello(PROTOCOL_VERSION, if key.is_some() { KEYED } else { PLAIN });
    let mut opening = [0; HELLO_BYTES + FIRST_BYTES];
    opening[..HELLO_BYTES].copy_from_slice(&ours);
    let mut state = None;
    let mut opening_bytes = HELLO_BYTES;
    if let Some(key) = key {
        let mut initiator = noise(key, &ours, true).map_err(failed)?;
        opening_bytes += initiator.write_message(&[], &mut opening[HELLO_BYTES..]).map_err(failed)?;
        state = Some(initiator);
    }
    stream.write_all(&opening[..opening_bytes]).await.map_err(broken)?;
    let mut theirs = [0; HELLO_BYTES];
    stream.read_exact(&mut theirs).await.map_err(broken)?;
    if theirs[..8] != MAGIC {
        return Err(StoreError::new(ErrorKind::Unavailable, "what answers there is not a nacre server"));
    }
    match Status::from_code(theirs[10]) {
        Some(Status::Welcome) if theirs[8..10] == PROTOCOL_VERSION.to_le_bytes() => {}
        Some(Status::Welcome | Status::Version) => {
            let version = u16::from_le_bytes([theirs[8], theirs[9]]);
            let text =
                format!("it speaks version {version} of the protocol, and this program {PROTOCOL_VERSION}");
            return Err(StoreError::new(ErrorKind::Unsupported, text));
        }
        Some(Status::KeyNeeded) => return Err(denied("it asks for the cluster's key, and none was given")),
        Some(Status::NoKey) => {
            return Err(denied(
                "a key was given, but this server has none, so it cannot prove that it is the right one; without the key it \
                 answers",
            ));
        }
        Some(Status::WrongKey) => return Err(denied("the key that was given is not this server's")),
        Some(Status::Full) => {
            return Err(StoreError::new(ErrorKind::Unavailable, "it has as many connections as it may"));
        }
        Some(Status::NonMember) => {
            return Err(denied("its socket is for the user that it runs as, who is another one"));
        }
        None => return Err(denied("it refused the connection for a reason that this program does not know")),
    }
    let Some(mut state) = state else { return Ok(None) };
    let mut second = [0; SECOND_BYTES];
    stream.read_exact(&mut second).await.map_err(broken)?;
    let mut sealed = [0; HELLO_BYTES];
    if state.read_message(&second, &mut sealed).is_err() || sealed != theirs {
        return Err(denied("it did not prove that it has the cluster's key"));
    }
    let mut transport = state.into_transport_mode().map_err(failed)?;
    let mut proof = [0; PROOF_BYTES];
    proof[..2].copy_from_slice(&(SEAL_BYTES as u16).to_le_bytes());
    transport.write_message(&[], &mut proof[2..]).map_err(failed)?;
    stream.write_all(&proof).await.map_err(broken)?;
    Ok(Some(Box::new(Seal::new(transport))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_reads_the_log_learns_in_words_why_a_peer_was_refused() {
        for status in (0..=u8::MAX).filter_map(Status::from_code) {
            let text = Refused::Status(status).to_string();
            assert!(!text.contains(&format!("{status:?}")), "{text}");
        }
    }
}
