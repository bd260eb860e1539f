//! Tokens: the operator's permission to join, signed with a key that clients never see.
//!
//! A token names a group, a location, or everything; the time at which it expires; and, if the operator wants, the one
//! address that may use it. It is sent inside the `JOIN`, in clear: anybody who can read it can use it until it
//! expires, so it should be short-lived, and bound to an address where the path is not trusted.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use nacre_rpc::ClusterKey;

use crate::cookie::same;
use crate::table::GroupId;
use crate::wire::{LOCATION_BYTES_MAX, Reason, TOKEN_BYTES_MAX};

/// The length of a token in bytes. Its text is a third longer.
pub const TOKEN_BYTES: usize = 60;
const SIGNED_BYTES: usize = TOKEN_BYTES - SIGNATURE_BYTES;
const SIGNATURE_BYTES: usize = 16;
const VERSION: u8 = 1;
const _: () = assert!(TOKEN_BYTES <= TOKEN_BYTES_MAX);

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

/// A permission to join.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The groups that may be joined.
    pub scope: Scope,
    /// The time of expiry, in seconds since 1970.
    pub expires_unix_s: u64,
    /// The only address that may use the permission; `None` for any. The port does not matter, as address translators
    /// choose it.
    pub address: Option<IpAddr>,
}

/// An error in making a token, or in reading its text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// The name of a location is empty or too long: it has this many bytes.
    #[error("a location's name has 1 to {LOCATION_BYTES_MAX} bytes, not {0}")]
    Location(usize),
    /// The text is not that of a token.
    #[error("this is no token: {0}")]
    Text(String),
}

/// A signed permission.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Token([u8; TOKEN_BYTES]);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

impl Token {
    /// Signs a permission with the operator's key.
    ///
    /// # Errors
    /// [`TokenError::Location`] if the name of the location is empty or too long.
    pub fn sign(key: &ClusterKey, grant: &Grant) -> Result<Token, TokenError> {
        if let Scope::Location(name) = &grant.scope
            && !(1..=LOCATION_BYTES_MAX).contains(&name.len())
        {
            return Err(TokenError::Location(name.len()));
        }
        let (kind, scope) = scope_bytes(&grant.scope);
        let mut bytes = [0; TOKEN_BYTES];
        bytes[0] = VERSION;
        bytes[1] = kind;
        bytes[4..12].copy_from_slice(&grant.expires_unix_s.to_le_bytes());
        bytes[12..28].copy_from_slice(&scope);
        if let Some(address) = grant.address {
            bytes[2] = 1;
            bytes[28..44].copy_from_slice(&address_bytes(address));
        }
        let signature = signature(key, &bytes);
        bytes[SIGNED_BYTES..].copy_from_slice(&signature);
        Ok(Token(bytes))
    }

    /// Returns the bytes, as a `JOIN` carries them.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&URL_SAFE_NO_PAD.encode(self.0))
    }
}

impl std::str::FromStr for Token {
    type Err = TokenError;

    fn from_str(text: &str) -> Result<Self, TokenError> {
        let bytes =
            URL_SAFE_NO_PAD.decode(text.trim()).map_err(|error| TokenError::Text(error.to_string()))?;
        let bytes = <[u8; TOKEN_BYTES]>::try_from(bytes).map_err(|bytes| {
            TokenError::Text(format!("it holds {} bytes instead of {TOKEN_BYTES}", bytes.len()))
        })?;
        Ok(Token(bytes))
    }
}

/// Verifies a token that was sent to join `group`, which is that of `location`, from `address`.
///
/// # Errors
/// The reason why it is not valid: first its form and signature are checked, then what it permits.
pub fn verify(
    key: &ClusterKey,
    shown: &[u8],
    group: GroupId,
    location: Option<&str>,
    address: IpAddr,
    now_unix_s: u64,
) -> Result<(), Reason> {
    if shown.is_empty() {
        return Err(Reason::TokenMissing);
    }
    let Ok(bytes) = <&[u8; TOKEN_BYTES]>::try_from(shown) else { return Err(Reason::TokenMalformed) };
    if bytes[0] != VERSION {
        return Err(Reason::TokenMalformed);
    }
    // Nothing that it says is believed before the signature is.
    let (_, &found) = bytes.split_last_chunk::<SIGNATURE_BYTES>().ok_or(Reason::TokenMalformed)?;
    if !same(&signature(key, bytes), &found) {
        return Err(Reason::TokenForged);
    }
    let (_, &expires) = bytes[..12].split_last_chunk().ok_or(Reason::TokenMalformed)?;
    if now_unix_s >= u64::from_le_bytes(expires) {
        return Err(Reason::TokenExpired);
    }
    let for_scope = |scope: &Scope| {
        let (kind, scope) = scope_bytes(scope);
        bytes[1] == kind && bytes[12..28] == scope
    };
    let right = for_scope(&Scope::Any)
        || for_scope(&Scope::Group(group))
        || location.is_some_and(|name| for_scope(&Scope::Location(name.to_owned())));
    if !right {
        return Err(Reason::TokenGroup);
    }
    match bytes[2] {
        0 => Ok(()),
        1 if bytes[28..44] == address_bytes(address) => Ok(()),
        1 => Err(Reason::TokenAddress),
        _ => Err(Reason::TokenMalformed),
    }
}

fn scope_bytes(scope: &Scope) -> (u8, [u8; 16]) {
    let mut bytes = [0; 16];
    match scope {
        Scope::Any => (0, bytes),
        Scope::Group(group) => {
            bytes[..2].copy_from_slice(&group.port.to_le_bytes());
            bytes[2..6].copy_from_slice(&group.id.to_le_bytes());
            (1, bytes)
        }
        Scope::Location(name) => {
            bytes.copy_from_slice(&blake3::hash(name.as_bytes()).as_bytes()[..16]);
            (2, bytes)
        }
    }
}

fn address_bytes(address: IpAddr) -> [u8; 16] {
    match address.to_canonical() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => Ipv6Addr::octets(&ip),
    }
}

fn signature(key: &ClusterKey, token: &[u8; TOKEN_BYTES]) -> [u8; SIGNATURE_BYTES] {
    // The key may serve other purposes too (the cluster's handshake): what is signed here says what it is.
    let mut hasher = blake3::Hasher::new_keyed(key.bytes());
    hasher.update(b"nacre reflect token");
    hasher.update(&token[..SIGNED_BYTES]);
    let mut signature = [0; SIGNATURE_BYTES];
    hasher.finalize_xof().fill(&mut signature);
    signature
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROUP: GroupId = GroupId { port: 7400, id: 3 };

    fn key() -> ClusterKey {
        ClusterKey::from_bytes([9; 32])
    }

    fn home() -> IpAddr {
        "192.0.2.1".parse().unwrap()
    }

    fn token(scope: Scope, address: Option<IpAddr>) -> Token {
        Token::sign(&key(), &Grant { scope, expires_unix_s: 1000, address }).unwrap()
    }

    fn judge(token: &[u8], now_unix_s: u64) -> Result<(), Reason> {
        verify(&key(), token, GROUP, Some("harbour"), home(), now_unix_s)
    }

    #[test]
    fn a_token_opens_what_it_names() {
        for scope in [Scope::Any, Scope::Group(GROUP), Scope::Location("harbour".into())] {
            for address in [None, Some(home()), Some("::ffff:192.0.2.1".parse().unwrap())] {
                assert_eq!(judge(token(scope.clone(), address).as_bytes(), 999), Ok(()));
            }
        }
    }

    #[test]
    fn a_token_opens_nothing_else_and_the_refusal_says_why() {
        let good = token(Scope::Group(GROUP), None);
        assert_eq!(judge(&[], 0), Err(Reason::TokenMissing));
        assert_eq!(judge(good.as_bytes(), 1000), Err(Reason::TokenExpired));
        let other = token(Scope::Group(GroupId { id: 4, ..GROUP }), None);
        assert_eq!(judge(other.as_bytes(), 0), Err(Reason::TokenGroup));
        assert_eq!(judge(token(Scope::Location("moor".into()), None).as_bytes(), 0), Err(Reason::TokenGroup));
        let away = token(Scope::Any, Some("192.0.2.2".parse().unwrap()));
        assert_eq!(judge(away.as_bytes(), 0), Err(Reason::TokenAddress));
        let forged = Token::sign(
            &ClusterKey::from_bytes([8; 32]),
            &Grant { scope: Scope::Any, expires_unix_s: 1000, address: None },
        );
        assert_eq!(judge(forged.unwrap().as_bytes(), 0), Err(Reason::TokenForged));
        for len in 1..TOKEN_BYTES {
            assert_eq!(judge(&good.as_bytes()[..len], 0), Err(Reason::TokenMalformed));
        }
        for bit in 0..TOKEN_BYTES * 8 {
            let mut changed = good.0;
            changed[bit / 8] ^= 1 << (bit % 8);
            let expected = if bit < 8 { Reason::TokenMalformed } else { Reason::TokenForged };
            assert_eq!(judge(&changed, 0), Err(expected), "bit {bit}");
        }
    }

    #[test]
    fn a_token_is_the_same_as_text() {
        let good = token(Scope::Group(GROUP), None);
        let text = good.to_string();
        assert_eq!(text.len(), 80);
        assert_eq!(text.parse::<Token>().unwrap(), good);
        assert!(text[..79].parse::<Token>().is_err());
        assert!("?".repeat(80).parse::<Token>().is_err());
        assert!("".parse::<Token>().is_err());
        let long = Grant { scope: Scope::Location("x".repeat(65)), expires_unix_s: 1, address: None };
        assert_eq!(Token::sign(&key(), &long), Err(TokenError::Location(65)));
    }
}
