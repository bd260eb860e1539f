//! `nacre log`: the cluster log, the few lines that matter from all servers.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use nacre_map::log::{Line, Log};
use nacre_quantity::Escaped;
use nacre_shell::Signals;
use serde_json::json;

use crate::failure::Failure;
use crate::session::Context;
use crate::{arguments, output, presence};

/// The time between two looks at a store that cannot be watched.
const POLL: Duration = Duration::from_secs(1);

/// Print the cluster log: events of all servers, in one order
///
/// It records servers that go down and come up, and versions of classes. Times are in UTC, by the clock of the server that
/// wrote the line. The log is bounded: its oldest lines are dropped.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Print the last COUNT lines
    #[arg(short = 'n', long, value_name = "COUNT", default_value = "50", value_parser = arguments::count)]
    count: usize,
    /// Keep printing new lines as they come, until Ctrl-C; a server that is away is waited for
    #[arg(short, long)]
    follow: bool,
}

/// Runs `nacre log`.
pub async fn run(session: &Context, args: Args) -> Result<(), Failure> {
    let store = session.open()?;
    let log = Log::new(Arc::new(store), Default::default())?;
    let mut signals = Signals::catch()?;
    let mut reached = 0;
    // One more tells where the log ends if none is to be printed.
    let lines = log.last(args.count.max(1) as u64).await?;
    reached = lines.last().map_or(reached, |line| line.number);
    for line in &lines[lines.len() - lines.len().min(args.count)..] {
        print(session, line)?;
    }
    output::flush()?;
    if !args.follow {
        return Ok(());
    }
    let mut follower = log.follow(reached, POLL);
    let mut reports = pin!(presence::report(async || log.last(1).await.map(drop)));
    loop {
        let lines = tokio::select! {
            lines = follower.next() => lines?,
            () = signals.next() => return Ok(()),
            // They never end.
            () = &mut reports => return Ok(()),
        };
        for line in &lines {
            if line.number > reached + 1 {
                let missing = line.number - reached - 1;
                output::complain(&format!(
                    "nacre: {missing} lines were removed from the log before they could be read"
                ));
            }
            reached = line.number;
            print(session, line)?;
        }
        output::flush()?;
    }
}

fn print(session: &Context, line: &Line) -> Result<(), Failure> {
    let entry = &line.entry;
    if session.json {
        let line = json!({
            "number": line.number,
            "time_ms": entry.time_ms,
            "source": entry.source,
            "level": entry.level.name(),
            "text": entry.text,
        });
        return Ok(output::line(&line.to_string())?);
    }
    // Any client of the store may write lines.
    let (source, said) = (Escaped::of(&entry.source), Escaped::of(&entry.text));
    let text =
        format!("{}  {}  {:7}  {source}  {said}", line.number, time(entry.time_ms), entry.level.name());
    Ok(output::line(&text)?)
}

/// Returns a time as date and time of day, in UTC.
pub fn time(time_ms: u64) -> String {
    let seconds = time_ms / 1000;
    let (day, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(day);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", second / 3600, second / 60 % 60, second % 60)
}

/// Returns the date of a day since 1970-01-01, by the Gregorian calendar. Years are counted from March, so that the day that
/// some have more is the last one.
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day_of_year - (153 * shifted + 2) / 5 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_dates() {
        assert_eq!(time(0), "1970-01-01T00:00:00Z");
        assert_eq!(time(951_782_400_000), "2000-02-29T00:00:00Z");
        assert_eq!(time(1_709_251_199_999), "2024-02-29T23:59:59Z");
        assert_eq!(time(4_107_542_400_000), "2100-03-01T00:00:00Z");
    }
}
