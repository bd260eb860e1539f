//! `nacre reflect token`: the operator's permission to join.

use std::net::IpAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use nacre_rpc::ClusterKey;
use serde_json::json;

use super::settings::Time;
use super::target::Target;
use super::{CommandError, Common, print};
use crate::table::GroupId;
use crate::token::{Grant, Scope, Token};

/// Make a token, which lets its bearer join a group that asks for one
///
/// Signs with the operator's key, which is the file that the reflector was given (make one with "nacre keygen"). The
/// token is not secret from those who can read its bearer's datagrams: make it short-lived.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// The group: PORT, PORT/ID, or ID@HOST:PORT as for "nacre reflect join"; or a location; or "*" for everything
    #[arg(value_name = "GROUP|LOCATION")]
    scope: String,
    /// How long it is good for
    #[arg(long = "for", value_name = "TIME", default_value = "10min")]
    life: Time,
    /// Only for a bearer with this address
    #[arg(long, value_name = "ADDRESS")]
    address: Option<IpAddr>,
}

/// Runs the command.
pub fn run(args: Args, common: Common) -> Result<(), CommandError> {
    let Some(path) = &common.key else {
        let text = "give the operator's key with --key FILE; \"nacre keygen\" makes one";
        return Err(CommandError::Usage(text.to_owned()));
    };
    if args.life.0.is_zero() {
        return Err(CommandError::Usage(
            "--for 0s: the token would never be good; give it a time".to_owned(),
        ));
    }
    let scope = scope(&args.scope).map_err(CommandError::Usage)?;
    let key = ClusterKey::load(path).map_err(|error| CommandError::Failed(error.message))?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    // A part of a second at the end counts as a whole one.
    let life_s = args.life.0.as_millis().div_ceil(1000) as u64;
    let grant = Grant { scope, expires_unix_s: now.saturating_add(life_s), address: args.address };
    let token = Token::sign(&key, &grant).map_err(|error| CommandError::Usage(error.to_string()))?;
    match common.json {
        false => print::line(&token.to_string()),
        true => print::line(
            &json!({
                "token": token.to_string(),
                "scope": args.scope,
                "expires": grant.expires_unix_s,
                "address": grant.address,
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
    }
}
