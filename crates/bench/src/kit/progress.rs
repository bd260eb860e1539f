//! A progress line of a study, on a terminal only.

use indicatif::{ProgressBar, ProgressStyle};

/// The progress line.
pub(crate) struct Progress(ProgressBar);

impl Progress {
    /// Creates the line of a study of `steps` steps.
    pub(crate) fn new(steps: u64) -> Self {
        let bar = ProgressBar::new(steps);
        if let Ok(style) = ProgressStyle::with_template("{wide_bar} {pos}/{len} {eta} {msg}") {
            bar.set_style(style);
        }
        Self(bar)
    }

    /// Shows the measurement that begins, and advances by a step.
    pub(crate) fn step(&self, what: &str, repetition: u32) {
        self.0.set_message(format!("{what}, repetition {}", repetition + 1));
        self.0.inc(1);
    }

    /// Removes the line.
    pub(crate) fn finish(&self) {
        self.0.finish_and_clear();
    }
}
