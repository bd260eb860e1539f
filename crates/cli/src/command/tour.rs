//! `nacre tour`: several processes update the same blocks, with proof that no update was lost.
//!
//! Every block holds the number of its updates in each of its words. A client reads a block, adds one to every word,
//! and writes it back on the condition that the block was not written meanwhile. At the end the blocks must count
//! exactly the updates that were acknowledged to the clients, and no block may be torn.

use std::io::{BufRead, BufReader, IsTerminal, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use nacre::{ErrorKind, Object};
use rand::Rng;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::command::block_on;
use crate::failure::Failure;
use crate::session::Context;
use crate::{output, quantity};

const BLOCK_BYTES: usize = 4096;
const WORD_BYTES: usize = 8;
/// The interval between the reports of a client.
const REPORT_INTERVAL: Duration = Duration::from_millis(200);

/// Watch several processes update shared blocks without losing an update
///
/// Needs a server. The blocks are in the object "tour", which is kept for inspection.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Number of client processes
    #[arg(long, value_name = "COUNT", default_value_t = 4, value_parser = nacre_quantity::count_parser::<u64>(1..=256))]
    clients: u64,
    /// Concurrent updates of each process
    #[arg(long, value_name = "COUNT", default_value_t = 4, value_parser = nacre_quantity::count_parser::<u64>(1..=256))]
    concurrency: u64,
    /// Number of blocks that they share, of 4 KiB each
    #[arg(long, value_name = "COUNT", default_value_t = 32, value_parser = nacre_quantity::count_parser::<u64>(1..=65536))]
    blocks: u64,
    /// Duration in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = nacre_quantity::count_parser::<u64>(1..=3600))]
    seconds: u64,
}

/// One client process of the tour
#[derive(clap::Args, Clone, Debug)]
pub struct ClientArgs {
    #[command(flatten)]
    args: Args,
}

/// The results of one client so far.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct ClientResult {
    /// Updates that were acknowledged.
    updates: u64,
    /// Times that another writer was faster.
    lost_races: u64,
    /// Updates whose fate is unknown.
    unknown: u64,
}

impl std::ops::Add for ClientResult {
    type Output = ClientResult;

    fn add(self, other: ClientResult) -> ClientResult {
        ClientResult {
            updates: self.updates + other.updates,
            lost_races: self.lost_races + other.lost_races,
            unknown: self.unknown + other.unknown,
        }
    }
}

/// A line of a client's output.
#[derive(Serialize, Deserialize)]
enum Report {
    SoFar(ClientResult),
    InAll(ClientResult),
    Failed(String),
}

/// The client processes. Dropping it ends those that still run.
struct Crew(Vec<Child>);

impl Drop for Crew {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // Killing a process that has ended already fails, which is fine.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Runs `nacre tour`.
pub fn run(session: &Context, args: Args) -> Result<(), Failure> {
    if matches!(session.parsed_uri()?.engine, nacre::Engine::Memory | nacre::Engine::Folder(_)) {
        let text = format!("{} is for one process at a time; the tour needs a server", session.shown_uri());
        return Err(Failure::Usage(text));
    }
    let before = block_on(async { counts(&session.open()?.object("tour")?, args.blocks).await })?;
    if !session.json {
        output::line(&format!(
            "{} processes, each with {} updates under way at once, update {} blocks of 4 KiB.\n\
             An update reads a block, adds one to the count in it, and writes it back on the condition\n\
             that nobody else wrote the block meanwhile.",
            args.clients, args.concurrency, args.blocks
        ))?;
        output::flush()?;
    }
    let begun = Instant::now();
    let (crew, reports) = start(session, &args)?;
    let tally = follow(session, &args, begun, &reports)?;
    let elapsed = begun.elapsed();
    drop(crew);
    let after = block_on(async { counts(&session.open()?.object("tour")?, args.blocks).await })?;
    conclude(session, tally, elapsed, after - before)
}

/// Starts the clients. Their reports arrive through the channel, with the number of the client.
fn start(session: &Context, args: &Args) -> Result<(Crew, mpsc::Receiver<(usize, Report)>), Failure> {
    let program = std::env::current_exe().map_err(Failure::io("find the program itself"))?;
    let (sender, receiver) = mpsc::channel();
    let mut crew = Crew(Vec::new());
    for index in 0..args.clients as usize {
        let mut command = Command::new(&program);
        command.arg("--store").arg(session.uri());
        if let Some(key) = session.key() {
            command.arg("--key").arg(key);
        }
        command.args(["tour-client", "--concurrency", &args.concurrency.to_string()]);
        command.args(["--blocks", &args.blocks.to_string(), "--seconds", &args.seconds.to_string()]);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(Failure::io("start a client process"))?;
        let output = child.stdout.take();
        crew.0.push(child);
        let Some(output) = output else { continue };
        let sender = sender.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let report = serde_json::from_str(&line)
                    .unwrap_or_else(|_| Report::Failed(format!("unexpected output: \"{line}\"")));
                // The receiver is gone if another client failed.
                if sender.send((index, report)).is_err() {
                    break;
                }
            }
        });
    }
    Ok((crew, receiver))
}

/// Shows the progress of the clients until all are done.
fn follow(
    session: &Context,
    args: &Args,
    begun: Instant,
    reports: &mpsc::Receiver<(usize, Report)>,
) -> Result<ClientResult, Failure> {
    let mut tallies = vec![ClientResult::default(); args.clients as usize];
    let mut left = args.clients;
    let terminal = std::io::stdout().is_terminal();
    let interval = if terminal { REPORT_INTERVAL } else { Duration::from_secs(1) };
    let (mut shown_at, mut shown) = (begun, ClientResult::default());
    while left > 0 {
        let Ok((index, report)) = reports.recv() else {
            return Err(Failure::Failed("a client process of the tour ended before it was done".into()));
        };
        match report {
            Report::SoFar(tally) => tallies[index] = tally,
            Report::InAll(tally) => {
                tallies[index] = tally;
                left -= 1;
            }
            Report::Failed(why) => {
                return Err(Failure::Failed(format!("a client process of the tour failed: {why}")));
            }
        }
        let since = shown_at.elapsed();
        if since >= interval && !session.json {
            let total = tallies.iter().copied().fold(ClientResult::default(), |sum, tally| sum + tally);
            let rate = (total.updates - shown.updates) as f64 / since.as_secs_f64();
            let attempts = total.updates + total.lost_races - shown.updates - shown.lost_races;
            let lost = total.lost_races - shown.lost_races;
            let text = format!(
                "{:4.0} s {:>10} updates/s {:>5.1} % of the races lost",
                begun.elapsed().as_secs_f64(),
                quantity::grouped(rate as u64),
                100.0 * lost as f64 / attempts.max(1) as f64
            );
            let mut output = std::io::stdout().lock();
            if terminal {
                write!(output, "\r{text}  ")?
            } else {
                writeln!(output, "{text}")?
            }
            output.flush()?;
            (shown_at, shown) = (Instant::now(), total);
        }
    }
    if terminal && !session.json {
        output::line("")?;
    }
    Ok(tallies.into_iter().fold(ClientResult::default(), |sum, tally| sum + tally))
}

/// Compares the updates acknowledged to the clients with those in the blocks.
fn conclude(session: &Context, tally: ClientResult, elapsed: Duration, counted: u64) -> Result<(), Failure> {
    let kept = (tally.updates..=tally.updates + tally.unknown).contains(&counted);
    if session.json {
        let json = json!({
            "acknowledged": tally.updates,
            "counted": counted,
            "lost_races": tally.lost_races,
            "unknown": tally.unknown,
            "seconds": elapsed.as_secs_f64(),
            "nothing_lost": kept,
        });
        output::line(&json.to_string())?;
    } else {
        let rate = tally.updates as f64 / elapsed.as_secs_f64();
        output::line(&format!(
            "acknowledged: {} updates, {} a second; {} times another process was faster",
            quantity::grouped(tally.updates),
            quantity::grouped(rate as u64),
            quantity::grouped(tally.lost_races)
        ))?;
        if tally.unknown > 0 {
            output::line(&format!("of unknown fate: {}", quantity::count(tally.unknown, "update")))?;
        }
        let verdict = if kept { "no update was lost" } else { "the numbers do not match" };
        output::line(&format!("in the blocks: {} updates: {verdict}", quantity::grouped(counted)))?;
    }
    if kept {
        return Ok(());
    }
    Err(Failure::Failed(format!(
        "the blocks of object \"tour\" in {} count {counted} updates, but {} were acknowledged; if no other \
         program wrote there, please report it",
        session.shown_uri(),
        tally.updates
    )))
}

/// Returns the sum of the counts of all blocks. Fails if a block is torn.
async fn counts(object: &Object, blocks: u64) -> Result<u64, Failure> {
    let mut sum = 0;
    for block in 0..blocks {
        let read = object.read(range(block)).await?;
        let words: Vec<&[u8]> = read.data.chunks(WORD_BYTES).collect();
        let Some(first) = words.first() else { continue };
        if read.data.len() != BLOCK_BYTES || words.iter().any(|word| word != first) {
            return Err(Failure::Failed(format!(
                "block {block} of object \"tour\" in {} is not one that the tour wrote; remove the object with \
                 \"nacre rm tour\" and try again",
                object.store().name()
            )));
        }
        sum += count(first);
    }
    Ok(sum)
}

fn range(block: u64) -> std::ops::Range<u64> {
    block * BLOCK_BYTES as u64..(block + 1) * BLOCK_BYTES as u64
}

fn count(block: &[u8]) -> u64 {
    block.first_chunk().map_or(0, |word| u64::from_le_bytes(*word))
}

/// Runs one client process of the tour.
pub fn client(session: &Context, args: ClientArgs) -> Result<(), Failure> {
    let report = match block_on(work(session, args.args)) {
        Ok(tally) => Report::InAll(tally),
        Err(Failure::Failed(why)) => Report::Failed(why),
        Err(other) => return Err(other),
    };
    say(&report)
}

fn say(report: &Report) -> Result<(), Failure> {
    let line = serde_json::to_string(report).map_err(|error| Failure::Failed(error.to_string()))?;
    output::line(&line)?;
    Ok(output::flush()?)
}

async fn work(session: &Context, args: Args) -> Result<ClientResult, Failure> {
    let object = session.open()?.object("tour")?;
    let end = Instant::now() + Duration::from_secs(args.seconds);
    let tally = std::cell::Cell::new(ClientResult::default());
    let workers = (0..args.concurrency).map(async |_| {
        while Instant::now() < end {
            let block = rand::rng().random_range(0..args.blocks);
            let next = |old: &[u8]| (count(old) + 1).to_le_bytes().repeat(BLOCK_BYTES / WORD_BYTES);
            let done = match object.update(range(block), next).await {
                Ok(updated) => ClientResult { updates: 1, lost_races: updated.refusals, unknown: 0 },
                Err(error) if error.kind == ErrorKind::Unknown => {
                    ClientResult { unknown: 1, ..ClientResult::default() }
                }
                Err(error) => return Err(Failure::from(error)),
            };
            tally.set(tally.get() + done);
        }
        Ok(())
    });
    let reports = async {
        while Instant::now() + REPORT_INTERVAL < end {
            tokio::time::sleep(REPORT_INTERVAL).await;
            say(&Report::SoFar(tally.get()))?;
        }
        Ok(())
    };
    tokio::try_join!(futures::future::try_join_all(workers), reports)?;
    Ok(tally.get())
}
