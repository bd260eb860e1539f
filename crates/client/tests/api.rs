//! The public interface of the crate: its committed listing, the examples of its types, and whether they can be named.
//!
//! `scripts/api` runs it, because it has to make rustdoc describe the crate and those of which it exports types before.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use public_api::Builder;
use rustdoc_types::{Crate, Id, ItemEnum, ItemKind, ItemSummary, StructKind, VariantKind};
use serde_json::Value;

/// The package's description as rustdoc wrote it, and those of the crates of which it exports types.
struct Described {
    folder: PathBuf,
    crates: BTreeMap<String, Crate>,
}

/// An item that users of the package meet.
struct Public<'a> {
    /// The path by which users name it.
    path: String,
    /// The path by which other packages name it, if it is defined in another crate.
    source: Option<String>,
    id: Id,
    /// Its documentation: of a re-export, that of both places.
    docs: String,
    /// The crate that has it.
    described: &'a Crate,
}

static DESCRIBED: LazyLock<Described> = LazyLock::new(Described::read);

impl Described {
    fn read() -> Self {
        let folder = std::env::var_os("NACRE_API_FOLDER").expect("scripts/api runs this test");
        let folder = PathBuf::from(folder);
        let mut crates = BTreeMap::new();
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            if name.starts_with("nacre") && path.extension().is_some_and(|extension| extension == "json") {
                let text = std::fs::read_to_string(&path).unwrap();
                crates.insert(name, serde_json::from_str(&text).unwrap());
            }
        }
        assert!(crates.len() > 5, "{:?}", crates.keys());
        Self { folder, crates }
    }

    /// Returns every module, type, trait, function and constant of the package.
    fn items(&self) -> Vec<Public<'_>> {
        let nacre = &self.crates["nacre"];
        let mut items = Vec::new();
        self.visit(nacre, nacre.root, "nacre", None, String::new(), &mut items);
        assert!(items.len() > 100, "{} items", items.len());
        items
    }

    /// Adds a module and all that is in it. `source` is its path in its own crate, if that is another one; `docs` what a
    /// re-export says of it.
    fn visit<'a>(
        &'a self,
        described: &'a Crate,
        module: Id,
        path: &str,
        source: Option<&str>,
        docs: String,
        items: &mut Vec<Public<'a>>,
    ) {
        let module = &described.index[&module];
        let ItemEnum::Module(content) = &module.inner else { panic!("{path} is no module") };
        let docs = docs + module.docs.as_deref().unwrap_or_default();
        let source_path = source.map(str::to_owned);
        items.push(Public { path: path.to_owned(), source: source_path, id: module.id, docs, described });
        for id in &content.items {
            let item = &described.index[id];
            let docs = item.docs.clone().unwrap_or_default();
            let ItemEnum::Use(used) = &item.inner else {
                let Some(name) = &item.name else { continue };
                let (path, source) =
                    (format!("{path}::{name}"), source.map(|source| format!("{source}::{name}")));
                match &item.inner {
                    ItemEnum::Module(_) => {
                        self.visit(described, *id, &path, source.as_deref(), String::new(), items)
                    }
                    _ => items.push(Public { path, source, id: *id, docs, described }),
                }
                continue;
            };
            let path = format!("{path}::{}", used.name);
            assert!(!used.is_glob, "{path} exports whatever {} has: name it", used.source);
            // Exported as a whole, with its own documentation.
            if used.source == "bytes" {
                continue;
            }
            let Some((owner, target)) = used.id.and_then(|id| self.find(described, id)) else {
                panic!("{path} is of a crate that scripts/api does not describe")
            };
            let source = if std::ptr::eq(owner, described) { source } else { Some(used.source.as_str()) };
            let target_item = &owner.index[&target];
            if matches!(target_item.inner, ItemEnum::Module(_)) {
                self.visit(owner, target, &path, source, docs, items);
            } else {
                let docs = docs + "\n" + target_item.docs.as_deref().unwrap_or_default();
                items.push(Public {
                    path,
                    source: source.map(str::to_owned),
                    id: target,
                    docs,
                    described: owner,
                });
            }
        }
    }

    /// Returns the crate in which an item is defined, with the item's number there.
    fn find<'a>(&'a self, described: &'a Crate, id: Id) -> Option<(&'a Crate, Id)> {
        if described.index.contains_key(&id) {
            return Some((described, id));
        }
        let summary = described.paths.get(&id)?;
        let owner = self.crates.get(&summary.path[0])?;
        let same = |other: &&ItemSummary| {
            other.crate_id == 0 && other.path == summary.path && other.kind == summary.kind
        };
        let (id, _) = owner.paths.iter().find(|(_, other)| same(other))?;
        owner.index.contains_key(id).then_some((owner, *id))
    }

    /// Returns the interface, one item in a line: the crate's own, and of other crates what it exports.
    fn listing(&self) -> String {
        let mut sources: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
        let items = self.items();
        for source in items.iter().filter_map(|item| item.source.as_deref()) {
            let name = source.split_once("::").map_or(source, |(name, _)| name);
            sources.entry(name).or_default().insert(source.to_owned());
        }
        let mut listing = String::new();
        for (name, wanted) in
            [("nacre", None)].into_iter().chain(sources.iter().map(|(name, paths)| (*name, Some(paths))))
        {
            let builder = Builder::from_rustdoc_json(self.folder.join(format!("{name}.json")));
            let interface = builder
                // cargo-semver-checks looks after these.
                .omit_blanket_impls(true)
                .omit_auto_trait_impls(true)
                .omit_auto_derived_impls(true)
                .build()
                .unwrap();
            let _ = writeln!(listing, "# {name}");
            for line in interface.items().map(ToString::to_string) {
                if wanted.is_none_or(|wanted| is_of(&line, name, wanted)) {
                    listing += &line;
                    listing.push('\n');
                }
            }
        }
        listing
    }
}

/// Tells whether a line of a crate's listing speaks of one of some items, or of a part of it.
fn is_of(line: &str, name: &str, wanted: &BTreeSet<String>) -> bool {
    let begin = format!("{name}::");
    // What an implementation is for stands behind the trait.
    let line =
        if line.starts_with("impl") { line.split_once(" for ").map_or(line, |(_, of)| of) } else { line };
    let Some(at) = line.find(&begin) else { return false };
    let end = line[at..]
        .find(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':'))
        .map_or(line.len(), |end| at + end);
    let mut path = line[at..end].trim_end_matches(':');
    loop {
        if wanted.contains(path) {
            return true;
        }
        let Some((parent, _)) = path.rsplit_once("::") else { return false };
        path = parent;
    }
}

/// Tells whether documentation has an example that is compiled.
fn has_example(docs: &str) -> bool {
    let mut inside = false;
    docs.lines().filter_map(|line| line.trim_start().strip_prefix("```")).any(|language| {
        inside = !inside;
        inside
            && language.split(',').all(|word| matches!(word.trim(), "" | "rust" | "no_run" | "should_panic"))
    })
}

#[test]
fn the_committed_listing_is_that_of_the_code() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("api.txt");
    let generated = DESCRIBED.listing();
    if std::env::var_os("NACRE_UPDATE").is_some() {
        std::fs::write(&path, &generated).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap();
    let (before, after): (BTreeSet<_>, BTreeSet<_>) =
        (committed.lines().collect(), generated.lines().collect());
    let changes = before.symmetric_difference(&after);
    let changes: Vec<_> =
        changes.map(|line| format!("{} {line}", if after.contains(line) { '+' } else { '-' })).collect();
    assert!(
        generated == committed,
        "the public interface of the crate nacre is not that of crates/client/api.txt any more:\n{}\n\
         If that is meant, NACRE_UPDATE=1 scripts/api writes the listing anew. What takes away or changes an item breaks programs: \
         CHANGELOG.md has to say so.",
        changes.join("\n")
    );
}

#[test]
fn every_type_has_an_example() {
    let kinds = |item: &Public<'_>| {
        use ItemEnum::{Enum, Module, Struct, Trait, TypeAlias, Union};
        matches!(
            item.described.index[&item.id].inner,
            Module(_) | Struct(_) | Enum(_) | Trait(_) | Union(_) | TypeAlias(_)
        )
    };
    let items = DESCRIBED.items();
    let lacking: Vec<_> = items.iter().filter(|item| kinds(item) && !has_example(&item.docs)).collect();
    let names: Vec<_> = lacking.iter().map(|item| item.path.as_str()).collect();
    assert!(
        names.is_empty(),
        "{} without an example in their documentation:\n{}",
        names.len(),
        names.join("\n")
    );
}

#[test]
fn every_type_in_a_signature_can_be_named() {
    let described = &*DESCRIBED;
    let items = described.items();
    let key = |described: &Crate, id: Id| (described.index[&described.root].name.clone(), id);
    let exported: BTreeSet<_> = items.iter().map(|item| key(item.described, item.id)).collect();
    let mut missing = BTreeSet::new();
    for item in &items {
        let mut mentioned = BTreeSet::new();
        mentions(item.described, item.id, &mut mentioned);
        for id in mentioned {
            let Some(summary) = item.described.paths.get(&id) else { continue };
            // An alias is a short name for what has to be named anyway.
            if !summary.path[0].starts_with("nacre") || summary.kind == ItemKind::TypeAlias {
                continue;
            }
            let found = described.find(item.described, id);
            if !found.is_some_and(|(owner, id)| exported.contains(&key(owner, id))) {
                missing.insert(format!("{}, in {}", summary.path.join("::"), item.path));
            }
        }
    }
    let missing: Vec<_> = missing.into_iter().collect();
    assert!(missing.is_empty(), "types that users of nacre cannot name:\n{}", missing.join("\n"));
}

/// Adds the types and traits in the signature of an item and of what belongs to it.
fn mentions(described: &Crate, id: Id, found: &mut BTreeSet<Id>) {
    let Some(item) = described.index.get(&id) else { return };
    let parts: &[Id] = match &item.inner {
        ItemEnum::Struct(item) => {
            let fields: Vec<Id> = match &item.kind {
                StructKind::Unit => Vec::new(),
                StructKind::Tuple(fields) => fields.iter().flatten().copied().collect(),
                StructKind::Plain { fields, .. } => fields.clone(),
            };
            fields.into_iter().for_each(|field| mentions(described, field, found));
            &item.impls
        }
        ItemEnum::Enum(item) => {
            item.variants.iter().for_each(|variant| mentions(described, *variant, found));
            &item.impls
        }
        ItemEnum::Variant(variant) => {
            let fields: Vec<Id> = match &variant.kind {
                VariantKind::Plain => Vec::new(),
                VariantKind::Tuple(fields) => fields.iter().flatten().copied().collect(),
                VariantKind::Struct { fields, .. } => fields.clone(),
            };
            fields.into_iter().for_each(|field| mentions(described, field, found));
            &[]
        }
        ItemEnum::Trait(item) => &item.items,
        // What a type can do because it is of other traits is not this project's.
        ItemEnum::Impl(block) if block.trait_.is_some() => &[],
        ItemEnum::Impl(block) => &block.items,
        ItemEnum::Module(_) | ItemEnum::Use(_) => &[],
        inner => {
            paths(&serde_json::to_value(inner).unwrap(), found);
            &[]
        }
    };
    for part in parts {
        mentions(described, *part, found);
    }
}

/// Adds the paths to types and traits in a signature.
fn paths(value: &Value, found: &mut BTreeSet<Id>) {
    match value {
        Value::Object(fields) => {
            if let (Some(id), Some(_)) = (fields.get("id").and_then(Value::as_u64), fields.get("path")) {
                found.extend(u32::try_from(id).ok().map(Id));
            }
            fields.values().for_each(|value| paths(value, found));
        }
        Value::Array(values) => values.iter().for_each(|value| paths(value, found)),
        _ => {}
    }
}
