//! The form of `extent.lua` in which it is sent to the OSDs: without comments, and only the sections that a
//! call needs.
//!
//! The OSD makes a new Lua machine for each call. Compiling the text would take most of the call's time, so that is
//! done once: an OSD is asked to compile the chunk and to hand back the result, which is sent with the calls that
//! follow and loads ten times as fast. An OSD with another version of Lua refuses to load it, by the head that every
//! compiled chunk has, and gets the text.

use std::collections::HashMap;
use std::sync::OnceLock;

use parking_lot::RwLock;

const SOURCE: &str = include_str!("extent.lua");

/// The sections, in the order in which they stand in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Section {
    Core,
    Index,
    Range,
    Fences,
    Guards,
    Reads,
    Skip,
    Changes,
    Conclude,
    Apply,
    Sized,
    Compact,
    Sweep,
    Entry,
}

impl Section {
    const ALL: [(Section, &'static str); 14] = [
        (Section::Core, "core"),
        (Section::Index, "index"),
        (Section::Range, "range"),
        (Section::Fences, "fences"),
        (Section::Guards, "guards"),
        (Section::Reads, "reads"),
        (Section::Skip, "skip"),
        (Section::Changes, "changes"),
        (Section::Conclude, "conclude"),
        (Section::Apply, "apply"),
        (Section::Sized, "sized"),
        (Section::Compact, "compact"),
        (Section::Sweep, "sweep"),
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

/// The code that a call runs: a handler of the class, and the sections that it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Routine {
    pub(crate) handler: &'static str,
    pub(crate) sections: Sections,
}

/// Returns the chunk of Lua of a routine: it takes a text, the beginning of the request in it, and the output.
pub(crate) fn source(routine: Routine) -> &'static str {
    static SOURCES: OnceLock<RwLock<HashMap<Routine, &'static str>>> = OnceLock::new();
    let sources = SOURCES.get_or_init(RwLock::default);
    if let Some(source) = sources.read().get(&routine) {
        return source;
    }
    let mut text = text_of(routine.sections);
    text.push_str(&format!("return guarded({},...)", routine.handler));
    // Few combinations occur, and each is made once: kept for good.
    sources.write().entry(routine).or_insert_with(|| Box::leak(text.into_boxed_str()))
}

/// Returns the text of sections, and of those that every call needs.
fn text_of(sections: Sections) -> String {
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
    text
}

/// Returns the chunk of a program that stands around what transactions are made of: `before` has none of its names, `body`
/// has them all, and defines the handler `method`.
pub(crate) fn program(before: &[u8], body: &str) -> Vec<u8> {
    let sections = [
        Section::Index,
        Section::Range,
        Section::Fences,
        Section::Guards,
        Section::Reads,
        Section::Changes,
        Section::Conclude,
    ];
    let sections = sections.into_iter().fold(Sections::default(), Sections::with);
    [before, b"\n", text_of(sections).as_bytes(), body.as_bytes(), b"\n", TOLD.as_bytes()].concat()
}

/// The bit in the status of a program's own answer that tells that there is no trace of the object.
pub(crate) const UNTRACED: u8 = 128;

/// The end of a program: its handler, with that bit. Changes begin with flags, below 32.
const TOLD: &str = "local function told()\n\
    local answer=method()\n\
    local status=unpack('<B',answer)\n\
    if fresh and status>=32 then return pack('<B',status|128)..sub(answer,2)end\n\
    return answer\nend\n\
    return guarded(told,...)";

/// The status of a call whose chunk the OSD could not load: another version of Lua compiled it.
pub(crate) const FOREIGN_CHUNK: u8 = 6;

/// The script that each call runs: it loads the chunk that comes with it.
const LOADER: &str = "function run(i,o)local s=i:str()local n=string.unpack('<I4',s)\
    local f=load(s:sub(5,4+n),'=nacre')if not f then o:append('\\6')return -125 end \
    return f(s,5+n,o)end objclass.register(run)";

/// Returns the input of a call of a chunk, as text or compiled: the loader, then the chunk's length, chunk and request.
pub(crate) fn call(chunk: &[u8], request: &[u8]) -> Vec<u8> {
    encoded(LOADER, &[&(chunk.len() as u32).to_le_bytes(), chunk, request])
}

/// Returns the input of a call that compiles a chunk and returns the result.
pub(crate) fn compilation(source: &[u8]) -> Vec<u8> {
    const COMPILER: &str = "function run(i,o)o:append(string.dump(load(i:str(),'=nacre'),true))return 0 end \
        objclass.register(run)";
    encoded(COMPILER, &[source])
}

/// Returns the input of a call of a script that registers the function `run`, without a loader.
pub(crate) fn plain(script: &str, input: &[u8]) -> Vec<u8> {
    encoded(script, &[input])
}

/// Returns the input of `eval_bufferlist`: Ceph's encoding of a script, the name of its function, and that function's
/// input.
fn encoded(script: &str, input: &[&[u8]]) -> Vec<u8> {
    const FUNCTION: &str = "run";
    let input_bytes: usize = input.iter().map(|part| part.len()).sum();
    let length = 4 + script.len() + 4 + FUNCTION.len() + 4 + input_bytes;
    let mut out = Vec::with_capacity(6 + length);
    // The structure's version, the oldest one that understands it, and its length.
    out.extend([1, 1]);
    out.extend((length as u32).to_le_bytes());
    for part in [script, FUNCTION] {
        out.extend((part.len() as u32).to_le_bytes());
        out.extend(part.as_bytes());
    }
    out.extend((input_bytes as u32).to_le_bytes());
    input.iter().for_each(|part| out.extend(*part));
    out
}

/// Returns the script, the name of its function, and that function's input, of the input of `eval_bufferlist`, as an OSD takes
/// it apart.
#[cfg(test)]
pub(crate) fn taken_apart(encoded: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    fn part<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
        let (length, after) = rest.split_first_chunk::<4>()?;
        let (part, after) = after.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        *rest = after;
        Some(part)
    }
    let mut whole = encoded.strip_prefix(&[1, 1])?;
    let mut rest = part(&mut whole)?;
    let parts = (part(&mut rest)?, part(&mut rest)?, part(&mut rest)?);
    (whole.is_empty() && rest.is_empty()).then_some(parts)
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
        let of = |sections| source(Routine { handler: "apply", sections });
        let small = of(Sections::default().with(Section::Apply));
        assert!(small.contains("local function apply()") && !small.contains("local function compact()"));
        assert!(!small.lines().any(|line| line.starts_with("--")));
        let all = Section::ALL.iter().fold(Sections::default(), |all, (section, _)| all.with(*section));
        assert!(of(all).len() < SOURCE.len());
    }

    #[test]
    fn a_program_stands_around_the_sections_that_it_uses() {
        let text = String::from_utf8(program(b"local a={}", "local function method()end")).unwrap();
        let parts = [
            "local a={}",
            "local function conclude(",
            "local function guarded(",
            "local function method()",
            "return guarded(told,...)",
        ];
        let places = parts.map(|part| text.find(part).expect(part));
        assert!(places.is_sorted(), "{places:?}");
        assert!(!text.contains("local function compact()") && !text.contains("local function apply()"));
    }
}
