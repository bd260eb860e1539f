//! `nacre locks`: who holds which bytes, who waits, and the end of a session by hand.

use nacre::{Error as StoreError, MemberReport, Report, Store};
use nacre_quantity::Escaped;
use serde_json::{Value, json};

use crate::arguments::session_number;
use crate::failure::Failure;
use crate::name;
use crate::output::{self, Table};
use crate::session::Context;

/// Show which sessions hold which bytes of which files, and which wait
///
/// BYTES is the range from the first to the last byte of a request at a server, gaps included. STATE is "held";
/// "waits", for the byte shown; "partial" if some bytes are not held but none is waited for, because the request is
/// queued at another server or the server was restarted; or "lapsed" if the session is lost and its fence is being
/// raised. If a server cannot be reached, the others are shown, and the exit code is 1.
#[derive(clap::Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    /// Show only locks of this file
    #[arg(value_parser = name::file())]
    file: Option<String>,
    #[command(subcommand)]
    command: Option<Command>,
}

/// A command on lock sessions.
#[derive(clap::Subcommand, Debug)]
pub enum Command {
    /// Take away a session's locks
    ///
    /// Its exclusive locks are released once the store refuses its changes to the objects that it may have written, its
    /// shared locks when its lease would have lapsed.
    Break {
        /// The session
        #[arg(value_parser = session_number)]
        session: u64,
    },
}

/// Runs `nacre locks`.
pub async fn run(session: &Context, args: Args) -> Result<(), Failure> {
    let store = session.open()?;
    if let Some(Command::Break { session: number }) = args.command {
        return break_session(session, &store, number).await;
    }
    let (mut reports, away) = split(store.locks_by_server().await?);
    if let Some(file) = &args.file {
        for report in &mut reports {
            if let Some(locks) = report.report["locks"].as_array_mut() {
                locks.retain(|lock| lock["file"] == **file);
            }
        }
    }
    if session.json {
        // Servers tell names as they are.
        let lists = reports.iter_mut().filter_map(|report| report.report.get_mut("locks")?.as_array_mut());
        for lock in lists.flatten() {
            if let Some(Value::String(file)) = lock.get_mut("file") {
                *file = Escaped::of(file.as_str()).to_string();
            }
        }
        let part = |report: &Report| json!({ "place": report.server, "report": report.report });
        let missing =
            |(server, error): &(String, StoreError)| json!({ "place": server, "error": error.message });
        let parts: Vec<Value> = reports.iter().map(part).chain(away.iter().map(missing)).collect();
        output::line(&Value::from(parts).to_string())?;
    } else {
        print(&reports)?;
    }
    match away.is_empty() {
        true => Ok(()),
        false => Err(Failure::Failed(format!("not all lock servers answered: {}", reasons(&away)))),
    }
}

/// Takes a session's locks away, and says at which servers it could not be.
async fn break_session(session: &Context, store: &Store, number: u64) -> Result<(), Failure> {
    let (reports, away) = split(store.break_lock_session_by_server(number).await?);
    let (broken, unknown): (Vec<_>, Vec<_>) =
        reports.iter().partition(|report| report.report["broken"] == true);
    let places = |reports: &[&Report]| {
        let places: Vec<&str> = reports.iter().map(|report| report.server.as_str()).collect();
        places.join(", ")
    };
    if session.json && !broken.is_empty() {
        output::line(&json!({ "broken": number }).to_string())?;
    }
    match (broken.is_empty(), away.is_empty()) {
        (false, true) => Ok(()),
        (true, true) => Err(Failure::Failed(format!(
            "{} has no lock session {number}; \"nacre locks\" lists those with locks",
            store.name()
        ))),
        (no_server, false) => {
            let done = if no_server {
                format!("lock session {number} is unknown at {}", places(&unknown))
            } else if unknown.is_empty() {
                format!("lock session {number} is broken at {}", places(&broken))
            } else {
                format!(
                    "lock session {number} is broken at {}, and unknown at {}",
                    places(&broken),
                    places(&unknown)
                )
            };
            let text = format!(
                "{done}; not all lock servers answered, break it again when they do: {}",
                reasons(&away)
            );
            Err(Failure::Failed(text))
        }
    }
}

/// Splits the answers of servers from the reasons why others gave none.
fn split(members: Vec<MemberReport>) -> (Vec<Report>, Vec<(String, StoreError)>) {
    let (mut reports, mut away) = (Vec::new(), Vec::new());
    for MemberReport { server, report } in members {
        match report {
            Ok(report) => reports.push(Report { server, report }),
            Err(error) => away.push((server, error)),
        }
    }
    (reports, away)
}

fn reasons(away: &[(String, StoreError)]) -> String {
    let reasons: Vec<String> =
        away.iter().map(|(server, error)| format!("{server}: {}", error.message)).collect();
    reasons.join("; ")
}

fn print(reports: &[Report]) -> Result<(), Failure> {
    let mut table = Table::new(&["file", "session", "mode", "state", "bytes", "waits_for_byte", "server"]);
    for Report { server, report } in reports {
        if report["in_grace"] == true {
            output::complain(&format!(
                "nacre: {server} was restarted, and for some seconds accepts only locks held before"
            ));
        }
        for cycle in report["cycles"].as_array().into_iter().flatten() {
            let sessions: Vec<String> =
                cycle.as_array().into_iter().flatten().map(Value::to_string).collect();
            output::complain(&format!(
                "nacre: lock sessions {} wait for each other in a circle; \"nacre locks break SESSION\" ends one of them",
                sessions.join(", ")
            ));
        }
        for lock in report["locks"].as_array().into_iter().flatten() {
            let text = |name: &str| match &lock[name] {
                Value::String(text) => text.clone(),
                Value::Null => "-".to_owned(),
                other => other.to_string(),
            };
            let waits = if lock["state"] == "waits" { text("next_wanted") } else { "-".to_owned() };
            let bytes = format!("{}..{}", text("offset"), text("end"));
            table.row([
                Escaped::of(&text("file")).to_string(),
                text("session"),
                text("mode"),
                text("state"),
                bytes,
                waits,
                server.clone(),
            ]);
        }
    }
    Ok(table.print()?)
}
