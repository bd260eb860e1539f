//! The table of what is mounted, as the process sees it, and that of what belongs somewhere.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// A mounted file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// The numbers of its device.
    pub device: (u32, u32),
    /// The directory on which it is mounted.
    pub point: PathBuf,
    /// The kind of file system, with a subtype behind a dot.
    pub kind: String,
    /// The name of what is mounted, as the file system tells it.
    pub source: OsString,
}

/// Returns what is mounted, each mount on a directory after those that it hides. None are known where there is no `/proc`.
pub fn mounted() -> Vec<Mount> {
    parse(&std::fs::read("/proc/self/mountinfo").unwrap_or_default())
}

pub(crate) fn parse(table: &[u8]) -> Vec<Mount> {
    fields(table).filter_map(|line| mount(&line)).collect()
}

fn mount(line: &[&[u8]]) -> Option<Mount> {
    let (major, minor) = std::str::from_utf8(line.get(2)?).ok()?.split_once(':')?;
    // Any number of fields is in front of the hyphen, from the seventh on.
    let hyphen = line.iter().skip(6).position(|field| *field == b"-")? + 6;
    Some(Mount {
        device: (major.parse().ok()?, minor.parse().ok()?),
        point: path(line.get(4)?)?,
        kind: String::from_utf8_lossy(line.get(hyphen + 1)?).into_owned(),
        source: OsString::from_vec(unescaped(line.get(hyphen + 2)?)),
    })
}

/// Returns the directories of a table in the form of `/etc/fstab` in which something belongs.
pub(crate) fn belonging(table: &[u8]) -> Vec<PathBuf> {
    fields(table).filter_map(|line| path(line.get(1)?)).collect()
}

/// Returns the fields of each line of a table.
fn fields(table: &[u8]) -> impl Iterator<Item = Vec<&[u8]>> {
    let lines = table.split(|byte| *byte == b'\n');
    let fields = lines.map(|line| {
        let fields = line.split(u8::is_ascii_whitespace).filter(|field| !field.is_empty());
        fields.collect::<Vec<&[u8]>>()
    });
    fields.filter(|fields| fields.first().is_some_and(|first| !first.starts_with(b"#")))
}

/// Returns the path in a field; swap has none.
fn path(field: &[u8]) -> Option<PathBuf> {
    field.starts_with(b"/").then(|| PathBuf::from(OsString::from_vec(unescaped(field))))
}

/// Returns a field in which a space is written as `\040`, and others likewise.
fn unescaped(mut field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::new();
    while let Some((byte, rest)) = field.split_first() {
        field = rest;
        match (byte, rest) {
            (b'\\', [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', rest @ ..]) => {
                plain.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                field = rest;
            }
            _ => plain.push(*byte),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn tables_of_mounts_are_read() {
        let table = b"# /dev/sda1 /comment ext4\n\
                      UUID=1-2\t/data\\040and\\134more ext4 defaults 0 2\n\
                      \n\
                      /dev/sdb1 none swap sw 0 0\n\
                      server:/x   /odd\\9\\04 nfs noauto 0 0\n\
                      short\n";
        assert_eq!(belonging(table), [Path::new("/data and\\more"), Path::new("/odd\\9\\04")]);
        let table = b"36 35 98:0 /mnt1 /mnt\\0402 rw,noatime master:1 - ext3 /dev/root rw\n\
                      37 35 0:51 / /other rw - fuse.nacre unix:/a\\040b rw\n\
                      38 35 nonsense\n";
        let mount = |device, point: &str, kind: &str, source: &str| Mount {
            device,
            point: point.into(),
            kind: kind.to_owned(),
            source: source.into(),
        };
        let expected = [
            mount((98, 0), "/mnt 2", "ext3", "/dev/root"),
            mount((0, 51), "/other", "fuse.nacre", "unix:/a b"),
        ];
        assert_eq!(parse(table), expected);
    }
}
