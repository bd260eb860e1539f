//! JSON values with the lines on which they begin, for a format whose errors are sentences: each says which value is
//! wrong, how, and what is expected.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::io::{self, BufReader};
use std::rc::Rc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use nacre::limit;
use nacre_quantity::excerpt;
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::de::IoRead;
use serde_json::error::Category;

/// The most bytes of one text: the payload that a transaction may carry as base64, and as much for the rest.
const TEXT_BYTES_MAX: u64 = 4 * limit::TRANSACTION_BYTES_MAX as u64;

/// The most values of one text, those inside of others included: no operation takes as many as this has for each.
const VALUES_MAX: usize = 16 * limit::OPERATIONS_MAX;

/// The most values inside of each other. The deepest operation takes fewer.
const DEPTH_MAX: usize = 16;

/// A value, and the line on which it begins, from 1.
#[derive(Debug)]
pub struct Node {
    line: usize,
    json: Json,
}

/// A JSON value.
#[derive(Debug)]
enum Json {
    Null,
    Bool(bool),
    Whole(u64),
    /// A number that is negative, or not whole, or greater than others.
    Number(String),
    Text(String),
    List(Vec<Node>),
    /// The fields in the order of the text. A name may be there twice.
    Fields(Vec<(String, Node)>),
}

/// The reason why a value is not what a format expects.
#[derive(Debug)]
pub struct Wrong {
    line: usize,
    /// The value, by the names and numbers that lead to it; empty for the outermost one.
    path: String,
    /// The reason why the value is wrong, as part of a sentence.
    why: String,
}

impl Wrong {
    pub fn new(line: usize, why: impl Into<String>) -> Wrong {
        Wrong { line, path: String::new(), why: why.into() }
    }

    /// Adds the name or number that leads to the value in the one around it.
    pub fn within(mut self, step: &str) -> Wrong {
        self.path = match self.path.is_empty() {
            true => step.to_owned(),
            false => format!("{step}.{}", self.path),
        };
        self
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let subject = if self.path.is_empty() { "it" } else { self.path.as_str() };
        write!(f, "{subject} {} (line {})", self.why, self.line)
    }
}

impl Node {
    pub fn line(&self) -> usize {
        self.line
    }

    /// Returns that something else is expected.
    pub fn expected(&self, what: &str) -> Wrong {
        let shown = match &self.json {
            Json::Null => "null".to_owned(),
            Json::Bool(value) => value.to_string(),
            Json::Whole(number) => number.to_string(),
            Json::Number(number) => number.clone(),
            Json::Text(text) => format!("\"{}\"", excerpt(text)),
            Json::List(_) => "a list".to_owned(),
            Json::Fields(_) => "an object".to_owned(),
        };
        Wrong::new(self.line, format!("must be {what}, but is {shown}"))
    }

    pub fn text(self) -> Result<String, Wrong> {
        match self.json {
            Json::Text(text) => Ok(text),
            _ => Err(self.expected("a text")),
        }
    }

    pub fn bool(self) -> Result<bool, Wrong> {
        match self.json {
            Json::Bool(value) => Ok(value),
            _ => Err(self.expected("true or false")),
        }
    }

    pub fn number(self) -> Result<u64, Wrong> {
        self.whole(u64::MAX)
    }

    /// Returns a whole number of a type whose greatest one is `most`.
    pub fn whole<T: TryFrom<u64> + fmt::Display>(self, most: T) -> Result<T, Wrong> {
        let number = match self.json {
            Json::Whole(number) => T::try_from(number).ok(),
            _ => None,
        };
        number.ok_or_else(|| self.expected(&format!("a whole number from 0 to {most}")))
    }

    /// Returns the bytes of a text, or of `{"base64": "…"}`.
    pub fn data(self) -> Result<Bytes, Wrong> {
        match self.json {
            Json::Text(text) => Ok(text.into()),
            Json::Fields(_) => self.fields(&["base64"])?.required("base64", |node| {
                let line = node.line;
                let why = "is not base64, in the standard alphabet and with its padding";
                STANDARD.decode(node.text()?).map(Bytes::from).map_err(|_| Wrong::new(line, why))
            }),
            _ => Err(self.expected("a text or {\"base64\": \"…\"}")),
        }
    }

    /// Reads a value that may be null, which is `None`.
    pub fn nullable<T>(self, read: impl FnOnce(Node) -> Result<T, Wrong>) -> Result<Option<T>, Wrong> {
        match self.json {
            Json::Null => Ok(None),
            _ => read(self).map(Some),
        }
    }

    /// Returns the fields of an object that has no others than the known ones.
    pub fn fields(self, known: &'static [&'static str]) -> Result<Fields, Wrong> {
        let line = self.line;
        let found = match self.json {
            Json::Fields(found) => found,
            _ => return Err(self.expected(&format!("an object with {}", quoted(known)))),
        };
        for (index, (name, node)) in found.iter().enumerate() {
            if !known.contains(&name.as_str()) {
                let known = quoted(known);
                let why = format!("has \"{}\", which is none of its fields: {known}", excerpt(name));
                return Err(Wrong::new(node.line, why));
            }
            if found[..index].iter().any(|(other, _)| other == name) {
                return Err(Wrong::new(node.line, format!("has \"{name}\" twice")));
            }
        }
        Ok(Fields { line, known, found })
    }

    /// Returns an operation: `"name"`, or `{"name": …}` if something belongs to it.
    pub fn operation(self) -> Result<Operation, Wrong> {
        let line = self.line;
        match self.json {
            Json::Text(name) => Ok(Operation { line, name, body: None }),
            Json::Fields(mut fields) => match (fields.pop(), fields.len()) {
                (Some((name, body)), 0) => Ok(Operation { line, name, body: Some(body) }),
                (None, _) => Err(Wrong::new(line, "must have the name of an operation, but is empty")),
                (Some(_), others) => {
                    Err(Wrong::new(line, format!("must be one operation, but has {}", others + 1)))
                }
            },
            _ => Err(self.expected("\"NAME\" or {\"NAME\": …} with the name of an operation")),
        }
    }
}

/// The fields of an object.
#[derive(Debug)]
pub struct Fields {
    line: usize,
    known: &'static [&'static str],
    found: Vec<(String, Node)>,
}

impl Fields {
    fn take(&mut self, name: &str) -> Option<Node> {
        let index = self.found.iter().position(|(found, _)| found == name)?;
        Some(self.found.swap_remove(index).1)
    }

    /// Reads a field that must be there.
    pub fn required<T>(
        &mut self,
        name: &str,
        read: impl FnOnce(Node) -> Result<T, Wrong>,
    ) -> Result<T, Wrong> {
        if let Some(value) = self.optional(name, read)? {
            return Ok(value);
        }
        let why = match self.known {
            [_] => format!("must have \"{name}\""),
            known => format!("must have \"{name}\"; its fields are {}", quoted(known)),
        };
        Err(Wrong::new(self.line, why))
    }

    /// Reads a field if it is there.
    pub fn optional<T>(
        &mut self,
        name: &str,
        read: impl FnOnce(Node) -> Result<T, Wrong>,
    ) -> Result<Option<T>, Wrong> {
        self.take(name).map(|node| read(node).map_err(|wrong| wrong.within(name))).transpose()
    }

    /// Reads a list, which is empty if it is not there.
    pub fn list<T>(&mut self, name: &str, read: impl Fn(Node) -> Result<T, Wrong>) -> Result<Vec<T>, Wrong> {
        let Some(node) = self.take(name) else { return Ok(Vec::new()) };
        let nodes = match node.json {
            Json::List(nodes) => nodes,
            _ => return Err(node.expected("a list").within(name)),
        };
        let read = |(index, node): (usize, Node)| {
            read(node).map_err(|wrong| wrong.within(&format!("{name}[{index}]")))
        };
        nodes.into_iter().enumerate().map(read).collect()
    }
}

/// An operation, and what belongs to it.
#[derive(Debug)]
pub struct Operation {
    line: usize,
    name: String,
    body: Option<Node>,
}

impl Operation {
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns that there is no such operation, but the known ones.
    pub fn unknown(&self, known: &[&str]) -> Wrong {
        let (name, known) = (excerpt(&self.name), quoted(known));
        Wrong::new(self.line, format!("is \"{name}\", which is none of {known}"))
    }

    /// Returns an operation to which nothing belongs.
    pub fn alone<T>(self, operation: T) -> Result<T, Wrong> {
        match self.body {
            None | Some(Node { json: Json::Null, .. }) => Ok(operation),
            Some(_) => {
                let name = self.name;
                Err(Wrong::new(self.line, format!("must be \"{name}\" alone, but something belongs to it")))
            }
        }
    }

    /// Reads what belongs to the operation.
    pub fn with<T>(self, read: impl FnOnce(Node) -> Result<T, Wrong>) -> Result<T, Wrong> {
        let name = self.name;
        match self.body {
            Some(body) => read(body).map_err(|wrong| wrong.within(&name)),
            None => {
                let why = format!("must be {{\"{name}\": …}}, but is \"{name}\" alone");
                Err(Wrong::new(self.line, why))
            }
        }
    }

    /// Reads the fields that belong to the operation.
    pub fn fields<T>(
        self,
        known: &'static [&'static str],
        read: impl FnOnce(&mut Fields) -> Result<T, Wrong>,
    ) -> Result<T, Wrong> {
        self.with(|body| read(&mut body.fields(known)?))
    }
}

/// Returns names in quotation marks.
fn quoted(names: &[&str]) -> String {
    let names: Vec<String> = names.iter().map(|name| format!("\"{name}\"")).collect();
    names.join(", ")
}

/// A source of values, one after the other.
pub struct Nodes {
    texts: serde_json::Deserializer<IoRead<Counted>>,
    count: Rc<Count>,
}

/// The reason why a value cannot be read.
#[derive(Debug)]
pub enum Unreadable {
    Io(io::Error),
    /// The text is not JSON, or beyond a limit.
    Text(String),
}

impl Nodes {
    pub fn new(source: Box<dyn io::Read>) -> Nodes {
        let count = Rc::new(Count::default());
        let source = Counted { source: BufReader::new(source), count: Rc::clone(&count) };
        Nodes { texts: serde_json::Deserializer::from_reader(source), count }
    }

    /// Reads the next value; `None` at the end. Nothing behind the value is read, so that it is not waited for.
    pub fn read(&mut self) -> Result<Option<Node>, Unreadable> {
        self.count.bytes.set(0);
        self.count.values.set(0);
        match self.texts.end() {
            Ok(()) => return Ok(None),
            Err(error) if error.is_io() => return Err(self.unreadable(error)),
            // It says that a text begins here.
            Err(_) => {}
        }
        let read = Reading { count: &self.count, depth: 0 }.deserialize(&mut self.texts);
        read.map(Some).map_err(|error| self.unreadable(error))
    }

    fn unreadable(&self, error: serde_json::Error) -> Unreadable {
        if let Some(beyond) = self.count.beyond.take() {
            return Unreadable::Text(format!("{beyond} (line {})", self.count.lines.get() + 1));
        }
        let place = format!("line {}, column {}", error.line(), error.column());
        Unreadable::Text(match error.classify() {
            Category::Io => return Unreadable::Io(error.into()),
            Category::Eof => {
                format!("it ends too early, at {place}: a bracket or a quotation mark is not closed")
            }
            _ if error.to_string().starts_with("number out of range") => {
                format!("the number that ends at {place} is greater than any that can be meant")
            }
            Category::Syntax | Category::Data => format!("it is not JSON from {place} on"),
        })
    }
}

/// The counts of lines, bytes and values that were read.
#[derive(Default)]
struct Count {
    lines: Cell<usize>,
    /// Bytes of the text that is being read, and values in it.
    bytes: Cell<u64>,
    values: Cell<usize>,
    /// The limit that the text is beyond, as a sentence.
    beyond: RefCell<Option<String>>,
}

impl Count {
    /// Notes that a text is beyond a limit.
    fn refuse(&self, limit: String) {
        *self.beyond.borrow_mut() = Some(limit);
    }
}

/// A source that counts, and fails when one text is longer than any may be. It is asked for one byte at a time, so that no
/// lines are counted before they are parsed.
struct Counted {
    source: BufReader<Box<dyn io::Read>>,
    count: Rc<Count>,
}

impl io::Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let bytes = self.count.bytes.get();
        if bytes > TEXT_BYTES_MAX {
            self.count.refuse(format!("it is longer than {TEXT_BYTES_MAX} bytes"));
            return Err(io::Error::other("the text is too long"));
        }
        let read = self.source.read(buffer)?;
        self.count.bytes.set(bytes + read as u64);
        let lines = buffer[..read].iter().filter(|byte| **byte == b'\n').count();
        self.count.lines.set(self.count.lines.get() + lines);
        Ok(read)
    }
}

/// The reading of one value.
#[derive(Clone, Copy)]
struct Reading<'a> {
    count: &'a Count,
    depth: usize,
}

impl Reading<'_> {
    /// Returns the reading of a value inside of this one.
    fn inner(self) -> Self {
        Reading { depth: self.depth + 1, ..self }
    }
}

impl<'de> DeserializeSeed<'de> for Reading<'_> {
    type Value = Node;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Node, D::Error> {
        let values = self.count.values.get() + 1;
        self.count.values.set(values);
        let beyond = match (values > VALUES_MAX, self.depth > DEPTH_MAX) {
            (true, _) => Some(format!("it has more than {VALUES_MAX} values")),
            (_, true) => Some("its brackets are nested more deeply than those of any transaction".to_owned()),
            _ => None,
        };
        if let Some(beyond) = beyond {
            self.count.refuse(beyond);
            return Err(D::Error::custom("the text is beyond a limit"));
        }
        let line = self.count.lines.get() + 1;
        Ok(Node { line, json: deserializer.deserialize_any(self)? })
    }
}

impl<'de> Visitor<'de> for Reading<'_> {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Json, E> {
        Ok(Json::Bool(value))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Json, E> {
        Ok(Json::Whole(number))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Json, E> {
        Ok(Json::Number(number.to_string()))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Json, E> {
        // So that 1.0 is not shown as 1, which is a whole number.
        Ok(Json::Number(format!("{number:?}")))
    }

    fn visit_str<E>(self, text: &str) -> Result<Json, E> {
        Ok(Json::Text(text.to_owned()))
    }

    fn visit_string<E>(self, text: String) -> Result<Json, E> {
        Ok(Json::Text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Json, A::Error> {
        let mut nodes = Vec::new();
        while let Some(node) = list.next_element_seed(self.inner())? {
            nodes.push(node);
        }
        Ok(Json::List(nodes))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Json, A::Error> {
        let mut fields = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            fields.push((name, map.next_value_seed(self.inner())?));
        }
        Ok(Json::Fields(fields))
    }
}
