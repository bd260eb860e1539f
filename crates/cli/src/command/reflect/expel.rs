//! `nacre reflect kick` and `ban`: members thrown out.

use std::net::IpAddr;

use nacre_daemon::reflect::Expulsion;
use nacre_reflect::control::Subject;
use nacre_reflect::table::GroupId;
use nacre_reflect::token::Identity;
use serde_json::json;

use super::admin_client::Admin;
use super::print;
use crate::arguments::Common;
use crate::failure::Failure;
use crate::quantity::Time;

/// The members that an order is about.
#[derive(clap::Args, Clone, Debug)]
struct About {
    /// The members: an address, a network as ADDRESS/BITS, or the NAME that their tokens have as identity
    #[arg(value_name = "ADDRESS|NETWORK|NAME")]
    who: String,
    /// Only in this group: PORT or PORT/ID, as "nacre reflect groups" shows it [default: all groups]
    #[arg(long, value_name = "GROUP")]
    group: Option<GroupId>,
    #[command(flatten)]
    admin: Admin,
}

/// Remove members from a reflector; their programs do not join again by themselves
///
/// A modified program can still join again. To keep members out, use "nacre reflect ban".
#[derive(clap::Args, Clone, Debug)]
pub struct KickArgs {
    #[command(flatten)]
    about: About,
}

/// Remove members from a reflector, and keep them out for a time
///
/// The ban applies to this reflector, until it expires or the reflector ends.
#[derive(clap::Args, Clone, Debug)]
pub struct BanArgs {
    #[command(flatten)]
    about: About,
    /// Duration of the ban
    #[arg(long = "for", value_name = "TIME", default_value = "1h")]
    time: Time,
    /// Lift the ban instead
    #[arg(long, conflicts_with = "time")]
    lift: bool,
}

/// Runs `kick`.
pub fn kick(args: KickArgs, common: &Common) -> Result<(), Failure> {
    let removed = order(&args.about, common, 0, false)?;
    report(common, &args.about, &format!("{removed} members were removed"), removed)
}

/// Runs `ban`.
pub fn ban(args: BanArgs, common: &Common) -> Result<(), Failure> {
    if args.lift {
        return match order(&args.about, common, 0, true)? {
            0 => Err(Failure::Failed(format!("there is no ban of {}", args.about.who))),
            lifted => report(common, &args.about, "the ban was lifted", lifted),
        };
    }
    let seconds = args.time.0.as_millis().div_ceil(1000) as u64;
    if seconds == 0 {
        return Err(Failure::Usage(
            "--for 0s would be no ban; \"nacre reflect kick\" removes members".to_owned(),
        ));
    }
    let removed = order(&args.about, common, seconds, false)?;
    report(
        common,
        &args.about,
        &format!("{removed} members were removed, and kept out for {seconds} s"),
        removed,
    )
}

fn order(about: &About, common: &Common, seconds: u64, lift: bool) -> Result<u64, Failure> {
    let subject = parse_subject(&about.who).map_err(Failure::Usage)?;
    about.admin.expel(common, Expulsion { subject, group: about.group, seconds, lift })
}

fn report(common: &Common, about: &About, text: &str, count: u64) -> Result<(), Failure> {
    match common.json {
        true => print::line(&json!({ "who": about.who, "count": count }).to_string()),
        false => print::line(text),
    }
}

/// Reads an address, a network or a name.
fn parse_subject(text: &str) -> Result<Subject, String> {
    if let Ok(ip) = text.parse::<IpAddr>() {
        return Ok(Subject::Network(ip, if ip.is_ipv4() { 32 } else { 128 }));
    }
    if let Some((ip, bits)) = text.split_once('/')
        && let Ok(ip) = ip.parse::<IpAddr>()
    {
        let most = if ip.is_ipv4() { 32 } else { 128 };
        let bits = bits.parse().ok().filter(|bits| *bits <= most);
        return bits
            .map(|bits| Subject::Network(ip, bits))
            .ok_or_else(|| format!("'{text}' is not a network"));
    }
    match text {
        "" => Err("the name is empty".to_owned()),
        name => Ok(Subject::Identity(Identity::of_name(name))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_about_an_address_a_network_or_a_name() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        assert_eq!(parse_subject("192.0.2.1"), Ok(Subject::Network(ip("192.0.2.1"), 32)));
        assert_eq!(parse_subject("2001:db8::/32"), Ok(Subject::Network(ip("2001:db8::"), 32)));
        assert_eq!(parse_subject("ann"), Ok(Subject::Identity(Identity::of_name("ann"))));
        assert!(parse_subject("192.0.2.0/33").is_err() && parse_subject("").is_err());
        assert!(parse_subject("192.0.2.0/24").unwrap().is(None, ip("192.0.2.77")));
        assert!(parse_subject("0.0.0.0/0").unwrap().is(None, ip("::ffff:9.9.9.9")));
        assert!(!parse_subject("192.0.2.0/24").unwrap().is(None, ip("192.0.3.1")));
        assert!(!parse_subject("::/0").unwrap().is(None, ip("192.0.3.1")));
    }
}
