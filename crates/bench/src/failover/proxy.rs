//! A connection that can be cut without being closed, which is what a partition of the network is to its two ends.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use crate::BenchError;

/// A server that passes on what it gets to another one, and nothing while it is cut. It ends when this is dropped.
pub(super) struct Proxy {
    /// The address that it listens on.
    pub(super) address: String,
    cut: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Proxy {
    /// Starts a proxy in front of a server.
    ///
    /// # Errors
    /// If there is no port for it.
    pub(super) async fn start(server: &str) -> Result<Proxy, BenchError> {
        let failed = || BenchError::io("listen in front of a server");
        let listener = TcpListener::bind("127.0.0.1:0").await.map_err(failed())?;
        let address = listener.local_addr().map_err(failed())?.to_string();
        let (cut, is_cut) = watch::channel(false);
        let server = server.to_owned();
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                connections.spawn(relay(client, server.clone(), is_cut.clone()));
                while connections.try_join_next().is_some() {}
            }
        });
        Ok(Proxy { address, cut, task })
    }

    /// Cuts all connections, present and new, or joins them again: what was sent meanwhile arrives then, as over TCP.
    pub(super) fn cut(&self, is_cut: bool) {
        self.cut.send_replace(is_cut);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn relay(client: TcpStream, server: String, mut cut: watch::Receiver<bool>) {
    if !until_joined(&mut cut).await {
        return;
    }
    let Ok(server) = TcpStream::connect(server).await else { return };
    if client.set_nodelay(true).and(server.set_nodelay(true)).is_err() {
        return;
    }
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    // A connection that one end has closed is of no use to the other.
    tokio::select! {
        () = forward(from_client, to_server, cut.clone()) => {}
        () = forward(from_server, to_client, cut) => {}
    }
}

async fn forward(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut cut: watch::Receiver<bool>) {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let Ok(length @ 1..) = from.read(&mut buffer).await else { return };
        if !until_joined(&mut cut).await || to.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
}

/// Waits while connections are cut; returns false if the proxy has ended.
async fn until_joined(cut: &mut watch::Receiver<bool>) -> bool {
    cut.wait_for(|cut| !*cut).await.is_ok()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_is_sent_while_it_is_cut_arrives_later() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let proxy = Proxy::start(&server.local_addr().unwrap().to_string()).await.unwrap();
            let mut client = TcpStream::connect(&proxy.address).await.unwrap();
            let (mut served, _) = server.accept().await.unwrap();
            let mut read = [0; 1];
            client.write_all(b"1").await.unwrap();
            served.read_exact(&mut read).await.unwrap();
            assert_eq!(&read, b"1");
            proxy.cut(true);
            client.write_all(b"2").await.unwrap();
            let waited = tokio::time::timeout(Duration::from_millis(100), served.read_exact(&mut read)).await;
            assert!(waited.is_err(), "it passed the cut");
            proxy.cut(false);
            served.read_exact(&mut read).await.unwrap();
            assert_eq!(&read, b"2");
            served.write_all(b"3").await.unwrap();
            client.read_exact(&mut read).await.unwrap();
            assert_eq!(&read, b"3");
        });
    }
}
