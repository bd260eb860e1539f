//! The way of a study from its start to its end: signals, steps, and the order of measurements.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use indicatif::{ProgressBar, ProgressStyle};
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use serde::Serialize;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::report::{Report, Results};
use super::statistic::Spread;
use crate::{BenchError, Common};

/// Runs a study, and prints its results. On SIGINT or SIGTERM it is dropped where it waits, which ends everything that it
/// started; what it had measured is kept.
///
/// # Errors
/// That of the study.
pub(crate) fn run<R: Results>(
    mut report: Report<R>,
    common: &Common,
    measure: impl AsyncFnOnce(&mut Report<R>) -> Result<(), BenchError>,
) -> Result<(), BenchError> {
    let ended = runtime()?.block_on(until_interrupted(measure(&mut report)));
    report.end(ended, common)
}

/// Runs a study that blocks its thread. On SIGINT or SIGTERM it ends with its present [step](Steps::step), and what it had
/// measured is kept; on another one the process ends at once.
///
/// # Errors
/// That of the study.
pub(crate) fn run_blocking<R: Results>(
    mut report: Report<R>,
    common: &Common,
    measure: impl FnOnce(&mut Report<R>) -> Result<(), BenchError>,
) -> Result<(), BenchError> {
    watch_signals()?;
    // A signal to all processes of a terminal ends peers too, which is not the reason of the end.
    let ended = measure(&mut report).map_err(|error| check_signals().err().unwrap_or(error));
    report.end(ended, common)
}

/// Creates a runtime on the calling thread.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, BenchError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(BenchError::io("start a runtime"))
}

/// Runs `work` to its end, unless SIGINT or SIGTERM arrives: then it is dropped.
pub(crate) async fn until_interrupted<T>(
    work: impl Future<Output = Result<T, BenchError>>,
) -> Result<T, BenchError> {
    let caught =
        |kind| -> Result<Signal, BenchError> { signal(kind).map_err(BenchError::io("catch signals")) };
    let (mut interrupt, mut terminate) = (caught(SignalKind::interrupt())?, caught(SignalKind::terminate())?);
    // What a signal to all processes of a terminal makes of clients and peers is not the reason of the end.
    tokio::select! {
        biased;
        _ = interrupt.recv() => Err(stopped_by(SIGINT)),
        _ = terminate.recv() => Err(stopped_by(SIGTERM)),
        result = work => result,
    }
}

fn stopped_by(signal: i32) -> BenchError {
    nacre_shell::signals::note(signal);
    let how = if signal == SIGTERM { "terminated" } else { "interrupted" };
    BenchError::Process(how.into())
}

/// The signal that this process got, where a study blocks; zero for none.
static CAUGHT: AtomicUsize = AtomicUsize::new(0);

/// Catches SIGINT and SIGTERM from now on: the first one is noted for [`check_signals`], a second one ends the process at
/// once.
pub(crate) fn watch_signals() -> Result<(), BenchError> {
    static AGAIN: AtomicBool = AtomicBool::new(false);
    static WATCHED: AtomicBool = AtomicBool::new(false);
    // Registered twice, the first signal would be taken for a second one.
    if WATCHED.swap(true, Ordering::Relaxed) {
        return Ok(());
    }
    for signal in [SIGINT, SIGTERM] {
        // They are run in this order: only the second signal finds the flag set.
        flag::register_conditional_default(signal, &AGAIN)
            .and_then(|_| flag::register(signal, &AGAIN))
            .and_then(|_| flag::register_usize(signal, &CAUGHT, signal as usize))
            .map_err(BenchError::io("catch signals"))?;
    }
    Ok(())
}

/// Fails if the study is to end, because of a signal.
pub(crate) fn check_signals() -> Result<(), BenchError> {
    match CAUGHT.load(Ordering::Relaxed) {
        0 => Ok(()),
        signal => Err(stopped_by(signal as i32)),
    }
}

/// The steps of a study, shown as a progress line on a terminal.
pub(crate) struct Steps(ProgressBar);

impl Steps {
    /// Creates the line of a study, given the number of its steps.
    pub(crate) fn new(steps: u64) -> Self {
        let bar = ProgressBar::new(steps);
        if let Ok(style) = ProgressStyle::with_template("{wide_bar} {pos}/{len} {eta} {msg}") {
            bar.set_style(style);
        }
        Self(bar)
    }

    /// Begins a step: shows what is measured.
    ///
    /// # Errors
    /// If the study is to end, because of a signal.
    pub(crate) fn step(&self, what: &str, repetition: u32) -> Result<(), BenchError> {
        check_signals()?;
        self.0.set_message(format!("{what}, repetition {}", repetition + 1));
        self.0.inc(1);
        Ok(())
    }
}

impl Drop for Steps {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// A subject's measurements, summed up.
pub(crate) trait Series: Sized {
    /// A point of the study's matrix, with whatever measuring it needs.
    type Subject;
    /// The result of one repetition.
    type Measurement;

    /// Sums up measurements of a subject.
    fn of(subject: &Self::Subject, repetitions: Vec<Self::Measurement>) -> Self;

    /// Takes the measurements out.
    fn into_repetitions(self) -> Vec<Self::Measurement>;
}

/// All repetitions of the measurement of a point.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Repetitions<P, M> {
    pub(crate) point: P,
    pub(crate) repetitions: Vec<M>,
}

impl<P, M> Repetitions<P, M> {
    /// Returns the median of a value over the repetitions.
    pub(crate) fn median(&self, value: impl Fn(&M) -> f64) -> f64 {
        Spread::of(self.repetitions.iter().map(value)).median
    }
}

impl<P: Clone, M> Series for Repetitions<P, M> {
    type Subject = P;
    type Measurement = M;

    fn of(subject: &P, repetitions: Vec<M>) -> Self {
        Self { point: subject.clone(), repetitions }
    }

    fn into_repetitions(self) -> Vec<M> {
        self.repetitions
    }
}

/// Measures subjects by turns, and adds every measurement to the series at once, so that all of them are there when
/// another one fails. Returns the places of the new series.
///
/// # Errors
/// Those of `measure`.
pub(crate) async fn by_turns<R: Results, S: Series>(
    report: &mut Report<R>,
    series: impl Fn(&mut R) -> &mut Vec<S>,
    subjects: &[S::Subject],
    repetitions: u32,
    mut measure: impl AsyncFnMut(&S::Subject, u32) -> Result<S::Measurement, BenchError>,
) -> Result<Range<usize>, BenchError> {
    let first = series(report).len();
    for (repetition, place) in turns(repetitions, subjects.len(), Order::Same) {
        let measured = measure(&subjects[place], repetition).await?;
        add(series(report), first + place, &subjects[place], measured);
    }
    Ok(first..first + subjects.len())
}

/// Adds a measurement to the series at a place, which may be a new one behind all others.
pub(crate) fn add<S: Series>(
    series: &mut Vec<S>,
    place: usize,
    subject: &S::Subject,
    measured: S::Measurement,
) {
    if place == series.len() {
        series.push(S::of(subject, vec![measured]));
    } else {
        let mut repetitions = series.remove(place).into_repetitions();
        repetitions.push(measured);
        series.insert(place, S::of(subject, repetitions));
    }
}

/// The order of the subjects within a repetition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// The same in all repetitions.
    Same,
    /// Each repetition begins with the next subject.
    Rotated,
    /// Another one in each repetition, from a seed.
    Shuffled(u64),
}

/// Returns the turns of a study, as repetition and subject: each repetition measures every subject once, so that what
/// disturbs the machine for a while disturbs all of them alike.
pub(crate) fn turns(repetitions: u32, subjects: usize, order: Order) -> Vec<(u32, usize)> {
    let mut random = match order {
        Order::Shuffled(seed) => Some(StdRng::seed_from_u64(seed)),
        _ => None,
    };
    let of_repetition = |repetition: u32| {
        let mut places: Vec<usize> = (0..subjects).collect();
        if order == Order::Rotated && subjects > 0 {
            places.rotate_left(repetition as usize % subjects);
        }
        if let Some(random) = &mut random {
            places.shuffle(random);
        }
        places.into_iter().map(move |place| (repetition, place))
    };
    (0..repetitions).flat_map(of_repetition).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_repetition_measures_each_subject_once() {
        assert_eq!(turns(2, 2, Order::Same), [(0, 0), (0, 1), (1, 0), (1, 1)]);
        assert_eq!(turns(2, 3, Order::Rotated), [(0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (1, 0)]);
        let shuffled = turns(20, 5, Order::Shuffled(1));
        assert_eq!(shuffled, turns(20, 5, Order::Shuffled(1)));
        assert_ne!(shuffled, turns(20, 5, Order::Shuffled(2)));
        for repetition in shuffled.chunks(5) {
            let mut places: Vec<usize> = repetition.iter().map(|(_, place)| *place).collect();
            assert!(repetition.iter().all(|(number, _)| *number == repetition[0].0));
            places.sort_unstable();
            assert_eq!(places, [0, 1, 2, 3, 4]);
        }
        assert_ne!(shuffled[..5], turns(20, 5, Order::Same)[..5]);
        assert_eq!(turns(3, 0, Order::Rotated), []);
    }
}
