//! The arguments that `join` and `send` share: the group to join, and its options.

use std::net::SocketAddr;

use nacre_quantity::Escaped;
use nacre_reflect::client::ClientError;
use nacre_reflect::member::{MemberOptions, Target as LocationEntry, Wanted};
use nacre_reflect::token::Token;
use nacre_reflect::wire::Reason;

use super::target::{PORT_DEFAULT, Target, resolve};
use crate::failure::Failure;

/// Converts the error of a client.
pub fn failed(error: ClientError) -> Failure {
    Failure::Failed(error.to_string())
}

/// The group to join, and the way to join it.
#[derive(clap::Args, Clone, Debug)]
pub struct Member {
    /// The group: ID@HOST:PORT on a port that groups share, PORT@HOST or HOST:PORT for a group that is a port; or a
    /// location, LOCATION@HOST:PORT, whose place that reflector knows
    #[arg(value_name = "GROUP@ADDRESS|LOCATION")]
    pub what: Target,
    /// Reflectors to try when the first does not answer; may be repeated
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',')]
    pub standby: Vec<SocketAddr>,
    /// Token that permits joining, from "nacre reflect token"
    #[arg(long, value_name = "TOKEN", env = "NACRE_TOKEN", hide_env_values = true)]
    pub token: Option<Token>,
}

impl Member {
    /// Returns the wanted group for the member's state machine.
    ///
    /// # Errors
    /// [`Failure::Failed`] if the address of a host cannot be found.
    pub fn wanted(&self) -> Result<Wanted, Failure> {
        match &self.what {
            Target::Group { host, group } => {
                let first = resolve(host, group.port)?;
                let all = [first].into_iter().chain(self.standby.iter().copied());
                Ok(Wanted::Group(all.map(|reflector| LocationEntry { reflector, group: group.id }).collect()))
            }
            Target::Location { name, reflector } => {
                let first = match reflector {
                    Some((host, port)) => Some(resolve(host, *port)?),
                    None if self.standby.is_empty() => Some(SocketAddr::from(([127, 0, 0, 1], PORT_DEFAULT))),
                    None => None,
                };
                let reflectors = first.into_iter().chain(self.standby.iter().copied()).collect();
                Ok(Wanted::Location { name: name.clone(), reflectors })
            }
        }
    }

    /// Returns the options for the member's state machine.
    pub fn options(&self) -> MemberOptions {
        let token = self.token.as_ref().map(|token| token.as_bytes().to_vec()).unwrap_or_default();
        MemberOptions { token, ..MemberOptions::default() }
    }

    /// Returns the target as text, in the form that the user writes.
    pub fn shown(&self) -> String {
        match &self.what {
            Target::Group { host, group } if host.contains(':') => {
                format!("{}@[{host}]:{}", group.id, group.port)
            }
            Target::Group { host, group } => format!("{}@{host}:{}", group.id, group.port),
            Target::Location { name, reflector } => {
                let name = Escaped::of(name);
                match (reflector, self.standby.first()) {
                    (Some((host, port)), _) if host.contains(':') => {
                        format!("location \"{name}\" at [{host}]:{port}")
                    }
                    (Some((host, port)), _) => format!("location \"{name}\" at {host}:{port}"),
                    // The standbys are asked, or this machine.
                    (None, Some(standby)) => format!("location \"{name}\" at {standby}"),
                    (None, None) => format!("location \"{name}\" at 127.0.0.1:{PORT_DEFAULT}"),
                }
            }
        }
    }
}

/// Returns whether it is of no use to go on trying after a first refusal for this reason.
pub fn is_final(reason: Reason) -> bool {
    !matches!(reason, Reason::TooManyJoins | Reason::Closing | Reason::NotMember)
}

/// Formats a group in the form in which it is named to join it.
pub fn place(place: LocationEntry) -> String {
    format!("{}@{}", place.group, place.reflector)
}
