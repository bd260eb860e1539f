//! `nacre class`: object classes are installed, looked at, tried and called.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use nacre::class::{Bounds, CallError, Called, ClassError, Record, Request};
use nacre::{ObjectId, Store};
use nacre_class::{TEXT_BYTES_MAX, packed, transcript};
use nacre_quantity::Escaped;
use serde_json::{Map, Value, json};

use crate::failure::Failure;
use crate::output::{self, Array, Table};
use crate::quantity::Time;
use crate::quantity::{self, parse_size};
use crate::session::Context;
use crate::{arguments, complete, name};

/// Install object classes and call their methods
///
/// A class is a Lua script. A call of a method runs on one object, sees one consistent state of it, and takes effect
/// atomically.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand, Debug)]
enum Action {
    /// Install a script as the next version of a class; prints the version
    Put {
        /// The Lua script; - is standard input
        file: PathBuf,
        /// The class [default: the file's name without its extension]
        #[arg(long)]
        name: Option<String>,
        #[command(flatten)]
        bounds: BoundsArgs,
    },
    /// List classes with their methods
    Ls,
    /// Print the script of a class
    Show {
        /// The class
        class: String,
        /// Print this earlier version
        #[arg(long, value_name = "NUMBER")]
        version: Option<u64>,
    },
    /// List the versions of a class, newest first
    History {
        /// The class
        class: String,
    },
    /// Install an earlier version of a class again as the newest; prints the new version
    Rollback {
        /// The class
        class: String,
        /// The version to bring back [default: the one before the newest]
        version: Option<u64>,
    },
    /// Remove a class; its versions are kept
    Rm {
        /// The class
        class: String,
    },
    /// Call a method on an object; prints its output
    Call {
        /// The object, which need not exist
        #[arg(value_parser = name::object(), add = complete::objects())]
        object: ObjectId,
        /// The class and its method
        #[arg(value_name = "CLASS.METHOD")]
        method: String,
        /// Input, passed unchanged; - is standard input
        #[arg(default_value = "", hide_default_value = true, value_parser = name::value(), allow_hyphen_values = true)]
        input: Bytes,
        /// Pack the input: it is a JSON array, and each element becomes a packed value
        #[arg(long)]
        pack: bool,
        /// Print packed output as JSON, one value per line
        #[arg(long)]
        unpack: bool,
        #[command(flatten)]
        bounds: BoundsArgs,
    },
    /// Check classes, and run the calls in their comments on an object in memory
    ///
    /// "--> METHOD INPUT" calls a method, "--= OUTPUT" states its expected output, "--! ERROR" its expected error.
    Test {
        /// The Lua scripts; classes may call each other
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
}

/// Bounds of a call.
#[derive(clap::Args, Debug)]
struct BoundsArgs {
    /// Maximum instructions of a call [default: 10000000]
    #[arg(long, value_name = "COUNT", value_parser = arguments::at_least_one)]
    instructions: Option<usize>,
    /// Maximum memory that a call may allocate [default: 32MiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    memory: Option<u64>,
    /// Maximum length of a call's output [default: 4MiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    output: Option<u64>,
    /// Maximum run time of a call's script [default: 1s]
    #[arg(long, value_name = "TIME", value_parser = wall)]
    wall: Option<Time>,
}

/// Parses the time that a script may run.
fn wall(text: &str) -> Result<Time, String> {
    match text.parse::<Time>()? {
        Time(time) if time.is_zero() => Err("a script that may not run does nothing".to_owned()),
        time => Ok(time),
    }
}

impl BoundsArgs {
    /// Returns bounds with those that were given replaced; none if none was given.
    fn over(&self, bounds: Bounds) -> Option<Bounds> {
        let given = self.instructions.is_some()
            || self.memory.is_some()
            || self.output.is_some()
            || self.wall.is_some();
        let bounds = Bounds {
            instructions: self.instructions.map_or(bounds.instructions, |count| count as u64),
            memory_bytes: self.memory.unwrap_or(bounds.memory_bytes),
            output_bytes: self.output.unwrap_or(bounds.output_bytes),
            wall: self.wall.as_ref().map_or(bounds.wall, |wall| wall.0),
            ..bounds
        };
        given.then(|| bounds.clamped())
    }
}

/// Runs `nacre class`.
pub async fn run(session: &Context, args: Args) -> Result<(), Failure> {
    match args.action {
        Action::Put { file, name, bounds } => {
            let (name, text) = (class_name(&file, name)?, read_text(&file)?);
            let store = session.open_to_fill()?;
            let bounds = bounds.over(Bounds::default()).unwrap_or_default();
            let version = store.classes().put(&name, text, bounds).await.map_err(failure)?;
            print_version(session, &name, version)
        }
        Action::Ls => list(session).await,
        Action::Show { class, version } => show(session, &class, version).await,
        Action::History { class } => history(session, &class).await,
        Action::Rollback { class, version } => {
            let version = session.open()?.classes().rollback(&class, version).await.map_err(failure)?;
            print_version(session, &class, version)
        }
        Action::Rm { class } => {
            let version = session.open()?.classes().remove(&class).await.map_err(failure)?;
            print_version(session, &class, version)
        }
        Action::Call { object, method, input, pack, unpack, bounds } => {
            let store = session.open_to_fill()?;
            let input = if input == "-" { read_input()? } else { input };
            let input = if pack { pack_input(&input)? } else { input };
            call(session, store, &object, &method, input, unpack, &bounds).await
        }
        Action::Test { files } => test(session, &files).await,
    }
}

fn failure(error: ClassError) -> Failure {
    match error {
        ClassError::Store(error) => error.into(),
        ClassError::Missing { version: None, .. } => {
            Failure::Failed(format!("{error}; \"nacre class ls\" lists the existing classes"))
        }
        ClassError::Missing { name, .. } => {
            let name = Escaped::of(&name);
            let advice = format!("\"nacre class history {name}\" lists those that are kept");
            Failure::Failed(format!("class \"{name}\" has no such version; {advice}"))
        }
        error => Failure::Failed(error.to_string()),
    }
}

fn print_version(session: &Context, class: &str, version: u64) -> Result<(), Failure> {
    let line = match session.json {
        true => json!({ "class": class, "version": version }).to_string(),
        false => version.to_string(),
    };
    Ok(output::line(&line)?)
}

fn class_name(file: &Path, name: Option<String>) -> Result<String, Failure> {
    let stem = || file.file_stem().map(|stem| stem.to_string_lossy().into_owned());
    match name.or_else(|| stem().filter(|stem| stem != "-")) {
        Some(name) => Ok(name),
        None => {
            Err(Failure::Usage("a text from standard input needs a name: give it with --name".to_owned()))
        }
    }
}

/// Reads a text, a little more than a class may have, so that what is too long is refused by the rules.
fn read_text(file: &Path) -> Result<Bytes, Failure> {
    let mut text = Vec::new();
    let limit = TEXT_BYTES_MAX as u64 + 1;
    let read = match file.as_os_str() == "-" {
        true => std::io::stdin().lock().take(limit).read_to_end(&mut text),
        false => std::fs::File::open(file).and_then(|file| file.take(limit).read_to_end(&mut text)),
    };
    read.map_err(Failure::io(format_args!("read {}", Escaped::of(file))))?;
    Ok(text.into())
}

pub(super) fn read_input() -> Result<Bytes, Failure> {
    let limit = nacre::limit::TRANSACTION_BYTES_MAX as u64;
    let mut input = Vec::new();
    let read = std::io::stdin().lock().take(limit + 1).read_to_end(&mut input);
    read.map_err(Failure::io("read standard input"))?;
    if input.len() as u64 > limit {
        let text =
            format!("standard input holds more than the {} that an input may have", quantity::size(limit));
        return Err(Failure::Failed(text));
    }
    Ok(input.into())
}

fn pack_input(input: &[u8]) -> Result<Bytes, Failure> {
    let values = match serde_json::from_slice(input) {
        Ok(Value::Array(values)) => values,
        _ => return Err(Failure::Usage("the input to be packed is not a JSON array".to_owned())),
    };
    packed::pack(&values).map(Bytes::from).map_err(Failure::Usage)
}

async fn list(session: &Context) -> Result<(), Failure> {
    let catalogue = session.open()?.classes().catalogue().await?;
    if session.json {
        let mut array = Array::begin()?;
        for class in catalogue.classes.values() {
            let methods: Vec<Value> = class
                .methods
                .iter()
                .map(|method| {
                    json!({
                        "name": method.name,
                        "writes": method.writes,
                        "about": method.about,
                        "input": method.input,
                        "output": method.output,
                    })
                })
                .collect();
            array.entry(&json!({ "class": class.name, "version": class.version, "methods": methods }))?;
        }
        return Ok(array.end()?);
    }
    let mut table = Table::new(&["class", "version", "method", "changes", "about"]);
    for class in catalogue.classes.values() {
        for method in &class.methods {
            let changes = if method.writes { "yes" } else { "no" };
            table.row([
                Escaped::of(&class.name).to_string(),
                class.version.to_string(),
                Escaped::of(&method.name).to_string(),
                changes.to_owned(),
                Escaped::of(&method.about).to_string(),
            ]);
        }
    }
    Ok(table.print()?)
}

async fn show(session: &Context, class: &str, version: Option<u64>) -> Result<(), Failure> {
    let history = session.open()?.classes().history(class).await.map_err(failure)?;
    let wanted = match version {
        Some(version) => history.iter().find(|record| record.version == version),
        None => history.first(),
    };
    let Some(record) = wanted.filter(|record| !record.removed) else {
        return Err(failure(ClassError::Missing { name: class.to_owned(), version }));
    };
    if session.json {
        let mut map = describe(record);
        map.insert("class".to_owned(), class.into());
        output::put_bytes(&mut map, "text", &record.text);
        return Ok(output::line(&Value::Object(map).to_string())?);
    }
    Ok(output::foreign_text(&record.text)?)
}

fn describe(record: &Record) -> Map<String, Value> {
    let bounds = json!({
        "instructions": record.bounds.instructions,
        "memory_bytes": record.bounds.memory_bytes,
        "output_bytes": record.bounds.output_bytes,
        "wall_ms": record.bounds.wall.as_millis() as u64,
    });
    let mut map = Map::new();
    map.insert("version".to_owned(), record.version.into());
    map.insert("removed".to_owned(), record.removed.into());
    map.insert("restored".to_owned(), record.restored.into());
    map.insert("made_s".to_owned(), record.made_s.into());
    map.insert("bytes".to_owned(), record.text.len().into());
    map.insert("bounds".to_owned(), bounds);
    map
}

async fn history(session: &Context, class: &str) -> Result<(), Failure> {
    let history = session.open()?.classes().history(class).await.map_err(failure)?;
    if session.json {
        let mut array = Array::begin()?;
        for record in &history {
            array.entry(&Value::Object(describe(record)))?;
        }
        return Ok(array.end()?);
    }
    let mut table = Table::new(&["version", "bytes", "methods", "remark"]);
    for record in &history {
        let remark = match record.restored {
            _ if record.removed => "removed".to_owned(),
            Some(version) => format!("version {version} again"),
            None => String::new(),
        };
        let (bytes, methods) = (record.text.len().to_string(), record.methods.len().to_string());
        table.row([record.version.to_string(), bytes, methods, remark]);
    }
    Ok(table.print()?)
}

async fn call(
    session: &Context,
    store: Store,
    object: &ObjectId,
    name: &str,
    input: Bytes,
    unpack: bool,
    bounds: &BoundsArgs,
) -> Result<(), Failure> {
    let Some((class, method)) = name.split_once('.') else {
        return Err(Failure::Usage(format!("\"{}\" is not CLASS.METHOD", Escaped::of(name))));
    };
    let classes = store.classes();
    let mut request = Request::new(object, class, method).input(input);
    if bounds.over(Bounds::default()).is_some() {
        let catalogue = classes.catalogue().await?;
        let own = catalogue.classes.get(class).map_or_else(Bounds::default, |class| class.bounds);
        request.bounds = bounds.over(own);
    }
    match classes.call(&request).await {
        Ok(called) => print_result(session, &called, unpack),
        Err(error) => Err(call_failure(error)),
    }
}

/// Prints what a method logged that failed, and returns its failure.
pub(super) fn call_failure(error: CallError) -> Failure {
    match error {
        CallError::Store(error) => error.into(),
        error => {
            if let CallError::Failed { failure, .. } = &error {
                complain(&failure.log);
            }
            Failure::Failed(error.to_string())
        }
    }
}

/// Prints what a method logged.
fn complain(log: &[String]) {
    for line in log {
        output::complain_foreign(line);
    }
}

pub(super) fn print_result(session: &Context, called: &Called, unpack: bool) -> Result<(), Failure> {
    let values = match unpack {
        true => Some(packed::unpack(&called.output).map_err(|text| {
            Failure::Failed(format!(
                "the method's output is not packed: {text}; leave out --unpack to see it"
            ))
        })?),
        false => None,
    };
    if session.json {
        let mut map = Map::new();
        map.insert("result".to_owned(), called.result.into());
        match values {
            Some(values) => drop(map.insert("values".to_owned(), values.into())),
            None => output::put_bytes(&mut map, "output", &called.output),
        }
        map.insert("version".to_owned(), called.version.into());
        map.insert("wrote".to_owned(), called.wrote.into());
        map.insert("class_version".to_owned(), called.class_version.into());
        map.insert("attempts".to_owned(), called.attempts.into());
        map.insert("instructions".to_owned(), called.instructions.into());
        map.insert("log".to_owned(), called.log.clone().into());
        return Ok(output::line(&Value::Object(map).to_string())?);
    }
    complain(&called.log);
    match values {
        Some(values) => {
            for value in values {
                output::line(&value.to_string())?;
            }
            Ok(())
        }
        None => Ok(output::foreign(&called.output)?),
    }
}

async fn test(session: &Context, files: &[PathBuf]) -> Result<(), Failure> {
    let store = nacre::open("mem:")?;
    let classes = store.classes();
    let mut texts = Vec::new();
    for file in files {
        let (name, text) = (class_name(file, None)?, read_text(file)?);
        classes.put(&name, text.clone(), Bounds::default()).await.map_err(failure)?;
        texts.push((name, text));
    }
    let mut failed = 0;
    let mut total = 0;
    for (name, text) in &texts {
        let wrong = |text: String| Failure::Failed(format!("class \"{name}\": {text}"));
        let steps = transcript::parse(&String::from_utf8_lossy(text)).map_err(wrong)?;
        let object = ObjectId::new(format!("test of {name}"))?;
        let differences = transcript::run(classes, name, &steps, &object).await?;
        total += steps.len();
        failed += differences.len();
        if session.json {
            let differences: Vec<Value> = differences
                .iter()
                .map(|difference| json!({ "line": difference.line, "call": difference.call, "text": difference.text }))
                .collect();
            let line = json!({ "class": name, "calls": steps.len(), "differences": differences });
            output::line(&line.to_string())?;
            continue;
        }
        for difference in &differences {
            output::line(&format!("{name}:{}: {}: {}", difference.line, difference.call, difference.text))?;
        }
        output::line(&format!(
            "{name}: {} of {} calls as expected",
            steps.len() - differences.len(),
            steps.len()
        ))?;
    }
    match failed {
        0 => Ok(()),
        _ => Err(Failure::Failed(format!("{failed} of {total} calls did not end as expected"))),
    }
}
