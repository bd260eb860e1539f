//! Plain RADOS objects, as a program without Nacre would use them: the peer that studies measure beside Nacre's objects.

use std::ffi::{CStr, CString};

use bytes::Bytes;
use nacre_object::{ErrorKind, ObjectId, StoreError};

use crate::error::{Attempt, errno, failed};
use crate::script;
use crate::store::connect;
use crate::sys::{Answer, Pool, ReadStep, WriteStep, flag};
use crate::uri::Location;

/// A pool, used without Nacre.
#[derive(Clone, derive_more::Debug)]
#[debug("RawPool")]
pub struct RawPool {
    pool: Pool,
    location: Location,
}

impl RawPool {
    /// Opens the pool that a uri names.
    pub async fn open(uri: &str) -> Result<Self, StoreError> {
        let location = Location::parse(uri)?;
        Ok(Self { pool: connect(location.clone()).await?, location })
    }

    /// Reads up to `len` bytes of a RADOS object, with RADOS' own version of it; version 0 if there is none.
    pub async fn read(&self, object: &str, len: usize) -> Result<(Bytes, u64), StoreError> {
        let completed = self.pool.read(&name(object), &[ReadStep::Bytes { offset: 0, len }], 0).await;
        match completed.code {
            code if code >= 0 => {
                let bytes = completed.answers.into_iter().next().map(|answer| answer.into_bytes());
                Ok((bytes.unwrap_or_default(), completed.version))
            }
            code if code == -errno::ENOENT => Ok((Bytes::new(), 0)),
            code => Err(self.failed(code, Attempt::Read, object)),
        }
    }

    /// Replaces a RADOS object, if its version is still the one that was read. Returns whether it was.
    pub async fn write_if(&self, object: &str, version: u64, data: &[u8]) -> Result<bool, StoreError> {
        // RADOS has no version 0: where there was nothing, there must be nothing still.
        let condition = if version == 0 { WriteStep::CreateNew } else { WriteStep::IfVersion(version) };
        let steps = [condition, WriteStep::AllBytes(data)];
        let completed = self.pool.write(&name(object), &steps, flag::FULL_TRY).await;
        match -completed.code {
            code if code <= 0 => Ok(true),
            // A version ahead of the object's, or behind it, or no object at all.
            errno::ERANGE | errno::EOVERFLOW | errno::ENOENT | errno::EEXIST => Ok(false),
            code => Err(self.failed(-code, Attempt::Write, object)),
        }
    }

    /// Calls `visit` with the name of every RADOS object of the pool's namespace, in no order. Blocks.
    pub fn list(&self, visit: impl FnMut(&[u8])) -> Result<(), StoreError> {
        self.pool.each_name(visit).map_err(|code| {
            let text = format!("listing the pool failed: {}", std::io::Error::from_raw_os_error(-code));
            StoreError::new(ErrorKind::Unavailable, text)
        })
    }

    /// Replaces a RADOS object, whatever it holds.
    pub async fn write(&self, object: &str, data: &[u8]) -> Result<(), StoreError> {
        self.change(object, &[WriteStep::AllBytes(data)]).await
    }

    /// Writes bytes behind all others of a RADOS object, which is made if there is none.
    pub async fn append(&self, object: &str, data: &[u8]) -> Result<(), StoreError> {
        self.change(object, &[WriteStep::Append(data)]).await
    }

    /// Calls a method of a class, in the OSD, that may change a RADOS object and returns nothing.
    pub async fn call(
        &self,
        object: &str,
        class: &CStr,
        method: &CStr,
        input: &[u8],
    ) -> Result<(), StoreError> {
        let completed =
            self.pool.call(&name(object), &ReadStep::Call { class, method, input }, flag::FULL_TRY).await;
        match -completed.code {
            code if code <= 0 => Ok(()),
            errno::EOPNOTSUPP | errno::EPERM | errno::EACCES => {
                let Location { id, pool, .. } = &self.location;
                let [class, method] = [class, method].map(CStr::to_string_lossy);
                let text = format!(
                    "client.{id} cannot call the method {method} of the class {class} in pool \"{pool}\": the OSDs have no such \
                     method, or it lacks the capability osd 'allow rwx pool={pool}'"
                );
                Err(StoreError::new(ErrorKind::Unsupported, text))
            }
            code => Err(self.failed(-code, Attempt::Write, object)),
        }
    }

    /// Returns the length of a RADOS object in bytes, 0 if there is none.
    pub async fn length(&self, object: &str) -> Result<u64, StoreError> {
        let completed = self.pool.read(&name(object), &[ReadStep::Stat], 0).await;
        match (completed.code, completed.answers.first()) {
            (code, Some(Answer::Stat { size, .. })) if code >= 0 => Ok(*size),
            (code, _) if code >= 0 || code == -errno::ENOENT => Ok(0),
            (code, _) => Err(self.failed(code, Attempt::Read, object)),
        }
    }

    /// Removes a RADOS object.
    pub async fn remove(&self, object: &str) -> Result<(), StoreError> {
        self.change(object, &[WriteStep::Remove]).await
    }

    /// Calls the function `run` that a script in Lua registers, in the OSD, and returns its output: at most 32 bytes, as the
    /// function may change the object. The script is sent with each call.
    pub async fn call_lua(&self, object: &str, text: &str, input: &[u8]) -> Result<Bytes, StoreError> {
        let input = script::plain(text, input);
        let step = ReadStep::Call { class: c"lua", method: c"eval_bufferlist", input: &input };
        let completed = self.pool.call(&name(object), &step, flag::FULL_TRY | flag::RETURNVEC).await;
        match completed.code {
            code if code >= 0 => {
                let output = completed.answers.into_iter().next().map(|answer| answer.into_bytes());
                Ok(output.unwrap_or_default())
            }
            code => Err(self.failed(code, Attempt::Write, object)),
        }
    }

    async fn change(&self, object: &str, steps: &[WriteStep<'_>]) -> Result<(), StoreError> {
        let completed = self.pool.write(&name(object), steps, flag::FULL_TRY).await;
        if completed.code < 0 {
            return Err(self.failed(completed.code, Attempt::Write, object));
        }
        Ok(())
    }

    /// Reads a whole object, changes it, and writes it back unless another client did meanwhile. Returns whether the
    /// write took effect.
    pub async fn read_modify_write(
        &self,
        object: &str,
        len: usize,
        modify: impl FnOnce(&mut [u8]),
    ) -> Result<bool, StoreError> {
        let (data, version) = self.read(object, len).await?;
        let mut data = Vec::from(data);
        data.resize(len, 0);
        modify(&mut data);
        self.write_if(object, version, &data).await
    }

    fn failed(&self, code: i32, attempt: Attempt, object: &str) -> StoreError {
        match ObjectId::try_from(object) {
            Ok(id) => failed(code, attempt, &self.location, &id),
            Err(_) => StoreError::new(ErrorKind::Invalid, format!("\"{object}\" cannot name an object")),
        }
    }
}

fn name(object: &str) -> CString {
    CString::new(object.split('\0').next().unwrap_or("")).unwrap_or_default()
}
