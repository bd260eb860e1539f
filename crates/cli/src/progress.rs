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
