//! `nacre top`: what the servers of a store do, looked at again and again.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Read};
use std::time::{Duration, Instant};

use nacre_object::latency::{LATENCY_BUCKETS, quantile};
use nacre_quantity::escaped_text;
use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcsetattr};
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;

use crate::arguments::count;
use crate::failure::Failure;
use crate::output::{self, Table};
use crate::quantity;
use crate::session::Context;

/// Show the activity of a store's servers, live: requests per second, latencies, bytes, processor, memory, space
///
/// On a terminal, the table is redrawn at each interval, until q or Ctrl-C; otherwise a new one is printed. A latency
/// is the time from reading a request until its reply is ready. Latencies cover requests to all services, and are
/// accurate to a factor of two. With --json, prints one object per server and interval, each on a line of its own.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Interval between two samples
    #[arg(long, short, value_name = "TIME", default_value = "1s", value_parser = interval)]
    interval: Duration,
    /// Number of tables to show; 0 means until q or Ctrl-C
    #[arg(long, short, value_name = "COUNT", default_value = "0", value_parser = count)]
    count: usize,
}

/// The shortest time between two looks, below which the looks would be most of what is seen.
const INTERVAL_MIN: Duration = Duration::from_millis(50);

/// The shortest time that an answer is waited for.
const PATIENCE_MIN: Duration = Duration::from_secs(1);

fn interval(text: &str) -> Result<Duration, String> {
    match quantity::parse_time(text)? {
        time if time < INTERVAL_MIN => Err(format!("it must be at least {} ms", INTERVAL_MIN.as_millis())),
        time => Ok(time),
    }
}

type Buckets = [u64; LATENCY_BUCKETS];

/// The kinds of operations on objects that have a column.
const KINDS: [&str; 3] = ["read", "write", "conditional_write"];

/// The counters of a server at a time.
struct CounterSnapshot {
    at: Instant,
    counters: Value,
}

impl CounterSnapshot {
    fn number(&self, field: &str) -> Option<f64> {
        self.counters[field].as_f64()
    }

    fn buckets(value: &Value) -> Option<Buckets> {
        let list = value.as_array()?;
        let mut buckets = [0; LATENCY_BUCKETS];
        // A server with other buckets is of another version.
        if list.len() != LATENCY_BUCKETS {
            return None;
        }
        for (bucket, count) in buckets.iter_mut().zip(list) {
            *bucket = count.as_u64()?;
        }
        Some(buckets)
    }
}

/// A server's work between two looks.
#[derive(Default)]
struct Activity {
    seconds: f64,
    requests: Option<Buckets>,
    kinds: [Option<f64>; KINDS.len()],
    syncs: Option<Buckets>,
    received: Option<f64>,
    sent: Option<f64>,
    processor: Option<f64>,
    connections: Option<f64>,
    in_flight: Option<f64>,
    resident: Option<f64>,
    taken: Option<f64>,
    capacity: Option<f64>,
    volume_free: Option<f64>,
}

impl Activity {
    /// Compares two looks. Rates need both, and that the server was not started again between them.
    fn between(before: Option<&CounterSnapshot>, look: &CounterSnapshot) -> Activity {
        let gauge = |field: &str| look.number(field);
        let mut activity = Activity {
            connections: gauge("connections"),
            in_flight: gauge("in_flight"),
            resident: gauge("resident_bytes"),
            taken: gauge("taken_bytes"),
            capacity: gauge("capacity_bytes"),
            volume_free: gauge("volume_free_bytes"),
            ..Activity::default()
        };
        let same_run = |before: &&CounterSnapshot| before.number("uptime_s") <= look.number("uptime_s");
        let Some(before) = before.filter(same_run) else { return activity };
        let seconds = look.at.duration_since(before.at).as_secs_f64();
        if seconds <= 0.0 {
            return activity;
        }
        activity.seconds = seconds;
        let rate = |field: &str| Some((gauge(field)? - before.number(field)?).max(0.0) / seconds);
        let grown = |now: &Value, then: &Value| {
            let (now, then) = (CounterSnapshot::buckets(now)?, CounterSnapshot::buckets(then)?);
            Some(std::array::from_fn(|bucket| now[bucket].saturating_sub(then[bucket])))
        };
        let (now, then) = (&look.counters, &before.counters);
        activity.requests = grown(&now["requests"], &then["requests"]);
        activity.syncs = grown(&now["syncs"], &then["syncs"]);
        activity.kinds = KINDS.map(|kind| {
            let grown: Buckets = grown(&now["operations"][kind], &then["operations"][kind])?;
            Some(grown.iter().sum::<u64>() as f64 / seconds)
        });
        activity.received = rate("received_bytes");
        activity.sent = rate("sent_bytes");
        activity.processor = rate("cpu_s").map(|share| share * 100.0);
        activity
    }

    fn requests_per_second(&self) -> Option<f64> {
        Some(self.requests?.iter().sum::<u64>() as f64 / self.seconds)
    }

    fn latency(&self, share: f64) -> Option<f64> {
        quantile(self.requests.as_ref()?, share)
    }

    fn sync_latency(&self) -> Option<f64> {
        quantile(self.syncs.as_ref()?, 0.99)
    }

    /// Returns the space that is left: within the store's own bound if it has one, otherwise on its volume.
    fn free(&self) -> Option<f64> {
        let bound = self.capacity.zip(self.taken).map(|(capacity, taken)| (capacity - taken).max(0.0));
        match (bound, self.volume_free) {
            (Some(bound), Some(volume)) => Some(bound.min(volume)),
            (bound, volume) => bound.or(volume),
        }
    }

    fn json(&self, server: &str) -> Value {
        let whole = |number: Option<f64>| number.map(|number| number.round() as u64);
        let mut operations = Map::new();
        for (kind, rate) in KINDS.into_iter().zip(self.kinds) {
            operations.insert(kind.to_owned(), json!(rate));
        }
        json!({
            "server": server,
            "interval_s": self.seconds,
            "requests_per_second": self.requests_per_second(),
            "operations_per_second": operations,
            "latency_s": { "median": self.latency(0.5), "p99": self.latency(0.99) },
            "sync_p99_s": self.sync_latency(),
            "received_bytes_per_second": self.received,
            "sent_bytes_per_second": self.sent,
            "connections": whole(self.connections),
            "in_flight": whole(self.in_flight),
            "processor_percent": self.processor,
            "resident_bytes": whole(self.resident),
            "taken_bytes": whole(self.taken),
            "free_bytes": whole(self.free()),
        })
    }

    fn cells(&self, server: &str) -> Vec<String> {
        let shown =
            |number: Option<f64>, show: fn(f64) -> String| number.map_or_else(|| "-".to_owned(), show);
        let rate = |number| shown(number, |rate| quantity::grouped(rate.round() as u64));
        let size = |number| shown(number, |bytes| quantity::size(bytes.round() as u64));
        let time = |number| shown(number, short_time);
        let mut cells = vec![server.to_owned(), rate(self.requests_per_second())];
        cells.extend(self.kinds.map(rate));
        cells.extend([time(self.latency(0.5)), time(self.latency(0.99)), time(self.sync_latency())]);
        cells.extend([size(self.received), size(self.sent)]);
        cells.extend([rate(self.connections), shown(self.processor, |share| format!("{share:.0} %"))]);
        cells.extend([size(self.resident), size(self.free())]);
        cells
    }
}

const HEADS: [&str; 13] = [
    "server", "req/s", "reads", "writes", "cond.", "median", "p99", "sync p99", "in/s", "out/s", "conns",
    "cpu", "memory",
];

/// Shows a time in the unit that fits, with two digits.
fn short_time(seconds: f64) -> String {
    let units = [(1.0, "s"), (1e-3, "ms"), (1e-6, "µs")];
    let (factor, unit) = units.into_iter().find(|(factor, _)| seconds >= *factor).unwrap_or((1e-6, "µs"));
    let value = seconds / factor;
    if value < 9.95 { format!("{value:.1} {unit}") } else { format!("{value:.0} {unit}") }
}

/// A terminal that shows one table after the other in the same place, and hands over keys as they are typed. Dropping it
/// restores what was there.
struct Screen {
    modes: Option<Termios>,
}

impl Screen {
    /// Takes the terminal.
    fn take() -> Screen {
        let modes = tcgetattr(std::io::stdin()).ok();
        if let Some(modes) = &modes {
            let mut raw = modes.clone();
            raw.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
            raw.special_codes[SpecialCodeIndex::VMIN] = 1;
            raw.special_codes[SpecialCodeIndex::VTIME] = 0;
            // Without it keys are read at the end of a line, and that is all.
            let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &raw);
        }
        // The other screen, and no cursor.
        let _ = output::raw(b"\x1b[?1049h\x1b[?25l");
        Screen { modes }
    }

    /// Goes to the top of an empty screen.
    fn clear(&self) -> std::io::Result<()> {
        output::raw(b"\x1b[H\x1b[2J")
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = output::raw(b"\x1b[?25h\x1b[?1049l").and_then(|()| output::flush());
        if let Some(modes) = &self.modes {
            let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, modes);
        }
    }
}

/// Returns a channel that gets a message when the user wants no more: q, the end of a terminal's input, or a signal.
fn ends(keys: bool) -> Result<mpsc::Receiver<()>, Failure> {
    use tokio::signal::unix::{SignalKind, signal};
    let (ended, ends) = mpsc::channel(4);
    for kind in [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()] {
        let mut signals = signal(kind).map_err(Failure::io("wait for signals"))?;
        let ended = ended.clone();
        tokio::spawn(async move {
            signals.recv().await;
            let _ = ended.send(()).await;
        });
    }
    if keys {
        // A thread of its own, which ends with the program: a read of a terminal cannot be given up.
        std::thread::spawn(move || {
            let mut stdin = std::io::stdin().lock();
            let mut key = [0; 1];
            while matches!(stdin.read(&mut key), Ok(1)) {
                if matches!(key[0], b'q' | b'Q') {
                    break;
                }
            }
            let _ = ended.blocking_send(());
        });
    }
    Ok(ends)
}

/// Runs `nacre top`.
pub async fn run(session: &Context, args: Args) -> Result<(), Failure> {
    let store = session.open()?;
    let on_terminal = !session.json && std::io::stdout().is_terminal() && std::io::stdin().is_terminal();
    let mut before: BTreeMap<String, CounterSnapshot> = BTreeMap::new();
    // Of the first look there is nothing to show but why there is none.
    let mut silent = look(&store, &mut before, args.interval).await?;
    if before.is_empty() {
        let why = silent.into_values().next().unwrap_or_else(|| "it has no servers".to_owned());
        return Err(Failure::Failed(why));
    }
    let mut ends = ends(on_terminal)?;
    let screen = on_terminal.then(Screen::take);
    let mut shown = 0;
    loop {
        tokio::select! {
            () = tokio::time::sleep(args.interval) => {}
            _ = ends.recv() => break,
        }
        let mut now: BTreeMap<String, CounterSnapshot> = BTreeMap::new();
        silent = tokio::select! {
            silent = look(&store, &mut now, args.interval) => match silent {
                Ok(silent) => silent,
                Err(error) => before.keys().map(|server| (server.clone(), error.message.clone())).collect(),
            },
            _ = ends.recv() => break,
        };
        let activities: Vec<(&String, Activity)> =
            now.iter().map(|(server, look)| (server, Activity::between(before.get(server), look))).collect();
        if session.json {
            for (server, activity) in &activities {
                output::line(&activity.json(server).to_string())?;
            }
            for (server, why) in &silent {
                output::line(&json!({ "server": server, "error": why }).to_string())?;
            }
        } else {
            if let Some(screen) = &screen {
                screen.clear()?;
                output::line(&format!("nacre top   {}   q to leave\n", store.name()))?;
            } else if shown > 0 {
                output::line("")?;
            }
            table(&activities)?;
            for (server, why) in &silent {
                output::line(&format!("{server}: {}", escaped_text(why)))?;
            }
        }
        output::flush()?;
        // A server that does not answer now is compared with its last answer when it does again.
        before.extend(now);
        shown += 1;
        if shown == args.count {
            break;
        }
    }
    drop(screen);
    match silent.len() {
        0 => Ok(()),
        count => Err(Failure::Failed(format!("{count} servers did not answer the last time"))),
    }
}

/// Looks at the counters of all servers, adds them to `looks`, and returns the servers that did not give them, with the
/// reasons. One that does not answer keeps nothing of the others from being seen.
async fn look(
    store: &nacre::Store,
    looks: &mut BTreeMap<String, CounterSnapshot>,
    interval: Duration,
) -> Result<BTreeMap<String, String>, nacre::Error> {
    let patience = interval.max(PATIENCE_MIN);
    let servers = store.counters().await?.into_iter().map(async |(server, counters)| {
        let answer = tokio::time::timeout(patience, counters).await;
        (server, Instant::now(), answer)
    });
    let mut silent = BTreeMap::new();
    for (server, at, answer) in futures::future::join_all(servers).await {
        match answer {
            Ok(Ok(counters)) => {
                looks.insert(server, CounterSnapshot { at, counters });
            }
            Ok(Err(error)) => {
                silent.insert(server, error.message);
            }
            Err(_) => {
                silent.insert(server, format!("no answer within {patience:?}"));
            }
        }
    }
    Ok(silent)
}

fn table(activities: &[(&String, Activity)]) -> Result<(), Failure> {
    let mut table = Table::new(&HEADS.into_iter().chain(["free"]).collect::<Vec<_>>());
    for (server, activity) in activities {
        table.row(activity.cells(server));
    }
    Ok(table.print()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(at: Instant, uptime: f64, fast: u64) -> CounterSnapshot {
        let mut buckets = [0u64; LATENCY_BUCKETS];
        buckets[4] = fast;
        let counters = json!({
            "uptime_s": uptime, "cpu_s": uptime / 2.0, "connections": 3, "received_bytes": 1000 * fast,
            "requests": buckets, "operations": { "read": buckets }, "syncs": null, "capacity_bytes": 100,
            "taken_bytes": 30, "volume_free_bytes": 5000,
        });
        CounterSnapshot { at, counters }
    }

    #[test]
    fn rates_are_those_between_two_looks() {
        let start = Instant::now();
        let (first, second) = (look(start, 10.0, 100), look(start + Duration::from_secs(2), 12.0, 700));
        let activity = Activity::between(Some(&first), &second);
        assert_eq!(activity.requests_per_second(), Some(300.0));
        assert_eq!(activity.kinds, [Some(300.0), None, None]);
        assert_eq!((activity.received, activity.sent), (Some(300_000.0), None));
        assert_eq!(activity.processor, Some(50.0));
        assert_eq!(activity.free(), Some(70.0));
        assert!((8e-6..=16e-6).contains(&activity.latency(0.99).unwrap()));
    }

    #[test]
    fn a_server_that_was_started_again_has_no_rates_at_first() {
        let start = Instant::now();
        let (first, second) = (look(start, 10.0, 100), look(start + Duration::from_secs(2), 1.0, 7));
        let activity = Activity::between(Some(&first), &second);
        assert_eq!((activity.requests_per_second(), activity.connections), (None, Some(3.0)));
        assert_eq!(activity.cells("a").len(), HEADS.len() + 1);
    }

    #[test]
    fn counters_of_another_version_show_nothing() {
        assert_eq!(CounterSnapshot::buckets(&json!([1, 2])), None);
        assert_eq!(CounterSnapshot::buckets(&json!(vec!["x"; LATENCY_BUCKETS])), None);
        let odd = CounterSnapshot { at: Instant::now(), counters: json!([]) };
        assert_eq!(Activity::between(Some(&odd), &odd).requests_per_second(), None);
    }

    #[test]
    fn times_have_the_unit_that_fits() {
        for (seconds, text) in
            [(4e-7, "0.4 µs"), (1.2e-5, "12 µs"), (2.04e-3, "2.0 ms"), (1.5, "1.5 s"), (0.25, "250 ms")]
        {
            assert_eq!(short_time(seconds), text);
        }
    }
}
