//! Handling of Ctrl-C, SIGTERM and SIGHUP during work that can be stopped in good order. Signals within half a second are
//! one.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, ReadBuf};
use tokio::sync::oneshot;

use crate::failure::Failure;
use crate::signals::{self, Signals};

/// Runs `work`; the first signal calls `stop`, after which the work must end soon. The second ends the program.
pub fn stopping<T: Send>(stop: impl Fn(), work: impl FnOnce() -> T + Send) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Failure::io("start the program's runtime"))?;
    // Signals are caught before the work begins, so that none ends the program half-way. If they cannot be caught, the
    // work still runs to its end; it can then only be killed.
    let signals = {
        let _inside = runtime.enter();
        Signals::catch()
    };
    let (done, mut finished) = tokio::sync::oneshot::channel::<()>();
    std::thread::scope(|scope| {
        let worker = scope.spawn(move || {
            let result = work();
            drop(done);
            result
        });
        runtime.block_on(async {
            let Ok(mut signals) = signals else { return };
            tokio::select! {
                _ = &mut finished => return,
                () = signals.next() => stop(),
            }
            tokio::select! {
                _ = &mut finished => {}
                () = signals.next() => signals::end(),
            }
        });
        match worker.join() {
            Ok(result) => Ok(result),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// The first signal. The second one ends the program.
#[derive(derive_more::Debug)]
#[debug("Interruption")]
pub struct Interruption {
    signalled: oneshot::Receiver<()>,
}

impl Interruption {
    /// Catches signals from now on. Must be called within a tokio runtime.
    pub fn catch() -> Result<Self, Failure> {
        let mut signals = Signals::catch()?;
        let (sender, signalled) = oneshot::channel();
        tokio::spawn(async move {
            signals.next().await;
            // The receiver is gone if the source was dropped already.
            let _ = sender.send(());
            signals.next().await;
            signals::end();
        });
        Ok(Self { signalled })
    }

    /// Waits for the first signal.
    pub async fn wait(self) {
        if self.signalled.await.is_err() {
            // The runtime ends, and no signal comes any more.
            std::future::pending().await
        }
    }
}

/// A source whose reads fail after the first signal, so that its reader cleans up and ends. The second signal ends the
/// program.
#[derive(derive_more::Debug)]
#[debug("Interruptible")]
pub struct Interruptible<R> {
    inner: R,
    interruption: Interruption,
}

impl<R> Interruptible<R> {
    /// Catches signals from now on. Must be called within a tokio runtime.
    pub fn new(inner: R) -> Result<Self, Failure> {
        Ok(Self { inner, interruption: Interruption::catch()? })
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for Interruptible<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Poll::Ready(Ok(())) = Pin::new(&mut self.interruption.signalled).poll(context) {
            return Poll::Ready(Err(io::Error::other("the command was interrupted")));
        }
        Pin::new(&mut self.inner).poll_read(context, buffer)
    }
}
