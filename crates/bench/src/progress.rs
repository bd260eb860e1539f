//! One line that says how far a study is, on a terminal only.

use indicatif::{ProgressBar, ProgressStyle};

/// The line.
pub(crate) struct Progress(ProgressBar);

impl Progress {
    /// A study of so many steps.
    pub(crate) fn new(steps: u64) -> Self {
        let bar = ProgressBar::new(steps);
        if let Ok(style) = ProgressStyle::with_template("{wide_bar} {pos}/{len} {eta} {msg}") {
            bar.set_style(style);
        }
        Self(bar)
    }

    /// Says what is measured now, and moves on.
    pub(crate) fn step(&self, what: &str, repetition: u32) {
        self.0.set_message(format!("{what}, repetition {}", repetition + 1));
        self.0.inc(1);
    }

    /// Takes the line away.
    pub(crate) fn finish(&self) {
        self.0.finish_and_clear();
    }
}
