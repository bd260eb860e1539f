//! The compaction of all objects of a namespace, on demand. Without it, the OSDs compact an object when half of its bytes
//! are garbage.

use nacre_object::{ErrorKind, StoreError};

use crate::error::{Attempt, call_failed, errno};
use crate::name::object_name;
use crate::store::{Inner, NEEDED_COMPACTION_BYTES_MIN};

/// The result of a compaction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompactionReport {
    /// Objects looked at, including removed ones.
    pub objects: u64,
    /// Objects of which the OSDs moved the bytes together.
    pub compacted: u64,
}

impl Inner {
    /// Compacts all objects, one after another, each in one operation on its primary OSD, while that object waits.
    /// `progress` gets the number of objects that are done, and of all objects.
    pub(crate) async fn compact_all(
        &self,
        mut progress: impl FnMut(u64, u64),
    ) -> Result<CompactionReport, StoreError> {
        let ids = self.names().await?;
        let mut report = CompactionReport::default();
        for id in &ids {
            let name = object_name(id);
            // What nobody swept counts as live, and would be moved with the rest.
            self.sweep_all(&name).await;
            let completed = self.compact(&name, NEEDED_COMPACTION_BYTES_MIN).await;
            let output = completed.answers.into_iter().next().map(|answer| answer.into_bytes());
            match -completed.code {
                code if code <= 0 => {
                    report.compacted += u64::from(output.is_some_and(|output| !output.is_empty()));
                }
                // Damaged objects and those of newer versions are left as they are; the scrub names them. One may be gone.
                errno::ECANCELED | errno::ENOENT => self.pool_is_listed()?,
                code => {
                    let error = call_failed(-code, Attempt::Write, &self.location, id);
                    // Nothing of its content changes, whatever became of it.
                    let unknown = error.kind == ErrorKind::Unknown;
                    return Err(if unknown { error.with_kind(ErrorKind::Unavailable) } else { error });
                }
            }
            report.objects += 1;
            progress(report.objects, ids.len() as u64);
        }
        Ok(report)
    }
}
