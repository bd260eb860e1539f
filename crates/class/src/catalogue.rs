//! Classes: their texts and versions, and the catalogue of all that are current at one epoch.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use nacre_object::Escaped;
use serde::{Deserialize, Serialize};

use crate::bounds::Bounds;
use crate::registry::Record;
use crate::rewrite::{SharedNames, shared_names};

/// The maximum length of a class's name, in bytes.
pub const NAME_BYTES_MAX: usize = 64;
/// The maximum length of a class's text, in bytes.
pub const TEXT_BYTES_MAX: usize = 256 << 10;
/// The maximum number of methods of a class.
pub const METHODS_MAX: usize = 256;

/// A method, as its class declares it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Method {
    /// The name: a global function of the class's text that it registers.
    pub name: String,
    /// False if the class declares that the method changes nothing; changes then fail with EROFS.
    pub writes: bool,
    /// A description, in the class's words.
    pub about: String,
    /// Its input, in the class's words.
    pub input: String,
    /// Its output, in the class's words.
    pub output: String,
}

/// A class that can be called: a text at a version.
#[derive(Debug)]
pub struct Class {
    /// The name.
    pub name: String,
    /// The version: 1 for the first text under this name.
    pub version: u64,
    /// The text, in Lua.
    pub text: Bytes,
    /// The methods that it declares.
    pub methods: Vec<Method>,
    /// The bounds of a call of it.
    pub bounds: Bounds,
    /// A number that no other class of this process has, by which machines know what they have compiled.
    id: u64,
    /// The uses that the functions of the text make of variables that are not their own, once asked for.
    names: OnceLock<Option<SharedNames>>,
}

impl Class {
    /// Creates a class.
    pub fn new(name: String, version: u64, text: Bytes, methods: Vec<Method>, bounds: Bounds) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Self { name, version, text, methods, bounds: bounds.clamped(), id, names: OnceLock::new() }
    }

    /// Returns whether it was made from a record.
    pub(crate) fn is(&self, record: &Record) -> bool {
        let Record { version, text, methods, bounds, .. } = record;
        (self.version, &self.text[..], &self.methods, self.bounds) == (*version, &text[..], methods, *bounds)
    }

    /// Returns what the functions of the text do with variables that are not their own; `None` if that is not known, or too much.
    pub(crate) fn shared_names(&self) -> Option<&SharedNames> {
        self.names.get_or_init(|| shared_names(&self.text)).as_ref()
    }

    /// Returns the number that no other class of this process has.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }
}

/// The classes that are current at one epoch. A call sees one catalogue from its beginning to its end.
#[derive(Debug, Default)]
pub struct Catalogue {
    /// The epoch: it grows with every change of any class.
    pub epoch: u64,
    /// The classes by name.
    pub classes: BTreeMap<String, Arc<Class>>,
    /// The errors of the classes whose records cannot be read, by name: a newer program made them, or they are damaged.
    pub unreadable: BTreeMap<String, String>,
}

impl Catalogue {
    /// Creates a catalogue of one class, at epoch 0.
    pub fn of(class: Class) -> Self {
        let classes = BTreeMap::from([(class.name.clone(), Arc::new(class))]);
        Self { epoch: 0, classes, unreadable: BTreeMap::new() }
    }

    /// Returns a class.
    ///
    /// # Errors
    ///
    /// A sentence, if there is no such class or its record cannot be read.
    pub fn class(&self, name: &str) -> Result<&Arc<Class>, String> {
        match (self.classes.get(name), self.unreadable.get(name)) {
            (Some(class), _) => Ok(class),
            (None, Some(error)) => Err(error.clone()),
            (None, None) => Err(format!("there is no class \"{name}\"")),
        }
    }
}

/// Checks a class's name: letters, digits, `_` and `-`, beginning with a letter.
///
/// # Errors
///
/// A sentence that says what is wrong with the name.
pub fn check_name(name: &str) -> Result<(), String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if name.len() > NAME_BYTES_MAX {
        return Err(format!("a class's name has at most {NAME_BYTES_MAX} bytes"));
    }
    if !name.starts_with(|c: char| c.is_ascii_alphabetic()) || !name.chars().all(allowed) {
        return Err(format!(
            "\"{}\" is not a valid name for a class: it must begin with a letter, and consist of letters, digits, _ and -",
            Escaped::of(name)
        ));
    }
    Ok(())
}
