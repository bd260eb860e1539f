//! Charts over the number of ranks, the same for both studies.

use super::system::Subject;
use crate::kit::figure::{self, Figure, Scale};

/// The results of a subject with a number of ranks.
pub(super) struct Plotted {
    pub(super) subject: Subject,
    pub(super) ranks: u32,
    /// A value for each repetition.
    pub(super) values: Vec<f64>,
}

/// Returns a chart with a line for each subject.
pub(super) fn over_ranks(
    title: String,
    subtitle: String,
    y: (&str, Scale),
    points: impl IntoIterator<Item = Plotted>,
) -> Figure {
    let lines = figure::lines(
        points,
        |point| point.subject.label(),
        |point| (f64::from(point.ranks), point.values.clone()),
        |point| point.subject.colour(),
    );
    Figure::of(title, subtitle, ("ranks", Scale::Octaves), y, lines)
}
