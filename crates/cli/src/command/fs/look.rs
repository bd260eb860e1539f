//! `nacre fs ls`, `stat`, `find` and `tree`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use globset::{Glob, GlobMatcher};
use jiff::Timestamp;
use nacre::fs::{Attributes, InodeKind, Listed};
use nacre_quantity::Escaped;
use serde_json::{Map, Value, json};

use super::{Path, Tree, mode_text};
use crate::failure::Failure;
use crate::output::{self, Array, Table};

/// List directories
#[derive(clap::Args, Debug)]
pub struct LsArgs {
    /// The paths; of a directory, its entries are listed
    #[arg(value_name = "PATH")]
    paths: Vec<OsString>,
    /// Show permissions, links, owner, size and time of modification (UTC) too
    #[arg(long, short)]
    long: bool,
}

/// Show all attributes; times are in UTC
#[derive(clap::Args, Debug)]
pub struct StatArgs {
    /// The paths to show
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<OsString>,
    /// Show the targets of symbolic links instead of the links
    #[arg(long, short = 'L')]
    follow: bool,
}

/// Print the paths of everything below a directory that matches all conditions
#[derive(clap::Args, Debug)]
pub struct FindArgs {
    /// The directory
    #[arg(value_name = "PATH", default_value = "/")]
    path: OsString,
    /// Only names that match, where * stands for any characters and ? for one
    #[arg(long, value_name = "PATTERN")]
    name: Option<String>,
    /// Only this kind
    #[arg(long = "type", value_name = "KIND")]
    kind: Option<FoundKind>,
}

/// A kind of what is found.
#[derive(clap::ValueEnum, Clone, Copy, Debug)]
enum FoundKind {
    #[value(alias = "f")]
    File,
    #[value(alias = "d")]
    Directory,
    #[value(alias = "l")]
    Symlink,
    /// An inode of a type with methods
    #[value(alias = "t")]
    Typed,
}

/// Draw a directory and everything below it as a tree
#[derive(clap::Args, Debug)]
pub struct TreeArgs {
    /// The directory
    #[arg(value_name = "PATH", default_value = "/")]
    path: OsString,
}

/// Runs `nacre fs ls`.
pub async fn ls(tree: &Tree, args: LsArgs) -> Result<(), Failure> {
    let paths = if args.paths.is_empty() { vec!["/".into()] } else { args.paths };
    let many = paths.len() > 1;
    let mut array = if tree.json { Some(Array::begin()?) } else { None };
    for (index, path) in paths.into_iter().map(Path::from).enumerate() {
        let found = tree.find(&path, !args.long, "list").await?;
        let mut table = Table::new(&["MODE", "LINKS", "UID", "GID", "SIZE", "CHANGED", "NAME"]);
        if found.kind != InodeKind::Directory {
            match &mut array {
                Some(array) => array.entry(&attributes_json(path.bytes(), &found))?,
                None if args.long => table.row(row(path.bytes(), &found)),
                None => output::line(&path.to_string())?,
            }
        } else {
            if many && array.is_none() {
                let gap = if index > 0 { "\n" } else { "" };
                output::line(&format!("{gap}{path}:"))?;
            }
            let with_attributes = args.long || tree.json;
            let each = async |listed: Listed| {
                match (&mut array, &listed.attributes) {
                    (Some(array), Some(attributes)) => {
                        array.entry(&attributes_json(&listed.name, attributes))?
                    }
                    (None, Some(attributes)) => table.row(row(&listed.name, attributes)),
                    _ => output::line(&Escaped(&listed.name).to_string())?,
                }
                Ok(())
            };
            tree.list(&found, &path, with_attributes, each).await?;
        }
        if args.long && array.is_none() {
            table.print()?;
        }
    }
    if let Some(array) = array {
        array.end()?;
    }
    Ok(())
}

fn row(name: &[u8], attributes: &Attributes) -> [String; 7] {
    let arrow = match attributes.kind {
        InodeKind::Symlink => format!(" -> {}", Escaped(&attributes.target)),
        _ => String::new(),
    };
    [
        mode_text(&attributes.kind, attributes.mode),
        attributes.links.to_string(),
        attributes.uid.to_string(),
        attributes.gid.to_string(),
        attributes.size.to_string(),
        time(attributes.mtime),
        format!("{}{arrow}", Escaped(name)),
    ]
}

/// Runs `nacre fs stat`.
pub async fn stat(tree: &Tree, args: StatArgs) -> Result<(), Failure> {
    let mut array = if tree.json { Some(Array::begin()?) } else { None };
    for (index, path) in args.paths.into_iter().map(Path::from).enumerate() {
        let found = tree.find(&path, args.follow, "look at").await?;
        if let Some(array) = &mut array {
            array.entry(&attributes_json(path.bytes(), &found))?;
            continue;
        }
        if index > 0 {
            output::line("")?;
        }
        let mut lines = vec![
            ("path", path.to_string()),
            ("inode", found.ino.to_string()),
            ("kind", Escaped::of(found.kind.name()).to_string()),
            ("mode", format!("{} ({:04o})", mode_text(&found.kind, found.mode), found.mode)),
            ("owner", format!("{}:{}", found.uid, found.gid)),
            ("links", found.links.to_string()),
            ("size", found.size.to_string()),
            ("content changed", time(found.mtime)),
            ("inode changed", time(found.ctime)),
            ("made", time(found.btime)),
        ];
        if found.kind == InodeKind::Symlink {
            lines.push(("target", Escaped(&found.target).to_string()));
        }
        if matches!(found.kind, InodeKind::File | InodeKind::Directory) {
            let layout = found.layout;
            let text = format!(
                "stripes of {} bytes over {} objects of up to {} bytes",
                layout.unit_bytes, layout.width, layout.object_bytes
            );
            lines.push(("layout", text));
        }
        for name in tree.rank.attributes(&tree.user, found.ino).await.unwrap_or_default() {
            let value = tree.rank.attribute(&tree.user, found.ino, &name).await;
            let value = value.map_or_else(|error| error.to_string(), |value| Escaped(&value).to_string());
            lines.push(("attribute", format!("{} = {value}", Escaped(&name))));
        }
        for (name, value) in lines {
            output::line(&format!("{name:<16} {value}"))?;
        }
    }
    if let Some(array) = array {
        array.end()?;
    }
    Ok(())
}

/// Runs `nacre fs find`.
pub async fn find(tree: &Tree, args: FindArgs) -> Result<(), Failure> {
    let name = match &args.name {
        None => None,
        Some(pattern) => {
            let glob = Glob::new(pattern).map_err(|error| {
                let shown = Escaped::of(pattern);
                Failure::Usage(format!("\"{shown}\" is not a pattern: {}", error.kind()))
            })?;
            Some(glob.compile_matcher())
        }
    };
    let matches = |found: &Attributes, path: &Path| {
        let has_name = |glob: &GlobMatcher| {
            let name = path.name().unwrap_or_default();
            glob.is_match(std::path::Path::new(std::ffi::OsStr::from_bytes(&name)))
        };
        name.as_ref().is_none_or(has_name)
            && match args.kind {
                None => true,
                Some(FoundKind::File) => found.kind == InodeKind::File,
                Some(FoundKind::Directory) => found.kind == InodeKind::Directory,
                Some(FoundKind::Symlink) => found.kind == InodeKind::Symlink,
                Some(FoundKind::Typed) => matches!(found.kind, InodeKind::Typed(_)),
            }
    };
    let path = Path(args.path.clone());
    let root = tree.find(&path, false, "search").await?;
    let mut array = if tree.json { Some(Array::begin()?) } else { None };
    // Directories that are to be listed, the next one last.
    let mut waiting = vec![(path, root)];
    while let Some((path, found)) = waiting.pop() {
        if matches(&found, &path) {
            match &mut array {
                Some(array) => array.entry(&attributes_json(path.bytes(), &found))?,
                None => output::line(&path.to_string())?,
            }
        }
        if found.kind == InodeKind::Directory {
            let mut below = Vec::new();
            let each = async |listed: Listed| {
                if let Some(attributes) = listed.attributes {
                    below.push((path.join(&listed.name), attributes));
                }
                Ok(())
            };
            tree.list(&found, &path, true, each).await?;
            waiting.extend(below.into_iter().rev());
        }
    }
    if let Some(array) = array {
        array.end()?;
    }
    Ok(())
}

/// Runs `nacre fs tree`.
pub async fn tree(tree: &Tree, args: TreeArgs) -> Result<(), Failure> {
    let path = Path(args.path);
    let root = tree.find(&path, true, "show").await?;
    let mut array = if tree.json { Some(Array::begin()?) } else { None };
    // What is to be shown, with the lines in front of it; the next one last.
    let mut waiting = vec![(path, root, String::new(), true, 0_usize)];
    while let Some((path, found, before, is_last, depth)) = waiting.pop() {
        let name = path.name().unwrap_or_default();
        match &mut array {
            Some(array) => array.entry(&attributes_json(path.bytes(), &found))?,
            None if depth == 0 => output::line(&path.to_string())?,
            None => {
                let branch = if is_last { "└── " } else { "├── " };
                let end = if found.kind == InodeKind::Directory { "/" } else { "" };
                output::line(&format!("{before}{branch}{}{end}", Escaped(&name)))?;
            }
        }
        if found.kind != InodeKind::Directory {
            continue;
        }
        let before = match (depth, is_last) {
            (0, _) => String::new(),
            (_, true) => format!("{before}    "),
            (_, false) => format!("{before}│   "),
        };
        let mut below = Vec::new();
        let each = async |listed: Listed| {
            if let Some(attributes) = listed.attributes {
                below.push((path.join(&listed.name), attributes, before.clone(), false, depth + 1));
            }
            Ok(())
        };
        tree.list(&found, &path, true, each).await?;
        if let Some(last) = below.last_mut() {
            last.3 = true;
        }
        waiting.extend(below.into_iter().rev());
    }
    if let Some(array) = array {
        array.end()?;
    }
    Ok(())
}

/// Returns a time of the namespace for people.
fn time(nanoseconds: i64) -> String {
    Timestamp::from_nanosecond(nanoseconds.into())
        .map_or_else(|_| nanoseconds.to_string(), |time| time.strftime("%Y-%m-%dT%H:%M:%S.%9fZ").to_string())
}

/// Returns attributes as JSON.
fn attributes_json(path: &[u8], attributes: &Attributes) -> Value {
    let mut map = Map::new();
    output::put_bytes(&mut map, "path", path);
    map.insert("inode".into(), json!(attributes.ino.0));
    map.insert("kind".into(), json!(attributes.kind.name()));
    map.insert("mode".into(), json!(format!("{:04o}", attributes.mode)));
    for (name, value) in [
        ("uid", attributes.uid.into()),
        ("gid", attributes.gid.into()),
        ("links", attributes.links.into()),
        ("size", attributes.size),
    ] {
        map.insert(name.into(), json!(value));
    }
    for (name, time) in [
        ("atime_ns", attributes.atime),
        ("mtime_ns", attributes.mtime),
        ("ctime_ns", attributes.ctime),
        ("btime_ns", attributes.btime),
    ] {
        map.insert(name.into(), json!(time));
    }
    if attributes.kind == InodeKind::Symlink {
        output::put_bytes(&mut map, "target", &attributes.target);
    }
    let layout = attributes.layout;
    map.insert(
        "layout".into(),
        json!({ "unit_bytes": layout.unit_bytes, "width": layout.width, "object_bytes": layout.object_bytes }),
    );
    Value::Object(map)
}
