//! A bar for transfers that take long, on a terminal only.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// What takes less than this is not worth a bar.
const LONG: Duration = Duration::from_millis(700);

/// Counts the bytes that pass through, and shows them.
pub struct Metered<T> {
    inner: T,
    bar: Bar,
    /// Set when the other end of a pipe is gone, so that this can be told from other failures afterwards.
    unread: Arc<AtomicBool>,
}

/// A bar that appears when the work turns out to be long. Indicatif shows it on terminals only.
pub struct Bar {
    bar: ProgressBar,
    begun: Instant,
    shown: bool,
}

impl Bar {
    /// A bar over so many bytes, or over an unknown number.
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

    /// So many more.
    pub fn add(&mut self, bytes: u64) {
        self.bar.inc(bytes);
        self.show();
    }

    /// So many in all.
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
    /// Watches a stream of so many bytes, or of an unknown number.
    pub fn new(inner: T, total: Option<u64>) -> Self {
        Self { inner, bar: Bar::bytes(total), unread: Arc::default() }
    }

    /// Says later whether the other end of the pipe went away.
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

impl<T> Metered<T> {
    fn note(&self, error: &io::Error) {
        if error.kind() == io::ErrorKind::BrokenPipe {
            self.unread.store(true, Ordering::Relaxed);
        }
    }
}

/// A bar that looks by itself how far the work is.
pub struct Ticker {
    bar: ProgressBar,
}

/// How often it looks.
const TICK: Duration = Duration::from_millis(100);

impl Ticker {
    /// Over so many entries, or over an unknown number.
    pub fn entries(total: Option<u64>) -> Self {
        Self::new(
            total,
            "{wide_bar} {human_pos}/{human_len} {per_sec} {eta}",
            "{spinner} {human_pos} {per_sec}",
        )
    }

    fn new(total: Option<u64>, known: &str, unknown: &str) -> Self {
        let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::hidden());
        let template = if total.is_some() { known } else { unknown };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        Self { bar }
    }

    /// Runs `work`, and shows what `done` says meanwhile if that takes long.
    pub fn during<T>(&self, done: impl Fn() -> u64 + Send, work: impl FnOnce() -> T) -> T {
        self.show_during(move |bar| bar.set_position(done()), work)
    }

    /// The same with everything that the bar can show.
    pub fn show_during<T>(&self, update: impl Fn(&ProgressBar) + Send, work: impl FnOnce() -> T) -> T {
        use std::io::IsTerminal;
        if !io::stderr().is_terminal() {
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
