//! Client processes: started together, given their orders, released at one time, and asked for their results.
//!
//! The program starts itself again with a hidden command. Such a client reads its orders as one line of JSON from its
//! standard input, prepares, reports that it is ready, and waits for further lines, one for each *round*: the time at
//! which to begin, in nanoseconds of the machine's clock, and what to do. The result of a round is one line of JSON on its
//! standard output. The end of its input is its own.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nacre_quantity::Escaped;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::study::runtime;
use crate::BenchError;
use crate::kit::machine::{cpu_time_of, memory_bytes_of};

/// A message from a client to the program that started it.
#[derive(Serialize, Deserialize)]
enum Message<T> {
    Ready,
    Result(T),
    Failed(String),
}

/// The beginning of a round, from the program to a client.
#[derive(Serialize, Deserialize)]
struct Round<R> {
    begin_ns: u64,
    work: R,
}

/// A group of client processes. Dropping it kills those that still run.
pub(crate) struct Crew {
    members: Vec<Member>,
}

struct Member {
    // Held so that the process is ended when the crew is dropped.
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Crew {
    /// Starts one process of this program for each element of `orders`, and waits until all are ready.
    ///
    /// # Errors
    /// If a process cannot be started, or fails to prepare.
    pub(crate) async fn start<O: Serialize>(command: &str, orders: &[O]) -> Result<Self, BenchError> {
        let program = this_program()?;
        let mut crew = Self { members: Vec::with_capacity(orders.len()) };
        for orders in orders {
            let mut child = Command::new(&program)
                .arg(command)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .kill_on_drop(true)
                .spawn()
                .map_err(BenchError::io(format!("start a client process of {}", Escaped::of(&program))))?;
            let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
                return Err(BenchError::Process("a client process has no standard input or output".into()));
            };
            let output = BufReader::new(output).lines();
            let mut member = Member { child, input, output };
            let orders = serde_json::to_string(orders).map_err(unreadable)?;
            member.send_line(&orders).await?;
            crew.members.push(member);
        }
        for member in &mut crew.members {
            match member.hear::<()>().await? {
                Message::Ready => {}
                _ => {
                    return Err(BenchError::Process("a client process gave a result before it began".into()));
                }
            }
        }
        Ok(crew)
    }

    /// Lets all clients do their only round, and returns their results when the last of them is done.
    ///
    /// # Errors
    /// If a client fails or ends early.
    pub(crate) async fn run<T: DeserializeOwned>(mut self) -> Result<Vec<T>, BenchError> {
        self.round(&()).await
    }

    /// Lets all clients begin a round at the same time, and returns their results when the last of them is done.
    ///
    /// # Errors
    /// If a client fails or ends early.
    pub(crate) async fn round<R: Serialize, T: DeserializeOwned>(
        &mut self,
        work: &R,
    ) -> Result<Vec<T>, BenchError> {
        let begin = SystemTime::now() + GATHER;
        let begin_ns = begin.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
        let round = serde_json::to_string(&Round { begin_ns, work }).map_err(unreadable)?;
        for member in &mut self.members {
            member.send_line(&round).await?;
        }
        let mut results = Vec::with_capacity(self.members.len());
        for member in &mut self.members {
            match member.hear::<T>().await? {
                Message::Result(result) => results.push(result),
                _ => return Err(BenchError::Process("a client process gave no result".into())),
            }
        }
        Ok(results)
    }

    /// Returns the processor time that all clients have used so far.
    pub(crate) fn cpu_time(&self) -> Duration {
        self.members.iter().filter_map(|member| member.child.id()).map(cpu_time_of).sum()
    }

    /// Returns the memory that all clients hold, apart from pages of files, in bytes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.members.iter().filter_map(|member| member.child.id()).map(memory_bytes_of).sum()
    }

    /// Tells the clients that there are no further rounds, and waits until they have ended.
    ///
    /// # Errors
    /// If a client fails.
    pub(crate) async fn end(self) -> Result<(), BenchError> {
        for member in self.members {
            let Member { mut child, input, output } = member;
            drop(input);
            let ended = child.wait().await.map_err(BenchError::io("wait for a client process"))?;
            drop(output);
            if !ended.success() {
                return Err(BenchError::Process(format!("a client process ended with {ended}")));
            }
        }
        Ok(())
    }
}

/// Returns the path of the running program, which a study starts again as its clients.
pub(crate) fn this_program() -> Result<PathBuf, BenchError> {
    std::env::current_exe().map_err(BenchError::io("find the program that runs"))
}

/// The time allowed for all clients to read when to begin.
const GATHER: Duration = Duration::from_millis(50);

impl Member {
    async fn send_line(&mut self, line: &str) -> Result<(), BenchError> {
        let sent = self.input.write_all(format!("{line}\n").as_bytes()).await;
        sent.map_err(BenchError::io("give a client process its orders"))
    }

    async fn hear<T: DeserializeOwned>(&mut self) -> Result<Message<T>, BenchError> {
        let line = self.output.next_line().await.map_err(BenchError::io("listen to a client process"))?;
        let Some(line) = line else {
            return Err(BenchError::Process("a client process ended without a result".into()));
        };
        match serde_json::from_str(&line).map_err(unreadable)? {
            Message::Failed(text) => Err(BenchError::Process(format!("a client process failed: {text}"))),
            message => Ok(message),
        }
    }
}

fn unreadable(error: serde_json::Error) -> BenchError {
    BenchError::Process(format!("a client process and the study do not understand each other: {error}"))
}

/// Runs the client's side: reads the orders, prepares, and works round by round; at last finishes.
/// Fails only if the output is closed.
pub(crate) fn serve_rounds<O, P, R, T>(
    prepare: impl AsyncFnOnce(O) -> Result<P, BenchError>,
    mut work: impl AsyncFnMut(&mut P, R, Instant) -> Result<T, BenchError>,
    finish: impl AsyncFnOnce(P),
) -> Result<(), BenchError>
where
    O: DeserializeOwned,
    R: DeserializeOwned,
    T: Serialize,
{
    let result = runtime()?.block_on(async {
        let mut prepared = ready(prepare).await?;
        while let Some((round, begin)) = next_round().await? {
            say(&Message::Result(work(&mut prepared, round, begin).await?))?;
        }
        finish(prepared).await;
        Ok::<(), BenchError>(())
    });
    match result {
        Ok(()) => Ok(()),
        Err(error) => say(&Message::<()>::Failed(error.to_string())),
    }
}

/// Runs the side of a client with one round, as [`serve_rounds`] does.
pub(crate) fn serve_round<O, P, T>(
    prepare: impl AsyncFnOnce(&O) -> Result<P, BenchError>,
    work: impl AsyncFn(&O, P, Instant) -> Result<T, BenchError>,
) -> Result<(), BenchError>
where
    O: DeserializeOwned,
    T: Serialize,
{
    serve_rounds(
        async |orders: O| {
            let prepared = prepare(&orders).await?;
            Ok((orders, Some(prepared)))
        },
        async |(orders, prepared): &mut (O, Option<P>), (), begin| {
            let prepared = prepared.take();
            let once = || BenchError::Process("a client has one round".into());
            work(orders, prepared.ok_or_else(once)?, begin).await
        },
        async |_| (),
    )
}

/// Runs concurrent operations to their end, or to the first failure, as one task: the runtime's fairness budget would make
/// most of them wait for nothing.
///
/// # Errors
/// The first failure.
pub(crate) async fn together<T>(
    operations: impl IntoIterator<Item = impl Future<Output = Result<T, BenchError>>>,
) -> Result<Vec<T>, BenchError> {
    tokio::task::unconstrained(futures::future::try_join_all(operations)).await
}

/// Reads the orders, prepares, and reports that the client is ready.
async fn ready<O: DeserializeOwned, P>(
    prepare: impl AsyncFnOnce(O) -> Result<P, BenchError>,
) -> Result<P, BenchError> {
    let orders = serde_json::from_str(&read_line().await?).map_err(unreadable)?;
    let prepared = prepare(orders).await?;
    say(&Message::<()>::Ready)?;
    Ok(prepared)
}

/// Waits for the next round and its beginning; `None` if there is none.
async fn next_round<R: DeserializeOwned>() -> Result<Option<(R, Instant)>, BenchError> {
    let line = read_line().await?;
    if line.is_empty() {
        return Ok(None);
    }
    let Round { begin_ns, work } = serde_json::from_str(&line).map_err(unreadable)?;
    let begin = UNIX_EPOCH + Duration::from_nanos(begin_ns);
    let wait = begin.duration_since(SystemTime::now()).unwrap_or_default();
    let begin = Instant::now() + wait;
    // The runtime's clock ticks once in a millisecond, at another time in each process; the rest is the system's.
    tokio::time::sleep_until((begin - TICK.min(wait)).into()).await;
    std::thread::sleep(begin.saturating_duration_since(Instant::now()));
    Ok(Some((work, begin)))
}

/// The time by which the runtime may wake a client late.
const TICK: Duration = Duration::from_millis(2);

/// Reads a line without blocking the runtime, so that the client's connections keep their heartbeats.
async fn read_line() -> Result<String, BenchError> {
    let read = tokio::task::spawn_blocking(|| {
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).map(|_| line)
    });
    match read.await {
        Ok(line) => line.map_err(BenchError::io("read the orders of a client process")),
        Err(error) => {
            Err(BenchError::Process(format!("cannot read the orders of a client process: {error}")))
        }
    }
}

fn say<T: Serialize>(message: &Message<T>) -> Result<(), BenchError> {
    use std::io::Write;
    let line = serde_json::to_string(message).map_err(unreadable)?;
    let mut output = std::io::stdout().lock();
    writeln!(output, "{line}").and_then(|()| output.flush()).map_err(BenchError::io("report to the study"))
}
