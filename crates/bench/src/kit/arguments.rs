//! The flags that many studies have for their files.

use std::path::{Path, PathBuf};

use super::peer::validate_folder;
use crate::BenchError;

/// The flags for the raw results of a study, and for what its servers keep.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct FileArgs {
    /// File for the raw results, as JSON
    #[arg(long, value_name = "FILE")]
    results: Option<PathBuf>,
    /// Folder for the files of servers and peers
    #[arg(long, value_name = "FOLDER")]
    folder: Option<PathBuf>,
}

impl FileArgs {
    /// Returns the file for the raw results.
    pub(crate) fn results(&self) -> Option<&Path> {
        self.results.as_deref()
    }

    /// Returns the folder for the files of servers and peers; where there is none, they are in one for temporary files.
    pub(crate) fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// Checks that the folders exist: that for servers, and the one for figures, if any are drawn.
    ///
    /// # Errors
    /// [`BenchError::Usage`] if one does not.
    pub(crate) fn check(&self, figures: Option<&Path>) -> Result<(), BenchError> {
        validate_folder(self.folder())?;
        validate_folder(figures)
    }
}
