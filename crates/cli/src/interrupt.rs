//! Ctrl-C and SIGTERM while something runs that can be stopped in good order.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use nacre_daemon::Signals;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::sync::oneshot;

use crate::failure::Failure;

/// Runs `work`; the first signal calls `stop`, after which the work has to end soon. The second ends the program.
pub fn stopping<T: Send>(stop: impl Fn(), work: impl FnOnce() -> T + Send) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Failure::io("start the program's runtime"))?;
    // Signals are caught before anything is begun, so that none ends the program half-way. Without that the work goes
    // on to its end; only stopping it needs more force.
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
                () = signals.next() => std::process::exit(130),
            }
        });
        match worker.join() {
            Ok(result) => Ok(result),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// A source whose reading fails after the first signal, so that whoever reads it cleans up and ends. The second signal
/// ends the program.
pub struct Interruptible<R> {
    inner: R,
    signalled: oneshot::Receiver<()>,
}

impl<R> Interruptible<R> {
    /// Catches signals from now on. Must be called in the program's runtime.
    pub fn new(inner: R) -> Result<Self, Failure> {
        let mut signals = Signals::catch()?;
        let (sender, signalled) = oneshot::channel();
        tokio::spawn(async move {
            signals.next().await;
            // Nobody listens any more where the source was read to its end.
            let _ = sender.send(());
            signals.next().await;
            std::process::exit(130);
        });
        Ok(Self { inner, signalled })
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for Interruptible<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Poll::Ready(Ok(())) = Pin::new(&mut self.signalled).poll(context) {
            return Poll::Ready(Err(io::Error::other("the command was interrupted")));
        }
        Pin::new(&mut self.inner).poll_read(context, buffer)
    }
}
