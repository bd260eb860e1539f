//! `nacre locks`: who holds which bytes, who waits, and the end of a session by hand.

use serde_json::{Value, json};

use crate::arguments::session_number;
use crate::failure::Failure;
use crate::name;
use crate::output::{self, Table};
use crate::session::Session;

/// Show who holds which bytes of which files, and who waits
///
/// BYTES is the first byte of a request at a server and the end of its last, whatever lies between. STATE is "held"; "waits"
/// for the byte that is shown; "partial" if not all is held and nothing is waited for there, because the request stands in
/// line at another server, or the server was started again; or "lapsed" if the session is lost and its fence is being raised.
#[derive(clap::Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    /// Only those of this file
    #[arg(value_parser = name::file())]
    file: Option<String>,
    #[command(subcommand)]
    command: Option<Command>,
}

/// A command on lock sessions.
#[derive(clap::Subcommand, Debug)]
pub enum Command {
    /// Take a session's locks away
    ///
    /// Its exclusive locks are released once the store refuses its changes of the objects that it may have written; its shared
    /// ones, when its lease would have lapsed.
    Break {
        /// The session
        #[arg(value_parser = session_number)]
        session: u64,
    },
}

/// Runs `nacre locks`.
pub async fn run(session: &Session, args: Args) -> Result<(), Failure> {
    let store = session.open()?;
    if let Some(Command::Break { session: number }) = args.command {
        if !store.break_lock_session(number).await? {
            let text = format!(
                "{} has no lock session {number}; \"nacre locks\" lists those with locks",
                store.name()
            );
            return Err(Failure::Failed(text));
        }
        if session.json {
            output::line(&json!({ "broken": number }).to_string())?;
        }
        return Ok(());
    }
    let mut reports = store.locks().await?;
    if let Some(file) = &args.file {
        for report in &mut reports {
            if let Some(locks) = report.report["locks"].as_array_mut() {
                locks.retain(|lock| lock["file"] == **file);
            }
        }
    }
    if session.json {
        let parts: Vec<Value> =
            reports.iter().map(|report| json!({ "place": report.place, "report": report.report })).collect();
        output::line(&Value::from(parts).to_string())?;
        return Ok(());
    }
    print(&reports)
}

fn print(reports: &[nacre::Report]) -> Result<(), Failure> {
    let mut table = Table::new(&["file", "session", "mode", "state", "bytes", "waits_for_byte", "server"]);
    for nacre::Report { place, report } in reports {
        if report["in_grace"] == true {
            output::complain(&format!(
                "nacre: {place} was restarted, and takes only locks from before for some seconds"
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
                name::shown(&text("file")),
                text("session"),
                text("mode"),
                text("state"),
                bytes,
                waits,
                place.clone(),
            ]);
        }
    }
    Ok(table.print()?)
}
