//! `nacre reflect token` and `token-key`: permissions to join.

use std::net::IpAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use nacre_reflect::table::GroupId;
use nacre_reflect::token::{Grant, Identity, Rights, Scope, Token, TokenKey};
use nacre_rpc::ClusterKey;
use serde_json::json;

use super::print;
use super::target::Target;
use crate::arguments::Common;
use crate::failure::Failure;
use crate::quantity::Time;

/// Create a token, which lets its bearer join groups that require one
///
/// Signs with the key file that --key names. Create it with "nacre keygen" for this purpose alone: signing tokens needs
/// no cluster key. The reflector gets its public half, which "nacre reflect token-key" prints. Anyone who can read the
/// bearer's datagrams can read the token, so make it short-lived. The bearer is removed when the token expires.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// The groups, as PORT, PORT/ID, or ID@HOST:PORT as for "nacre reflect join"; or locations; or "*" for everything;
    /// up to 8
    #[arg(value_name = "GROUP|LOCATION", required = true)]
    scopes: Vec<String>,
    /// Time for which the token is valid
    #[arg(long = "for", value_name = "TIME", default_value = "10min")]
    life: Time,
    /// Accept it only from a bearer at this address
    #[arg(long, value_name = "ADDRESS")]
    address: Option<IpAddr>,
    /// Identity of the bearer, any name. Rates, kicks and bans apply to it; without one, to the address
    #[arg(long, value_name = "NAME")]
    identity: Option<String>,
    /// Rights of the bearer: send, receive, state (supply the group's state)
    #[arg(long, value_name = "RIGHT,…", value_delimiter = ',', default_value = "send,receive")]
    rights: Vec<Right>,
}

/// A right.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum Right {
    Send,
    Receive,
    State,
}

/// Print the public half of the key that signs tokens, for --token-key of reflectors
///
/// --key names the key file.
#[derive(clap::Args, Clone, Debug)]
pub struct KeyArgs {}

fn key(common: &Common) -> Result<TokenKey, Failure> {
    let Some(path) = &common.key else {
        let text = "give the key that signs tokens with --key FILE; \"nacre keygen\" creates one";
        return Err(Failure::Usage(text.to_owned()));
    };
    let key = ClusterKey::load(path).map_err(|error| Failure::Failed(error.message))?;
    Ok(TokenKey::new(&key))
}

/// Runs `token-key`.
pub fn run_key(_: KeyArgs, common: &Common) -> Result<(), Failure> {
    let public = key(common)?.public().to_string();
    match common.json {
        false => print::line(&public),
        true => print::line(&json!({ "token_key": public }).to_string()),
    }
}

/// Runs the command.
pub fn run(args: Args, common: &Common) -> Result<(), Failure> {
    let key = key(common)?;
    if args.life.0.is_zero() {
        return Err(Failure::Usage(
            "--for 0s: the token would never be valid; give a longer time".to_owned(),
        ));
    }
    let scopes: Result<_, _> = args.scopes.iter().map(|text| scope(text)).collect();
    let has = |right| args.rights.contains(&right);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    // A part of a second at the end counts as a whole one.
    let life_s = args.life.0.as_millis().div_ceil(1000) as u64;
    let grant = Grant {
        scopes: scopes.map_err(Failure::Usage)?,
        rights: Rights { send: has(Right::Send), receive: has(Right::Receive), state: has(Right::State) },
        identity: args.identity.as_deref().map(Identity::of_name),
        expires_unix_s: now.saturating_add(life_s),
        address: args.address,
    };
    let token = Token::sign(&key, &grant).map_err(|error| Failure::Usage(error.to_string()))?;
    match common.json {
        false => print::line(&token.to_string()),
        true => print::line(
            &json!({
                "token": token.to_string(),
                "scopes": args.scopes,
                "expires": grant.expires_unix_s,
                "address": grant.address,
                "identity": args.identity,
            })
            .to_string(),
        ),
    }
}

fn scope(text: &str) -> Result<Scope, String> {
    if text == "*" {
        return Ok(Scope::Any);
    }
    if let Ok(id) = text.parse::<GroupId>() {
        return Ok(Scope::Group(id));
    }
    if text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'/') {
        return Err(format!("'{text}' is not a group: give PORT or PORT/ID, as numbers"));
    }
    Ok(match text.parse()? {
        Target::Group { group, .. } => Scope::Group(group),
        Target::Location { name, .. } => Scope::Location(name),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_for_a_group_a_location_or_everything() {
        let group = |port, id| Ok(Scope::Group(GroupId { port, id }));
        assert_eq!(scope("7400/5"), group(7400, 5));
        assert_eq!(scope("7500"), group(7500, 0));
        assert_eq!(scope("5@example:7400"), group(7400, 5));
        assert_eq!(scope("harbour"), Ok(Scope::Location("harbour".to_owned())));
        assert_eq!(scope("*"), Ok(Scope::Any));
        assert_eq!(scope("location:99999/5"), Ok(Scope::Location("99999/5".to_owned())));
        for wrong in ["99999/5", "7400/", "7400/99999999999", "99999", ""] {
            assert!(scope(wrong).is_err(), "{wrong}");
        }
    }
}
