//! The operations that are compared, each on an object of its own task: a call of a method, the same as transactions that the client
//! makes, a script in Redis, and a script in an OSD.

use bytes::Bytes;
use nacre::{Answer, Guard, Key, Object, Outcome, ReadOp, Transaction, WriteOp};
use nacre_rados::raw::RawPool;
use serde::{Deserialize, Serialize};

use crate::BenchError;
use crate::kit::peer::redis;

/// The counter that ships.
pub(super) const COUNTER: &str = include_str!("../../../../classes/counter.lua");
/// Methods that do nothing, and never end.
pub(super) const STUDY: &str = "\
function empty(input, output) end
function endless(input, output) while true do end end
objclass.register(empty, { writes = false })
objclass.register(endless, { writes = false })
";
/// The same counter as a script of Redis.
pub(super) const REDIS: &str = "\
local value = tonumber(redis.call('GET', KEYS[1]) or '0') + tonumber(ARGV[1])
redis.call('SET', KEYS[1], string.format('%d', value))
return value
";
/// The same counter as a script for Ceph's cls_lua.
const OSD: &str = "\
local function value()
  local ok, found = pcall(objclass.map_get_val, 'counter')
  if ok then return tonumber(found:str()) end
  return 0
end
function run(input, output)
  local text = string.format('%d', value() + tonumber(input:str()))
  local buffer = bufferlist.new()
  buffer:append(text)
  objclass.map_set_val('counter', buffer)
  output:append(text)
  return 0
end
objclass.register(run)
";
/// The key of the counter.
const KEY: &str = "counter";

/// An operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Operation {
    /// A call of a method that does nothing.
    CallEmpty,
    /// A call of the counter's `get`.
    CallGet,
    /// A call of the counter's `add`.
    CallAdd,
    /// A read of the counter's key.
    NativeGet,
    /// A read of the counter's key, and a write of it on condition that the object has not changed.
    NativeAdd,
    /// A write of the counter's key, without a condition.
    NativeSet,
    /// The counter's script in Redis.
    RedisAdd,
    /// The counter's script in an OSD.
    OsdAdd,
}

impl Operation {
    /// Returns the name in tables.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::CallEmpty => "call of an empty method",
            Self::CallGet => "call of counter.get",
            Self::CallAdd => "call of counter.add",
            Self::NativeGet => "read of a key",
            Self::NativeAdd => "read of a key, then a conditional write",
            Self::NativeSet => "write of a key",
            Self::RedisAdd => "Redis, EVALSHA",
            Self::OsdAdd => "stock OSD, cls_lua",
        }
    }

    /// Returns whether it counts, so that its result shows whether one was lost.
    pub(super) fn counts(self) -> bool {
        matches!(self, Self::CallAdd | Self::NativeAdd | Self::RedisAdd | Self::OsdAdd)
    }
}

/// Carries an operation out on an object of Nacre. Returns the value of the counter, where it counts.
///
/// # Errors
/// If it fails, or gives something else than the operation does.
pub(super) async fn on_object(operation: Operation, object: &Object) -> Result<u64, BenchError> {
    let text = match operation {
        Operation::CallEmpty => object.call("study.empty", "").await.map_err(failed)?.output,
        Operation::CallGet => object.call("counter.get", "").await.map_err(failed)?.output,
        Operation::CallAdd => object.call("counter.add", "1").await.map_err(failed)?.output,
        Operation::NativeGet => read(object).await?.0.unwrap_or_default(),
        Operation::NativeSet => {
            object.set_key(KEY, "1").await?;
            Bytes::new()
        }
        Operation::NativeAdd => {
            let (value, version) = read(object).await?;
            let value = match value {
                Some(value) => number(&value)? + 1,
                None => 1,
            };
            let text = Bytes::from(value.to_string());
            let set = WriteOp::SetKey { key: Key::new(KEY)?, value: text.clone() };
            let transaction = Transaction::new().guard(Guard::Version { version }).change(set);
            match object.store().apply(object.id(), transaction).await? {
                Outcome::Done(_) => text,
                // Each task has an object of its own.
                Outcome::Refused(_) => return Err(wrong("another client changed a task's object")),
            }
        }
        Operation::RedisAdd | Operation::OsdAdd => return Err(wrong("the operation is not one of Nacre's")),
    };
    if operation.counts() { number(&text) } else { Ok(0) }
}

/// Carries the script out on an object of a pool without Nacre. Returns the value of the counter.
pub(super) async fn on_osd(pool: &RawPool, object: &str) -> Result<u64, BenchError> {
    number(&pool.call_lua(object, OSD, b"1").await?)
}

/// Reads the counter and the object's version.
async fn read(object: &Object) -> Result<(Option<Bytes>, u64), BenchError> {
    let transaction = Transaction::new().read(ReadOp::versioned_key(Key::new(KEY)?));
    let Outcome::Done(done) = object.store().apply(object.id(), transaction).await? else {
        return Err(wrong("a read without a condition was refused"));
    };
    match done.answers.into_iter().next() {
        Some(Answer::VersionedValue(value)) => Ok((value.map(|value| value.value), done.version)),
        _ => Err(wrong("a read of a key was answered with something else")),
    }
}

/// Carries the script out on keys of Redis, by commands that are sent together. Returns the values of the counters.
pub(super) async fn on_redis(
    connection: &mut redis::Connection,
    digest: &[u8],
    keys: &[String],
) -> Result<Vec<u64>, BenchError> {
    connection.call_script(digest, keys, b"1").await
}

fn number(text: &[u8]) -> Result<u64, BenchError> {
    let parsed = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    parsed.ok_or_else(|| wrong("a counter has a value that is no number"))
}

/// Returns an error of calls as one of the study.
pub(super) fn failed(error: impl std::fmt::Display) -> BenchError {
    BenchError::Process(error.to_string())
}

fn wrong(text: &str) -> BenchError {
    BenchError::Process(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_and_transactions_count_the_same_counter() {
        let runtime = crate::kit::study::runtime().unwrap();
        runtime.block_on(async {
            let store = nacre::open("mem:").unwrap();
            super::super::install(&store).await.unwrap();
            let object = store.object("a").unwrap();
            for (operation, value) in [
                (Operation::CallGet, 0),
                (Operation::CallAdd, 1),
                (Operation::NativeAdd, 2),
                (Operation::CallAdd, 3),
                (Operation::NativeGet, 0),
                (Operation::CallEmpty, 0),
            ] {
                assert_eq!(on_object(operation, &object).await.unwrap(), value, "{operation:?}");
            }
        });
    }
}
