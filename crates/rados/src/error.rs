//! The meanings of librados' error codes, and the remedies.

use nacre_object::{ErrorKind, ObjectId, StoreError};

use crate::sys::Step;
use crate::uri::Location;

/// The codes of Linux that RADOS uses, negated where an operation returns them.
pub(crate) mod errno {
    pub(crate) const EPERM: i32 = 1;
    pub(crate) const ENOENT: i32 = 2;
    pub(crate) const EIO: i32 = 5;
    pub(crate) const EACCES: i32 = 13;
    pub(crate) const EEXIST: i32 = 17;
    pub(crate) const EFBIG: i32 = 27;
    pub(crate) const ENOSPC: i32 = 28;
    pub(crate) const ERANGE: i32 = 34;
    pub(crate) const ENODATA: i32 = 61;
    pub(crate) const EOVERFLOW: i32 = 75;
    pub(crate) const EOPNOTSUPP: i32 = 95;
    pub(crate) const ENOTCONN: i32 = 107;
    /// The answer of an OSD to a client that the cluster has blocklisted.
    pub(crate) const ESHUTDOWN: i32 = 108;
    pub(crate) const ETIMEDOUT: i32 = 110;
    pub(crate) const EDQUOT: i32 = 122;
    pub(crate) const ECANCELED: i32 = 125;
}

/// The kind of operation that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attempt {
    /// One that changes nothing.
    Read,
    /// One that may have changed the object if its answer got lost.
    Write,
}

fn system(code: i32) -> std::io::Error {
    std::io::Error::from_raw_os_error(-code)
}

/// The settings that let OSDs run classes in Lua.
const LUA_SETTINGS: &str = "an administrator has to add \"lua\" to osd_class_load_list and osd_class_default_list \
                            (ceph config set osd …, or ceph.conf) and restart the OSDs";

/// Returns the error for an operation on an object that ended with a negative code.
pub(crate) fn failed(code: i32, attempt: Attempt, location: &Location, object: &ObjectId) -> StoreError {
    let (pool, timeout_ms) = (&location.pool, location.timeout.as_millis());
    let (kind, why) = match -code {
        errno::ETIMEDOUT if attempt == Attempt::Write => (
            ErrorKind::Unknown,
            format!("no answer within {timeout_ms} ms: the write may or may not have taken effect"),
        ),
        errno::ETIMEDOUT => (ErrorKind::Unavailable, format!("no answer within {timeout_ms} ms")),
        errno::ENOSPC => (ErrorKind::OutOfSpace, "the cluster is full".into()),
        errno::EDQUOT => (ErrorKind::OutOfSpace, "the pool has reached its quota".into()),
        errno::EFBIG => (
            ErrorKind::OutOfSpace,
            "the object would hold more bytes than osd_max_object_size allows (128 MiB unless set otherwise); what writers \
             left in staged forks counts (nacre ls --staged, nacre rm --staged)"
                .into(),
        ),
        // An earlier sending of a write may have been applied before the client was shut out.
        errno::ESHUTDOWN => (
            if attempt == Attempt::Write { ErrorKind::Unknown } else { ErrorKind::Unavailable },
            "the cluster has blocklisted this client: open the store again (ceph osd blocklist ls lists it)"
                .into(),
        ),
        errno::EPERM | errno::EACCES => (
            ErrorKind::Denied,
            format!(
                "client.{} may not do that: it needs the capabilities mon 'allow r' and osd 'allow rwx pool={pool}'",
                location.id
            ),
        ),
        errno::EOPNOTSUPP => (
            ErrorKind::Unsupported,
            "the pool cannot do that: it must be replicated, since erasure-coded pools have no omap".into(),
        ),
        // The OSD notices after it has changed what it keeps in memory of the object, but not what it stores.
        errno::EOVERFLOW => (
            ErrorKind::Unknown,
            "the OSD found the change's answer too long (osd_max_write_op_reply_len is below 32) after it had begun to \
             make the change: whether it took effect is unknown, and the OSD may hold another state of the object in \
             memory than it stored. Leave the setting as it is until the object's primary OSD was restarted (ceph osd \
             map names it)"
                .into(),
        ),
        errno::ENOTCONN => (ErrorKind::Closed, "the store was closed".into()),
        _ => (ErrorKind::Io, system(code).to_string()),
    };
    StoreError::new(kind, format!("object \"{object}\" in pool \"{pool}\": {why}"))
}

/// Returns the error for a call of a class that ended with a negative code.
pub(crate) fn call_failed(code: i32, attempt: Attempt, location: &Location, object: &ObjectId) -> StoreError {
    let pool = &location.pool;
    match -code {
        errno::EPERM | errno::EACCES => StoreError::new(
            ErrorKind::Unsupported,
            format!(
                "object \"{object}\" in pool \"{pool}\": client.{} may not call the class lua there: either the user \
                 needs the capability osd 'allow rwx pool={pool}', with the namespace if it names one, or the OSDs do not \
                 run Lua: {LUA_SETTINGS} (docs/ceph.md shows both, and what does without the second setting)",
                location.id
            ),
        ),
        errno::EOPNOTSUPP => StoreError::new(
            ErrorKind::Unsupported,
            format!(
                "object \"{object}\" in pool \"{pool}\": either the pool is erasure-coded, which Nacre cannot use, or \
                 the OSDs have no Lua class: {LUA_SETTINGS}"
            ),
        ),
        _ => failed(code, attempt, location, object),
    }
}

/// Returns the error for an operation on all of the pool, or on the index of names, that ended with a negative code.
pub(crate) fn index_failed(code: i32, pool_exists: bool, location: &Location) -> StoreError {
    let Location { id, pool, .. } = location;
    match -code {
        errno::ENOENT if !pool_exists => pool_gone().context(format_args!("listing pool \"{pool}\"")),
        errno::EPERM | errno::EACCES => {
            let text = format!(
                "listing pool \"{pool}\": client.{id} may not do that: it needs at least the capabilities mon \
                 'allow r' and osd 'allow r pool={pool}', with the namespace if they name one"
            );
            StoreError::new(ErrorKind::Denied, text)
        }
        _ => StoreError::new(ErrorKind::Unavailable, format!("listing pool \"{pool}\": {}", system(code))),
    }
}

/// Adds to an error the object and the pool.
pub(crate) fn of_object(error: StoreError, location: &Location, object: &ObjectId) -> StoreError {
    error.context(format_args!("object \"{object}\" in pool \"{}\"", location.pool))
}

/// Returns the error for a pool that was removed while it was used. The caller adds the pool.
pub(crate) fn pool_gone() -> StoreError {
    let text = "the pool was removed; if there is another one of that name by now, open the store again";
    StoreError::new(ErrorKind::Unavailable, text)
}

/// Returns the error for an object whose header is of a later format. The caller adds the object.
pub(crate) fn newer(format: u8) -> StoreError {
    let text = format!(
        "it was written by a newer version of Nacre, in format {format} of which this one knows 1 to 3: use that version"
    );
    StoreError::new(ErrorKind::Unsupported, text)
}

/// Returns the error for a store that could not be opened.
pub(crate) fn not_opened(step: Step, code: i32, location: &Location) -> StoreError {
    let conf = location.conf.as_deref().unwrap_or("Ceph's default configuration");
    let (pool, id) = (&location.pool, &location.id);
    let (kind, why) = match (step, -code) {
        (Step::Create, _) => (ErrorKind::Io, format!("librados could not be set up: {}", system(code))),
        (Step::Conf, errno::ENOENT) => (
            ErrorKind::Invalid,
            match &location.conf {
                Some(conf) => format!("there is no configuration file {conf}"),
                None => "there is no configuration file where Ceph looks for one (/etc/ceph/ceph.conf, or $CEPH_CONF); \
                         name it with conf=FILE"
                    .to_owned(),
            },
        ),
        (Step::Conf, _) => (ErrorKind::Invalid, format!("{conf} could not be read: {}", system(code))),
        (Step::Setting, _) => (ErrorKind::Invalid, format!("librados refused a setting: {}", system(code))),
        (Step::Connect, errno::ENOENT | errno::EOPNOTSUPP) => (
            ErrorKind::Denied,
            format!("no usable key for client.{id} was found (conf {conf}; keyring=FILE names one)"),
        ),
        (Step::Connect, errno::EPERM | errno::EACCES) => {
            (ErrorKind::Denied, format!("the cluster does not accept the key of client.{id}"))
        }
        // What librados says of a keyring that cannot be parsed.
        (Step::Connect, errno::EIO) if location.keyring.is_some() => {
            let keyring = location.keyring.as_deref().unwrap_or_default();
            (ErrorKind::Denied, format!("the keyring {keyring} cannot be used: it is none, or it is damaged"))
        }
        (Step::Connect, errno::ETIMEDOUT) => (
            ErrorKind::Unavailable,
            format!("no monitor answered within {} ms (conf {conf})", location.timeout.as_millis()),
        ),
        (Step::Connect, _) => {
            (ErrorKind::Unavailable, format!("the cluster of {conf} cannot be reached: {}", system(code)))
        }
        (Step::Pool, errno::ENOENT) => (ErrorKind::Invalid, "the cluster has no such pool".into()),
        (Step::Pool, _) => (ErrorKind::Unavailable, system(code).to_string()),
    };
    StoreError::new(kind, format!("opening pool \"{pool}\": {why}"))
}

/// Returns the error for a missing librados.
pub(crate) fn no_library(why: &str) -> StoreError {
    StoreError::new(
        ErrorKind::Unsupported,
        format!(
            "Ceph's client library is needed for rados:// and was not found ({why}); on Debian: \
             apt-get install -y librados2"
        ),
    )
}
