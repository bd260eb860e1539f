//! `nacre status`: the servers of a store, which of them are up, and what they have to do.

use std::collections::BTreeMap;
use std::time::Duration;

use nacre_balance::Migration;
use nacre_map::cluster::{self, Beacon, Phase, SERVERS_MAP, ServerEntry};
use nacre_quantity::{Escaped, escaped_text};
use serde_json::{Value, json};

use super::balance::{migration_json, migration_text, under_way};
use crate::failure::Failure;
use crate::output::{self, Table};
use crate::session::Context;

/// The time for which moves under way are waited for.
const PATIENCE: Duration = Duration::from_secs(2);

/// Show the servers of a store, with roles, state, load and moves under way; exit with 1 unless all are healthy
#[derive(clap::Args, Debug)]
pub struct Args {}

/// The state of a server, as far as it is known.
#[derive(Default)]
struct ServerState {
    entry: Option<ServerEntry>,
    beacon: Option<Beacon>,
    /// Its own report, or the reason why it could not be asked.
    said: Option<Result<Value, String>>,
}

impl ServerState {
    /// Returns the server's state in a word, and whether that is as it should be.
    fn state(&self) -> (&'static str, bool) {
        let phase = self.entry.as_ref().map(|entry| entry.state);
        match (&self.said, phase) {
            (_, Some(Phase::Stopped)) if !self.answers() => ("stopped", true),
            (Some(Err(_)), Some(Phase::Up)) => ("not reached", false),
            (_, Some(Phase::Down)) if self.answers() => ("held down", false),
            (Some(Err(_)), _) | (_, Some(Phase::Down)) => ("down", false),
            _ if self.error().is_some() => ("failing", false),
            _ => ("up", true),
        }
    }

    fn answers(&self) -> bool {
        matches!(&self.said, Some(Ok(_)))
    }

    fn load(&self) -> Value {
        match (&self.said, &self.beacon) {
            (Some(Ok(said)), _) => said["load"].clone(),
            (_, Some(beacon)) => json!(beacon.load),
            _ => Value::Null,
        }
    }

    fn error(&self) -> Option<String> {
        match &self.said {
            Some(Ok(said)) => said["load"]["error"].as_str().map(str::to_owned),
            Some(Err(why)) => Some(why.clone()),
            None => None,
        }
    }

    fn roles(&self) -> String {
        let said =
            self.said.as_ref().and_then(|said| said.as_ref().ok()).and_then(|said| said["roles"].as_array());
        let said = said.map(|roles| roles.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(","));
        said.or_else(|| Some(self.entry.as_ref()?.roles.join(","))).unwrap_or_default()
    }
}

/// Runs `nacre status`.
pub async fn run(session: &Context, _args: Args) -> Result<(), Failure> {
    let store = session.open()?;
    let statuses = store.status().await?;
    let mut servers: BTreeMap<String, ServerState> = BTreeMap::new();
    for (server, said) in statuses {
        // A server is named as it names itself; one that does not answer, by its address.
        let name = said.as_ref().ok().and_then(|said| said["server"].as_str()).map_or(server, str::to_owned);
        servers.entry(name).or_default().said = Some(said.map_err(|error| error.message));
    }
    // The map may be at a server that is away.
    let map = match store.map(SERVERS_MAP)?.state().await {
        Ok(state) => Ok((state, cluster::beacons(&store).await.unwrap_or_default())),
        Err(error) => Err(error.message),
    };
    let mut epoch = None;
    if let Ok((state, beacons)) = &map {
        epoch = Some(state.epoch()).filter(|epoch| *epoch > 0);
        for (name, value) in state.entries() {
            let Some(entry) = ServerEntry::decode(&value.value) else { continue };
            let known = servers.entry(name.to_string()).or_default();
            known.beacon = beacons.get(&name.to_string()).cloned();
            known.entry = Some(entry);
        }
    }
    let unhealthy = servers.values().filter(|known| !known.state().1).count();
    let summary = match (unhealthy, &map) {
        (_, Err(why)) => format!("the map of servers cannot be read: {why}"),
        (0, _) => format!("all healthy: {}", count(servers.len())),
        (unhealthy, _) => format!("{unhealthy} of {} unhealthy", count(servers.len())),
    };
    // A server that keeps some of it may be away, which is said already.
    let migrations = match tokio::time::timeout(PATIENCE, under_way(&store)).await {
        Ok(Ok(migrations)) => migrations,
        Ok(Err(_)) | Err(_) => Vec::new(),
    };
    if session.json {
        print_json(&servers, epoch, &migrations, &summary)?;
    } else {
        print_table(&servers, epoch)?;
        for migration in &migrations {
            output::line(&format!("moving {}", migration_text(migration)))?;
        }
        if map.is_ok() {
            output::line(&summary)?;
        }
    }
    match unhealthy == 0 && map.is_ok() {
        true => Ok(()),
        false => Err(Failure::Failed(summary)),
    }
}

fn count(servers: usize) -> String {
    if servers == 1 { "1 server".to_owned() } else { format!("{servers} servers") }
}

fn print_json(
    servers: &BTreeMap<String, ServerState>,
    epoch: Option<u64>,
    migrations: &[Migration],
    summary: &str,
) -> Result<(), Failure> {
    let list: Vec<Value> = servers
        .iter()
        .map(|(name, known)| {
            let (state, healthy) = known.state();
            json!({
                "server": name,
                "rank": known.entry.as_ref().map(|entry| entry.rank),
                "roles": known.roles().split(',').collect::<Vec<_>>(),
                "state": state,
                "well": healthy,
                "downs": known.entry.as_ref().map(|entry| entry.downs),
                "epoch": known.beacon.as_ref().map(|beacon| beacon.epoch),
                "load": known.load(),
                "error": known.error(),
            })
        })
        .collect();
    let migrations: Vec<Value> = migrations.iter().map(migration_json).collect();
    let all = json!({ "epoch": epoch, "servers": list, "migrations": migrations, "summary": summary });
    Ok(output::line(&all.to_string())?)
}

fn print_table(servers: &BTreeMap<String, ServerState>, epoch: Option<u64>) -> Result<(), Failure> {
    let mut table = Table::new(&["server", "roles", "state", "up for", "connections", "requests"]);
    for (name, known) in servers {
        let load = known.load();
        let number = |field: &str, unit: &str| match (known.answers(), load[field].as_u64()) {
            (true, Some(number)) => format!("{number}{unit}"),
            _ => "-".to_owned(),
        };
        let (state, _) = known.state();
        let up = number("up_s", " s");
        table.row([
            Escaped::of(name).to_string(),
            Escaped::of(&known.roles()).to_string(),
            state.to_owned(),
            up,
            number("connections", ""),
            number("requests", ""),
        ]);
    }
    table.print()?;
    for (name, known) in servers {
        if let Some(error) = known.error() {
            let (name, error) = (Escaped::of(name), escaped_text(&error));
            output::line(&format!("{name}: {error}"))?;
        }
    }
    match epoch {
        Some(epoch) => Ok(output::line(&format!("map of servers at epoch {epoch}"))?),
        None => Ok(()),
    }
}
