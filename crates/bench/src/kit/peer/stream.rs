//! A connection of a text protocol whose lines end with CR and LF: what is said is sent together, and what is heard comes by
//! lines and by lengths.

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::BenchError;

/// A connection to a peer.
pub(super) struct Stream {
    peer: &'static str,
    stream: TcpStream,
    output: BytesMut,
    input: BytesMut,
}

impl Stream {
    /// Connects to a server.
    pub(super) async fn open(peer: &'static str, address: &str) -> Result<Self, BenchError> {
        let stream =
            TcpStream::connect(address).await.map_err(BenchError::io(format!("connect to {address}")))?;
        stream.set_nodelay(true).map_err(BenchError::io("set TCP_NODELAY"))?;
        Ok(Self { peer, stream, output: BytesMut::new(), input: BytesMut::new() })
    }

    /// Returns the own port.
    pub(super) fn port(&self) -> Result<u16, BenchError> {
        Ok(self.stream.local_addr().map_err(BenchError::io("find the own address"))?.port())
    }

    /// Adds bytes to what the next [`Stream::flush`] sends.
    pub(super) fn say(&mut self, bytes: &[u8]) {
        self.output.extend_from_slice(bytes);
    }

    /// Sends everything that was said.
    pub(super) async fn flush(&mut self) -> Result<(), BenchError> {
        let sent = self.stream.write_all(&self.output).await;
        sent.map_err(BenchError::io(format!("send to {}", self.peer)))?;
        self.output.clear();
        Ok(())
    }

    /// Returns the next line, without its end.
    pub(super) async fn line(&mut self) -> Result<Bytes, BenchError> {
        loop {
            if let Some(end) = self.input.windows(2).position(|pair| pair == b"\r\n") {
                let line = self.input.split_to(end).freeze();
                self.input.advance(2);
                return Ok(line);
            }
            self.receive().await?;
        }
    }

    /// Returns the next bytes, which a line's end follows.
    pub(super) async fn content(&mut self, length: usize) -> Result<Bytes, BenchError> {
        while self.input.len() < length + 2 {
            self.receive().await?;
        }
        let content = self.input.split_to(length).freeze();
        self.input.advance(2);
        Ok(content)
    }

    async fn receive(&mut self) -> Result<(), BenchError> {
        self.input.reserve(8 << 10);
        let received = self.stream.read_buf(&mut self.input).await;
        match received.map_err(BenchError::io(format!("receive from {}", self.peer)))? {
            0 => Err(BenchError::peer(self.peer, "closed the connection")),
            _ => Ok(()),
        }
    }
}
