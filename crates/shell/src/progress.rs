//! Progress bars for long work, on terminals only.

use std::io::{self, SeekFrom};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tokio::io::{AsyncRead, AsyncSeek, AsyncWrite, ReadBuf};

/// The time after which a bar is shown.
const LONG: Duration = Duration::from_millis(700);

/// A stream that counts the bytes that pass through, and shows them.
#[derive(derive_more::Debug)]
#[debug("Metered")]
pub struct Metered<T> {
    inner: T,
    bar: Bar,
    /// Set when the other end of a pipe is gone, to distinguish this from other failures afterwards.
    unread: Arc<AtomicBool>,
}

/// A bar that appears when the work takes long. Indicatif shows it on terminals only.
#[derive(derive_more::Debug)]
#[debug("Bar")]
pub struct Bar {
    bar: ProgressBar,
    begun: Instant,
    shown: bool,
}

impl Bar {
    /// Creates a bar over a total of bytes, or over an unknown number.
    pub fn bytes(total: Option<u64>) -> Self {
        let (bar, template) = match total {
            Some(total) => (
                ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::hidden()),
                "{wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}",
            ),
            None => (ProgressBar::hidden(), "{spinner} {bytes} {bytes_per_sec}"),
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        Self { bar, begun: Instant::now(), shown: false }
    }

    /// Creates a bar over a number of entries that is not known yet.
    pub fn entries() -> Self {
        let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::hidden());
        if let Ok(style) = ProgressStyle::with_template("{wide_bar} {human_pos}/{human_len} {per_sec} {eta}")
        {
            bar.set_style(style);
        }
        Self { bar, begun: Instant::now(), shown: false }
    }

    /// Adds to the number of bytes done.
    pub fn add(&mut self, bytes: u64) {
        self.bar.inc(bytes);
        self.show();
    }

    /// Sets the number of bytes or entries done, and the total.
    pub fn set(&mut self, done: u64, total: u64) {
        self.bar.set_length(total);
        self.bar.set_position(done);
        self.show();
    }

    fn show(&mut self) {
        if !self.shown && self.begun.elapsed() > LONG {
            self.shown = true;
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

impl<T> Metered<T> {
    /// Wraps a stream of a total of bytes, or of an unknown number.
    pub fn new(inner: T, total: Option<u64>) -> Self {
        Self { inner, bar: Bar::bytes(total), unread: Arc::default() }
    }

    /// Returns the flag that is set when the other end of the pipe is gone.
    pub fn unread(&self) -> Arc<AtomicBool> {
        self.unread.clone()
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Metered<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let poll = Pin::new(&mut self.inner).poll_read(context, buffer);
        self.bar.add((buffer.filled().len() - before) as u64);
        poll
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Metered<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.inner).poll_write(context, bytes);
        match &poll {
            Poll::Ready(Ok(count)) => self.bar.add(*count as u64),
            Poll::Ready(Err(error)) => self.note(error),
            Poll::Pending => {}
        }
        poll
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let poll = Pin::new(&mut self.inner).poll_flush(context);
        if let Poll::Ready(Err(error)) = &poll {
            self.note(error);
        }
        poll
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

impl<T: AsyncSeek + Unpin> AsyncSeek for Metered<T> {
    fn start_seek(mut self: Pin<&mut Self>, position: SeekFrom) -> io::Result<()> {
        if let SeekFrom::Current(step) = position {
            self.bar.add(step.max(0) as u64);
        }
        Pin::new(&mut self.inner).start_seek(position)
    }

    fn poll_complete(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<u64>> {
        Pin::new(&mut self.inner).poll_complete(context)
    }
}

impl<T> Metered<T> {
    fn note(&self, error: &io::Error) {
        if error.kind() == io::ErrorKind::BrokenPipe {
            self.unread.store(true, Ordering::Relaxed);
        }
    }
}

/// A bar that queries the progress of the work by itself.
#[derive(derive_more::Debug)]
#[debug("Ticker")]
pub struct Ticker {
    bar: ProgressBar,
}

/// The interval between its queries.
const TICK: Duration = Duration::from_millis(100);

impl Ticker {
    /// Creates a bar over a total of entries, or over an unknown number.
    pub fn entries(total: Option<u64>) -> Self {
        let template = match total {
            Some(_) => "{wide_bar} {human_pos}/{human_len} {per_sec} {eta}",
            None => "{spinner} {human_pos} {per_sec}",
        };
        Self::new(total, template)
    }

    /// Creates a bar over a number of bytes that is not known yet.
    pub fn bytes() -> Self {
        Self::new(None, "{spinner} {msg} {bytes} {bytes_per_sec}")
    }

    /// Sets the total of bytes once it is known.
    pub fn know(bar: &ProgressBar, total: u64) {
        bar.set_length(total);
        if let Ok(style) =
            ProgressStyle::with_template("{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}")
        {
            bar.set_style(style);
        }
    }

    fn new(total: Option<u64>, template: &str) -> Self {
        let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::hidden());
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        Self { bar }
    }

    /// Returns whether the bar can be seen.
    pub fn is_shown(&self) -> bool {
        use std::io::IsTerminal;
        io::stderr().is_terminal()
    }

    /// Runs `work`, and shows the number that `done` returns if the work takes long.
    pub fn during<T>(&self, done: impl Fn() -> u64 + Send, work: impl FnOnce() -> T) -> T {
        self.show_during(move |bar| bar.set_position(done()), work)
    }

    /// Runs `work`, and has `update` set everything that the bar shows if the work takes long.
    pub fn show_during<T>(&self, update: impl Fn(&ProgressBar) + Send, work: impl FnOnce() -> T) -> T {
        if !self.is_shown() {
            return work();
        }
        let (finished, waiting) = std::sync::mpsc::channel::<()>();
        let result = std::thread::scope(|scope| {
            scope.spawn(move || {
                let mut wait = LONG;
                while waiting.recv_timeout(wait) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                    if wait == LONG {
                        wait = TICK;
                        self.bar.set_draw_target(ProgressDrawTarget::stderr());
                    }
                    update(&self.bar);
                }
            });
            let result = work();
            drop(finished);
            result
        });
        self.bar.finish_and_clear();
        result
    }
}
