//! Appends in a pool of Ceph: a place for a log, and the peers of its appends there, which write the same bytes to as many RADOS objects
//! without one. Everything is in a namespace of its own, which is emptied at the end of each repetition.

use std::cell::Cell;
use std::ffi::CStr;

use bytes::Bytes;
use futures::executor::block_on;
use futures::future::{join_all, try_join_all};
use nacre_rados::Location;
use nacre_rados::raw::RawPool;

use super::client::{Orders, content};
use super::point::{Point, Subject};
use crate::BenchError;

/// The class that is called, and its method. It is compiled code, which every OSD has whose cluster can mirror images of RBD, and does no
/// more than a class has to for an append: it looks how long the object is, and writes there what it is given.
const CLASS: (&CStr, &CStr) = (c"journal", c"append");
/// The same as a script for cls_lua.
const SCRIPT: &str = "\
function run(input, output)
  local there, size = pcall(objclass.stat)
  if not there then size = 0 end
  objclass.write(size, #input, input)
  return 0
end
objclass.register(run)
";
/// The entries that a client appends to an object before it goes on to another one: an OSD bounds the length of objects.
const ENTRIES_PER_OBJECT: u64 = 1024;
/// The number of times that a namespace is listed until nothing is found in it.
const LISTINGS_MAX: u32 = 4;

/// A namespace of a pool that is this study's own. Dropping it removes whatever is in it.
pub(super) struct Namespace {
    uri: String,
    pool: RawPool,
    is_left: bool,
}

impl Namespace {
    /// Makes up a namespace in the pool that the uri of a store names, and connects to it.
    pub(super) async fn open(store: &str) -> Result<Self, BenchError> {
        let uri = location(store)?.to_string();
        let pool = RawPool::open(&uri).await?;
        Ok(Self { uri, pool, is_left: true })
    }

    /// Returns the uri of the store in this namespace.
    pub(super) fn uri(&self) -> &str {
        &self.uri
    }

    /// Checks that the RADOS objects hold the bytes of all entries that were acknowledged. Theirs is all that there is.
    pub(super) async fn check(&self, point: &Point, entries: u64) -> Result<(), BenchError> {
        let names = self.names()?;
        let lengths = try_join_all(names.iter().map(|name| self.pool.length(name))).await?;
        let (found, acknowledged) = (lengths.iter().sum::<u64>(), entries * u64::from(point.entry_bytes));
        if found < acknowledged {
            let text =
                format!("{acknowledged} bytes were acknowledged, and {found} are there: entries are lost");
            return Err(BenchError::Lost(text));
        }
        Ok(())
    }

    /// Removes all that is in it. Those that wrote to it have ended. Blocks.
    pub(super) fn remove(mut self) -> Result<(), BenchError> {
        self.is_left = false;
        self.clear()
    }

    fn names(&self) -> Result<Vec<String>, BenchError> {
        let mut names = Vec::new();
        self.pool.list(|name| names.push(String::from_utf8_lossy(name).into_owned()))?;
        Ok(names)
    }

    fn clear(&self) -> Result<(), BenchError> {
        for _ in 0..LISTINGS_MAX {
            let names = self.names()?;
            if names.is_empty() {
                return Ok(());
            }
            // What could not be removed is found by the next listing.
            block_on(join_all(names.iter().map(|name| self.pool.remove(name))));
        }
        Err(BenchError::Process(format!("not all that the study wrote to {} could be removed", self.uri)))
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        if self.is_left
            && let Err(error) = self.clear()
        {
            eprintln!("nacre: {}: what the study wrote is left: {error}", self.uri);
        }
    }
}

/// Returns a new namespace of the pool that the uri of a store names. Its name begins like the uri's, so that a user whose capability is for
/// a prefix may use it.
fn location(store: &str) -> Result<Location, BenchError> {
    let nacre::Engine::Rados(mut location) = store.parse::<nacre::Uri>()?.engine else {
        return Err(BenchError::Usage(format!("{store} is no pool of Ceph")));
    };
    location.namespace.push_str(&format!("nacre-append-{:016x}", rand::random::<u64>()));
    Ok(location)
}

/// Appends to RADOS objects without a log.
pub(super) struct Appends {
    pool: RawPool,
    subject: Subject,
    width: u32,
    entry: Bytes,
    /// The entry, as the class wants it.
    input: Vec<u8>,
    /// The number of the next entry.
    next: Cell<u64>,
}

impl Appends {
    /// Connects to the pool, and to the OSDs of the first objects.
    pub(super) async fn open(orders: &Orders) -> Result<Self, BenchError> {
        let entry = content(orders.entry_bytes, orders.client);
        let appends = Self {
            pool: RawPool::open(&orders.place).await?,
            subject: orders.subject,
            width: orders.width,
            input: class_input(&entry),
            entry,
            next: Cell::new(0),
        };
        for _ in 0..orders.width {
            appends.once().await?;
        }
        Ok(appends)
    }

    /// Appends an entry to the object whose turn it is.
    pub(super) async fn once(&self) -> Result<(), BenchError> {
        let number = self.next.get();
        self.next.set(number + 1);
        let object = object(number, self.width);
        match self.subject {
            Subject::ClassCall => self.pool.call(&object, CLASS.0, CLASS.1, &self.input).await?,
            Subject::LuaCall => drop(self.pool.call_lua(&object, SCRIPT, &self.entry).await?),
            _ => self.pool.append(&object, &self.entry).await?,
        }
        Ok(())
    }
}

/// Returns the name of the object of a client's entry: they go round, and on to other objects before these are full.
fn object(number: u64, width: u32) -> String {
    let width = u64::from(width);
    format!("study/{}.{}", number / (width * ENTRIES_PER_OBJECT), number % width)
}

/// Returns the input of the class's method: the length from which on it refuses an object, and the bytes behind their length.
fn class_input(entry: &[u8]) -> Vec<u8> {
    [&u64::MAX.to_le_bytes()[..], &(entry.len() as u32).to_le_bytes(), entry].concat()
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn a_namespace_is_one_of_its_own_in_the_pool_that_is_named() {
        let [one, other] = [(); 2].map(|()| location("rados://pool?id=me&ns=lab&key=/a/key").unwrap());
        assert_eq!((one.pool.as_str(), one.id.as_str()), ("pool", "me"));
        assert!(one.namespace.starts_with("labnacre-append-") && one.namespace != other.namespace);
        assert_eq!(Location::parse(&one.to_string()).unwrap(), one);
        assert!(matches!(location("mem:"), Err(BenchError::Usage(_))));
    }

    #[test]
    fn entries_go_round_and_no_object_gets_too_many() {
        let mut entries: HashMap<String, u64> = HashMap::new();
        for number in 0..10 * ENTRIES_PER_OBJECT {
            *entries.entry(object(number, 4)).or_default() += 1;
        }
        assert_eq!((entries.len(), entries.values().max()), (12, Some(&ENTRIES_PER_OBJECT)));
        let next: Vec<String> = (0..5).map(|number| object(number, 4)).collect();
        assert_eq!(next, ["study/0.0", "study/0.1", "study/0.2", "study/0.3", "study/0.0"]);
    }

    #[test]
    fn the_class_is_given_the_entry_behind_its_length() {
        assert_eq!(class_input(b"abc"), *b"\xff\xff\xff\xff\xff\xff\xff\xff\x03\0\0\0abc");
    }

    #[test]
    fn the_script_appends_what_it_is_given() {
        let runtime = crate::kit::study::runtime().unwrap();
        runtime.block_on(async {
            let store = nacre::open("mem:").unwrap();
            store.classes().put("study", SCRIPT.into(), Default::default()).await.unwrap();
            let object = store.object("a").unwrap();
            for entry in ["abc", "defg"] {
                object.call("study.run", entry).await.unwrap();
            }
            let read =
                nacre::Transaction::new().read_range(nacre::Fork::DEFAULT, nacre::ByteRange::new(0, 100));
            let nacre::Outcome::Done(done) = store.apply(object.id(), read).await.unwrap() else {
                panic!("refused")
            };
            let [nacre::Answer::Range(found)] = &done.answers[..] else { panic!("{done:?}") };
            assert_eq!(found.data, "abcdefg");
        });
    }
}
