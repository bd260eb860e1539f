//! `nacre ping`: the servers of a store, and the time that each takes to answer.

use std::collections::BTreeMap;
use std::time::Duration;

use nacre_quantity::escaped_text;
use serde_json::{Value, json};

use crate::arguments::count;
use crate::failure::Failure;
use crate::output;
use crate::quantity;
use crate::session::Context;

/// Measure how long each server of a store takes to answer
///
/// The exit code is 1 if a server left a request unanswered. Connections are made before the first measurement.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Number of requests to each server; 0 means until Ctrl-C
    #[arg(long, short, value_name = "COUNT", default_value = "4", value_parser = count)]
    count: usize,
    /// Time between two requests
    #[arg(long, short, value_name = "TIME", default_value = "1s", value_parser = quantity::parse_time)]
    interval: Duration,
    /// Maximum time to wait for an answer
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = quantity::parse_time)]
    timeout: Duration,
}

/// The answers of one server.
#[derive(Default)]
struct Answers {
    sent: u64,
    times: Vec<Duration>,
}

/// Runs `nacre ping`.
pub async fn run(session: &Context, args: Args) -> Result<(), Failure> {
    let store = session.open()?;
    let ask = async || -> Result<_, nacre::Error> {
        let pings = store.pings().await?.into_iter().map(async |(server, ping)| {
            let late = || {
                nacre::Error::new(
                    nacre::ErrorKind::Unavailable,
                    format!("no answer within {:?}", args.timeout),
                )
            };
            let answer = tokio::time::timeout(args.timeout, ping).await;
            (server, answer.unwrap_or_else(|_| Err(late())))
        });
        Ok(futures::future::join_all(pings).await)
    };
    // It connects; whoever does not answer now is asked again below.
    let _ = ask().await;
    let mut servers: BTreeMap<String, Answers> = BTreeMap::new();
    let mut interrupted = std::pin::pin!(tokio::signal::ctrl_c());
    let mut round = 0;
    loop {
        round += 1;
        let answers = match ask().await {
            Ok(answers) => answers,
            // All servers that were seen before were asked.
            Err(error) if servers.is_empty() => vec![(store.name().to_owned(), Err(error))],
            Err(error) => servers.keys().map(|server| (server.clone(), Err(error.clone()))).collect(),
        };
        for (server, answer) in answers {
            show(session, &server, round, &answer)?;
            let known = servers.entry(server).or_default();
            known.sent += 1;
            known.times.extend(answer);
        }
        if round == args.count {
            break;
        }
        tokio::select! {
            () = tokio::time::sleep(args.interval) => {}
            _ = &mut interrupted => break,
        }
    }
    for (server, answers) in &mut servers {
        summarize(session, server, answers)?;
    }
    let silent = servers.values().filter(|answers| (answers.times.len() as u64) < answers.sent).count();
    match silent {
        0 => Ok(()),
        silent => {
            Err(Failure::Failed(format!("{silent} of {} servers did not answer each time", servers.len())))
        }
    }
}

fn ms(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}

fn show(
    session: &Context,
    server: &str,
    round: usize,
    answer: &Result<Duration, nacre::Error>,
) -> Result<(), Failure> {
    let text = match (session.json, answer) {
        (true, Ok(time)) => json!({ "server": server, "round": round, "ms": ms(*time) }).to_string(),
        (true, Err(error)) => json!({ "server": server, "round": round, "error": error.message }).to_string(),
        (false, Ok(time)) => format!("{server}: {:.3} ms", ms(*time)),
        (false, Err(error)) => format!("{server}: {}", escaped_text(&error.message)),
    };
    output::line(&text)?;
    Ok(output::flush()?)
}

fn summarize(session: &Context, server: &str, answers: &mut Answers) -> Result<(), Failure> {
    let Answers { sent, times } = answers;
    times.sort_unstable();
    let received = times.len();
    let at = |index: usize| times.get(index).copied();
    let (least, median, most) = (at(0), at(received / 2), times.last().copied());
    if session.json {
        let of = |time: Option<Duration>| time.map_or(Value::Null, |time| ms(time).into());
        let summary = json!({
            "server": server, "asked": sent, "answered": received,
            "min_ms": of(least), "median_ms": of(median), "max_ms": of(most),
        });
        return Ok(output::line(&summary.to_string())?);
    }
    let times = match (least, median, most) {
        (Some(least), Some(median), Some(most)) => {
            format!(": least {:.3} ms, median {:.3} ms, most {:.3} ms", ms(least), ms(median), ms(most))
        }
        _ => String::new(),
    };
    Ok(output::line(&format!("{server}: {received} of {sent} answered{times}"))?)
}
