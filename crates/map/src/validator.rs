//! Validators: functions in Lua that see each change of a map before it is proposed, and may refuse it, replace its value,
//! or add changes of other entries (Sevilla et al., *Malacology*, section 4.1).
//!
//! A validator runs in the proposer, in the machine of object classes and under its bounds. The epoch that it was read at
//! is guarded by the commit, so no change is made past the validators that are in force. That binds proposers alone:
//! whoever may write the map's object may write anything into it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use nacre_class::{Bounds, CallError, Catalogue, Class, ClassError, Request, Runtime, packed};
use nacre_object::{ErrorKind, Key, ObjectId, ObjectStore, Outcome, Reply, StoreError, Transaction};
use serde_json::{Value as Json, json};

use crate::limit::*;
use crate::state::{Space, State};
use crate::update::{Draft, ProposedChange, Refused};

/// A validator of a map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Validator {
    /// The beginning of the names of the entries that it sees; empty for all of them.
    pub prefix: Bytes,
    /// The text, in Lua, which defines the function `validate`.
    pub text: String,
}

/// The bounds of one run of a validator. They are tighter than those of classes: a proposer waits for it.
pub const BOUNDS: Bounds = Bounds {
    instructions: 1_000_000,
    memory_bytes: 8 << 20,
    output_bytes: 1 << 20,
    wall: Duration::from_millis(200),
    reads: 1,
};

/// The method that calls `validate`. It is put behind the text, so that lines keep their numbers.
const METHOD: &str = "
if type(validate) ~= 'function' then error('it defines no function validate(change)', 0) end
function __judge(input, output)
  local map, entry, old, new, who, epoch = nacre.unpack(input)
  local also = {}
  local change = { map = map, entry = entry, old = old, new = new, who = who, epoch = epoch }
  function change:set(name, value)
    if type(name) ~= 'string' or type(value) ~= 'string' then
      error('change:set takes the name of an entry and a value, both strings', 2)
    end
    also[#also + 1] = { name, value }
  end
  function change:remove(name)
    if type(name) ~= 'string' then error('change:remove takes the name of an entry', 2) end
    also[#also + 1] = { name }
  end
  local verdict, message = validate(change)
  if verdict == false then
    output:append(nacre.pack(false, message ~= nil and tostring(message) or 'it gave no reason'))
    return
  end
  local value = change.new
  if value ~= nil and type(value) ~= 'string' then error('change.new must be a string or nil, and is a ' .. type(value), 0) end
  output:append(nacre.pack(true, value, also))
end
objclass.register(__judge, { writes = false })
";

/// The method's name.
const METHOD_NAME: &str = "__judge";

impl Validator {
    fn class_text(&self) -> Bytes {
        format!("{}{METHOD}", self.text).into()
    }

    /// Checks a validator before it is installed: its name, its text, and that it defines `validate`.
    ///
    /// # Errors
    /// `Invalid` with the reason.
    pub fn check(&self, name: &str) -> Result<(), StoreError> {
        let invalid = |text: String| StoreError::new(ErrorKind::Invalid, text);
        let wrong = |why: &str| invalid(format!("validator \"{name}\" is refused: {why}"));
        if self.text.len() > VALIDATOR_BYTES_MAX {
            let len = self.text.len();
            return Err(wrong(&format!("its text is {len} bytes long; the limit is {VALIDATOR_BYTES_MAX}")));
        }
        if self.prefix.len() > ENTRY_NAME_BYTES_MAX {
            return Err(wrong("its prefix is longer than the name of an entry can be"));
        }
        let runtime = Runtime::new(1);
        match nacre_class::validate(&runtime, name, self.class_text(), BOUNDS) {
            Ok(_) => Ok(()),
            Err(ClassError::Refused { reason, .. }) => Err(wrong(&reason)),
            Err(error) => Err(invalid(error.to_string())),
        }
    }
}

/// A validator that can be called.
struct Compiled {
    name: String,
    version: u64,
    validator: Validator,
    catalogue: Arc<Catalogue>,
}

/// The validators of a map, and the machine that runs them.
pub(crate) struct Validators {
    map: String,
    object: ObjectId,
    runtime: Runtime,
    compiled: Vec<Compiled>,
}

impl Validators {
    pub fn new(map: String, object: ObjectId) -> Self {
        Self { map, object, runtime: Runtime::new(1), compiled: Vec::new() }
    }

    /// Takes over the validators of a state.
    ///
    /// # Errors
    /// `Corrupt` if one of them cannot be read: then nothing may be proposed.
    pub fn refresh(&mut self, state: &State) -> Result<(), StoreError> {
        let mut before = std::mem::take(&mut self.compiled);
        for (name, validator, version) in state.validators()? {
            // A map that was made again counts its changes from the beginning, so the version alone does not tell.
            let same = |known: &Compiled| {
                known.name == name && known.version == version && known.validator == validator
            };
            // What has not changed stays compiled.
            let known = before.iter().position(same).map(|at| before.swap_remove(at));
            self.compiled.push(known.unwrap_or_else(|| {
                let text = validator.class_text();
                let class = Class::new(name.clone(), version, text, Vec::new(), BOUNDS);
                Compiled { name, version, validator, catalogue: Arc::new(Catalogue::of(class)) }
            }));
        }
        Ok(())
    }

    /// Has every change judged by the validators whose prefix its name begins with, one after another in the order of
    /// their names. Changes that they add are judged in turn. Changes of the configuration are not judged.
    pub async fn evaluate(
        &self,
        draft: &Draft<'_>,
        epoch: u64,
        author: &str,
        wanted: &[ProposedChange],
    ) -> Result<Vec<ProposedChange>, Refused> {
        if self.compiled.is_empty() {
            return Ok(wanted.to_vec());
        }
        let mut waiting: VecDeque<(ProposedChange, usize)> =
            wanted.iter().cloned().map(|change| (change, 0)).collect();
        let mut validated = Vec::with_capacity(wanted.len());
        let mut instructions = 0;
        while let Some((mut change, depth)) = waiting.pop_front() {
            let name = change.name.clone();
            for validator in &self.compiled {
                if change.space != Space::Entry
                    || !change.name.as_bytes().starts_with(&validator.validator.prefix)
                {
                    continue;
                }
                let rejected = |message: String| Refused::Rejected {
                    validator: validator.name.clone(),
                    name: name.clone(),
                    message,
                };
                let old = draft.value(Space::Entry, &change.name).map(|old| &old.value);
                let input = input(&self.map, &change, old, author, epoch).map_err(rejected)?;
                let request = Request::new(&self.object, &validator.name, METHOD_NAME).input(input);
                let called = self.runtime.call(&NoObject, &validator.catalogue, &request).await;
                let called = called.map_err(|error| rejected(sentence(error)))?;
                instructions += called.instructions;
                if instructions > VALIDATION_INSTRUCTIONS_MAX {
                    let text =
                        format!("validators take more than {VALIDATION_INSTRUCTIONS_MAX} instructions");
                    return Err(rejected(format!("{text} over the update's changes: split the update")));
                }
                // Each run is on this thread, which others want to use too.
                tokio::task::yield_now().await;
                let (new, also) = verdict(&called.output).map_err(rejected)?;
                if !also.is_empty() && depth == VALIDATION_DEPTH_MAX {
                    let text = format!(
                        "changes that validators add are nested more than {VALIDATION_DEPTH_MAX} deep"
                    );
                    return Err(rejected(text));
                }
                if validated.len() + waiting.len() + also.len() >= CHANGES_MAX {
                    return Err(rejected(format!(
                        "validators make more than {CHANGES_MAX} changes of the update"
                    )));
                }
                for added in also {
                    added.check().map_err(|error| rejected(error.message))?;
                    waiting.push_back((added, depth + 1));
                }
                let replaced = ProposedChange { new, ..change.clone() };
                replaced.check().map_err(|error| rejected(error.message))?;
                change = replaced;
            }
            validated.push(change);
        }
        Ok(validated)
    }
}

/// Returns what a validator failed with, without the object and the method that are the same for all.
fn sentence(error: CallError) -> String {
    match error {
        CallError::Failed { failure, .. } => failure.message,
        CallError::Exceeded { bound, bounds, .. } => bound.sentence(&bounds),
        error => error.to_string(),
    }
}

/// Bytes as a packed string.
fn packed_bytes(bytes: &[u8]) -> Json {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.into(),
        Err(_) => json!({ "$base16": bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>() }),
    }
}

/// The bytes of an unpacked string.
fn unpacked_bytes(value: &Json) -> Option<Bytes> {
    match value {
        Json::String(text) => Some(Bytes::copy_from_slice(text.as_bytes())),
        Json::Object(fields) => {
            let digits = fields.get("$base16")?.as_str()?.as_bytes();
            let digit = |byte: u8| (byte as char).to_digit(16);
            let pairs =
                digits.chunks(2).map(|pair| Some((digit(pair[0])? << 4 | digit(*pair.get(1)?)?) as u8));
            pairs.collect::<Option<Vec<u8>>>().map(Bytes::from)
        }
        _ => None,
    }
}

fn input(
    map: &str,
    change: &ProposedChange,
    old: Option<&Bytes>,
    author: &str,
    epoch: u64,
) -> Result<Bytes, String> {
    let optional = |bytes: Option<&Bytes>| bytes.map_or(Json::Null, |bytes| packed_bytes(bytes));
    let entry = packed_bytes(change.name.as_bytes());
    packed::pack(&[
        map.into(),
        entry,
        optional(old),
        optional(change.new.as_ref()),
        author.into(),
        epoch.into(),
    ])
    .map(Bytes::from)
}

/// Reads a validator's output: the new value and the changes that it adds, or the reason why it refuses.
fn verdict(output: &[u8]) -> Result<(Option<Bytes>, Vec<ProposedChange>), String> {
    let nonsense = || "its output cannot be that of validate(change)".to_owned();
    let values = packed::unpack(output)?;
    let (new, also) = match &values[..] {
        [Json::Bool(false), Json::String(message)] => return Err(message.clone()),
        [Json::Bool(false), _] => return Err("its reason is not text".to_owned()),
        [Json::Bool(true), new, Json::Array(also)] => (new, also),
        _ => return Err(nonsense()),
    };
    let new = match new {
        Json::Null => None,
        value => Some(unpacked_bytes(value).ok_or_else(nonsense)?),
    };
    let added = also.iter().map(|added| {
        let fields = added.as_array().ok_or_else(nonsense)?;
        let name = fields.first().and_then(unpacked_bytes).ok_or_else(nonsense)?;
        let name = Key::new(name).map_err(|error| error.message)?;
        let new = fields.get(1).map(|value| unpacked_bytes(value).ok_or_else(nonsense)).transpose()?;
        Ok(ProposedChange { space: Space::Entry, name, new })
    });
    Ok((new, added.collect::<Result<_, String>>()?))
}

/// The object that validators do not have.
struct NoObject;

impl NoObject {
    fn refusal<T>() -> Reply<T> {
        let text = "a validator sees the change that it is given, and no object";
        Reply::ready(Err(StoreError::new(ErrorKind::Unsupported, text)))
    }
}

impl ObjectStore for NoObject {
    fn apply(&self, _object: &ObjectId, _transaction: Transaction) -> Reply<Outcome> {
        Self::refusal()
    }

    fn list(&self, _after: Option<&ObjectId>, _limit: usize) -> Reply<Vec<ObjectId>> {
        Self::refusal()
    }
}
