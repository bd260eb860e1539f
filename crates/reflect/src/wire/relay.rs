//! The messages between two reflectors that relay a location's datagrams while its members move. Each is signed with a
//! key that both derive from a secret in their store, so nobody else can make a reflector relay anything.

use super::codec::{Body, Out};
use super::{COOKIE_BYTES, HEAD_BYTES, MAGIC, MESSAGE_BYTES_MAX, VERSION, WireError, kind};
use crate::cookie::same;

/// The length of a signature, in bytes.
pub const SIGNATURE_BYTES: usize = 16;
/// The length of a step of a relay before its payload, in bytes.
pub const STEP_BYTES: usize = 80;
/// The greatest part of a datagram in one step, in bytes.
pub const STEP_PART_MAX: usize = MESSAGE_BYTES_MAX - STEP_BYTES;
/// The greatest number of steps that are on their way at once.
pub const WINDOW: usize = 256;

/// The place of the signature in a request.
const OPEN_SIGNATURE: usize = 32;
/// The place of the signature in a step.
const STEP_SIGNATURE: usize = 16;
const ACCEPT_BYTES: usize = 48;
/// The length of a request, with its padding, in bytes.
const OPEN_BYTES: usize = 128;

// No answer to a request, which anybody may have recorded, is longer than it.
const _: () = assert!(ACCEPT_BYTES <= OPEN_BYTES && STEP_BYTES <= OPEN_BYTES);

/// A key that signs.
#[derive(Clone, Copy)]
pub struct Key([u8; 32]);

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(…)")
    }
}

impl Key {
    /// Derives the key for requests and their answers from the secret in the store.
    pub fn of_secret(secret: &[u8; 32]) -> Key {
        Key(blake3::derive_key("nacre 2026 reflect relay", secret))
    }

    /// Derives the keys of one relay: that of the reflector that is left, and that of the one that is moved to.
    pub fn of_relay(&self, open: &Open<'_>) -> [Key; 2] {
        [kind::RELAY_ON, kind::RELAY_BACK].map(|direction| {
            let mut hasher = blake3::Hasher::new_keyed(&self.0);
            hasher.update(&[direction]).update(&open.nonce.to_le_bytes()).update(&open.cookie);
            hasher.update(&open.group.to_le_bytes()).update(open.location.as_bytes());
            Key(*hasher.finalize().as_bytes())
        })
    }

    fn signature(&self, bytes: &[u8], at: usize) -> [u8; SIGNATURE_BYTES] {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(&bytes[..at]).update(&bytes[at + SIGNATURE_BYTES..]);
        let mut signature = [0; SIGNATURE_BYTES];
        hasher.finalize_xof().fill(&mut signature);
        signature
    }

    fn sign(&self, mut bytes: Vec<u8>, at: usize) -> Vec<u8> {
        let signature = self.signature(&bytes, at);
        bytes[at..at + SIGNATURE_BYTES].copy_from_slice(&signature);
        bytes
    }

    fn check(&self, bytes: &[u8], at: usize) -> Result<(), WireError> {
        let found = bytes.get(at..).and_then(|rest| rest.first_chunk());
        match found.is_some_and(|found| same(found, &self.signature(bytes, at))) {
            true => Ok(()),
            false => Err(WireError::Field("signature")),
        }
    }
}

/// Returns the kind of a message between reflectors; `None` for every other datagram.
pub fn kind_of(bytes: &[u8]) -> Option<u8> {
    match bytes.strip_prefix(&MAGIC)? {
        [VERSION, kind @ kind::RELAY_OPEN..=kind::RELAY_BACK, ..] => Some(*kind),
        _ => None,
    }
}

/// A request to relay.
#[derive(Clone, Copy, derive_more::Debug, PartialEq, Eq)]
pub struct Open<'a> {
    /// A number chosen by the reflector that is left.
    pub nonce: u64,
    /// The cookie of the answer; zeros at first.
    #[debug("…")]
    pub cookie: [u8; COOKIE_BYTES],
    /// The group's id at the reflector that is asked.
    pub group: u32,
    /// The location.
    pub location: &'a str,
}

impl<'a> Open<'a> {
    /// Encodes and signs the message.
    pub fn encode(&self, key: &Key) -> Vec<u8> {
        let mut out = Out::new(kind::RELAY_OPEN, OPEN_BYTES);
        out.u64(self.nonce).bytes(&self.cookie).zeros(SIGNATURE_BYTES).u32(self.group).zeros(3);
        key.sign(out.text(self.location).pad(OPEN_BYTES), OPEN_SIGNATURE)
    }

    /// Decodes the message, and checks its signature.
    ///
    /// # Errors
    /// The reason why it is none.
    pub fn decode(bytes: &'a [u8], key: &Key) -> Result<Self, WireError> {
        let (_, mut body) = Body::open(bytes)?;
        let (nonce, cookie) = (body.u64()?, body.array()?);
        let _: [u8; SIGNATURE_BYTES] = body.array()?;
        let group = body.u32()?;
        body.zeros(3)?;
        let location = body.text()?;
        body.exactly(OPEN_BYTES)?;
        key.check(bytes, OPEN_SIGNATURE)?;
        Ok(Open { nonce, cookie, group, location })
    }
}

/// The answer to an [`Open`] without a sound cookie. It is shorter than the request.
#[derive(Clone, Copy, derive_more::Debug, PartialEq, Eq)]
pub struct Accept {
    /// The nonce of the request.
    pub nonce: u64,
    /// The cookie to return.
    #[debug("…")]
    pub cookie: [u8; COOKIE_BYTES],
}

impl Accept {
    /// Encodes and signs the message.
    pub fn encode(&self, key: &Key) -> Vec<u8> {
        let mut out = Out::new(kind::RELAY_ACCEPT, ACCEPT_BYTES);
        let bytes = out.u64(self.nonce).bytes(&self.cookie).zeros(SIGNATURE_BYTES).done();
        key.sign(bytes, OPEN_SIGNATURE)
    }

    /// Decodes the message, and checks its signature.
    ///
    /// # Errors
    /// The reason why it is none.
    pub fn decode(bytes: &[u8], key: &Key) -> Result<Self, WireError> {
        let (_, mut body) = Body::open(bytes)?;
        body.exactly(ACCEPT_BYTES)?;
        let accept = Accept { nonce: body.u64()?, cookie: body.array()? };
        key.check(bytes, OPEN_SIGNATURE)?;
        Ok(accept)
    }
}

macro_rules! items {
    ($($(#[$doc:meta])* $name:ident = $code:literal;)*) => {
        /// The kind of an item of a relay.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum ItemKind {
            $($(#[$doc])* $name = $code,)*
        }

        impl ItemKind {
            fn from_code(code: u8) -> Option<ItemKind> {
                [$(ItemKind::$name,)*].into_iter().find(|kind| *kind as u8 == code)
            }
        }
    };
}

items! {
    /// A part of a member's datagram.
    Part = 1;
    /// The last part of a member's datagram, or the whole.
    Last = 2;
    /// The place in the order of its oldest datagram that had none yet, for the reflector that is moved to.
    Yours = 3;
    /// To the reflector that is moved to: the member of this session gets copies there from here on.
    Left = 4;
    /// To the reflector that is moved to: this one has nothing more to say.
    End = 5;
    /// To the reflector that is left: the member of this session is there.
    Claim = 6;
}

/// An item of a relay: items are taken in order, each once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// The kind.
    pub kind: ItemKind,
    /// The type of service of the copies of a datagram.
    pub tos: u8,
    /// The part of a datagram, or the session.
    pub bytes: Vec<u8>,
}

impl Item {
    /// Creates an item about a member.
    pub fn of_session(kind: ItemKind, session: u64) -> Item {
        Item { kind, tos: 0, bytes: session.to_le_bytes().to_vec() }
    }

    /// Creates an item without content.
    pub fn plain(kind: ItemKind) -> Item {
        Item { kind, tos: 0, bytes: Vec::new() }
    }

    /// Returns the session that the item is about, if it is about one.
    pub fn session(&self) -> Option<u64> {
        self.bytes[..].try_into().ok().map(u64::from_le_bytes)
    }
}

/// A receipt for items.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Receipt {
    /// All items before this number have been taken.
    pub next: u32,
    /// Later ones that have been taken. Bit n: item `next + 1 + n`.
    pub later: [u64; WINDOW / 64],
    /// The number of members that get copies where the receipt comes from.
    pub receivers: u32,
}

/// A step of a relay: a receipt, and perhaps an item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The nonce of the request that the relay began with.
    pub relay: u64,
    /// The receipt.
    pub receipt: Receipt,
    /// The item, with its number, which is at least 1.
    pub item: Option<(u32, Item)>,
}

/// Returns the relay that a step belongs to, before it is checked.
pub fn relay_of(bytes: &[u8]) -> Option<u64> {
    bytes.get(HEAD_BYTES..)?.first_chunk().map(|nonce| u64::from_le_bytes(*nonce))
}

/// Encodes and signs a step, of the kind of its direction.
pub fn encode_step(
    direction: u8,
    relay: u64,
    receipt: &Receipt,
    item: Option<(u32, &Item)>,
    key: &Key,
) -> Vec<u8> {
    let mut out = Out::new(direction, STEP_BYTES + item.map_or(0, |(_, item)| item.bytes.len()));
    out.u64(relay).zeros(SIGNATURE_BYTES).u32(item.map_or(0, |(number, _)| number)).u32(receipt.next);
    for word in receipt.later {
        out.u64(word);
    }
    out.u32(receipt.receivers);
    match item {
        Some((_, item)) => out.u8(item.kind as u8).u8(item.tos).zeros(2).bytes(&item.bytes),
        None => out.zeros(4),
    };
    key.sign(out.done(), STEP_SIGNATURE)
}

impl Step {
    /// Decodes a step, and checks its signature.
    ///
    /// # Errors
    /// The reason why it is none.
    pub fn decode(bytes: &[u8], key: &Key) -> Result<Self, WireError> {
        let (_, mut body) = Body::open(bytes)?;
        let relay = body.u64()?;
        let _: [u8; SIGNATURE_BYTES] = body.array()?;
        let (number, next) = (body.u32()?, body.u32()?);
        let mut later = [0; WINDOW / 64];
        for word in &mut later {
            *word = body.u64()?;
        }
        let receivers = body.u32()?;
        let (code, tos) = (body.u8()?, body.u8()?);
        body.zeros(2)?;
        let payload = body.rest();
        let item = match (number, code) {
            (0, 0) if tos == 0 && payload.is_empty() => None,
            (0, _) => return Err(WireError::Field("number")),
            (number, code) => {
                let kind = ItemKind::from_code(code).ok_or(WireError::Field("item"))?;
                let fits = match kind {
                    ItemKind::Part | ItemKind::Last => true,
                    ItemKind::Left | ItemKind::Claim => payload.len() == 8,
                    ItemKind::Yours | ItemKind::End => payload.is_empty(),
                };
                if !fits {
                    return Err(WireError::Field("item"));
                }
                Some((number, Item { kind, tos, bytes: payload.to_vec() }))
            }
        };
        key.check(bytes, STEP_SIGNATURE)?;
        Ok(Step { relay, receipt: Receipt { next, later, receivers }, item })
    }
}
