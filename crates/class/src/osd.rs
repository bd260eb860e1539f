//! Calls of methods in the OSDs of a Ceph cluster, beside the object that they are about.
//!
//! The client sends the text of the class with the call, bounded by [`rewrite`](crate::rewrite). Before it stands what
//! scripts see: the same prelude as in this process, on functions in Lua (`osd*.lua`) that read and change the object by the
//! script that runs transactions in OSDs. So a call is one operation of RADOS, which changes everything or nothing.
//!
//! What a change may answer is 32 bytes. A method that changes something and says more is called twice: the first call
//! changes nothing and returns output and version, the second one makes the change if the object is still at that version.
//!
//! An object keeps the greatest version of each class that has changed it, and refuses earlier ones: a client whose
//! classes have become old while its call was under way reads them again.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::{Arc, OnceLock};

use bytes::{Buf, Bytes};
use futures::future::BoxFuture;
use nacre_object::{ErrorKind, ObjectId, StoreError};
use parking_lot::Mutex;

use crate::bounds::{Bound, Bounds};
use crate::catalogue::{Catalogue, Class};
use crate::error::{CallError, Failure};
use crate::registry::Registry;
use crate::rewrite::{COUNT, JOIN, Unbounded, rewrite};
use crate::runtime::{Called, Request, exceeded, failed};
use crate::{errno, vm};

/// The functions that the prelude stands on in an OSD.
const NATIVES: &str = concat!(
    include_str!("osd_pattern.lua"),
    include_str!("osd.lua"),
    include_str!("osd_natives.lua"),
    include_str!("osd_interface.lua"),
    include_str!("osd_call.lua"),
);
/// The number of attempts after which a call is given up.
const ATTEMPTS_MAX: u32 = 1000;
/// The number of attempts after which a call waits for its turn.
const HURRIED_MAX: u32 = 2;
/// The number of turns, of which each object has one by its hash.
const TURNS: usize = 64;
/// The maximum number of classes that one call may use.
const CLASSES_MAX: usize = 32;
/// The maximum number of scripts that are kept.
const SCRIPTS_MAX: usize = 256;
/// The instructions of a bound that make one unit of an OSD's counter.
const INSTRUCTIONS_PER_UNIT: u64 = 8;
/// The maximum units of one call, whatever its bound: some seconds of an OSD's thread.
const UNITS_MAX: u64 = 1 << 22;
/// The units that the prelude itself takes.
const PRELUDE_UNITS: u64 = 2000;
/// The maximum memory of one call in an OSD, in bytes.
const MEMORY_BYTES_MAX: u64 = 64 << 20;

/// OSDs that run scripts on objects.
pub trait Osds: Send + Sync {
    /// Returns a script made of two texts: one before everything else, one behind the names of the OSDs' own script.
    fn load(&self, before: &[u8], body: &str) -> Arc<dyn Script>;
}

/// A script for OSDs.
pub trait Script: Send + Sync {
    /// Runs the script on an object, in one operation.
    fn run<'a>(
        &'a self,
        object: &'a ObjectId,
        request: &'a [u8],
    ) -> BoxFuture<'a, Result<ScriptRun, StoreError>>;
}

/// The outcome of a script that ran in an OSD.
#[derive(Clone, Debug)]
pub struct ScriptRun {
    /// The object's version, if the script changed it.
    pub version: Option<u64>,
    /// The answer; `None` if the object was changed and the answer was lost.
    pub output: Option<Bytes>,
}

/// A script with the classes that are in it, by name; a class that there is none of has no number.
struct Loaded {
    classes: Vec<(Vec<u8>, Option<u64>)>,
    script: Arc<dyn Script>,
}

/// A runner of methods in OSDs.
pub(crate) struct OsdRuntime {
    osds: Box<dyn Osds>,
    /// Scripts by the number of the class whose methods they are for.
    scripts: Mutex<HashMap<u64, Arc<Loaded>>>,
    turns: Box<[futures::lock::Mutex<()>]>,
    hasher: RandomState,
}

impl OsdRuntime {
    /// Creates a runner.
    pub fn new(osds: Box<dyn Osds>) -> Self {
        let turns = (0..TURNS).map(|_| futures::lock::Mutex::new(())).collect();
        Self { osds, scripts: Mutex::default(), turns, hasher: RandomState::new() }
    }

    /// Calls a method of the current class. Returns `None` if the OSDs do not run it: because this user may not call their
    /// class, say. Nothing was changed then.
    pub async fn call(
        &self,
        registry: &dyn Registry,
        request: &Request<'_>,
    ) -> Result<Option<Called>, CallError> {
        let mut catalogue = registry.catalogue().await?;
        let turn = &self.turns[self.hasher.hash_one(request.object) as usize % TURNS];
        let mut mine = None;
        // What the method will return, once its change is made at this version.
        let mut prepared: Option<(u64, Called)> = None;
        for attempt in 1..=ATTEMPTS_MAX {
            let class = catalogue.class(request.class).map_err(|message| {
                failed(request, errno::EOPNOTSUPP, Failure { message, ..Failure::default() })
            })?;
            let bounds = request.bounds.unwrap_or(class.bounds).clamped();
            let loaded = match self.loaded(&catalogue, class, None) {
                Ok(loaded) => loaded,
                Err(error) => {
                    tracing::debug!(class = request.class, %error, "the class cannot run in OSDs");
                    return Ok(None);
                }
            };
            if mine.is_none() && attempt > HURRIED_MAX {
                mine = Some(turn.lock().await);
            }
            let expected = prepared.as_ref().map(|(version, _)| *version);
            let Some(sent) = encode(request, expected, catalogue.epoch, &bounds) else {
                let message = format!("class \"{}\" has no method of this name", request.class);
                return Err(failed(request, errno::EOPNOTSUPP, Failure { message, ..Failure::default() }));
            };
            let ran = match loaded.script.run(request.object, &sent).await {
                Err(error) if error.kind == ErrorKind::Unsupported => {
                    tracing::debug!(%error, "the OSDs do not run the method");
                    return Ok(None);
                }
                ran => ran?,
            };
            let class_version = class.version;
            if let Some(version) = ran.version {
                let called = match ran.output {
                    // The change that was prepared; what it returns was said before.
                    Some(output) if output.is_empty() => prepared.map(|(_, called)| called),
                    output => output.and_then(short_output),
                };
                let Some(called) = called else {
                    let text = format!(
                        "{}.{} took effect on object \"{}\", at version {version}, and its output was lost",
                        request.class, request.method, request.object
                    );
                    return Err(StoreError::new(ErrorKind::Unknown, text).into());
                };
                let version = Some(version);
                let called = Called { version, wrote: true, class_version, attempts: attempt, ..called };
                return Ok(Some(called));
            }
            match ran.output.and_then(decode).ok_or_else(nonsense)? {
                Reply::Finished(called) => {
                    return Ok(Some(Called { class_version, attempts: attempt, ..called }));
                }
                Reply::Prepared(version, called) => prepared = Some((version, called)),
                Reply::Failed(number, mut failure) => {
                    if failure.message.is_empty() {
                        failure.message = errno::text(number);
                    }
                    return Err(failed(request, number, failure));
                }
                Reply::Exceeded(bound) => return Err(exceeded(request, bound, bounds)),
                Reply::Fenced(fence) => {
                    return Err(CallError::Fenced {
                        object: request.object.clone(),
                        class: request.class.to_owned(),
                        method: request.method.to_owned(),
                        fence,
                    });
                }
                Reply::Wanted(name) => {
                    let count = loaded.classes.len();
                    if count >= CLASSES_MAX || self.loaded(&catalogue, class, Some(name)).is_err() {
                        return Ok(None);
                    }
                }
                Reply::Stale(least, name) => {
                    catalogue = registry.catalogue().await?;
                    // Another text may return something else.
                    prepared = None;
                    let found = catalogue.classes.get(&name).map_or(0, |class| class.version);
                    if found < least {
                        let message = format!(
                            "version {least} of class \"{name}\" has changed the object, and the store's is {found}: \
                             bring that version back, or remove the object's attribute \"nacre.classes\""
                        );
                        return Err(failed(
                            request,
                            errno::ESTALE,
                            Failure { message, ..Failure::default() },
                        ));
                    }
                }
            }
        }
        Err(CallError::Contended {
            object: request.object.clone(),
            class: request.class.to_owned(),
            method: request.method.to_owned(),
            attempts: ATTEMPTS_MAX,
        })
    }

    /// Returns the script for the methods of a class: with the classes that they were seen to call, and with one more.
    fn loaded(
        &self,
        catalogue: &Catalogue,
        class: &Class,
        more: Option<Vec<u8>>,
    ) -> Result<Arc<Loaded>, Unbounded> {
        let known = self.scripts.lock().get(&class.id()).cloned();
        let mut names = vec![class.name.clone().into_bytes()];
        if let Some(known) = &known {
            let is_current =
                known.classes.iter().all(|(name, id)| *id == class_of(catalogue, name).map(Class::id));
            if is_current && more.is_none() {
                return Ok(known.clone());
            }
            names = known.classes.iter().map(|(name, _)| name.clone()).collect();
        }
        if let Some(more) = more
            && !names.contains(&more)
        {
            names.push(more);
        }
        let script = self.osds.load(&before(catalogue, &names)?, body());
        let ids = names.iter().map(|name| class_of(catalogue, name).map(Class::id)).collect::<Vec<_>>();
        let loaded = Arc::new(Loaded { classes: names.into_iter().zip(ids).collect(), script });
        let mut scripts = self.scripts.lock();
        if scripts.len() >= SCRIPTS_MAX {
            scripts.clear();
        }
        scripts.insert(class.id(), loaded.clone());
        Ok(loaded)
    }
}

fn class_of<'a>(catalogue: &'a Catalogue, name: &[u8]) -> Option<&'a Class> {
    let name = std::str::from_utf8(name).ok()?;
    catalogue.classes.get(name).map(|class| &**class)
}

/// Returns what stands before everything else: the classes, each with its version and its text as a function. Names that scripts
/// use must not be found in the text around them, so this comes first.
fn before(catalogue: &Catalogue, names: &[Vec<u8>]) -> Result<Vec<u8>, Unbounded> {
    let mut out = b"local nacre_classes={".to_vec();
    for name in names {
        out.extend(format!("[{}]=", quoted(name)).bytes());
        match class_of(catalogue, name) {
            // The first line of the text stands on the first line of the chunk.
            Some(class) => {
                out.extend(format!("{{{},function(_ENV,{COUNT},{JOIN},...)", class.version).bytes());
                out.extend(rewrite(&class.text)?);
                out.extend(b"\nend},");
            }
            None => {
                let name = String::from_utf8_lossy(name);
                let why =
                    catalogue.class(&name).err().unwrap_or_else(|| format!("there is no class \"{name}\""));
                out.extend(format!("{},", quoted(why.as_bytes())).bytes());
            }
        }
    }
    out.push(b'}');
    Ok(out)
}

/// Returns bytes as a literal string of Lua's.
fn quoted(bytes: &[u8]) -> String {
    let mut out = String::from("\"");
    for byte in bytes {
        match byte {
            byte if byte.is_ascii_alphanumeric() => out.push(char::from(*byte)),
            byte => out.push_str(&format!("\\{byte:03}")),
        }
    }
    out.push('"');
    out
}

/// Returns what stands behind the names of the OSDs' own script: the prelude, with counters, and what it stands on.
pub fn body() -> &'static str {
    static BODY: OnceLock<String> = OnceLock::new();
    BODY.get_or_init(|| {
        // It is part of this program, and a test rewrites it.
        let prelude = rewrite(vm::PRELUDE.as_bytes()).expect("the prelude is in the language of classes");
        let constants: String =
            errno::ALL.iter().map(|(name, number, _)| format!("{name}={number},")).collect();
        format!(
            "local function prelude({COUNT},{JOIN},...)\n{}\nend\nlocal CONSTANTS={{{constants}}}\n{NATIVES}",
            String::from_utf8_lossy(&prelude)
        )
    })
}

/// Returns a text with counters that do nothing, which runs like the text itself.
pub(crate) fn without_bounds(text: &[u8]) -> Result<Vec<u8>, Unbounded> {
    let mut out = format!("local {COUNT},{JOIN}=function()end,function(a,b)return a..b end;").into_bytes();
    out.extend(rewrite(text)?);
    Ok(out)
}

/// Encodes a call; `None` if the method's name is longer than any.
fn encode(request: &Request<'_>, expected: Option<u64>, epoch: u64, bounds: &Bounds) -> Option<Vec<u8>> {
    let units = (bounds.instructions / INSTRUCTIONS_PER_UNIT).min(UNITS_MAX) + PRELUDE_UNITS;
    let memory = bounds.memory_bytes.min(MEMORY_BYTES_MAX);
    let mut out = Vec::with_capacity(128 + request.input.len());
    // Versions pass no half of their range, so that all bits are those of no version.
    for number in [expected.unwrap_or(u64::MAX), units, memory, bounds.output_bytes, epoch] {
        out.extend(number.to_le_bytes());
    }
    out.push(u8::from(request.fence.is_some()));
    out.extend(request.fence.unwrap_or(0).to_le_bytes());
    for name in [request.class, request.method] {
        out.push(u8::try_from(name.len()).ok()?);
        out.extend(name.bytes());
    }
    out.extend(u32::try_from(request.input.len()).ok()?.to_le_bytes());
    out.extend(&request.input[..]);
    Some(out)
}

/// The answer of a call that changed nothing.
#[derive(Debug, PartialEq)]
enum Reply {
    /// The result of a method that changes nothing.
    Finished(Called),
    /// The result of a change that is still to be made, at this version.
    Prepared(u64, Called),
    Failed(i32, Failure),
    Exceeded(Bound),
    /// The least version of a class that the object accepts.
    Stale(u64, String),
    /// A class that the method calls.
    Wanted(Vec<u8>),
    /// The object's fence.
    Fenced(u64),
}

fn nonsense() -> StoreError {
    StoreError::new(ErrorKind::Io, "the OSD's answer to a call of a method is invalid")
}

/// Decodes what follows a change: the result, if it is not 0, and a short output.
fn short_output(mut text: Bytes) -> Option<Called> {
    let result = match text.try_get_u8().ok()? {
        0 => 0,
        1 => text.try_get_i32_le().ok()?,
        _ => return None,
    };
    Some(Called { result, output: text, ..Called::default() })
}

fn long_text(text: &mut Bytes) -> Option<Bytes> {
    let length = text.try_get_u32_le().ok()? as usize;
    (text.len() >= length).then(|| text.split_to(length))
}

fn log_of(text: &mut Bytes) -> Option<Vec<String>> {
    let count = text.try_get_u16_le().ok()?;
    (0..count).map(|_| Some(String::from_utf8_lossy(&long_text(text)?).into_owned())).collect()
}

fn decode(mut text: Bytes) -> Option<Reply> {
    let text = &mut text;
    let status = text.try_get_u8().ok()?;
    Some(match status {
        32 | 34 => {
            let (version, _existed) = (text.try_get_u64_le().ok()?, text.try_get_u8().ok()?);
            let (result, units) = (text.try_get_i32_le().ok()?, text.try_get_u64_le().ok()?);
            let output = long_text(text)?;
            let log = log_of(text)?;
            let instructions = units.saturating_mul(INSTRUCTIONS_PER_UNIT);
            let called =
                Called { result, output, version: Some(version), log, instructions, ..Called::default() };
            if status == 32 { Reply::Finished(called) } else { Reply::Prepared(version, called) }
        }
        33 => {
            let number = text.try_get_u32_le().ok()?;
            let _units = text.try_get_u64_le().ok()?;
            let message = String::from_utf8_lossy(&long_text(text)?).into_owned();
            let output = long_text(text)?;
            let log = log_of(text)?;
            Reply::Failed(i32::try_from(number).unwrap_or(errno::EIO), Failure { message, output, log })
        }
        35 => Reply::Exceeded(match text.try_get_u8().ok()? {
            1 => Bound::Instructions,
            2 => Bound::Memory,
            3 => Bound::Output,
            _ => return None,
        }),
        36 => Reply::Stale(text.try_get_u64_le().ok()?, String::from_utf8_lossy(text).into_owned()),
        37 => Reply::Wanted(text.to_vec()),
        38 => Reply::Fenced(text.try_get_u64_le().ok()?),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_encoded_as_the_script_takes_it_apart() {
        let object = ObjectId::try_from("o").unwrap();
        let request = Request::new(&object, "c", "m").input("in");
        let bounds = Bounds { instructions: 80, memory_bytes: 7, output_bytes: 9, ..Bounds::default() };
        let mut expected = vec![0xff; 8];
        for number in [10 + PRELUDE_UNITS, 7, 9, 3] {
            expected.extend(number.to_le_bytes());
        }
        expected.extend([0; 9]);
        expected.extend(b"\x01c\x01m\x02\0\0\0in");
        assert_eq!(encode(&request, None, 3, &bounds), Some(expected.clone()));
        let fenced = Request { fence: Some(5), ..request.clone() };
        expected[..8].copy_from_slice(&4_u64.to_le_bytes());
        expected[40..49].copy_from_slice(&[1, 5, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(encode(&fenced, Some(4), 3, &bounds), Some(expected));
        let long = "m".repeat(256);
        assert_eq!(encode(&Request { method: &long, ..request }, None, 3, &bounds), None);
    }

    #[test]
    fn answers_are_taken_apart_and_cut_ones_refused() {
        let mut finished = vec![32];
        finished.extend(6_u64.to_le_bytes());
        finished.push(1);
        finished.extend(2_i32.to_le_bytes());
        finished.extend(5_u64.to_le_bytes());
        finished.extend(b"\x03\0\0\0out\x01\0\x04\0\0\0line");
        let called = Called {
            result: 2,
            output: "out".into(),
            version: Some(6),
            log: vec!["line".to_owned()],
            instructions: 40,
            ..Called::default()
        };
        assert_eq!(decode(finished.clone().into()), Some(Reply::Finished(called)));
        let mut failed = vec![33, 16, 0, 0, 0];
        failed.extend([0; 8]);
        failed.extend(b"\x04\0\0\0busy\0\0\0\0\0\0");
        let failure = Failure { message: "busy".to_owned(), ..Failure::default() };
        assert_eq!(decode(failed.clone().into()), Some(Reply::Failed(16, failure)));
        for whole in [finished, failed] {
            for end in 0..whole.len() {
                assert_eq!(decode(Bytes::copy_from_slice(&whole[..end])), None, "cut at {end}");
            }
        }
        assert_eq!(decode(Bytes::from_static(&[35, 2])), Some(Reply::Exceeded(Bound::Memory)));
        assert_eq!(decode(Bytes::from_static(&[99])), None);
        let short = short_output(Bytes::from_static(b"\x01\x07\0\0\0yes")).unwrap();
        assert_eq!((short.result, &short.output[..]), (7, &b"yes"[..]));
    }

    #[test]
    fn names_and_texts_cannot_end_their_literal() {
        assert_eq!(quoted(b"a\"]\\\n1"), "\"a\\034\\093\\092\\0101\"");
    }
}
