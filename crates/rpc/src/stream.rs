//! Addresses, and the two kinds of stream that connections run over.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::str::FromStr;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{BufMut, BytesMut};
use nacre_object::{ErrorKind, Escaped, StoreError};
use socket2::SockRef;
use tokio::io::Interest;
use tokio::net::{TcpStream, UnixStream};

use crate::socket;

/// The port that a server listens on if none is given.
pub const PORT_DEFAULT: u16 = 6470;

/// The address of a server.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Address {
    /// `HOST:PORT`, with the host in lower case and an IPv6 address in brackets.
    Tcp(String),
    /// The path of a Unix socket.
    Unix(PathBuf),
}

impl Address {
    /// Reads an address as [`FromStr`] does; a path may have any bytes.
    ///
    /// # Errors
    ///
    /// `Invalid` if it is none.
    pub fn from_os_str(given: &OsStr) -> Result<Self, StoreError> {
        let wrong = |why: &str| {
            let shown = Escaped::of(given);
            let text =
                format!("server address \"{shown}\": {why}; write HOST:PORT, [IPV6]:PORT or unix:PATH");
            Err(StoreError::new(ErrorKind::Invalid, text))
        };
        if let Some(path) = given.as_bytes().strip_prefix(b"unix:") {
            return if path.is_empty() {
                wrong("the path is missing")
            } else {
                Ok(Address::Unix(OsStr::from_bytes(path).into()))
            };
        }
        let Some(text) = given.to_str() else { return wrong("the host is not a name") };
        let (host, port) = match text.rsplit_once(':') {
            _ if text.ends_with(']') => (text, None),
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        };
        let port = match port {
            None => PORT_DEFAULT,
            Some(port) => match port.parse::<u16>() {
                Ok(port) if port.to_string() == *text.rsplit(':').next().unwrap_or("") => port,
                _ => return wrong("the port is not a number from 0 to 65535"),
            },
        };
        if let Some(inner) = host.strip_prefix('[') {
            return match inner.strip_suffix(']').map(str::parse::<std::net::Ipv6Addr>) {
                Some(Ok(ip)) => Ok(Address::Tcp(format!("[{ip}]:{port}"))),
                _ => wrong("the text in brackets is not an IPv6 address"),
            };
        }
        if host.is_empty() {
            return wrong("the host is missing");
        }
        if !host.bytes().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'-' | b'_')) {
            return wrong("the host is not a name");
        }
        Ok(Address::Tcp(format!("{}:{port}", host.to_ascii_lowercase())))
    }

    /// Returns the address as it is read, with all bytes of a path.
    pub fn to_os_string(&self) -> OsString {
        match self {
            Address::Tcp(address) => address.into(),
            Address::Unix(path) => {
                let mut text = OsString::from("unix:");
                text.push(path);
                text
            }
        }
    }

    /// Returns whether it cannot be reached from another machine: a Unix socket, or a loopback address.
    pub fn is_local(&self) -> bool {
        match self {
            Address::Unix(_) => true,
            Address::Tcp(address) => {
                let host = address.rsplit_once(':').map_or(address.as_str(), |(host, _)| host);
                let host = host.trim_start_matches('[').trim_end_matches(']');
                // An IPv4 address may be written as an IPv6 one.
                let is_loopback = |ip: std::net::IpAddr| ip.to_canonical().is_loopback();
                host == "localhost" || host.parse().is_ok_and(is_loopback)
            }
        }
    }
}

/// The address for people: the bytes of a path are escaped as those of all names are, so that it is read again only where there is nothing
/// to escape. [`Address::to_os_string`] returns it for programs.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(address) => f.write_str(address),
            Address::Unix(path) => write!(f, "unix:{}", Escaped::of(path)),
        }
    }
}

impl FromStr for Address {
    type Err = StoreError;

    /// Reads `HOST:PORT`, `HOST` (with the default port), `[IPV6]:PORT` or `unix:PATH`.
    fn from_str(text: &str) -> Result<Self, StoreError> {
        Address::from_os_str(OsStr::new(text))
    }
}

/// A connected stream.
#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

macro_rules! either {
    ($stream:expr, $inner:ident => $body:expr) => {
        match $stream {
            Stream::Tcp($inner) => $body,
            Stream::Unix($inner) => $body,
        }
    };
}

impl Stream {
    /// Connects to an address. The listener on a Unix socket must run as the user `owner`, or, if that is `None`, as
    /// the user of this process or root: otherwise any user who can create a file there could impersonate the server.
    pub(crate) async fn connect(address: &Address, owner: Option<u32>) -> io::Result<Stream> {
        match address {
            Address::Unix(path) => {
                let stream = UnixStream::connect(path).await?;
                let user = stream.peer_cred()?.uid();
                if owner.map_or_else(|| socket::is_self_or_root(user), |owner| owner == user) {
                    return Ok(Stream::Unix(stream));
                }
                let wanted =
                    owner.map_or("neither you nor root".to_owned(), |owner| format!("not user {owner}"));
                let text = format!(
                    "it runs as user {user}, {wanted}; if that is the right one, say so with ?owner={user} in the \
                     store's uri"
                );
                Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
            }
            Address::Tcp(address) => {
                let stream = TcpStream::connect(address).await?;
                tune(&stream)?;
                Ok(Stream::Tcp(stream))
            }
        }
    }

    /// Returns the socket, which no runtime watches any more and which does not block.
    pub(crate) fn into_socket(self) -> io::Result<OwnedFd> {
        Ok(match self {
            Stream::Tcp(stream) => stream.into_std()?.into(),
            Stream::Unix(stream) => stream.into_std()?.into(),
        })
    }

    /// Takes the stream for not ready, until the system says again that it is. What was announced before this call is
    /// forgotten, so whatever there is to read or to write has to be tried afterwards.
    pub(crate) fn forget(&self, interest: Interest) {
        let would_block = || Err::<(), _>(io::ErrorKind::WouldBlock.into());
        // That is the error.
        let _ = either!(self, stream => stream.try_io(interest, would_block));
    }

    /// Takes over a stream that was accepted on another runtime.
    pub(crate) fn adopt(stream: Accepted) -> io::Result<Stream> {
        match stream {
            Accepted::Tcp(stream, _) => {
                let stream = TcpStream::from_std(stream)?;
                tune(&stream)?;
                Ok(Stream::Tcp(stream))
            }
            Accepted::Unix(stream, _) => Ok(Stream::Unix(UnixStream::from_std(stream)?)),
        }
    }

    pub(crate) fn poll_read_ready(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self, stream => stream.poll_read_ready(context))
    }

    pub(crate) fn poll_write_ready(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self, stream => stream.poll_write_ready(context))
    }

    /// Reads once, at most `bytes_max` bytes into a buffer that has room.
    pub(crate) fn try_read_buf(&self, buffer: &mut BytesMut, bytes_max: usize) -> io::Result<usize> {
        let requested = bytes_max.min(buffer.capacity() - buffer.len());
        let mut read = Ok(0);
        // Less than was asked for is all that there is, and what comes later is announced separately, as is the stream's end: to ask
        // again now would be a system call for nothing. So the stream counts as not ready then. The read happens within
        // `try_io`, which goes by what was announced before it: what another thread of the runtime is told between the
        // read and the end of `try_io` stays announced.
        let within = either!(self, stream => stream.try_io(Interest::READABLE, || {
            read = stream.try_read_buf(&mut buffer.limit(bytes_max));
            match &read {
                Ok(count) if 0 < *count && *count < requested => Err(io::ErrorKind::WouldBlock.into()),
                _ => Ok(()),
            }
        }));
        match (read, within) {
            // There is nothing, and nothing was tried.
            (Ok(0), Err(error)) => Err(error),
            (read, _) => read,
        }
    }

    /// Returns whether there is anything to read, without reading it; false if the stream has ended.
    pub(crate) fn try_peek(&self) -> io::Result<bool> {
        let mut byte = [MaybeUninit::uninit()];
        either!(self, stream => stream.try_io(Interest::READABLE, || SockRef::from(stream).peek(&mut byte)))
            .map(|count| count > 0)
    }

    pub(crate) fn try_write_vectored(&self, slices: &[io::IoSlice<'_>]) -> io::Result<usize> {
        either!(self, stream => stream.try_write_vectored(slices))
    }

    /// Reads exactly as many bytes as `buffer` holds.
    pub(crate) async fn read_exact(&self, buffer: &mut [u8]) -> io::Result<()> {
        let mut at = 0;
        while at < buffer.len() {
            either!(self, stream => stream.ready(Interest::READABLE).await?);
            match either!(self, stream => stream.try_read(&mut buffer[at..])) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => at += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Reads and discards, until the stream ends or `limit` bytes were read.
    pub(crate) async fn discard(&self, limit: usize) -> io::Result<()> {
        let mut read = 0;
        let mut byte = [0; 256];
        while read < limit {
            either!(self, stream => stream.ready(Interest::READABLE).await?);
            match either!(self, stream => stream.try_read(&mut byte)) {
                Ok(0) => return Ok(()),
                Ok(count) => read += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Writes all of `buffer`.
    pub(crate) async fn write_all(&self, mut buffer: &[u8]) -> io::Result<()> {
        while !buffer.is_empty() {
            either!(self, stream => stream.ready(Interest::WRITABLE).await?);
            match either!(self, stream => stream.try_write(buffer)) {
                Ok(count) => buffer = &buffer[count..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// A stream as accepted, not yet bound to a runtime.
pub(crate) enum Accepted {
    Tcp(std::net::TcpStream, SocketAddr),
    /// With the number of the peer's user, if the system tells it.
    Unix(std::os::unix::net::UnixStream, Option<u32>),
}

/// Disables batching of small messages, and detects a peer that vanished silently within about a minute.
fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let keepalive = socket2::TcpKeepalive::new()
        .with_time(Duration::from_secs(20))
        .with_interval(Duration::from_secs(10))
        .with_retries(4);
    let socket = SockRef::from(stream);
    socket.set_tcp_keepalive(&keepalive)?;
    // Detects also a peer that vanished while bytes to it are unacknowledged.
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(Duration::from_secs(60)))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_come_right_after_a_read_wake_the_reader() {
        use std::io::{Read, Write};

        const ROUNDS: usize = 20_000;
        const BYTES: usize = 128 << 10;
        let (ours, mut theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        theirs.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        let writer = std::thread::spawn(move || {
            for round in 0..ROUNDS {
                // The system hands this on piece by piece.
                theirs.write_all(&[0; BYTES]).unwrap();
                theirs
                    .read_exact(&mut [0])
                    .unwrap_or_else(|error| panic!("no answer in round {round}: {error}"));
            }
        });
        // The runtime learns of what comes on its own thread, and this one reads.
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        runtime.block_on(async {
            let stream = Stream::adopt(Accepted::Unix(ours, None)).unwrap();
            let mut buffer = BytesMut::with_capacity(2 * BYTES);
            for _ in 0..ROUNDS {
                while buffer.len() < BYTES {
                    std::future::poll_fn(|context| stream.poll_read_ready(context)).await.unwrap();
                    match stream.try_read_buf(&mut buffer, BYTES) {
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                        // The writer has given up.
                        Ok(0) => return,
                        read => drop(read.unwrap()),
                    }
                }
                buffer.clear();
                stream.write_all(&[1]).await.unwrap();
            }
        });
        writer.join().unwrap();
    }

    #[test]
    fn addresses_are_read_strictly() {
        let good = [
            ("localhost", "localhost:6470", true),
            ("Node-1.Example:7", "node-1.example:7", false),
            ("127.0.0.1:80", "127.0.0.1:80", true),
            ("127.3.4.5", "127.3.4.5:6470", true),
            ("0.0.0.0:1", "0.0.0.0:1", false),
            ("[::1]:80", "[::1]:80", true),
            ("[0:0::2]", "[::2]:6470", false),
            ("unix:/a/b c", "unix:/a/b c", true),
        ];
        for (text, shown, local) in good {
            let address: Address = text.parse().unwrap();
            assert_eq!(address.to_string(), shown);
            assert_eq!(address.is_local(), local, "{text}");
        }
        for text in
            ["", ":1", "a:", "a:65536", "a:+1", "a:01", "a b:1", "[::1", "[x]:1", "::1:80", "unix:", "a/b:1"]
        {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_path_of_a_socket_has_any_bytes() {
        let given = OsStr::from_bytes(b"unix:/a\\b\n\xff");
        let address = Address::from_os_str(given).unwrap();
        assert_eq!(address, Address::Unix(OsStr::from_bytes(b"/a\\b\n\xff").into()));
        assert_eq!(address.to_os_string(), given);
        assert_eq!(address.to_string(), "unix:/a\\\\b\\x0a\\xff");
        let error = Address::from_os_str(OsStr::from_bytes(b"\xff:1")).unwrap_err();
        assert!(error.message.contains("\"\\xff:1\": the host is not a name"), "{error}");
    }
}
