//! `classes/extent.lua`, as it is sent to the OSDs: without comments, and only the sections that a call needs, since
//! the OSD compiles the text anew for each call.

use std::collections::HashMap;
use std::sync::OnceLock;

use parking_lot::RwLock;

const SOURCE: &str = include_str!("../../../classes/extent.lua");

/// The sections, in the order in which they stand in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Section {
    Core,
    Index,
    Range,
    Guards,
    Reads,
    Skip,
    Changes,
    Apply,
    Compact,
    Entry,
}

impl Section {
    const ALL: [(Section, &'static str); 10] = [
        (Section::Core, "core"),
        (Section::Index, "index"),
        (Section::Range, "range"),
        (Section::Guards, "guards"),
        (Section::Reads, "reads"),
        (Section::Skip, "skip"),
        (Section::Changes, "changes"),
        (Section::Apply, "apply"),
        (Section::Compact, "compact"),
        (Section::Entry, "entry"),
    ];
}

/// A set of sections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Sections(u16);

impl Sections {
    pub(crate) fn with(self, section: Section) -> Self {
        Self(self.0 | 1 << section as u16)
    }

    pub(crate) fn contains(self, section: Section) -> bool {
        self.0 & 1 << section as u16 != 0
    }
}

/// The script of a call: the function `handler` of these sections, with what every call needs.
pub(crate) fn script(handler: &'static str, sections: Sections) -> &'static str {
    type Scripts = RwLock<HashMap<(&'static str, Sections), &'static str>>;
    static SCRIPTS: OnceLock<Scripts> = OnceLock::new();
    let scripts = SCRIPTS.get_or_init(Scripts::default);
    if let Some(script) = scripts.read().get(&(handler, sections)) {
        return script;
    }
    let wanted = sections.with(Section::Core).with(Section::Entry);
    let mut text = String::new();
    let mut included = false;
    for line in SOURCE.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix("--@ ") {
            let section = Section::ALL.iter().find(|(_, of)| *of == name);
            included = section.is_some_and(|(section, _)| wanted.contains(*section));
        } else if included && !line.is_empty() && !line.starts_with("--") {
            text.push_str(line);
            text.push('\n');
        }
    }
    text.push_str("function run(i,o) return guarded(");
    text.push_str(handler);
    text.push_str(",i,o) end objclass.register(run)");
    // Few combinations occur, and each is made once: kept for good.
    scripts.write().entry((handler, sections)).or_insert_with(|| Box::leak(text.into_boxed_str()))
}

/// The input of `eval_bufferlist`: Ceph's encoding of script, name of the function, and the function's input.
pub(crate) fn call(script: &str, input: &[u8]) -> Vec<u8> {
    const FUNCTION: &str = "run";
    let length = 4 + script.len() + 4 + FUNCTION.len() + 4 + input.len();
    let mut out = Vec::with_capacity(6 + length);
    // The structure's version, the oldest one that understands it, and its length.
    out.extend([1, 1]);
    out.extend((length as u32).to_le_bytes());
    for part in [script.as_bytes(), FUNCTION.as_bytes(), input] {
        out.extend((part.len() as u32).to_le_bytes());
        out.extend(part);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_section_of_the_file_is_known_and_found() {
        let named: Vec<&str> = SOURCE.lines().filter_map(|line| line.strip_prefix("--@ ")).collect();
        assert_eq!(named, Section::ALL.map(|(_, name)| name));
    }

    #[test]
    fn a_call_carries_only_what_it_needs() {
        let small = script("apply", Sections::default().with(Section::Apply));
        assert!(small.contains("local function apply()") && !small.contains("local function compact()"));
        assert!(!small.lines().any(|line| line.starts_with("--")));
        let all = Section::ALL.iter().fold(Sections::default(), |all, (section, _)| all.with(*section));
        assert!(script("apply", all).len() < SOURCE.len());
    }
}
