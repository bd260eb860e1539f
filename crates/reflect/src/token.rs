//! Tokens: permissions to join, signed by the holder of the private half of a key pair. A reflector knows only the public
//! half. So nobody can make tokens with access to a reflector's daemon or its store, and an issuer of
//! tokens (a matchmaker, say) needs no key of the cluster.
//!
//! A token names groups, locations, or everything; the rights of its bearer there; the time at which it expires, which
//! also ends an existing membership; and optionally the bearer's identity, and the one address that may use it. It is
//! sent inside the `JOIN`, in clear: anybody who can read it can use it until it expires, so it should be short-lived,
//! and bound to an address where the path is not trusted.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ed25519_dalek::{Signature, Signer, SigningKey, VerifyingKey};
use nacre_rpc::ClusterKey;

use crate::table::GroupId;
use crate::wire::{LOCATION_BYTES_MAX, Reason, TOKEN_BYTES_MAX};

/// The greatest number of groups and locations that a token names.
pub const SCOPES_MAX: usize = 8;
const HEAD_BYTES: usize = 44;
const SCOPE_BYTES: usize = 17;
const SIGNATURE_BYTES: usize = 64;
const VERSION: u8 = 2;
const HAS_ADDRESS: u8 = 1;
const HAS_IDENTITY: u8 = 2;
/// The prefix of the signed bytes, since the same pair may sign other things too.
const PURPOSE: &[u8] = b"nacre reflect token";
const _: () = assert!(HEAD_BYTES + SCOPES_MAX * SCOPE_BYTES + SIGNATURE_BYTES <= TOKEN_BYTES_MAX);

/// The private half of a key pair, which signs tokens.
#[derive(Clone)]
pub struct TokenKey(SigningKey);

impl fmt::Debug for TokenKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenKey(…)")
    }
}

impl TokenKey {
    /// Derives the pair from the secret of a key file. The file should be no cluster's key: whoever holds that can open
    /// the store.
    pub fn new(key: &ClusterKey) -> TokenKey {
        TokenKey(SigningKey::from_bytes(&blake3::derive_key(
            "nacre 2026 reflect token signing key",
            key.bytes(),
        )))
    }

    /// Returns the public half.
    pub fn public(&self) -> PublicKey {
        PublicKey(self.0.verifying_key())
    }
}

/// The public half of a key pair, with which a reflector checks tokens. As text, 64 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublicKey(VerifyingKey);

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl std::str::FromStr for PublicKey {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "'{text}' is not a public key of 64 hexadecimal digits; \"nacre reflect token-key\" prints \
                 one"
            )
        };
        let text = text.trim();
        if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(wrong());
        }
        let byte = |at: usize| u8::from_str_radix(&text[2 * at..2 * at + 2], 16);
        let mut bytes = [0; 32];
        for (at, place) in bytes.iter_mut().enumerate() {
            *place = byte(at).map_err(|_| wrong())?;
        }
        // A weak key would accept anybody's signature.
        let key = VerifyingKey::from_bytes(&bytes).ok().filter(|key| !key.is_weak());
        key.map(PublicKey).ok_or_else(wrong)
    }
}

/// The groups that a token lets its bearer join.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// One group, by port and id.
    Group(GroupId),
    /// The group of a location, wherever it is.
    Location(String),
    /// Every group.
    Any,
}

/// The rights of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rights {
    /// True if it may send to the group.
    pub send: bool,
    /// True if it gets the datagrams of others.
    pub receive: bool,
    /// True if it may supply the group's state.
    pub state: bool,
}

impl Rights {
    /// Everything.
    pub const ALL: Rights = Rights { send: true, receive: true, state: true };

    fn bits(self) -> u8 {
        u8::from(self.send) | u8::from(self.receive) << 1 | u8::from(self.state) << 2
    }

    fn from_bits(bits: u8) -> Option<Rights> {
        let bit = |number: u8| bits >> number & 1 == 1;
        (bits < 8).then(|| Rights { send: bit(0), receive: bit(1), state: bit(2) })
    }
}

/// The identity of a member, as a token states it: 16 bytes chosen by the issuer, or of the hash of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity(pub [u8; 16]);

impl Identity {
    /// Returns the identity of a name: the first bytes of its BLAKE3 hash.
    pub fn of_name(name: &str) -> Identity {
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&blake3::hash(name.as_bytes()).as_bytes()[..16]);
        Identity(bytes)
    }
}

/// A permission to join.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The groups that may be joined: at least one entry, at most [`SCOPES_MAX`].
    pub scopes: Vec<Scope>,
    /// The rights there.
    pub rights: Rights,
    /// The identity of the bearer, if it is to be known.
    pub identity: Option<Identity>,
    /// The time of expiry, in seconds since 1970.
    pub expires_unix_s: u64,
    /// The only address that may use the permission; `None` for any. The port does not matter, as address translators
    /// choose it.
    pub address: Option<IpAddr>,
}

/// The permissions that a valid token gives a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permit {
    /// Its rights.
    pub rights: Rights,
    /// Its identity, if the token states one.
    pub identity: Option<Identity>,
    /// The time until which it may stay, in seconds since 1970.
    pub expires_unix_s: u64,
}

/// An error in making a token, or in reading its text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// The name of a location is empty or too long: it has this many bytes.
    #[error("a location's name has 1 to {LOCATION_BYTES_MAX} bytes, not {0}")]
    Location(usize),
    /// A token that names no groups, or too many.
    #[error("a token is for 1 to {SCOPES_MAX} groups or locations, not {0}")]
    Scopes(usize),
    /// The text is not that of a token.
    #[error("this is not a token: {0}")]
    Text(String),
}

/// A signed permission.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(Vec<u8>);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

impl Token {
    /// Signs a permission.
    ///
    /// # Errors
    /// [`TokenError::Location`] or [`TokenError::Scopes`] if it does not fit a token.
    pub fn sign(key: &TokenKey, grant: &Grant) -> Result<Token, TokenError> {
        if !(1..=SCOPES_MAX).contains(&grant.scopes.len()) {
            return Err(TokenError::Scopes(grant.scopes.len()));
        }
        let mut flags = 0;
        let mut bytes = vec![0; HEAD_BYTES];
        if let Some(Identity(identity)) = grant.identity {
            flags |= HAS_IDENTITY;
            bytes[12..28].copy_from_slice(&identity);
        }
        if let Some(address) = grant.address {
            flags |= HAS_ADDRESS;
            bytes[28..44].copy_from_slice(&address_bytes(address));
        }
        bytes[..4].copy_from_slice(&[VERSION, grant.rights.bits(), flags, grant.scopes.len() as u8]);
        bytes[4..12].copy_from_slice(&grant.expires_unix_s.to_le_bytes());
        for scope in &grant.scopes {
            if let Scope::Location(name) = scope
                && !(1..=LOCATION_BYTES_MAX).contains(&name.len())
            {
                return Err(TokenError::Location(name.len()));
            }
            bytes.extend_from_slice(&scope_bytes(scope));
        }
        let signature = key.0.sign(&[PURPOSE, &bytes].concat());
        bytes.extend_from_slice(&signature.to_bytes());
        Ok(Token(bytes))
    }

    /// Returns the bytes, as a `JOIN` carries them.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&URL_SAFE_NO_PAD.encode(&self.0))
    }
}

impl std::str::FromStr for Token {
    type Err = TokenError;

    fn from_str(text: &str) -> Result<Self, TokenError> {
        let bytes = URL_SAFE_NO_PAD.decode(text.trim()).map_err(|_| {
            TokenError::Text("it is not base64, in the alphabet of urls without padding".to_owned())
        })?;
        if parts(&bytes).is_none() {
            let text = format!("{} bytes of another kind, or of another version", bytes.len());
            return Err(TokenError::Text(text));
        }
        Ok(Token(bytes))
    }
}

/// Returns the signed part and the signature of a possible token.
fn parts(bytes: &[u8]) -> Option<(&[u8], &[u8; SIGNATURE_BYTES])> {
    let (signed, signature) = bytes.split_last_chunk()?;
    let (head, scopes) = signed.split_at_checked(HEAD_BYTES)?;
    let count = usize::from(head[3]);
    let right =
        head[0] == VERSION && (1..=SCOPES_MAX).contains(&count) && scopes.len() == count * SCOPE_BYTES;
    right.then_some((signed, signature))
}

/// Verifies a token that was sent to join `group`, which is that of `location`, from `address`. Any of the keys may have
/// signed it.
///
/// # Errors
/// The reason why it is not valid: first its form and signature are checked, then its permissions.
pub fn verify(
    keys: &[PublicKey],
    shown: &[u8],
    group: GroupId,
    location: Option<&str>,
    address: IpAddr,
    now_unix_s: u64,
) -> Result<Permit, Reason> {
    if shown.is_empty() {
        return Err(Reason::TokenMissing);
    }
    let (signed, signature) = parts(shown).ok_or(Reason::TokenMalformed)?;
    // Nothing that it says is believed before the signature is.
    let message = [PURPOSE, signed].concat();
    let signature = Signature::from_bytes(signature);
    if !keys.iter().any(|key| key.0.verify_strict(&message, &signature).is_ok()) {
        return Err(Reason::TokenForged);
    }
    let (head, scopes) = signed.split_first_chunk::<HEAD_BYTES>().ok_or(Reason::TokenMalformed)?;
    let rights = Rights::from_bits(head[1]).ok_or(Reason::TokenMalformed)?;
    if head[2] & !(HAS_ADDRESS | HAS_IDENTITY) != 0 {
        return Err(Reason::TokenMalformed);
    }
    let &expires = head[4..].first_chunk().ok_or(Reason::TokenMalformed)?;
    let expires_unix_s = u64::from_le_bytes(expires);
    if now_unix_s >= expires_unix_s {
        return Err(Reason::TokenExpired);
    }
    let here = [Scope::Any, Scope::Group(group)].into_iter();
    let here = here.chain(location.map(|name| Scope::Location(name.to_owned())));
    let here: Vec<[u8; SCOPE_BYTES]> = here.map(|scope| scope_bytes(&scope)).collect();
    if !scopes.chunks(SCOPE_BYTES).any(|scope| here.iter().any(|here| here == scope)) {
        return Err(Reason::TokenGroup);
    }
    if head[2] & HAS_ADDRESS != 0 && head[28..44] != address_bytes(address) {
        return Err(Reason::TokenAddress);
    }
    let identity = head[12..28].first_chunk().filter(|_| head[2] & HAS_IDENTITY != 0);
    Ok(Permit { rights, identity: identity.copied().map(Identity), expires_unix_s })
}

fn scope_bytes(scope: &Scope) -> [u8; SCOPE_BYTES] {
    let mut bytes = [0; SCOPE_BYTES];
    match scope {
        Scope::Any => {}
        Scope::Group(group) => {
            bytes[0] = 1;
            bytes[1..3].copy_from_slice(&group.port.to_le_bytes());
            bytes[3..7].copy_from_slice(&group.id.to_le_bytes());
        }
        Scope::Location(name) => {
            bytes[0] = 2;
            bytes[1..].copy_from_slice(&blake3::hash(name.as_bytes()).as_bytes()[..16]);
        }
    }
    bytes
}

fn address_bytes(address: IpAddr) -> [u8; 16] {
    match address.to_canonical() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => Ipv6Addr::octets(&ip),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROUP: GroupId = GroupId { port: 7400, id: 3 };

    fn key(byte: u8) -> TokenKey {
        TokenKey::new(&ClusterKey::from_bytes([byte; 32]))
    }

    fn home() -> IpAddr {
        "192.0.2.1".parse().unwrap()
    }

    fn grant(scopes: &[Scope], address: Option<IpAddr>) -> Grant {
        let identity = Some(Identity::of_name("ann"));
        Grant { scopes: scopes.to_vec(), rights: Rights::ALL, identity, expires_unix_s: 1000, address }
    }

    fn token(scope: Scope, address: Option<IpAddr>) -> Token {
        Token::sign(&key(9), &grant(&[scope], address)).unwrap()
    }

    fn check_token(token: &[u8], now_unix_s: u64) -> Result<Permit, Reason> {
        verify(&[key(7).public(), key(9).public()], token, GROUP, Some("harbour"), home(), now_unix_s)
    }

    #[test]
    fn what_is_no_token_is_said_in_words() {
        let said = |text: &str| text.parse::<Token>().unwrap_err().to_string();
        assert_eq!(
            said("a!"),
            "this is not a token: it is not base64, in the alphabet of urls without padding"
        );
        assert_eq!(said("AAAA"), "this is not a token: 3 bytes of another kind, or of another version");
    }

    #[test]
    fn a_token_opens_what_it_names() {
        for scope in [Scope::Any, Scope::Group(GROUP), Scope::Location("harbour".into())] {
            for address in [None, Some(home()), Some("::ffff:192.0.2.1".parse().unwrap())] {
                let permit = check_token(token(scope.clone(), address).as_bytes(), 999).unwrap();
                assert_eq!((permit.rights, permit.expires_unix_s), (Rights::ALL, 1000));
                assert_eq!(permit.identity, Some(Identity::of_name("ann")));
            }
        }
        // Several groups, and less than all rights.
        let mut many: Vec<Scope> = (10..17).map(|id| Scope::Group(GroupId { id, ..GROUP })).collect();
        many.push(Scope::Group(GROUP));
        let rights = Rights { send: false, receive: true, state: false };
        let listener = Grant { rights, identity: None, ..grant(&many, None) };
        let permit = check_token(Token::sign(&key(7), &listener).unwrap().as_bytes(), 0).unwrap();
        assert_eq!((permit.rights, permit.identity), (rights, None));
        many.push(Scope::Any);
        assert_eq!(Token::sign(&key(7), &grant(&many, None)), Err(TokenError::Scopes(9)));
        assert_eq!(Token::sign(&key(7), &grant(&[], None)), Err(TokenError::Scopes(0)));
    }

    #[test]
    fn a_token_opens_nothing_else_and_the_refusal_says_why() {
        let good = token(Scope::Group(GROUP), None);
        assert_eq!(check_token(&[], 0), Err(Reason::TokenMissing));
        assert_eq!(check_token(good.as_bytes(), 1000), Err(Reason::TokenExpired));
        let other = token(Scope::Group(GroupId { id: 4, ..GROUP }), None);
        assert_eq!(check_token(other.as_bytes(), 0), Err(Reason::TokenGroup));
        assert_eq!(
            check_token(token(Scope::Location("moor".into()), None).as_bytes(), 0),
            Err(Reason::TokenGroup)
        );
        let away = token(Scope::Any, Some("192.0.2.2".parse().unwrap()));
        assert_eq!(check_token(away.as_bytes(), 0), Err(Reason::TokenAddress));
        let forged = Token::sign(&key(8), &grant(&[Scope::Any], None)).unwrap();
        assert_eq!(check_token(forged.as_bytes(), 0), Err(Reason::TokenForged));
        for len in 1..good.0.len() {
            assert_eq!(check_token(&good.0[..len], 0), Err(Reason::TokenMalformed));
        }
        for bit in 0..good.0.len() * 8 {
            let mut changed = good.0.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(
                matches!(check_token(&changed, 0), Err(Reason::TokenMalformed | Reason::TokenForged)),
                "bit {bit}"
            );
        }
    }

    #[test]
    fn a_token_and_a_public_key_are_the_same_as_text() {
        let good = token(Scope::Group(GROUP), None);
        let text = good.to_string();
        assert_eq!(text.parse::<Token>().unwrap(), good);
        assert!(text[..text.len() - 1].parse::<Token>().is_err());
        assert!("?".repeat(80).parse::<Token>().is_err());
        assert!("".parse::<Token>().is_err());
        assert_eq!(
            Token::sign(&key(9), &grant(&[Scope::Location("x".repeat(65))], None)),
            Err(TokenError::Location(65))
        );
        let public = key(9).public();
        assert_eq!(public.to_string().parse(), Ok(public));
        for wrong in [String::new(), "é".repeat(32), "0".repeat(64), public.to_string() + "0"] {
            assert!(wrong.parse::<PublicKey>().is_err(), "{wrong}");
        }
    }
}
