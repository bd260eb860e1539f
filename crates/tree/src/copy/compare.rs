//! Comparisons of a source and its copy: as such, to verify what was copied, and as a preview of what a copy would do.

use std::sync::atomic::Ordering;

use nacre_walk::{FileKind, Walk};

use crate::copy::verify::{self, Aspects, Differing, Verifier};
use crate::copy::{Copy, Leftovers, StartError, name_of};
use crate::error::EntryError;

/// The aspects in which a copy is compared with its source.
const VERIFIED: Aspects = Aspects { accessed: true, mounts: false, extras: false, ..Aspects::ALL };

impl Copy {
    /// Compares everything with its copy. Differences are in [`Copy::failures`].
    ///
    /// # Errors
    /// [`StartError`] if the destination cannot be used.
    pub fn verify(&self) -> Result<(), StartError> {
        self.begin_verifying();
        self.compare(VERIFIED, &|differing: Differing| self.differs_from_copy(differing))
    }

    /// Compares the root with its copy, before [`Copy::verify_part`]; called by one process.
    ///
    /// # Errors
    /// [`StartError`] if the destination cannot be used.
    pub fn verify_root(&self) -> Result<(), StartError> {
        self.begin_verifying();
        self.compare_root((VERIFIED, &|differing: Differing| self.differs_from_copy(differing)))
    }

    /// Compares a part with its copy, as [`Copy::verify`] compares everything and [`Copy::copy_part`] copies.
    ///
    /// # Errors
    /// [`StartError`] if the destination cannot be used.
    pub fn verify_part<T>(
        &self,
        begin: bool,
        leftovers: Leftovers<'_>,
        work: impl FnOnce(&mut Walk<verify::Counterpart>, &mut [Verifier<'_>]) -> T,
    ) -> Result<T, StartError> {
        self.begin_verifying();
        let report = |differing: Differing| self.differs_from_copy(differing);
        self.compare_part(begin, (VERIFIED, &report), Some(leftovers), work)
    }

    fn begin_verifying(&self) {
        if self.shared.verifying.swap(true, Ordering::Relaxed) {
            return;
        }
        self.shared.counters.bytes.store(0, Ordering::Relaxed);
        // A preview counts, too.
        self.shared.counters.verified.store(0, Ordering::Relaxed);
        // What is still to be written cannot be forgotten by memory, and so would not be read from the device.
        if let Ok(place) = self.open_place() {
            let _ = rustix::fs::syncfs(place);
        }
    }

    /// Takes a difference that a verification has found for a failure.
    pub fn differs_from_copy(&self, differing: Differing) {
        let (path, sentence) = (self.source.join(&differing.path), differing.difference.sentence());
        self.shared.failures.add(EntryError::new(path, "the copy differs:", sentence));
    }

    /// Compares source and destination, and passes every difference to `report`. What cannot be compared is in
    /// [`Copy::failures`].
    ///
    /// # Errors
    /// [`StartError`] if the destination cannot be used.
    pub fn compare(&self, aspects: Aspects, report: verify::Report<'_>) -> Result<(), StartError> {
        let top = self.top()?;
        let roots = (&self.source, &self.destination);
        let verifier = || verify::Verifier::new(&self.shared, (aspects, report), &top, roots, None);
        if self.kind == FileKind::Directory {
            self.walk(verifier);
        } else {
            self.alone(|buffer| verifier().compare_roots(self.kind, buffer));
        }
        Ok(())
    }

    /// Compares the roots, as far as it is no matter of their entries but for those that only the destination has, before
    /// [`Copy::compare_part`]; called by one process.
    ///
    /// # Errors
    /// [`StartError`] if the destination cannot be used.
    pub fn compare_root(&self, (aspects, report): (Aspects, verify::Report<'_>)) -> Result<(), StartError> {
        let top = self.top()?;
        let roots = (&self.source, &self.destination);
        let verifier = verify::Verifier::new(&self.shared, (aspects, report), &top, roots, None);
        verifier.compare_root(&name_of(&self.source_path));
        Ok(())
    }

    /// Compares a part, as [`Copy::copy_part`] copies. If there are `leftovers`, large files are passed to it, of which only
    /// the contents are not compared yet: see [`Copy::ranges_to_compare`].
    ///
    /// # Errors
    /// [`StartError`] if the destination cannot be used.
    pub fn compare_part<T>(
        &self,
        begin: bool,
        (aspects, report): (Aspects, verify::Report<'_>),
        leftovers: Option<Leftovers<'_>>,
        work: impl FnOnce(&mut Walk<verify::Counterpart>, &mut [Verifier<'_>]) -> T,
    ) -> Result<T, StartError> {
        let top = self.top()?;
        let roots = (&self.source, &self.destination);
        let verifier = || verify::Verifier::new(&self.shared, (aspects, report), &top, roots, leftovers);
        Ok(self.walk_with(begin, verifier, work))
    }

    /// Finds out what [`Copy::run`] would do, and passes everything that is not up to date to `report`. Nothing is read
    /// but metadata, and nothing changed.
    ///
    /// # Errors
    /// [`StartError`] if the destination cannot be used.
    pub fn preview(&self, report: verify::Report<'_>) -> Result<(), StartError> {
        self.shared.previewed.clear();
        self.compare(self.previewed(), report)
    }

    /// Finds out what would be done with the root, before [`Copy::preview_part`]; called by one process.
    ///
    /// # Errors
    /// [`StartError`] if the destination cannot be used.
    pub fn preview_root(&self, report: verify::Report<'_>) -> Result<(), StartError> {
        self.compare_root((self.previewed(), report))
    }

    /// Finds out what a part of a copy would do, as [`Copy::preview`] does of everything and [`Copy::copy_part`] copies.
    ///
    /// # Errors
    /// [`StartError`] if the destination cannot be used.
    pub fn preview_part<T>(
        &self,
        begin: bool,
        report: verify::Report<'_>,
        work: impl FnOnce(&mut Walk<verify::Counterpart>, &mut [Verifier<'_>]) -> T,
    ) -> Result<T, StartError> {
        self.compare_part(begin, (self.previewed(), report), None, work)
    }

    fn previewed(&self) -> Aspects {
        let extras = self.shared.options.mirror;
        Aspects { contents: false, extras, below_missing: true, mounts: false, links: true, ..Aspects::ALL }
    }
}
