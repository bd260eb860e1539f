//! Client processes: started together, given their orders, released at one time, and asked for their results.
//!
//! The program starts itself again with a hidden command. Such a client reads its orders as one line of JSON from its
//! standard input, prepares, reports that it is ready, and waits for a second line: the time at which to begin, in
//! nanoseconds of the machine's clock. Its result is one line of JSON on its standard output.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::BenchError;

/// A message from a client to the program that started it.
#[derive(Serialize, Deserialize)]
enum Message<T> {
    Ready,
    Result(T),
    Failed(String),
}

/// A group of client processes. Dropping it kills those that still run.
pub(crate) struct Crew {
    members: Vec<Member>,
}

struct Member {
    // Held so that the process is ended when the crew is dropped.
    _child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Crew {
    /// Starts one process of `program` for each element of `orders`, and waits until all are ready.
    ///
    /// # Errors
    /// If a process cannot be started, or fails to prepare.
    pub(crate) async fn start<O: Serialize>(
        program: &Path,
        arguments: &[&str],
        orders: &[O],
    ) -> Result<Self, BenchError> {
        let mut crew = Self { members: Vec::with_capacity(orders.len()) };
        for orders in orders {
            let mut child = Command::new(program)
                .args(arguments)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .kill_on_drop(true)
                .spawn()
                .map_err(BenchError::io(format!("start a client process of {}", program.display())))?;
            let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
                return Err(BenchError::Process("a client process has no standard input or output".into()));
            };
            let output = BufReader::new(output).lines();
            let mut member = Member { _child: child, input, output };
            let orders = serde_json::to_string(orders).map_err(unreadable)?;
            member.tell(&orders).await?;
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

    /// Lets all clients begin at the same time, and returns their results when the last of them is done.
    ///
    /// # Errors
    /// If a client fails or ends early.
    pub(crate) async fn run<T: DeserializeOwned>(mut self) -> Result<Vec<T>, BenchError> {
        let begin = SystemTime::now() + GATHER;
        let begin_ns = begin.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        for member in &mut self.members {
            member.tell(&begin_ns.to_string()).await?;
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
}

/// The time allowed for all clients to read when to begin.
const GATHER: Duration = Duration::from_millis(50);

impl Member {
    async fn tell(&mut self, line: &str) -> Result<(), BenchError> {
        let told = self.input.write_all(format!("{line}\n").as_bytes()).await;
        told.map_err(BenchError::io("give a client process its orders"))
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

/// Runs the client's side: reads the orders, prepares, and works. Fails only if the output is closed.
pub(crate) fn serve_as_client<O, P, T>(
    prepare: impl AsyncFnOnce(O) -> Result<P, BenchError>,
    work: impl AsyncFnOnce(P, Instant) -> Result<T, BenchError>,
) -> Result<(), BenchError>
where
    O: DeserializeOwned,
    T: Serialize,
{
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(BenchError::io("start a runtime"))?;
    let result = runtime.block_on(async {
        let orders = serde_json::from_str(&read_line().await?).map_err(unreadable)?;
        let prepared = prepare(orders).await?;
        say(&Message::<()>::Ready)?;
        let begin_ns: u64 = read_line()
            .await?
            .trim()
            .parse()
            .map_err(|_| BenchError::Process("a client process was not told when to begin".into()))?;
        let begin = UNIX_EPOCH + Duration::from_nanos(begin_ns);
        let wait = begin.duration_since(SystemTime::now()).unwrap_or_default();
        let begin = Instant::now() + wait;
        tokio::time::sleep_until(begin.into()).await;
        work(prepared, begin).await
    });
    match result {
        Ok(result) => say(&Message::Result(result)),
        Err(error) => say(&Message::<()>::Failed(error.to_string())),
    }
}

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
