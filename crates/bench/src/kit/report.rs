//! The results of a study: kept in a file while it goes on, and printed at its end, also where that comes early.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};

use nacre_quantity::Escaped;
use serde::Serialize;

use super::machine::Machine;
use crate::{BenchError, Common};

/// The measurements of a study: the fields of its file of results, shown as tables.
pub(crate) trait Results: Serialize + fmt::Display {
    /// Returns whether nothing has been measured yet.
    fn is_empty(&self) -> bool;

    /// Derives what follows from all measurements, such as ratios and targets. Called once, at the end.
    fn conclude(&mut self) {}

    /// Returns the conditions to be shown beside the machine.
    fn conditions(&self) -> String {
        String::new()
    }
}

/// All results of a study, with the machine. Dereferences to what the study itself measures.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report<R> {
    study: &'static str,
    pub(crate) machine: Machine,
    #[serde(flatten)]
    results: R,
    /// The reason why the study ended before everything was measured, if it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    ended_early: Option<String>,
    /// The files of the figures that were drawn.
    #[serde(skip)]
    pub(crate) figures: Vec<String>,
    /// The file for the results, if one was asked for.
    #[serde(skip)]
    file: Option<PathBuf>,
}

impl<R> Deref for Report<R> {
    type Target = R;

    fn deref(&self) -> &R {
        &self.results
    }
}

impl<R> DerefMut for Report<R> {
    fn deref_mut(&mut self) -> &mut R {
        &mut self.results
    }
}

impl<R: Results> Report<R> {
    /// Creates the report of a study on this machine, beside peers of these versions, for a file.
    pub(crate) fn new(
        study: &'static str,
        peers: impl IntoIterator<Item = Option<String>>,
        results: R,
        file: Option<&Path>,
    ) -> Self {
        let mut machine = Machine::describe();
        machine.peers = peers.into_iter().flatten().collect();
        let file = file.map(Path::to_owned);
        Self { study, machine, results, ended_early: None, figures: Vec::new(), file }
    }

    /// Returns it as JSON.
    pub(crate) fn json(&self) -> Result<String, BenchError> {
        serde_json::to_string(self)
            .map_err(|error| BenchError::Process(format!("cannot write the results as JSON: {error}")))
    }

    /// Writes what has been measured so far into the file, if there is one: whatever ends a long study does not take it.
    pub(crate) fn keep(&self) -> Result<(), BenchError> {
        let Some(file) = &self.file else { return Ok(()) };
        std::fs::write(file, self.json()?).map_err(BenchError::io(format!("write {}", Escaped::of(&file))))
    }

    /// Keeps and prints the results of a study that ended in this way: all of them, or what there is.
    ///
    /// # Errors
    /// The study's own error, or that of writing its results.
    pub(super) fn end(mut self, ended: Result<(), BenchError>, common: &Common) -> Result<(), BenchError> {
        if ended.is_err() && self.results.is_empty() {
            return ended;
        }
        self.results.conclude();
        self.ended_early = ended.as_ref().err().map(ToString::to_string);
        let kept = self.keep().and_then(|()| self.print(common));
        ended.and(kept)
    }

    fn print(&self, common: &Common) -> Result<(), BenchError> {
        match common.json {
            true => println!("{}", self.json()?),
            false => print!("{self}"),
        }
        Ok(())
    }
}

impl<R: Results> fmt::Display for Report<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}{}", self.machine.line(), self.results.conditions())?;
        write!(f, "{}", self.results)?;
        // Without the folder, which is none of the reader's of a report that is kept.
        for file in &self.figures {
            let name = Path::new(file).file_name().unwrap_or_default();
            writeln!(f, "Drawn: {}", Escaped::of(&name))?;
        }
        match self.ended_early {
            Some(_) => writeln!(f, "Not complete: the study ended early."),
            None => Ok(()),
        }
    }
}
