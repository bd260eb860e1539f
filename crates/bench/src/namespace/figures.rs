//! The figures: operations of each phase per second, by the number of clients.

use std::path::Path;

use super::point::{Phase, Series, System, name};
use crate::BenchError;
use crate::kit::figure::{self, Drawing, Figure, Scale};
use crate::kit::server::Durability;

/// Draws all figures for which there are results into a folder, and returns their files.
pub(super) fn draw(series: &[Series], folder: &Path) -> Result<Vec<String>, BenchError> {
    let mut files = Vec::new();
    for durability in [Durability::Volatile, Durability::Always] {
        let is_shown = |series: &&Series| series.point.is_plain() && series.point.durability == durability;
        let shown: Vec<&Series> = series.iter().filter(is_shown).collect();
        if shown.is_empty() {
            continue;
        }
        for phase in Phase::ALL {
            let lines = figure::lines(
                shown.iter().copied(),
                |series| series.point.system.name().to_owned(),
                |series| {
                    let rates = series.repetitions.iter().map(|one| one.per_second(phase));
                    (f64::from(series.point.clients), rates.collect())
                },
                |series| colour(series.point.system),
            );
            let subtitle =
                format!("{}, empty files in one directory, clients in one process", name(durability));
            let title = format!("{} per second", title(phase));
            let (x, y) = (("clients", Scale::Octaves), ("operations/s", Scale::Decades));
            let name = format!("{}-{}", phase.name(), name(durability));
            files.push(figure::write(folder, &name, Figure::of(title, subtitle, x, y, lines).svg())?);
        }
    }
    Ok(files)
}

fn title(phase: Phase) -> &'static str {
    match phase {
        Phase::Create => "Creates",
        Phase::Stat => "Stats",
        Phase::Rename => "Renames",
        Phase::List => "Listings of the whole directory",
        Phase::Unlink => "Unlinks",
    }
}

fn colour(system: System) -> usize {
    System::ALL.iter().position(|known| *known == system).unwrap_or(0)
}
