//! A check of every object of a namespace: whether its header and all entries of its index are records of Nacre's, and
//! whether the byte stream is as long as they say. The bytes themselves are compared by Ceph's own deep scrub.

use nacre_object::{ErrorKind, ObjectId, StoreError};

use crate::name::object_name;
use crate::snapshot::{Snapshot, Stop};
use crate::store::Inner;
use crate::sys::ReadStep;

/// The result of a scrub.
#[derive(Clone, Debug, Default)]
pub struct ScrubReport {
    /// Objects checked, including removed ones.
    pub objects: u64,
    /// Bytes of their headers and indexes.
    pub bytes: u64,
    /// The objects with a fault, and its description.
    pub findings: Vec<(ObjectId, StoreError)>,
}

/// The maximum number of times that an object is checked because it was written to meanwhile. One that is written so
/// often is sound enough to be written.
const ATTEMPTS_MAX: u32 = 5;

impl Inner {
    /// Checks all objects, one after another. `progress` gets the number of objects that are done, and of all objects.
    pub(crate) async fn scrub(&self, mut progress: impl FnMut(u64, u64)) -> Result<ScrubReport, StoreError> {
        let mut ids = self.names().await?;
        ids.sort_unstable();
        let mut report = ScrubReport::default();
        for id in &ids {
            match self.scrub_object(id).await {
                Ok(bytes) => report.bytes += bytes,
                Err(error) if matches!(error.kind, ErrorKind::Corrupt | ErrorKind::Unsupported) => {
                    report.findings.push((id.clone(), error));
                }
                Err(error) => return Err(error),
            }
            report.objects += 1;
            progress(report.objects, ids.len() as u64);
        }
        Ok(report)
    }

    async fn scrub_object(&self, object: &ObjectId) -> Result<u64, StoreError> {
        let name = object_name(object);
        for _ in 0..ATTEMPTS_MAX {
            let completed = self.pool.read(&name, &[ReadStep::Xattrs], 0).await;
            let (header, _) = self.header(object, completed)?;
            let snapshot = Snapshot { inner: self, object, name: &name, header };
            match snapshot.check_all().await {
                Ok(bytes) => return Ok(bytes),
                Err(Stop::Changed) => {}
                Err(Stop::Failed(error)) => return Err(error),
            }
        }
        Ok(0)
    }

    /// Returns whether the byte stream of an object reaches as far as its header says.
    pub(crate) async fn has_bytes_up_to(&self, snapshot: &Snapshot<'_>, tail: u32) -> Result<bool, Stop> {
        if tail == 0 {
            return Ok(true);
        }
        let offset = u64::from(tail) - 1;
        let answers = snapshot.read(vec![ReadStep::Bytes { offset, len: 1 }]).await?;
        Ok(answers.into_iter().next().is_some_and(|answer| answer.into_bytes().len() == 1))
    }
}
