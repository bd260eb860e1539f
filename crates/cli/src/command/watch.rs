//! `nacre watch` and `nacre notify`.

use std::io::Read as _;
use std::time::Duration;

use bytes::Bytes;
use nacre::watch::{Acknowledged, Event, Gap};
use nacre::{Engine, ObjectId, Store, limit};
use nacre_quantity::Escaped;
use nacre_shell::Signals;
use serde_json::{Map, Value, json};

use crate::failure::Failure;
use crate::quantity::Time;
use crate::session::Context;
use crate::{arguments, complete, name, output};

/// Watch an object: print its changes and notifications as they come
///
/// Prints a line with the object's current version, then one for each event: "changed" with the new version, "notified"
/// with the payload, and "gap" with the latest version where events were missed, because the connection broke or this
/// program was too slow. Notifications are acknowledged once they are printed. The object need not exist.
#[derive(clap::Args, Debug)]
pub struct WatchArgs {
    /// The object
    #[arg(value_parser = name::object(), add = complete::objects())]
    object: ObjectId,
    /// Stop after this many events
    #[arg(long, value_name = "COUNT", value_parser = arguments::at_least_one)]
    count: Option<usize>,
    /// The reply to notifications, used unchanged
    #[arg(long, value_name = "REPLY", default_value = "", hide_default_value = true, value_parser = name::value())]
    reply: Bytes,
}

/// Notify the watchers of an object, and print who acknowledged it
///
/// Ends when all have acknowledged it, or with exit code 1 when the time is up.
#[derive(clap::Args, Debug)]
pub struct NotifyArgs {
    /// The object
    #[arg(value_parser = name::object(), add = complete::objects())]
    object: ObjectId,
    /// The payload, used unchanged, at most 60 KiB; - is standard input
    #[arg(default_value = "", hide_default_value = true, value_parser = name::value(), allow_hyphen_values = true)]
    payload: Bytes,
    /// Time for watchers to acknowledge it, at most 60s
    #[arg(long, value_name = "TIME", default_value = "5s")]
    timeout: Time,
}

/// Runs `nacre watch`.
pub async fn watch(session: &Context, args: WatchArgs) -> Result<(), Failure> {
    if args.reply.len() > limit::ACKNOWLEDGEMENT_BYTES_MAX {
        let text = format!(
            "a reply of {} bytes; it may have {}",
            args.reply.len(),
            limit::ACKNOWLEDGEMENT_BYTES_MAX
        );
        return Err(Failure::Usage(text));
    }
    let store = open(session)?;
    let mut signals = Signals::catch()?;
    let mut watch = tokio::select! {
        watch = async { store.object(&args.object)?.watch().await } => watch?,
        () = signals.next() => return Ok(()),
    };
    let began = json!({ "event": "watching", "version": watch.version(), "watcher": id(watch.id()) });
    print_event(session, &began, &format!("watching  version {}", watch.version()))?;
    let mut left = args.count.unwrap_or(usize::MAX);
    while left > 0 {
        let event = tokio::select! {
            event = watch.next() => event,
            () = signals.next() => return Ok(()),
        };
        let Some(event) = event else { return Ok(()) };
        left -= 1;
        match event? {
            Event::Changed { version } => {
                let value = json!({ "event": "changed", "version": version });
                print_event(session, &value, &format!("changed   version {version}"))?;
            }
            Event::Gap(gap) => print_event(session, &gap_json(&gap), &gap_text(&gap))?,
            Event::Notified(notification) => {
                let mut map = Map::new();
                map.insert("event".into(), "notified".into());
                map.insert("notification".into(), id(notification.id()));
                output::put_bytes(&mut map, "payload", notification.payload());
                let text = format!("notified  {}", Escaped(notification.payload()));
                print_event(session, &Value::Object(map), &text)?;
                notification.acknowledge(args.reply.clone())?;
                // The acknowledgement goes its way while the program waits for what comes next; before the end it is
                // given the time that it takes to be sent.
                if left == 0 {
                    let flushed = store.object(&args.object)?;
                    let _ = flushed.stat().await;
                }
            }
        }
    }
    Ok(())
}

fn gap_json(gap: &Gap) -> Value {
    json!({
        "event": "gap",
        "version": gap.version,
        "cause": gap.cause.to_string(),
        "changes": gap.changes,
        "notifications": gap.notifications,
    })
}

fn gap_text(gap: &Gap) -> String {
    let counts = match (gap.changes, gap.notifications) {
        (Some(changes), Some(notifications)) => {
            format!("{changes} changes and {notifications} notifications missing")
        }
        _ => "changes and notifications may be missing".to_owned(),
    };
    format!("gap       version {}: {}, {counts}", gap.version, gap.cause)
}

/// Runs `nacre notify`.
pub async fn notify(session: &Context, args: NotifyArgs) -> Result<(), Failure> {
    let payload = if args.payload == "-" { read_payload()? } else { args.payload };
    if args.timeout.0 > limit::NOTIFY_TIMEOUT_MAX || args.timeout.0 == Duration::ZERO {
        let most = limit::NOTIFY_TIMEOUT_MAX.as_secs();
        return Err(Failure::Usage(format!("--timeout is more than 0 and at most {most}s")));
    }
    let notified = open(session)?.object(&args.object)?.notify(payload, args.timeout.0).await?;
    if session.json {
        let acknowledged = notified.acknowledged.iter().map(|Acknowledged { watcher, reply }| {
            let mut map = Map::new();
            map.insert("watcher".into(), id(*watcher));
            output::put_bytes(&mut map, "reply", reply);
            Value::Object(map)
        });
        let value = json!({
            "notification": id(notified.id),
            "acknowledged": acknowledged.collect::<Vec<_>>(),
            "missed": notified.missed.iter().copied().map(id).collect::<Vec<_>>(),
            "replies_omitted": notified.replies_omitted,
        });
        output::line(&value.to_string())?;
    } else {
        for Acknowledged { watcher, reply } in &notified.acknowledged {
            output::line(format!("acknowledged  {watcher:016x}  {}", Escaped(reply)).trim_end())?;
        }
        for watcher in &notified.missed {
            output::line(&format!("missed        {watcher:016x}"))?;
        }
    }
    let (missed, all) = (notified.missed.len(), notified.missed.len() + notified.acknowledged.len());
    match missed {
        0 => Ok(()),
        _ => Err(Failure::Failed(format!(
            "{missed} of {all} watchers of object \"{}\" have not acknowledged the notification",
            args.object
        ))),
    }
}

/// Opens the store, which must be one that other programs use too.
fn open(session: &Context) -> Result<Store, Failure> {
    let uri = session.parsed_uri()?;
    if matches!(uri.engine, Engine::Folder(_) | Engine::Memory) {
        let text = format!(
            "{uri} is open in one program only, so nobody else could change or watch an object; serve it with \"nacre serve\""
        );
        return Err(Failure::Usage(text));
    }
    session.open()
}

/// Reads standard input, a little more than a notification may have, so that what is too long is refused.
fn read_payload() -> Result<Bytes, Failure> {
    let mut payload = Vec::new();
    let mut input = std::io::stdin().lock().take(limit::NOTIFICATION_BYTES_MAX as u64 + 1);
    input.read_to_end(&mut payload).map_err(Failure::io("read standard input"))?;
    Ok(payload.into())
}

fn print_event(session: &Context, value: &Value, text: &str) -> Result<(), Failure> {
    match session.json {
        true => output::line(&value.to_string())?,
        false => output::line(text)?,
    }
    Ok(())
}

/// Returns an id as JSON: as text, because it may be longer than the integers of some readers.
fn id(id: u64) -> Value {
    format!("{id:016x}").into()
}
