//! A relay before a server, in which connections are cut and held up.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;

/// The state of a connection.
#[derive(Clone, Copy, PartialEq)]
enum State {
    Open,
    /// Nothing comes through; what has been sent stays on its way.
    HeldUp,
    Cut,
}

/// A relay from one socket to another.
pub struct Relay {
    refuses: Arc<AtomicBool>,
    connections: Arc<std::sync::Mutex<Vec<watch::Sender<State>>>>,
}

impl Relay {
    /// Starts a relay on the current runtime.
    pub fn start(near: PathBuf, far: PathBuf) -> Relay {
        let listener = UnixListener::bind(near).unwrap();
        let refuses = Arc::new(AtomicBool::new(false));
        let connections: Arc<std::sync::Mutex<Vec<watch::Sender<State>>>> = Arc::default();
        let relay = Relay { refuses: refuses.clone(), connections: connections.clone() };
        tokio::spawn(async move {
            loop {
                let (near, _) = listener.accept().await.unwrap();
                if refuses.load(Ordering::SeqCst) {
                    continue;
                }
                // The server may be down.
                let Ok(far) = UnixStream::connect(&far).await else { continue };
                let (sender, state) = watch::channel(State::Open);
                let mut connections = connections.lock().unwrap();
                connections.retain(|connection| !connection.is_closed());
                connections.push(sender);
                let ((near_read, near_write), (far_read, far_write)) = (near.into_split(), far.into_split());
                tokio::spawn(pump(near_read, far_write, state.clone()));
                tokio::spawn(pump(far_read, near_write, state));
            }
        });
        relay
    }

    /// Refuses new connections, or does so no longer.
    pub fn refuse(&self, refuses: bool) {
        self.refuses.store(refuses, Ordering::SeqCst);
    }

    /// Cuts the connections that are chosen.
    pub fn cut(&self, mut choose: impl FnMut() -> bool) {
        for connection in self.connections.lock().unwrap().iter().filter(|_| choose()) {
            let _ = connection.send(State::Cut);
        }
    }

    /// Holds the connections that are chosen up for some time. What is on its way then goes on.
    pub fn hold_up(&self, time: Duration, mut choose: impl FnMut() -> bool) {
        for connection in self.connections.lock().unwrap().iter().filter(|_| choose()) {
            connection.send_if_modified(|state| {
                let open = *state == State::Open;
                if open {
                    *state = State::HeldUp;
                }
                open
            });
        }
        let connections = self.connections.clone();
        tokio::spawn(async move {
            tokio::time::sleep(time).await;
            for connection in connections.lock().unwrap().iter() {
                connection.send_if_modified(|state| {
                    let held_up = *state == State::HeldUp;
                    if held_up {
                        *state = State::Open;
                    }
                    held_up
                });
            }
        });
    }
}

/// Passes on what comes, until either end is gone or the connection is cut.
async fn pump(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut state: watch::Receiver<State>) {
    let mut bytes = vec![0; 16 << 10];
    loop {
        let count = tokio::select! {
            read = from.read(&mut bytes) => read.unwrap_or(0),
            _ = state.wait_for(|state| *state == State::Cut) => return,
        };
        // What a process has sent goes on its way even if the process is gone by then.
        let passes = state.wait_for(|state| *state != State::HeldUp).await.map(|state| *state);
        if count == 0 || passes.ok() != Some(State::Open) {
            return;
        }
        if to.write_all(&bytes[..count]).await.is_err() {
            return;
        }
    }
}
