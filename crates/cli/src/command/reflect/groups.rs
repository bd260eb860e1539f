//! `nacre reflect groups`: the groups of a running reflector.

use serde_json::Value;

use super::http_client::At;
use super::print;
use crate::arguments::Common;
use crate::failure::Failure;
use crate::output::Table;
use crate::quantity;

/// Show the groups of a running reflector: members, rates, copies, delays, and what was refused and why
///
/// Asks the reflector over HTTP. Rates are those of the last few seconds. The delay is the median round-trip time of
/// the members' heartbeats.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    #[command(flatten)]
    at: At,
    /// Show only this group: PORT, or PORT/ID
    #[arg(value_name = "GROUP")]
    group: Option<String>,
    /// Show the members of the group too
    #[arg(long, requires = "group")]
    members: bool,
}

/// Runs the command.
pub fn run(args: Args, common: &Common) -> Result<(), Failure> {
    let path = match &args.group {
        None => "/groups".to_owned(),
        Some(group) => {
            let id: nacre_reflect::table::GroupId = group.parse().map_err(Failure::Usage)?;
            format!("/groups?group={id}&members={}", args.members)
        }
    };
    let answer = args.at.get(&path)?;
    if common.json {
        return print::line(&answer.to_string());
    }
    let mut table = Table::new(&[
        "group",
        "members",
        "in/s",
        "copies/s",
        "datagrams",
        "copies",
        "refused",
        "undeliverable",
        "delay",
        "state",
    ]);
    list(&answer["groups"]).for_each(|group| table.row(group_row(group)));
    table.print()?;
    for group in list(&answer["groups"]).filter(|_| args.members) {
        print::line("")?;
        let mut table = Table::new(&["member", "at", "device", "heard", "delay", "echo"]);
        list(&group["list"]).for_each(|member| table.row(member_row(member)));
        table.print()?;
    }
    let reflector = &answer["reflector"];
    let number = |name: &str| reflector[name].as_u64().unwrap_or(0);
    print::line(&format!(
        "\n{}, {}, {} admitted, {} by the {} plane",
        quantity::count(number("groups"), "group"),
        quantity::count(number("members"), "member"),
        quantity::count(number("admitted"), "datagram"),
        // The plural of a copy is not that of a member.
        match number("copies") {
            1 => "1 copy".to_owned(),
            copies => format!("{} copies", quantity::grouped(copies)),
        },
        reflector["plane"].as_str().unwrap_or("unknown"),
    ))?;
    let refused: Vec<String> = object(&reflector["refused"])
        .filter_map(|(reason, count)| {
            let count = count.as_u64().filter(|count| *count > 0)?;
            Some(format!("{} {}", quantity::grouped(count), reason.replace('_', " ")))
        })
        .collect();
    match refused.is_empty() {
        true => print::line("nothing was refused"),
        false => print::line(&format!("refused: {}", refused.join(", "))),
    }
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn object(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flatten()
}

fn group_row(group: &Value) -> Vec<String> {
    let number = |name: &str| group[name].as_u64().map_or_else(|| "-".to_owned(), quantity::grouped);
    let refused: u64 = object(&group["refused"]).filter_map(|(_, count)| count.as_u64()).sum();
    vec![
        group["group"].as_str().unwrap_or_default().to_owned(),
        number("members"),
        number("datagrams_per_second"),
        number("copies_per_second"),
        number("admitted"),
        number("copies"),
        quantity::grouped(refused),
        number("undeliverable"),
        delay(group["delay_us"].as_u64()),
        group["state_version"].as_u64().map_or_else(|| "-".to_owned(), |version| format!("v{version}")),
    ]
}

fn member_row(member: &Value) -> Vec<String> {
    let text = |name: &str| member[name].as_str().unwrap_or_default().to_owned();
    vec![
        text("address"),
        text("at"),
        text("device"),
        format!("{:.1}s ago", member["heard_ms_ago"].as_u64().unwrap_or(0) as f64 / 1000.0),
        delay(member["delay_us"].as_u64()),
        if member["echo"] == true { "yes".to_owned() } else { "no".to_owned() },
    ]
}

/// Formats a delay for people; 0 and none are not known yet.
fn delay(us: Option<u64>) -> String {
    match us.filter(|us| *us > 0) {
        None => "-".to_owned(),
        Some(us) if us < 10_000 => format!("{:.2}ms", us as f64 / 1000.0),
        Some(us) => format!("{:.0}ms", us as f64 / 1000.0),
    }
}
