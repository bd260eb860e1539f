//! NATS with JetStream: messages that are published to a subject are appended to a stream, and each is acknowledged with its number.
//!
//! The text protocol is implemented here directly, for the reason that [`redis`](super::redis) gives. A stream is kept in files
//! that this version syncs every two minutes, not before it acknowledges; or in memory.

use std::path::Path;
use std::process::Command;

use bytes::Bytes;

use super::stream::Stream;
use super::{Peer, find_program, version_of};
use crate::BenchError;

const NAME: &str = "nats";
const PROGRAM: &str = "nats-server";
const PACKAGE: &str = "nats-server";
/// The subject of the stream, and its name.
const SUBJECT: &str = "log";
const INBOX: &str = "_INBOX.study";

/// Starts a server with a stream: in files, or in memory.
pub(crate) async fn start(in_files: bool, parent: Option<&Path>) -> Result<Peer, BenchError> {
    let program = find_program(PROGRAM, PACKAGE)?;
    let peer = Peer::start(NAME, parent, |folder, port| {
        let mut command = Command::new(program);
        command.args(["--addr", "127.0.0.1", "--jetstream", "--port"]).arg(port.to_string());
        command.arg("--store_dir").arg(folder);
        Ok(command)
    })?;
    let probe = |address: String| async move {
        match Connection::open(&address).await {
            Ok(mut connection) => connection.create(in_files).await.is_ok(),
            Err(_) => false,
        }
    };
    peer.wait_until(probe).await
}

/// Returns the version that the server reports.
pub(crate) fn version() -> Option<String> {
    version_of(&find_program(PROGRAM, PACKAGE).ok()?, &["--version"])
}

/// One connection.
pub(crate) struct Connection {
    stream: Stream,
    /// The subject of the answers: each connection has its own.
    inbox: String,
}

impl Connection {
    /// Connects to a server, and subscribes to the answers to what it publishes.
    pub(crate) async fn open(address: &str) -> Result<Self, BenchError> {
        let mut stream = Stream::open(NAME, address).await?;
        let inbox = format!("{INBOX}.{}", stream.port()?);
        let hello = format!("CONNECT {{\"verbose\":false,\"pedantic\":false}}\r\nSUB {inbox} 1\r\nPING\r\n");
        stream.say(hello.as_bytes());
        stream.flush().await?;
        while stream.line().await? != "PONG" {}
        Ok(Self { stream, inbox })
    }

    /// Makes the stream.
    async fn create(&mut self, in_files: bool) -> Result<(), BenchError> {
        let storage = if in_files { "file" } else { "memory" };
        let settings = format!(
            "{{\"name\":\"{SUBJECT}\",\"subjects\":[\"{SUBJECT}\"],\"storage\":\"{storage}\",\
             \"retention\":\"limits\",\"discard\":\"old\",\"num_replicas\":1}}"
        );
        self.publish(&format!("$JS.API.STREAM.CREATE.{SUBJECT}"), settings.as_bytes());
        self.stream.flush().await?;
        self.answer().await.map(drop)
    }

    /// Appends a message a number of times, by commands that are sent together, and returns the number of the last one once all are
    /// acknowledged.
    pub(crate) async fn append(&mut self, payload: &[u8], times: u32) -> Result<u64, BenchError> {
        for _ in 0..times {
            self.publish(SUBJECT, payload);
        }
        self.stream.flush().await?;
        let mut last = 0;
        for _ in 0..times {
            let answer = self.answer().await?;
            let number = serde_json::from_slice::<serde_json::Value>(&answer).ok();
            last = number.and_then(|answer| answer["seq"].as_u64()).ok_or_else(|| {
                BenchError::peer(NAME, format!("answered {}", String::from_utf8_lossy(&answer)))
            })?;
        }
        Ok(last)
    }

    fn publish(&mut self, subject: &str, payload: &[u8]) {
        let Self { stream, inbox } = self;
        stream.say(format!("PUB {subject} {inbox} {}\r\n", payload.len()).as_bytes());
        stream.say(payload);
        stream.say(b"\r\n");
    }

    /// Returns the content of the next answer.
    ///
    /// # Errors
    /// If the answer is a failure.
    async fn answer(&mut self) -> Result<Bytes, BenchError> {
        loop {
            let line = self.stream.line().await?;
            let line = String::from_utf8_lossy(&line);
            if line == "PING" {
                self.stream.say(b"PONG\r\n");
                self.stream.flush().await?;
            } else if line.starts_with("-ERR") {
                return Err(BenchError::peer(NAME, line));
            } else if line.starts_with("MSG ") {
                let length = line.rsplit(' ').next().and_then(|length| length.parse::<usize>().ok());
                let length = length.ok_or_else(|| BenchError::peer(NAME, format!("answered {line}")))?;
                let content = self.stream.content(length).await?;
                return match content.windows(8).any(|window| window == b"\"error\":") {
                    true => Err(BenchError::peer(NAME, String::from_utf8_lossy(&content))),
                    false => Ok(content),
                };
            }
        }
    }
}
