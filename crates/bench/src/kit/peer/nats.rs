//! NATS with JetStream: messages that are published to a subject are appended to a stream, and each is acknowledged with its number.
//!
//! The text protocol is implemented here directly, for the reason that [`redis`](super::redis) gives. A stream is kept in files
//! that this version syncs every two minutes, not before it acknowledges; or in memory.

use std::path::Path;
use std::process::Command;

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

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
    stream: TcpStream,
    output: BytesMut,
    input: BytesMut,
}

impl Connection {
    /// Connects to a server, and subscribes to the answers to what it publishes.
    pub(crate) async fn open(address: &str) -> Result<Self, BenchError> {
        let stream =
            TcpStream::connect(address).await.map_err(BenchError::io(format!("connect to {address}")))?;
        stream.set_nodelay(true).map_err(BenchError::io("set TCP_NODELAY"))?;
        let mut connection = Self { stream, output: BytesMut::new(), input: BytesMut::new() };
        // Each connection has answers of its own.
        let inbox = connection.inbox()?;
        let hello = format!("CONNECT {{\"verbose\":false,\"pedantic\":false}}\r\nSUB {inbox} 1\r\nPING\r\n");
        connection.output.extend_from_slice(hello.as_bytes());
        connection.flush().await?;
        while connection.line().await? != "PONG" {}
        Ok(connection)
    }

    fn inbox(&self) -> Result<String, BenchError> {
        let port = self.stream.local_addr().map_err(BenchError::io("find the own address"))?.port();
        Ok(format!("{INBOX}.{port}"))
    }

    /// Makes the stream.
    async fn create(&mut self, in_files: bool) -> Result<(), BenchError> {
        let storage = if in_files { "file" } else { "memory" };
        let settings = format!(
            "{{\"name\":\"{SUBJECT}\",\"subjects\":[\"{SUBJECT}\"],\"storage\":\"{storage}\",\
             \"retention\":\"limits\",\"discard\":\"old\",\"num_replicas\":1}}"
        );
        self.publish(&format!("$JS.API.STREAM.CREATE.{SUBJECT}"), settings.as_bytes())?;
        self.flush().await?;
        self.answer().await.map(drop)
    }

    /// Appends a message so many times, by commands that are sent together, and returns the number of the last one once all are
    /// acknowledged.
    pub(crate) async fn append(&mut self, payload: &[u8], times: u32) -> Result<u64, BenchError> {
        for _ in 0..times {
            self.publish(SUBJECT, payload)?;
        }
        self.flush().await?;
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

    fn publish(&mut self, subject: &str, payload: &[u8]) -> Result<(), BenchError> {
        let inbox = self.inbox()?;
        self.output.extend_from_slice(format!("PUB {subject} {inbox} {}\r\n", payload.len()).as_bytes());
        self.output.extend_from_slice(payload);
        self.output.extend_from_slice(b"\r\n");
        Ok(())
    }

    async fn flush(&mut self) -> Result<(), BenchError> {
        self.stream.write_all(&self.output).await.map_err(BenchError::io("send to nats"))?;
        self.output.clear();
        Ok(())
    }

    /// Returns the content of the next answer.
    ///
    /// # Errors
    /// If the answer is a failure.
    async fn answer(&mut self) -> Result<Bytes, BenchError> {
        loop {
            let line = self.line().await?;
            if line == "PING" {
                self.output.extend_from_slice(b"PONG\r\n");
                self.flush().await?;
            } else if line.starts_with("-ERR") {
                return Err(BenchError::peer(NAME, line));
            } else if line.starts_with("MSG ") {
                let length = line.rsplit(' ').next().and_then(|length| length.parse::<usize>().ok());
                let length = length.ok_or_else(|| BenchError::peer(NAME, format!("answered {line}")))?;
                while self.input.len() < length + 2 {
                    self.receive().await?;
                }
                let content = self.input.split_to(length).freeze();
                self.input.advance(2);
                if content.windows(8).any(|window| window == b"\"error\":") {
                    let text = String::from_utf8_lossy(&content).into_owned();
                    return Err(BenchError::peer(NAME, text));
                }
                return Ok(content);
            }
        }
    }

    async fn line(&mut self) -> Result<String, BenchError> {
        loop {
            if let Some(end) = self.input.windows(2).position(|pair| pair == b"\r\n") {
                let line = self.input.split_to(end);
                self.input.advance(2);
                return Ok(String::from_utf8_lossy(&line).into_owned());
            }
            self.receive().await?;
        }
    }

    async fn receive(&mut self) -> Result<(), BenchError> {
        self.input.reserve(8 << 10);
        let received =
            self.stream.read_buf(&mut self.input).await.map_err(BenchError::io("receive from nats"))?;
        if received == 0 {
            return Err(BenchError::peer(NAME, "closed the connection"));
        }
        Ok(())
    }
}
