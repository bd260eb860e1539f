//! Redis: optimistic updates with WATCH, MULTI and EXEC; counters; streams; scripts.
//!
//! A watch belongs to a connection, and EXEC drops all watches of its connection, so every concurrent operation needs
//! its own connection. The commands of one step are sent together: `WATCH` with `GET`, and `MULTI` with `SET` and
//! `EXEC`, so an update takes two round trips. The protocol (RESP2) is implemented here directly, because on a small
//! machine a heavier client would take from the server the very core that it needs.

use std::path::Path;
use std::process::Command;

use bytes::Bytes;

use super::stream::Stream;
use super::{Peer, find_program, version_of};
use crate::BenchError;

const NAME: &str = "redis";
const PROGRAM: &str = "redis-server";
const PACKAGE: &str = "redis-server";

/// Starts a Redis server. With `durable`, every write is synced to the disk before it is acknowledged.
pub(crate) async fn start(durable: bool, parent: Option<&Path>) -> Result<Peer, BenchError> {
    let program = find_program(PROGRAM, PACKAGE)?;
    let peer = Peer::start(NAME, parent, |folder, port| {
        let mut command = Command::new(program);
        command.args(["--bind", "127.0.0.1", "--daemonize", "no", "--save", "", "--port"]);
        command.arg(port.to_string()).arg("--dir").arg(folder);
        if durable {
            command.args(["--appendonly", "yes", "--appendfsync", "always"]);
        } else {
            command.args(["--appendonly", "no"]);
        }
        Ok(command)
    })?;
    peer.wait_until(|address| async move {
        match Connection::open(&address).await {
            Ok(mut connection) => connection.get("ready").await.is_ok(),
            Err(_) => false,
        }
    })
    .await
}

/// Returns the version that the server reports.
pub(crate) fn version() -> Option<String> {
    version_of(&find_program(PROGRAM, PACKAGE).ok()?, &["--version"])
}

/// One connection, used by one concurrent operation.
pub(crate) struct Connection(Stream);

/// A reply.
enum Answer {
    /// A one-line reply, such as `+OK`.
    Line,
    /// A number, such as `:1`.
    Number(u64),
    /// A value, or nil.
    Value(Option<Bytes>),
    /// An array of the given number of replies, which follow, or nil.
    Array(Option<usize>),
}

impl Connection {
    /// Connects to a server.
    pub(crate) async fn open(address: &str) -> Result<Self, BenchError> {
        Stream::open(NAME, address).await.map(Self)
    }

    /// Reads a value.
    pub(crate) async fn get(&mut self, key: &str) -> Result<Option<Bytes>, BenchError> {
        self.command(&[b"GET", key.as_bytes()]);
        self.0.flush().await?;
        self.value().await
    }

    /// Reads a value, and makes the next [`Connection::set_if_unchanged`] conditional on its staying unchanged.
    pub(crate) async fn watch_and_get(&mut self, key: &str) -> Result<Option<Bytes>, BenchError> {
        self.command(&[b"WATCH", key.as_bytes()]);
        self.command(&[b"GET", key.as_bytes()]);
        self.0.flush().await?;
        self.answer().await?;
        self.value().await
    }

    /// Writes a value unless the watched value changed; returns whether it was written.
    pub(crate) async fn set_if_unchanged(&mut self, key: &str, value: &[u8]) -> Result<bool, BenchError> {
        self.command(&[b"MULTI"]);
        self.command(&[b"SET", key.as_bytes(), value]);
        self.command(&[b"EXEC"]);
        self.0.flush().await?;
        self.answer().await?;
        self.answer().await?;
        match self.answer().await? {
            Answer::Array(None) => Ok(false),
            Answer::Array(Some(answers)) => {
                for _ in 0..answers {
                    self.answer().await?;
                }
                Ok(true)
            }
            _ => Err(BenchError::peer(NAME, "EXEC was not answered with an array")),
        }
    }

    /// Counts a key up a number of times, by commands that are sent together, and returns its last value.
    pub(crate) async fn count_up(&mut self, key: &str, times: u32) -> Result<u64, BenchError> {
        for _ in 0..times {
            self.command(&[b"INCR", key.as_bytes()]);
        }
        self.0.flush().await?;
        let mut last = 0;
        for _ in 0..times {
            last = match self.answer().await? {
                Answer::Number(number) => number,
                _ => return Err(BenchError::peer(NAME, "INCR was not answered with a number")),
            };
        }
        Ok(last)
    }

    /// Appends an entry to a stream a number of times, by commands that are sent together; returns once all are acknowledged.
    pub(crate) async fn append(
        &mut self,
        stream: &str,
        payload: &[u8],
        times: u32,
    ) -> Result<(), BenchError> {
        for _ in 0..times {
            self.command(&[b"XADD", stream.as_bytes(), b"*", b"d", payload]);
        }
        self.0.flush().await?;
        for _ in 0..times {
            match self.answer().await? {
                Answer::Value(Some(_)) => {}
                _ => return Err(BenchError::peer(NAME, "XADD was not answered with an id")),
            }
        }
        Ok(())
    }

    /// Loads a script, and returns the digest by which it is called.
    pub(crate) async fn load_script(&mut self, script: &str) -> Result<Bytes, BenchError> {
        self.command(&[b"SCRIPT", b"LOAD", script.as_bytes()]);
        self.0.flush().await?;
        let missing = || BenchError::peer(NAME, "SCRIPT LOAD was not answered with a digest");
        self.value().await?.ok_or_else(missing)
    }

    /// Calls a script on each of some keys, by commands that are sent together, and returns the numbers that it returns.
    pub(crate) async fn call_script(
        &mut self,
        digest: &[u8],
        keys: &[String],
        argument: &[u8],
    ) -> Result<Vec<u64>, BenchError> {
        for key in keys {
            self.command(&[b"EVALSHA", digest, b"1", key.as_bytes(), argument]);
        }
        self.0.flush().await?;
        let mut numbers = Vec::with_capacity(keys.len());
        for _ in keys {
            match self.answer().await? {
                Answer::Number(number) => numbers.push(number),
                _ => return Err(BenchError::peer(NAME, "EVALSHA was not answered with a number")),
            }
        }
        Ok(numbers)
    }

    fn command(&mut self, words: &[&[u8]]) {
        self.0.say(format!("*{}\r\n", words.len()).as_bytes());
        for word in words {
            self.0.say(format!("${}\r\n", word.len()).as_bytes());
            self.0.say(word);
            self.0.say(b"\r\n");
        }
    }

    async fn value(&mut self) -> Result<Option<Bytes>, BenchError> {
        match self.answer().await? {
            Answer::Value(value) => Ok(value),
            _ => Err(BenchError::peer(NAME, "a command was not answered with a value")),
        }
    }

    async fn answer(&mut self) -> Result<Answer, BenchError> {
        let line = self.0.line().await?;
        let text = String::from_utf8_lossy(line.get(1..).unwrap_or_default());
        let length = || {
            let wrong = |_| BenchError::peer(NAME, format!("answered with the length {text}"));
            text.parse::<i64>().map_err(wrong)
        };
        match line.first() {
            Some(b'+') => Ok(Answer::Line),
            Some(b':') => Ok(Answer::Number(u64::try_from(length()?).unwrap_or(0))),
            Some(b'*') => Ok(Answer::Array(usize::try_from(length()?).ok())),
            Some(b'$') => {
                let Ok(length) = usize::try_from(length()?) else { return Ok(Answer::Value(None)) };
                Ok(Answer::Value(Some(self.0.content(length).await?)))
            }
            _ => Err(BenchError::peer(NAME, format!("answered {}", String::from_utf8_lossy(&line)))),
        }
    }
}
