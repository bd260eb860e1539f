//! Policies, decisions and simulations in print.

use std::time::{SystemTime, UNIX_EPOCH};

use nacre_balance::{
    Decision, InForce, Kind, MadeMove, Migration, Move, Past, Policy, Published, Settings, Simulated, Step,
};
use nacre_quantity::{Escaped, count, unescape};
use serde_json::{Value, json};

use crate::command::log;
use crate::failure::Failure;
use crate::output::{self, Array, Table};
use crate::session::Context;

/// The number of ranks up to which the table of a simulation has a column for each.
const COLUMNS_MAX: usize = 8;
/// The number of groups of a reflector that are printed: the busiest ones.
const GROUPS_SHOWN_MAX: usize = 10;
/// The number of moves of one tick that are printed as lines.
const MOVES_SHOWN_MAX: usize = 20;

/// Returns a resource, or all of a kind, as it is printed. Names of subtrees and sequencers have escapes already, and get no others.
fn shown(resource: &impl ToString) -> String {
    let text = resource.to_string();
    let bytes = unescape(text.as_bytes()).unwrap_or_else(|_| text.into_bytes());
    Escaped(&bytes).to_string()
}

fn settings_json(settings: &Settings) -> Value {
    json!({
        "tick_ms": settings.tick_ms,
        "moves_per_tick": settings.moves_per_tick,
        "selector": settings.selector.name(),
        "mode": settings.mode.name(),
        "pins": settings.pins.iter().map(|(id, rank)| json!({ "resource": id, "rank": rank })).collect::<Vec<_>>(),
        "masks": settings.masks.iter().map(|(id, ranks)| json!({ "resource": id, "ranks": ranks })).collect::<Vec<_>>(),
    })
}

/// Returns what is in force as JSON.
pub fn in_force_json(in_force: &InForce) -> Value {
    json!({
        "version": in_force.version,
        "policy": in_force.policy.as_ref().map(|stored| &stored.name),
        "object": in_force.policy.as_ref().map(|stored| &stored.object),
        "settings": settings_json(&in_force.settings),
    })
}

/// Prints what is in force.
pub fn print_in_force(in_force: &InForce) -> Result<(), Failure> {
    let settings = &in_force.settings;
    let line = |name: &str, value: &str| output::line(&format!("{name:9} {value}"));
    match &in_force.policy {
        Some(stored) => {
            line("policy", &Escaped::of(&stored.name).to_string())?;
            line("version", &in_force.version.to_string())?;
            line("object", &Escaped::of(&stored.object).to_string())?;
        }
        None => line("policy", "none: nothing is balanced")?,
    }
    line("tick", &format!("{:?}", settings.tick()))?;
    line("moves", &format!("{} away from one rank at a tick", settings.moves_per_tick))?;
    line("selector", settings.selector.name())?;
    line("mode", settings.mode.name())?;
    for (id, rank) in &settings.pins {
        line("pin", &format!("{} at rank {rank}", shown(id)))?;
    }
    for (id, ranks) in &settings.masks {
        let ranks: Vec<String> = ranks.iter().map(u32::to_string).collect();
        line("mask", &format!("{} to ranks {} only", shown(id), ranks.join(", ")))?;
    }
    Ok(())
}

/// Prints the changes of what is in force.
pub fn print_history(session: &Context, history: &[Past]) -> Result<(), Failure> {
    if session.json {
        let mut array = Array::begin()?;
        for past in history {
            array.entry(&json!({
                "epoch": past.epoch,
                "created_ms": past.created_ms,
                "author": past.author,
                "in_force": in_force_json(&past.in_force),
            }))?;
        }
        return Ok(array.end()?);
    }
    let mut table = Table::new(&["version", "policy", "tick", "moves", "pins", "masks", "by"]);
    for Past { author, in_force, .. } in history {
        let InForce { version, policy, settings, .. } = in_force;
        let policy = policy.as_ref().map_or("-".to_owned(), |stored| Escaped::of(&stored.name).to_string());
        table.row([
            version.to_string(),
            policy,
            format!("{:?}", settings.tick()),
            settings.moves_per_tick.to_string(),
            settings.pins.len().to_string(),
            settings.masks.len().to_string(),
            Escaped::of(author).to_string(),
        ]);
    }
    Ok(table.print()?)
}

/// Prints moves that were made.
pub fn print_moves(session: &Context, moves: &[MadeMove]) -> Result<(), Failure> {
    if session.json {
        let mut array = Array::begin()?;
        for MadeMove { at_ms, made } in moves {
            let mut entry = move_json(made);
            entry["at_ms"] = json!(at_ms);
            array.entry(&entry)?;
        }
        return Ok(array.end()?);
    }
    let mut table = Table::new(&["at", "resource", "load", "from", "to"]);
    for MadeMove { at_ms, made } in moves {
        let holder = made.id.kind.holder();
        table.row([
            log::time(*at_ms),
            shown(&made.id),
            format!("{:.1}", made.load),
            format!("{holder} {}", made.from),
            format!("{holder} {}", made.to),
        ]);
    }
    Ok(table.print()?)
}

/// Returns a move that is under way as JSON.
pub fn migration_json(migration: &Migration) -> Value {
    json!({
        "resource": migration.id,
        "from": migration.from,
        "to": migration.to,
        "phase": migration.phase.name(),
        "since_ms": migration.since_ms,
        "members": migration.members,
    })
}

/// Returns a move that is under way as a line.
pub fn migration_text(migration: &Migration) -> String {
    let Migration { id, from, to, phase, since_ms, members } = migration;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = now.as_secs().saturating_sub(since_ms / 1000);
    let (one, many) = match id.kind {
        Kind::Subtree | Kind::Sequencer => ("sequencer", "sequencers"),
        Kind::Group => ("member", "members"),
    };
    let left = members.map_or(String::new(), |members| format!(", {} left", count(members, one, many)));
    let (id, from, to) = (shown(id), Escaped::of(from), Escaped::of(to));
    format!("{id} from {from} to {to}: {} for {seconds} s{left}", phase.name())
}

fn move_json(made: &Move) -> Value {
    json!({
        "resource": made.id,
        "load": made.load,
        "from": made.from,
        "to": made.to,
        "mode": made.mode.name(),
        "pinned": made.is_pin,
    })
}

/// Prints a simulation.
pub fn print_simulated(session: &Context, simulated: &Simulated) -> Result<(), Failure> {
    if session.json {
        return print_simulated_json(simulated);
    }
    let ranks = simulated.steps.first().map_or(0, |step| step.loads.len());
    let by_rank = ranks <= COLUMNS_MAX;
    let mut heads: Vec<String> = vec!["seconds".to_owned(), "moves".to_owned(), "served_%".to_owned()];
    match by_rank {
        true => heads.extend((0..ranks).map(|rank| format!("rank_{rank}"))),
        false => heads.extend(["least", "mean", "most"].map(str::to_owned)),
    }
    let heads: Vec<&str> = heads.iter().map(String::as_str).collect();
    let mut table = Table::new(&heads);
    for step in &simulated.steps {
        let mut row = vec![
            format!("{}", step.at_s),
            step.moves.len().to_string(),
            format!("{:.1}", 100.0 * step.served),
        ];
        match by_rank {
            true => row.extend(step.loads.iter().map(|load| format!("{load:.1}"))),
            false => {
                let least = step.loads.iter().copied().fold(f64::INFINITY, f64::min);
                let most = step.loads.iter().copied().fold(0.0, f64::max);
                let mean = step.loads.iter().sum::<f64>() / ranks as f64;
                row.extend([least, mean, most].map(|load| format!("{load:.1}")));
            }
        }
        table.row(row);
    }
    table.print()?;
    for step in &simulated.steps {
        print_step(step)?;
    }
    output::line("")?;
    let Simulated { moves, back_and_forth, without_gain, failures, settled_s, .. } = simulated;
    let settled = match settled_s {
        Some(seconds) => format!("settled after {seconds} s"),
        None => "not settled".to_owned(),
    };
    output::line(&format!(
        "{settled}; {}, {back_and_forth} of them back and forth, {without_gain} without gain; {} of the policy",
        count(*moves as u64, "move", "moves"),
        count(*failures as u64, "failure", "failures"),
    ))?;
    Ok(())
}

fn print_step(step: &Step) -> Result<(), Failure> {
    for made in step.moves.iter().take(MOVES_SHOWN_MAX) {
        output::line(&format!("at {} s: {made}", step.at_s))?;
    }
    if step.moves.len() > MOVES_SHOWN_MAX {
        output::line(&format!("at {} s: {} further moves", step.at_s, step.moves.len() - MOVES_SHOWN_MAX))?;
    }
    for (rank, note) in step.notes.iter().filter(|(_, note)| note.is_warning()) {
        output::line(&format!("at {} s: rank {rank}: {note}", step.at_s))?;
    }
    Ok(())
}

fn print_simulated_json(simulated: &Simulated) -> Result<(), Failure> {
    let steps: Vec<Value> = simulated
        .steps
        .iter()
        .map(|step| {
            json!({
                "seconds": step.at_s,
                "loads": step.loads,
                "served": step.served,
                "imbalance": step.imbalance(),
                "moves": step.moves.iter().map(move_json).collect::<Vec<_>>(),
                "notes": step.notes.iter().map(|(rank, note)| json!({ "rank": rank, "text": note.to_string() })).collect::<Vec<_>>(),
                "log": step.log.iter().map(|(rank, line)| json!({ "rank": rank, "text": line })).collect::<Vec<_>>(),
            })
        })
        .collect();
    let all = json!({
        "moves": simulated.moves,
        "back_and_forth": simulated.back_and_forth,
        "without_gain": simulated.without_gain,
        "failures": simulated.failures,
        "settled_seconds": simulated.settled_s,
        "steps": steps,
    });
    Ok(output::line(&all.to_string())?)
}

/// The next decision of a rank or a reflector.
pub struct Explained<'a> {
    /// The load that it has published.
    pub published: &'a Published,
    /// The decision by it.
    pub decision: Decision,
}

impl Explained<'_> {
    /// Returns the word for what it is.
    fn holder(&self) -> &'static str {
        if self.published.reflector.is_some() { "reflector" } else { "rank" }
    }
}

/// Prints what the next tick would do. `silent` says why nothing is decided for the ranks.
pub fn explained(
    session: &Context,
    policy: &Policy,
    ranks: &[Explained<'_>],
    silent: Option<&str>,
    reflectors: &[Explained<'_>],
) -> Result<(), Failure> {
    if session.json {
        let list = |all: &[Explained<'_>]| all.iter().map(explained_json).collect::<Vec<Value>>();
        let all = json!({
            "policy": policy.name(),
            "version": policy.version(),
            "ranks": list(ranks),
            "silent": silent,
            "reflectors": list(reflectors),
        });
        return Ok(output::line(&all.to_string())?);
    }
    output::line(&format!("policy \"{}\" of version {}", Escaped::of(policy.name()), policy.version()))?;
    if !ranks.is_empty() {
        let mut table = Table::new(&["rank", "load", "requests/s", "queue", "cpu", "resources", "policy"]);
        for Explained { published: Published { rank, metrics, policy, .. }, .. } in ranks {
            table.row([
                rank.to_string(),
                format!("{:.1}", metrics.all_load),
                format!("{:.1}", metrics.request_rate),
                format!("{:.1}", metrics.queue_length),
                format!("{:.2}", metrics.processor),
                format!("{}", metrics.resources),
                policy_text(policy.as_ref()),
            ]);
        }
        table.print()?;
    }
    if let Some(silent) = silent {
        output::line(silent)?;
    }
    ranks.iter().try_for_each(print_explained)?;
    print_reflectors(reflectors)?;
    reflectors.iter().try_for_each(print_explained)
}

fn policy_text(policy: Option<&(String, u64)>) -> String {
    policy.map_or("-".to_owned(), |(name, version)| format!("{} {version}", Escaped::of(name)))
}

/// Prints the load of reflectors and of their busiest groups.
fn print_reflectors(reflectors: &[Explained<'_>]) -> Result<(), Failure> {
    if reflectors.is_empty() {
        return Ok(());
    }
    let mut table = Table::new(&["reflector", "address", "load", "members", "cpu", "resources", "policy"]);
    let mut groups = Table::new(&["group", "location", "reflector", "members", "datagrams/s", "copies/s"]);
    let mut has_groups = false;
    for Explained { published, .. } in reflectors {
        let (number, metrics) = (published.rank.to_string(), &published.metrics);
        let Some(reflector) = &published.reflector else { continue };
        table.row([
            number.clone(),
            Escaped::of(&reflector.address).to_string(),
            format!("{:.1}", metrics.all_load),
            format!("{}", metrics.further.get("members").copied().unwrap_or_default()),
            format!("{:.2}", metrics.processor),
            format!("{}", metrics.resources),
            policy_text(published.policy.as_ref()),
        ]);
        for group in reflector.groups.iter().take(GROUPS_SHOWN_MAX) {
            has_groups = true;
            let location = group.location.as_ref();
            groups.row([
                Escaped::of(&group.group).to_string(),
                location.map_or("-".to_owned(), |name| Escaped::of(name).to_string()),
                number.clone(),
                group.members.to_string(),
                format!("{:.1}", group.datagrams_per_second),
                format!("{:.1}", group.copies_per_second),
            ]);
        }
    }
    table.print()?;
    if has_groups { Ok(groups.print()?) } else { Ok(()) }
}

fn print_explained(one: &Explained<'_>) -> Result<(), Failure> {
    let Explained { published, decision } = one;
    let holder = one.holder();
    let say = |text: &str| output::line(&format!("{holder} {}: {text}", published.rank));
    let targets = decision.targets.iter().enumerate().filter(|(_, target)| **target > 0.0);
    for (to, target) in targets {
        say(&format!("the policy sends a load of {target:.1} to {holder} {to}"))?;
    }
    for made in &decision.moves {
        say(&format!("it would move {made}"))?;
    }
    if decision.moves.is_empty() {
        say("it would move nothing")?;
    }
    let listed = published.resources.len();
    if published.metrics.resources > listed as f64 {
        say(&format!(
            "it has published only the biggest {listed} of its resources, so this is a part of what it would do"
        ))?;
    }
    for note in &decision.notes {
        say(&note.to_string())?;
    }
    for line in &decision.log {
        say(&format!("the policy says: {}", Escaped::of(line)))?;
    }
    for migration in &published.migrations {
        say(&format!("under way: {}", migration_text(migration)))?;
    }
    Ok(())
}

fn explained_json(one: &Explained<'_>) -> Value {
    let Explained { published, decision } = one;
    let mut all = json!({
        "rank": published.rank,
        "at_ms": published.at_ms,
        "load": published.metrics.all_load,
        "targets": decision.targets,
        "moves": decision.moves.iter().map(move_json).collect::<Vec<_>>(),
        "notes": decision.notes.iter().map(|note| note.to_string()).collect::<Vec<_>>(),
        "log": decision.log,
        "migrations": published.migrations.iter().map(migration_json).collect::<Vec<_>>(),
    });
    if let Some(reflector) = &published.reflector {
        all["reflector"] = json!(reflector.address);
        all["groups"] = json!(reflector.groups);
    }
    all
}
