//! Printing a report as text and as JSON.

use std::collections::HashMap;
use std::io::{self, Write};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use comfy_table::CellAlignment;
use comfy_table::presets::NOTHING;
use nacre_quantity::{Escaped, count, grouped, size};
use serde_json::{Map, Value, json};

use crate::WalkError;
use crate::entry::FileKind;
use crate::list::{group_name, kind_word, user_name};
use crate::report::histogram::{Histogram, Measure};
use crate::report::level::{LEVEL_MAX, Level, Levels};
use crate::report::rank::Ranking;
use crate::report::{Report, Tally};

const KINDS: [FileKind; crate::report::KINDS] = [
    FileKind::File,
    FileKind::Directory,
    FileKind::Link,
    FileKind::Pipe,
    FileKind::Socket,
    FileKind::CharacterDevice,
    FileKind::BlockDevice,
    FileKind::Unknown,
];

/// Returns the sum over the kinds that are neither files nor directories nor links.
fn others(report: &Report) -> Tally {
    let mut others = Tally::default();
    report.kinds[FileKind::Pipe as usize..].iter().for_each(|tally| others.add(tally));
    others
}

/// Prints the report as tables.
///
/// # Errors
/// Those of `output`.
pub fn text(report: &Report, output: &mut impl Write) -> io::Result<()> {
    let mut table = Table::new(&["", "entries", "apparent", "allocated"]);
    let mut row = |name: &str, tally: &Tally| {
        table.row([name.into(), grouped(tally.entries), size(tally.apparent), size(tally.allocated)]);
    };
    row("files", &report.kinds[FileKind::File as usize]);
    row("directories", &report.kinds[FileKind::Directory as usize]);
    row("links", &report.kinds[FileKind::Link as usize]);
    row("others", &others(report));
    row("total", &report.total());
    table.print(output)?;
    writeln!(output)?;
    if report.linked_names > 0 {
        let names = count(report.linked_names, "name", "names");
        let files = count(report.linked_files, "file", "files");
        writeln!(output, "hard links: {names} of {files}, whose bytes are counted once")?;
    }
    if !report.deepest.path.is_empty() {
        let levels = count(report.deepest.depth.into(), "level", "levels");
        let within = if report.deepest.depth > 0 { "in " } else { "" };
        writeln!(output, "deepest: {levels}, {within}{}", Escaped(&report.deepest.path))?;
    }
    if let Some(largest) = report.crowded.sorted().first() {
        let entries = count(largest.size(), "entry", "entries");
        writeln!(output, "largest directory: {entries}, {}", Escaped(largest.path()))?;
    }
    let problems = &report.problems;
    if problems.mount_points > 0 {
        let first = problems.mounts.first().map_or_else(String::new, |path| Escaped(path).to_string());
        let others = if problems.mount_points > 1 { ", …" } else { "" };
        let points = count(problems.mount_points, "mount point", "mount points");
        writeln!(output, "not entered: {points}, {first}{others}")?;
    }
    if problems.vanished > 0 {
        let entries = count(problems.vanished, "entry", "entries");
        writeln!(output, "vanished during the walk: {entries}")?;
    }
    if problems.missing > 0 {
        let first = problems.missing_first.first().map_or_else(String::new, |path| Escaped(path).to_string());
        let others = if problems.missing > 1 { ", …" } else { "" };
        let directories = count(problems.missing, "directory", "directories");
        writeln!(output, "moved or removed before they were opened: {directories}, {first}{others}")?;
    }
    if problems.errors > 0 {
        writeln!(output, "errors: {}", grouped(problems.errors))?;
    }
    ranking(&report.files, "largest files", size, output)?;
    ranking(&report.by_entries, "directories with the most entries", grouped, output)?;
    ranking(&report.by_bytes, "directories with the most bytes below them", size, output)?;
    for each in &report.histograms {
        histogram(each, output)?;
    }
    report.levels.as_ref().map_or(Ok(()), |counts| levels(counts, output))
}

fn ranking(
    ranking: &Ranking,
    title: &str,
    shown_size: fn(u64) -> String,
    output: &mut impl Write,
) -> io::Result<()> {
    if ranking.max() == 0 {
        return Ok(());
    }
    writeln!(output, "\n{title}")?;
    // Not as a table, which would hold all paths twice, however long they are.
    let largest = ranking.sorted();
    let sizes: Vec<String> = largest.iter().map(|ranked| shown_size(ranked.size())).collect();
    let width = sizes.iter().map(String::len).max().unwrap_or(0);
    for (size, ranked) in sizes.iter().zip(largest) {
        writeln!(output, "{size:>width$}  {}", Escaped(ranked.path()))?;
    }
    Ok(())
}

fn histogram(histogram: &Histogram, output: &mut impl Write) -> io::Result<()> {
    writeln!(output, "\n{}", title(histogram.measure()))?;
    let most = histogram.buckets().map(|(_, tally)| tally.entries).max().unwrap_or(1);
    let mut table = Table::new(&[histogram.measure().name(), "entries", "apparent", "allocated", " "]);
    let mut users = HashMap::new();
    for (bucket, tally) in histogram.shown_buckets() {
        let bar = "#".repeat((tally.entries as f64 / most as f64 * 30.0).ceil() as usize);
        let name = bucket_name(histogram, bucket, &mut users);
        table.row([name, grouped(tally.entries), size(tally.apparent), size(tally.allocated), bar]);
    }
    table.print(output)
}

fn levels(levels: &Levels, output: &mut impl Write) -> io::Result<()> {
    writeln!(output, "\nlevels below the roots")?;
    let mut table = Table::new(&["level", "entries", "directories", "files", "apparent", "allocated"]);
    for (depth, Level { tally, directories, files }) in levels.shown() {
        let name = level_name(depth);
        let (entries, directories, files) = (grouped(tally.entries), grouped(*directories), grouped(*files));
        table.row([name, entries, directories, files, size(tally.apparent), size(tally.allocated)]);
    }
    table.print(output)
}

/// Returns the label of a level, or of all that are deeper than [`LEVEL_MAX`].
fn level_name(depth: u32) -> String {
    if depth > LEVEL_MAX { format!("over {LEVEL_MAX}") } else { depth.to_string() }
}

/// Returns the title of a histogram.
pub(crate) fn title(measure: Measure) -> &'static str {
    match measure {
        Measure::Size => "files by apparent size",
        Measure::Age => "entries by days since their modification",
        Measure::Depth => "entries by levels below the root",
        Measure::Owner => "entries by owner",
        Measure::Type => "entries by type",
        Measure::Group => "entries by group",
        Measure::Access => "entries by days since their last access",
        Measure::Change => "entries by days since the last change of their inode",
    }
}

/// Returns the label of a bucket. `names` keeps those of users or groups between calls for one histogram.
pub(crate) fn bucket_name(histogram: &Histogram, bucket: u32, names: &mut HashMap<u32, String>) -> String {
    let bounds = histogram.bounds(bucket);
    match (histogram.measure(), bounds) {
        (Measure::Size, Some((0, _))) => "empty".into(),
        (Measure::Size, Some((low, _))) => format!("from {}", size(low)),
        (_, Some((low, high))) if low == high => low.to_string(),
        (_, Some((low, high))) => format!("{low} to {high}"),
        (Measure::Age | Measure::Access | Measure::Change, None) => "in the future".into(),
        (Measure::Owner, _) => user_name(names, bucket).to_owned(),
        (Measure::Group, _) => group_name(names, bucket).to_owned(),
        (Measure::Type, _) => KINDS.get(bucket as usize).map_or("unknown", |kind| kind_word(*kind)).into(),
        (Measure::Depth, _) => level_name(bucket),
        (Measure::Size, _) => bucket.to_string(),
    }
}

/// Returns the report as a JSON object.
pub fn json(report: &Report) -> Value {
    let kind = |kind: FileKind| tally(&report.kinds[kind as usize]);
    let problems = &report.problems;
    let mut object = json!({
        "files": kind(FileKind::File),
        "directories": kind(FileKind::Directory),
        "links": kind(FileKind::Link),
        "others": tally(&others(report)),
        "total": tally(&report.total()),
        "hard_links": { "names": report.linked_names, "files": report.linked_files },
        "deepest": Value::Null,
        "largest_directory": Value::Null,
        "errors": {
            "count": problems.errors,
            "first": problems.first.iter().map(error).collect::<Vec<_>>(),
        },
        "vanished": problems.vanished,
        "missing_directories": {
            "count": problems.missing,
            "first": problems.missing_first.iter().map(|missing| path(missing, "depth", None)).collect::<Vec<_>>(),
        },
        "mount_points": {
            "count": problems.mount_points,
            "first": problems.mounts.iter().map(|mount| path(mount, "depth", None)).collect::<Vec<_>>(),
        },
    });
    if !report.deepest.path.is_empty() {
        object["deepest"] = path(&report.deepest.path, "depth", Some(report.deepest.depth.into()));
    }
    if let Some(largest) = report.crowded.sorted().first() {
        object["largest_directory"] = path(largest.path(), "entries", Some(largest.size()));
    }
    if report.files.max() > 0 {
        let ranking = |ranking: &Ranking, key: &str| -> Vec<Value> {
            ranking.sorted().iter().map(|ranked| path(ranked.path(), key, Some(ranked.size()))).collect()
        };
        object["top"] = json!({
            "files": ranking(&report.files, "apparent"),
            "directories_by_entries": ranking(&report.by_entries, "entries"),
            "directories_by_bytes": ranking(&report.by_bytes, "allocated"),
        });
    }
    if !report.histograms.is_empty() {
        let named = |of: &Histogram| (of.measure().name().to_owned(), buckets(of));
        object["histograms"] = Value::Object(report.histograms.iter().map(named).collect());
    }
    if let Some(levels) = &report.levels {
        object["levels"] = levels.shown().map(level).collect();
    }
    object
}

/// Returns the buckets of a histogram.
fn buckets(histogram: &Histogram) -> Value {
    let mut users = HashMap::new();
    let objects = histogram.shown_buckets().into_iter().map(|(bucket, counted)| {
        let mut object = Map::new();
        match (histogram.measure(), histogram.bounds(bucket)) {
            (_, Some((low, high))) => {
                object.insert("from".into(), low.into());
                object.insert("to".into(), high.into());
            }
            (Measure::Depth, _) => drop(match bucket {
                0..=LEVEL_MAX => object.insert("depth".into(), bucket.into()),
                _ => object.insert("deeper_than".into(), LEVEL_MAX.into()),
            }),
            (Measure::Owner, _) => {
                object.insert("user".into(), user_name(&mut users, bucket).into());
                object.insert("uid".into(), bucket.into());
            }
            (Measure::Type, _) => {
                object.insert("type".into(), bucket_name(histogram, bucket, &mut users).into());
            }
            (Measure::Group, _) => {
                object.insert("group".into(), group_name(&mut users, bucket).into());
                object.insert("gid".into(), bucket.into());
            }
            // In the future.
            (Measure::Age | Measure::Access | Measure::Change | Measure::Size, None) => {
                drop(object.insert("to".into(), (-1).into()))
            }
        }
        if let Value::Object(counted) = tally(&counted) {
            object.extend(counted);
        }
        Value::Object(object)
    });
    objects.collect()
}

fn level((depth, counts): (u32, &Level)) -> Value {
    let Level { tally: Tally { entries, apparent, allocated }, directories, files } = counts;
    let mut object = match depth {
        0..=LEVEL_MAX => json!({ "depth": depth }),
        _ => json!({ "deeper_than": LEVEL_MAX }),
    };
    object["entries"] = json!(entries);
    object["directories"] = json!(directories);
    object["files"] = json!(files);
    object["apparent"] = json!(apparent);
    object["allocated"] = json!(allocated);
    object
}

fn tally(tally: &Tally) -> Value {
    json!({ "entries": tally.entries, "apparent": tally.apparent, "allocated": tally.allocated })
}

fn path(path: &[u8], key: &str, number: Option<u64>) -> Value {
    let mut object = Map::new();
    put_path(&mut object, path);
    object.extend(number.map(|number| (key.to_owned(), number.into())));
    Value::Object(object)
}

fn put_path(object: &mut Map<String, Value>, path: &[u8]) {
    match std::str::from_utf8(path) {
        Ok(text) => object.insert("path".into(), text.into()),
        Err(_) => object.insert("path_base64".into(), STANDARD.encode(path).into()),
    };
}

fn error(error: &WalkError) -> Value {
    let mut object = Map::new();
    put_path(&mut object, &error.path);
    object.insert("operation".into(), json!(error.operation));
    object.insert("errno".into(), error.errno.into());
    object.insert("message".into(), error.to_string().into());
    Value::Object(object)
}

/// A table whose columns are as wide as their contents. Columns of numbers are aligned right.
struct Table(comfy_table::Table);

impl Table {
    fn new(heads: &[&str]) -> Table {
        let mut table = comfy_table::Table::new();
        table.load_style(NOTHING);
        table.set_header(heads.iter().map(|head| head.to_uppercase()));
        Table(table)
    }

    fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.0.add_row(cells);
    }

    fn print(mut self, output: &mut impl Write) -> io::Result<()> {
        let columns = self.0.column_count();
        for index in 0..columns {
            let mut cells = self.0.column_cells_iter(index).flatten();
            // What rows are about stands at their beginning.
            let numbers = index > 0
                && index + 1 < columns
                && cells.all(|cell| cell.content().starts_with(|c: char| c.is_ascii_digit()));
            let Some(column) = self.0.column_mut(index) else { continue };
            column.set_padding((0, 2));
            column.set_cell_alignment(if numbers { CellAlignment::Right } else { CellAlignment::Left });
        }
        self.0.lines().try_for_each(|line| writeln!(output, "{}", line.trim_end()))
    }
}
