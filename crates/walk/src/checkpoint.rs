//! A stopped walk, written to a file so that another process can continue it: `docs/walk.md` has the format.
//!
//! A checkpoint is frames after a magic number: the flags of the walk, its counts, the remaining directories and rests of
//! directories, and the files with several names. Each frame has a checksum, and the last one gives the
//! number of frames. The file appears under its name as a whole or not at all.
//!
//! A checkpoint is trusted no more than any other input: a path that could lead out of a root is refused.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use nacre_quantity::Escaped;
use serde::{Deserialize, Serialize};

use crate::Unit;
use crate::directory::Directory;
use crate::entry::Time;
use crate::report::histogram::Histogram;
use crate::report::level::Levels;
use crate::report::link::HardLinks;
use crate::report::partial::{Partial, Received, is_name};
use crate::report::{Report, Sums, Tally};

const MAGIC: [u8; 8] = *b"\x89NACREW\n";

/// Version of the format, and of the structures in it.
pub const VERSION: u32 = 2;

/// The maximum length of a frame.
const FRAME_BYTES_MAX: u32 = 256 << 20;

/// The maximum number of units, or sums of directories, in one frame, and roughly the maximum of their bytes.
const FRAME_UNITS: usize = 1024;
const FRAME_UNITS_BYTES: usize = 1 << 20;

const END: u8 = 0;
const HEAD: u8 = 1;
const REPORT: u8 = 2;
const UNITS: u8 = 3;
const LINKS: u8 = 4;
const SUMS: u8 = 5;
const BEGUN: u8 = 6;
/// Only in checkpoints of walks that count levels.
const LEVELS: u8 = 7;

/// The parameters of the walk, compared when it is resumed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// Flags and their values, in a fixed order; roots are among them.
    pub flags: Vec<(String, String)>,
    /// The time at which the walk began; ages are relative to it.
    pub now: Time,
    /// The time that `--newer` compares with.
    pub newer: Option<Time>,
}

impl Head {
    /// Returns the first flag in which it differs from `other`: its name, its value here, and its value there.
    pub fn difference(&self, other: &Head) -> Option<(String, String, String)> {
        let value = |head: &Head, flag: &str| {
            let found = head.flags.iter().find(|(name, _)| name == flag);
            found.map_or_else(|| "nothing".to_owned(), |(_, value)| value.clone())
        };
        let flags = self.flags.iter().chain(&other.flags).map(|(flag, _)| flag);
        flags
            .map(|flag| (flag.clone(), value(self, flag), value(other, flag)))
            .find(|(_, mine, theirs)| mine != theirs)
    }
}

/// The contents of a checkpoint to write.
#[derive(Clone, Copy, Debug)]
pub struct Saved<'a> {
    /// The parameters of the walk.
    pub head: &'a Head,
    /// The counts so far.
    pub report: &'a Report,
    /// The sums of directories that are counted in parts.
    pub partial: &'a Partial,
    /// The counts of directories that are begun, each with the directory's index in `partial`.
    pub begun: &'a [(u32, Tally)],
    /// Directories that are begun and whose counts are not among those, each after the one that it is in.
    pub directories: &'a [Arc<Directory<Sums>>],
    /// The work that is left.
    pub units: &'a [Unit],
    /// The files with several names.
    pub links: &'a HardLinks,
}

/// The contents of a checkpoint that was read.
#[derive(Debug)]
pub struct Loaded {
    /// The parameters of the walk.
    pub head: Head,
    /// The counts so far.
    pub report: Report,
    /// The work that is left.
    pub units: Vec<Unit>,
}

/// An error in loading a checkpoint.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file cannot be read.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The file is not a checkpoint.
    #[error("it is not a checkpoint of a walk")]
    Foreign,
    /// The checkpoint has another version of the format.
    #[error(
        "it has version {0}, and this program reads version {VERSION}: continue with the program that wrote \
         it, or start over"
    )]
    Version(u32),
    /// The file was changed or truncated.
    #[error("it is damaged: {0}")]
    Damaged(&'static str),
}

/// Writes a checkpoint, atomically replacing an existing file. Until it is complete it has the name of the checkpoint with
/// `.partial` behind it.
///
/// # Errors
/// If the file cannot be created, written, synced or renamed, or something else has its name.
pub fn save(path: &Path, saved: &Saved<'_>) -> io::Result<()> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let mut partial = path.to_owned();
    partial.as_mut_os_string().push(".partial");
    let named = |error: io::Error| {
        let shown = Escaped::of(&partial);
        io::Error::new(error.kind(), format!("cannot write \"{shown}\", which is to become it: {error}"))
    };
    let file = begin(&partial).map_err(|error| match error.kind() {
        kind @ io::ErrorKind::NotFound => {
            io::Error::new(kind, format!("there is no folder \"{}\"", Escaped::of(folder)))
        }
        _ => named(error),
    })?;
    let mut writer = BufWriter::new(&file);
    let written = write(&mut writer, saved).and_then(|()| writer.flush()).and_then(|()| file.sync_all());
    let renamed = written.map_err(named).and_then(|()| std::fs::rename(&partial, path));
    if renamed.is_err() {
        // A part of a checkpoint is of no use. If it stays, the next one replaces it.
        let _ = std::fs::remove_file(&partial);
    }
    renamed?;
    File::open(folder)?.sync_all()
}

/// Creates the file that becomes a checkpoint, in place of one that a save which was killed has left, and locks it. It is always a new
/// one: what is there may belong to somebody else, or have other names.
fn begin(partial: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    loop {
        let created = options.clone().create_new(true).open(partial);
        let (file, is_new) = match created {
            Ok(file) => (file, true),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => match options.open(partial) {
                Ok(file) => (file, false),
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            },
            Err(error) => return Err(error),
        };
        // Not every file system has locks.
        if matches!(file.try_lock(), Err(TryLockError::WouldBlock)) {
            return Err(io::Error::other("another walk is writing it"));
        }
        let about = file.metadata()?;
        match partial.symlink_metadata() {
            Ok(named) if (named.dev(), named.ino()) == (about.dev(), about.ino()) => {}
            // Whoever had the lock has given it the checkpoint's name meanwhile, or removed it.
            Ok(_) => continue,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        }
        if is_new {
            return Ok(file);
        }
        if !about.is_file() || !is_part(&file)? {
            let sentence =
                "it is no part of a checkpoint, and is not replaced; remove it, or give another name";
            return Err(io::Error::other(sentence));
        }
        std::fs::remove_file(partial)?;
    }
}

/// Returns whether a file is a part of a checkpoint, or empty. Of one that was being written when its machine went down, zeros may be
/// left.
fn is_part(file: &File) -> io::Result<bool> {
    let mut start = [0; MAGIC.len()];
    let len = file.read_at(&mut start, 0)?;
    let start = &start[..len];
    Ok(MAGIC.starts_with(start) || start.iter().all(|byte| *byte == 0))
}

/// Reads a checkpoint; files with several names are added to `links`, and sums of directories to `partial`.
///
/// # Errors
/// [`LoadError`] if the file cannot be read or is not an intact checkpoint of this version.
pub fn load(path: &Path, links: &mut HardLinks, partial: &mut Partial) -> Result<Loaded, LoadError> {
    read(&mut BufReader::new(File::open(path)?), links, partial)
}

/// Writes a checkpoint's bytes.
///
/// # Errors
/// If the writer fails, or a part is too large for a frame.
pub fn write(writer: &mut impl Write, saved: &Saved<'_>) -> io::Result<()> {
    let Saved { head, report, partial, begun, directories, units, links } = saved;
    writer.write_all(&MAGIC)?;
    writer.write_all(&VERSION.to_le_bytes())?;
    let mut frames = 0_u64;
    let mut frame = |kind, payload: &[u8]| {
        frames += 1;
        put_frame(writer, kind, payload)
    };
    frame(HEAD, &encode(head)?)?;
    frame(REPORT, &encode(report)?)?;
    if let Some(levels) = &report.levels {
        frame(LEVELS, &encode(levels)?)?;
    }
    partial.send_with(directories, |bytes| frame(SUMS, bytes))?;
    for begun in begun.chunks(FRAME_UNITS) {
        frame(BEGUN, &encode(&begun)?)?;
    }
    let mut rest = *units;
    while !rest.is_empty() {
        // Paths may be long, and frames may not.
        let mut bytes = 0;
        let many = rest.iter().take(FRAME_UNITS).take_while(|unit| {
            let before = bytes;
            bytes += unit.path.len() + 8 * unit.inodes.len();
            before < FRAME_UNITS_BYTES
        });
        let (units, others) = rest.split_at(many.count());
        frame(UNITS, &encode(&units)?)?;
        rest = others;
    }
    links.send(|bytes| frame(LINKS, bytes))?;
    put_frame(writer, END, &frames.to_le_bytes())
}

fn encode(value: &impl Serialize) -> io::Result<Vec<u8>> {
    postcard::to_stdvec(value).map_err(io::Error::other)
}

fn put_frame(writer: &mut impl Write, kind: u8, payload: &[u8]) -> io::Result<()> {
    let len = u32::try_from(payload.len()).ok().filter(|len| *len <= FRAME_BYTES_MAX);
    let len = len.ok_or_else(|| io::Error::other("a part of the checkpoint is too large"))?;
    // In parts, because it may be large.
    let mut checksum = crc_fast::Digest::new(CHECKSUM);
    for part in [&[kind][..], &len.to_le_bytes(), payload] {
        checksum.update(part);
        writer.write_all(part)?;
    }
    writer.write_all(&(checksum.finalize() as u32).to_le_bytes())
}

const CHECKSUM: crc_fast::CrcAlgorithm = crc_fast::CrcAlgorithm::Crc32Iscsi;

fn checksum(bytes: &[u8]) -> u32 {
    crc_fast::checksum(CHECKSUM, bytes) as u32
}

/// Reads a checkpoint's bytes.
///
/// # Errors
/// As for [`load`].
pub fn read(
    reader: &mut impl Read,
    links: &mut HardLinks,
    partial: &mut Partial,
) -> Result<Loaded, LoadError> {
    let mut start = [0; 12];
    match reader.read_exact(&mut start) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Err(LoadError::Foreign),
        other => other?,
    }
    let (magic, version) = start.split_at(MAGIC.len());
    if magic != MAGIC {
        return Err(LoadError::Foreign);
    }
    let version = version.iter().rev().fold(0, |version, byte| version << 8 | u32::from(*byte));
    if version != VERSION {
        return Err(LoadError::Version(version));
    }
    let (mut head, mut report, mut levels, mut units) = (None, None::<Report>, None, Vec::new());
    let mut sums = Received::default();
    let mut frames = 0_u64;
    loop {
        let (kind, payload) = get_frame(reader)?;
        match kind {
            END => {
                if payload != frames.to_le_bytes() {
                    return Err(LoadError::Damaged("parts are missing"));
                }
                break;
            }
            HEAD => head = Some(decode(&payload)?),
            REPORT => report = Some(decode(&payload)?),
            UNITS => units.extend(decode::<Vec<Unit>>(&payload)?),
            LEVELS => {
                let counts = Levels::decode(&payload);
                levels = Some(counts.ok_or(LoadError::Damaged("a part does not hold what it should"))?);
            }
            LINKS if links.receive(&payload) => {}
            SUMS if sums.add(partial, &payload) => {}
            BEGUN => {
                for (node, tally) in decode::<Vec<(u32, Tally)>>(&payload)? {
                    let node = sums.number(node).ok_or(LoadError::Damaged("a sum is of no directory"))?;
                    partial.add(node, &tally);
                }
            }
            _ => return Err(LoadError::Damaged("a part is of no known kind")),
        }
        frames += 1;
    }
    if reader.read(&mut [0])? != 0 {
        return Err(LoadError::Damaged("something follows its end"));
    }
    if !units.iter().all(|unit| unit.path.is_empty() || unit.path.split(|byte| *byte == b'/').all(is_name)) {
        return Err(LoadError::Damaged("a path in it leads out of its root"));
    }
    let (Some(head), Some(mut report)) = (head, report) else {
        return Err(LoadError::Damaged("parts are missing"));
    };
    report.levels = levels;
    report.histograms.iter_mut().for_each(Histogram::put_depths_together);
    // Rests come last: whoever reads the rest of a directory then knows which of its entries were renamed since their
    // units were written down, and does not visit them once more under their new names.
    units.sort_by_key(|unit: &Unit| unit.position.is_some() || unit.after.is_some());
    Ok(Loaded { head, report, units })
}

fn decode<'a, T: Deserialize<'a>>(payload: &'a [u8]) -> Result<T, LoadError> {
    match postcard::take_from_bytes(payload) {
        Ok((value, [])) => Ok(value),
        _ => Err(LoadError::Damaged("a part does not hold what it should")),
    }
}

fn get_frame(reader: &mut impl Read) -> Result<(u8, Vec<u8>), LoadError> {
    let cut = |error: io::Error| match error.kind() {
        io::ErrorKind::UnexpectedEof => LoadError::Damaged("its end is missing"),
        _ => LoadError::Io(error),
    };
    let mut head = [0; 5];
    reader.read_exact(&mut head).map_err(cut)?;
    let [kind, len @ ..] = head;
    let len = u32::from_le_bytes(len);
    if len > FRAME_BYTES_MAX {
        return Err(LoadError::Damaged("a part is too large"));
    }
    let mut frame = head.to_vec();
    // As much memory as there are bytes, whatever the length says.
    if reader.take(u64::from(len) + 4).read_to_end(&mut frame)? != len as usize + 4 {
        return Err(LoadError::Damaged("its end is missing"));
    }
    let known = frame.split_off(frame.len() - 4);
    if known != checksum(&frame).to_le_bytes() {
        return Err(LoadError::Damaged("a checksum is wrong"));
    }
    frame.drain(..head.len());
    Ok((kind, frame))
}

/// Helpers for tests and fuzz targets that read damaged checkpoints.
#[doc(hidden)]
pub mod check {
    /// Returns a file with a valid start and one frame of the given kind, with a correct checksum.
    pub fn file_with(kind: u8, payload: &[u8]) -> Vec<u8> {
        let mut file = Vec::from(super::MAGIC);
        file.extend_from_slice(&super::VERSION.to_le_bytes());
        // Only a payload that no fuzzer makes is too long; then the frame is missing.
        let _ = super::put_frame(&mut file, kind, payload);
        file
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Shape;
    use crate::report::histogram::Measure;
    use crate::report::level::Level;

    fn read_plain(bytes: &[u8]) -> Result<Loaded, LoadError> {
        read(&mut &bytes[..], &mut links(), &mut Partial::default())
    }

    fn load_plain(path: &Path) -> Result<Loaded, LoadError> {
        load(path, &mut links(), &mut Partial::default())
    }

    fn write_plain(bytes: &mut Vec<u8>, head: &Head, units: &[Unit]) {
        let (report, partial, links) = (Report::default(), Partial::default(), links());
        let (report, partial, begun, links) = (&report, &partial, &[][..], &links);
        write(bytes, &Saved { head, report, partial, begun, directories: &[], units, links }).unwrap();
    }

    fn links() -> HardLinks {
        HardLinks::new(&Arc::default(), 1)
    }

    fn bytes(units: &[Unit]) -> Vec<u8> {
        let shape = Shape { top: 3, histograms: vec![Measure::Size, Measure::Owner], levels: true, now: 5 };
        let mut report = Report::new(&shape);
        report.kinds[0] = Tally { entries: 7, apparent: 8, allocated: 9 };
        report.files.offer_file(17, 2, |path| path.extend_from_slice(b"a/b"));
        let counts = Level { tally: report.kinds[0], directories: 0, files: 7 };
        report.levels = Levels::decode(&postcard::to_stdvec(&[Level::default(), counts][..]).unwrap());
        assert!(report.levels.is_some());
        let mut partial = Partial::default();
        let root = partial.root(0);
        let node = partial.child(root, b"a");
        partial.add(node, &report.kinds[0]);
        let head = Head { flags: vec![("ROOT".into(), "x".into())], now: Time::default(), newer: None };
        let mut known = links();
        assert!(known.receive(&[3; 32 * 5].map(|byte| byte & 3)));
        let mut bytes = Vec::new();
        let begun = [(node, Tally { entries: 1, ..Tally::default() })];
        let (head, report, partial, begun, links_known) = (&head, &report, &partial, &begun[..], &known);
        let saved = Saved { head, report, partial, begun, directories: &[], units, links: links_known };
        write(&mut bytes, &saved).unwrap();
        let (mut again, mut sums) = (links(), Partial::default());
        let loaded = read(&mut &bytes[..], &mut again, &mut sums).unwrap();
        let mut entries = 0;
        sums.finish(|_, _, tally, _| entries += tally.entries);
        assert_eq!(entries, 7 + 1);
        assert_eq!((&loaded.head, &loaded.report, &loaded.units[..]), (head, report, units));
        let mut count = 0;
        again.for_each(|_| count += 1).unwrap();
        assert_eq!(count, 1);
        bytes
    }

    fn units(paths: &[&[u8]]) -> Vec<Unit> {
        let inodes = |path: &[u8]| vec![7; path.len() % 3];
        let unit = |path: &&[u8]| Unit {
            path: path.to_vec(),
            position: Some(1),
            inodes: inodes(path),
            ..Unit::default()
        };
        paths.iter().map(unit).collect()
    }

    #[test]
    fn what_is_damaged_is_refused_and_nothing_panics() {
        let many: Vec<String> = (0..3000).map(|number| format!("some/directory {number}")).collect();
        let many: Vec<&[u8]> = many.iter().map(String::as_bytes).collect();
        let whole = bytes(&units(&many));
        for len in 0..whole.len() {
            if len < 200 || len % 997 == 0 || whole.len() - len < 200 {
                assert!(read_plain(&whole[..len]).is_err(), "cut at {len}");
            }
        }
        let mut state = 1_u64;
        let mut random = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below
        };
        let small = bytes(&units(&[b"", b"a/b"]));
        for _ in 0..20_000 {
            let mut mutated = small.clone();
            for _ in 0..=random(3) {
                let at = random(mutated.len());
                mutated[at] ^= 1 << random(8);
            }
            if mutated != small {
                assert!(read_plain(&mutated[..]).is_err());
            }
        }
        let mut longer = small;
        longer.push(0);
        assert!(matches!(read_plain(&longer[..]), Err(LoadError::Damaged(_))));
        assert!(matches!(read_plain(b"something else"), Err(LoadError::Foreign)));
        longer[8] = 9;
        assert!(matches!(read_plain(&longer[..]), Err(LoadError::Version(9))));
    }

    #[test]
    fn payloads_of_any_bytes_with_a_right_checksum_do_no_harm() {
        let mut state = 7_u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        };
        let small = bytes(&units(&[b"a"]));
        let report = postcard::to_stdvec(&read_plain(&small[..]).unwrap().report).unwrap();
        for round in 0..20_000_u32 {
            let mut payload = report.clone();
            for _ in 0..=round % 4 {
                let at = usize::from(random()) * payload.len() / 256;
                payload[at] = random();
            }
            let file = check::file_with(
                [HEAD, REPORT, UNITS, LINKS, SUMS, BEGUN, LEVELS][round as usize % 7],
                &payload,
            );
            assert!(read_plain(&file[..]).is_err(), "its end is missing at the least");
        }
    }

    #[test]
    fn a_walk_that_counts_no_levels_has_the_checkpoint_that_it_always_had() {
        let plain = Report::new(&Shape::default());
        let report = Report::new(&Shape { levels: true, ..Shape::default() });
        // Levels are no part of a report, and have a frame of their own, beside the head, the report and the end.
        assert_eq!(encode(&report).unwrap(), encode(&plain).unwrap());
        for (report, frames) in [(&plain, 2_u64), (&report, 3)] {
            let head = Head { flags: Vec::new(), now: Time::default(), newer: None };
            let (partial, links, mut bytes) = (Partial::default(), links(), Vec::new());
            let (head, partial, begun, units, links) = (&head, &partial, &[][..], &[][..], &links);
            let saved = Saved { head, report, partial, begun, directories: &[], units, links };
            write(&mut bytes, &saved).unwrap();
            let mut end = Vec::new();
            put_frame(&mut end, END, &frames.to_le_bytes()).unwrap();
            assert!(bytes.ends_with(&end));
            assert_eq!(read_plain(&bytes).unwrap().report, *report);
        }
    }

    #[test]
    fn no_path_leads_out_of_its_root() {
        for path in [&b"../x"[..], b"a/..", b"/etc", b"a//b", b"a/", b".", b"a\0b"] {
            let head = Head { flags: Vec::new(), now: Time::default(), newer: None };
            let mut bytes = Vec::new();
            write_plain(&mut bytes, &head, &units(&[path]));
            let refused = read_plain(&bytes);
            assert!(matches!(refused, Err(LoadError::Damaged(_))), "{path:?}");
        }
    }

    #[test]
    fn the_file_appears_as_a_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("checkpoint");
        let head = Head { flags: Vec::new(), now: Time::default(), newer: None };
        for round in 0..3 {
            let units = units(&[&b"a"[..], b"b", b"c"][..round]);
            let (report, partial, links) = (Report::default(), Partial::default(), links());
            let (report, partial, begun, links) = (&report, &partial, &[][..], &links);
            let saved = Saved { head: &head, report, partial, begun, directories: &[], units: &units, links };
            save(&path, &saved).unwrap();
            assert_eq!(load_plain(&path).unwrap().units, units);
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        assert!(matches!(load_plain(folder.path()), Err(LoadError::Io(_))));
        let mut other = head.clone();
        assert_eq!(head.difference(&other), None);
        other.flags.push(("--name".into(), "x".into()));
        assert_eq!(
            head.difference(&other),
            Some(("--name".to_owned(), "nothing".to_owned(), "x".to_owned()))
        );
    }

    #[test]
    fn what_a_killed_save_has_left_is_replaced_and_nothing_else_is() {
        let folder = tempfile::tempdir().unwrap();
        let (path, partial) = (folder.path().join("state"), folder.path().join("state.partial"));
        let head = Head { flags: Vec::new(), now: Time::default(), newer: None };
        let (report, sums, links) = (Report::default(), Partial::default(), links());
        let (report, links, units) = (&report, &links, units(&[&b"a"[..]]));
        let saved =
            Saved { head: &head, report, partial: &sums, begun: &[], directories: &[], units: &units, links };
        for left in [&b""[..], b"\x89NAC", b"\x89NACREW\n\x02\0\0\0 cut", &[0; 5000]] {
            std::fs::write(&partial, left).unwrap();
            save(&path, &saved).unwrap();
            assert_eq!(load_plain(&path).unwrap().units, units);
            assert!(!partial.exists());
        }
        let cannot_save = |why: &str| {
            let error = save(&path, &saved).unwrap_err().to_string();
            assert!(error.contains("state.partial") && error.contains(why), "{error}");
        };
        // What is left may have another name, under which it stays as it is.
        let kept = folder.path().join("kept");
        std::fs::write(&kept, MAGIC).unwrap();
        std::fs::hard_link(&kept, &partial).unwrap();
        save(&path, &saved).unwrap();
        assert_eq!(std::fs::read(&kept).unwrap(), MAGIC);
        std::fs::remove_file(&kept).unwrap();
        // Another walk.
        let other = begin(&partial).unwrap();
        cannot_save("another walk");
        drop(other);
        std::fs::write(&partial, "mine").unwrap();
        cannot_save("not replaced");
        assert_eq!(std::fs::read(&partial).unwrap(), b"mine");
        std::fs::remove_file(&partial).unwrap();
        std::os::unix::fs::symlink("elsewhere", &partial).unwrap();
        cannot_save("state.partial");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
    }
}
