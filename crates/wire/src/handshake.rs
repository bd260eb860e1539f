//! How two peers introduce themselves.

use std::io;
use std::time::Duration;

use crate::limit::PROTOCOL_VERSION;
use crate::stream::Stream;

/// The first bytes of every connection, in both directions.
const MAGIC: [u8; 8] = *b"\x89NACRE\r\n";
/// Bytes of the first message of either side.
const HELLO_BYTES: usize = 16;

fn hello(status: u8) -> [u8; HELLO_BYTES] {
    let mut hello = [0; HELLO_BYTES];
    hello[..8].copy_from_slice(&MAGIC);
    hello[8..10].copy_from_slice(&PROTOCOL_VERSION.to_le_bytes());
    hello[10] = status;
    hello
}

/// The server's side.
pub(crate) async fn accept(stream: &Stream, timeout: Duration) -> io::Result<()> {
    let exchange = async {
        let mut theirs = [0; HELLO_BYTES];
        stream.read_exact(&mut theirs).await?;
        if theirs[..8] != MAGIC {
            return Err(io::Error::other("the peer does not speak this protocol"));
        }
        stream.write_all(&hello(0)).await
    };
    tokio::time::timeout(timeout, exchange).await?
}

/// The client's side.
pub(crate) async fn introduce(stream: &Stream) -> io::Result<()> {
    stream.write_all(&hello(0)).await?;
    let mut theirs = [0; HELLO_BYTES];
    stream.read_exact(&mut theirs).await?;
    if theirs[..8] != MAGIC {
        return Err(io::Error::other("the peer does not speak this protocol"));
    }
    Ok(())
}
