//! Damage that only the device has, behind a page cache, and sectors that it cannot read.

use std::path::Path;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use nacre_logstore::LogStore;
use nacre_logstore::disk::{Disk, DiskFile, FolderDisk, Source};
use nacre_logstore::sim::SimDisk;
use nacre_object::ErrorKind;

use super::{copy, get, intact, is_read, many_objects, options, put, zero};

/// A disk with a page cache in front of it: the images differ where the device lost something since it was read.
struct CachedDisk {
    cache: Arc<SimDisk>,
    device: Arc<SimDisk>,
}

struct CachedFile {
    cache: Arc<dyn DiskFile>,
    device: Arc<dyn DiskFile>,
}

impl Disk for CachedDisk {
    fn open(&self, name: &str) -> std::io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(CachedFile { cache: self.cache.open(name)?, device: self.device.open(name)? }))
    }

    fn create(&self, name: &str, bytes: u64) -> std::io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(CachedFile {
            cache: self.cache.create(name, bytes)?,
            device: self.device.create(name, bytes)?,
        }))
    }

    fn rename(&self, from: &str, to: &str) -> std::io::Result<()> {
        self.cache.rename(from, to).and_then(|()| self.device.rename(from, to))
    }

    fn remove(&self, name: &str) -> std::io::Result<()> {
        self.cache.remove(name).and_then(|()| self.device.remove(name))
    }

    fn list(&self) -> std::io::Result<Vec<(String, u64)>> {
        self.cache.list()
    }

    fn sync_names(&self) -> std::io::Result<()> {
        Ok(())
    }
}

impl DiskFile for CachedFile {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> std::io::Result<()> {
        self.cache.read_at(offset, buffer)
    }

    fn read_device(&self, offset: u64, buffer: &mut [u8]) -> std::io::Result<Source> {
        self.device.read_at(offset, buffer).map(|()| Source::Device)
    }

    fn write_at(&self, offset: u64, parts: &[Bytes]) -> std::io::Result<()> {
        self.cache.write_at(offset, parts)?;
        self.device.write_at(offset, parts)
    }

    fn sync(&self) -> std::io::Result<()> {
        Ok(())
    }

    fn size(&self) -> std::io::Result<u64> {
        self.cache.size()
    }

    fn set_size(&self, bytes: u64) -> std::io::Result<()> {
        self.cache.set_size(bytes)?;
        self.device.set_size(bytes)
    }
}

#[test]
fn a_scrub_notices_what_only_the_device_lost() {
    let original = many_objects();
    for index in 0.. {
        let (cache, device) = (copy(&original), copy(&original));
        let disk = Arc::new(CachedDisk { cache, device: Arc::clone(&device) });
        let store = LogStore::open_on(disk, options()).unwrap();
        assert_eq!(store.scrub(|_| {}).unwrap().findings, []);
        // Of the segments those that are in use; an opening gives snapshots new names.
        let segments = store.info().segment_list.into_iter();
        let mut names: Vec<String> =
            segments.filter(|segment| segment.written_bytes > 0).map(|segment| segment.file).collect();
        let others = device.list().unwrap().into_iter().map(|(name, _)| name);
        names.extend(others.filter(|name| is_read(name) && !name.starts_with("segment-")));
        let Some(name) = names.get(index) else {
            assert!(index >= 5, "{names:?}");
            return;
        };
        zero(&device, name, 0, 128);
        assert_eq!(intact(&store).len(), 40, "reads come from the cache");
        let report = store.scrub(|_| {}).unwrap();
        assert!(report.findings.iter().any(|finding| finding.file == *name), "{name}: {report:?}");
        assert_eq!(report.source, Source::Device);
    }
}

#[test]
fn a_file_is_read_past_the_page_cache() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let disk = FolderDisk::open(folder.path(), true).unwrap();
    let content: Vec<u8> = (0..3_000_000u32).map(|i| (i * 7 / 5) as u8).collect();
    let file = disk.create("file", 0).unwrap();
    file.write_at(0, &[content.clone().into()]).unwrap();
    file.sync().unwrap();
    for (offset, len) in
        [(0, 1), (0, 4096), (1, 4096), (4095, 2), (1000, 2_500_000), (2_999_999, 1), (0, 3_000_000)]
    {
        let mut buffer = vec![0; len];
        let source = file.read_device(offset, &mut buffer).unwrap();
        assert!(source <= Source::EmptiedCache);
        assert!(buffer[..] == content[offset as usize..][..len], "{len} bytes at {offset}");
    }
    assert!(file.read_device(2_999_999, &mut [0; 2]).is_err(), "the file ends before");
}

fn run(program: &str, arguments: &[&str]) -> bool {
    std::process::Command::new(program).args(arguments).output().is_ok_and(|output| output.status.success())
}

/// A file system of its own on a file, mounted, so that its device can be damaged underneath it.
struct Mounted {
    folder: tempfile::TempDir,
}

impl Mounted {
    fn new() -> Option<Self> {
        let mounted = Self { folder: tempfile::tempdir().ok()? };
        std::fs::create_dir(mounted.path("mount")).ok()?;
        std::fs::File::create(mounted.path("image")).ok()?.set_len(64 << 20).ok()?;
        let (image, mount) = (mounted.path("image"), mounted.path("mount"));
        let is_mounted = run("mkfs.ext4", &["-q", &image]) && run("mount", &["-o", "loop", &image, &mount]);
        is_mounted.then_some(mounted)
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        run("umount", &[&self.path("mount")]);
    }
}

/// Tests a scrub on a real device. Mounting a file system needs root; where that fails the simulated page cache has to
/// suffice.
#[test]
fn a_scrub_notices_a_block_that_a_real_device_lost() {
    let Some(mounted) = Mounted::new() else {
        println!("skipped: no file system can be mounted here");
        return;
    };
    let folder = Path::new(&mounted.path("mount")).join("store");
    let store = LogStore::open(&folder, options()).unwrap();
    let content: Vec<u8> = (0..30_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    put(&store, "victim", 0, content.clone());
    put(&store, "other", 0, vec![9; 3000]);
    assert_eq!(store.scrub(|_| {}).unwrap().findings, []);
    let image = std::fs::read(mounted.path("image")).unwrap();
    let needle = &content[12_000..12_064];
    let at =
        image.windows(needle.len()).position(|window| window == needle).expect("the device has the bytes");
    let device = std::fs::OpenOptions::new().write(true).open(mounted.path("image")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&device, &[0; 64], at as u64).unwrap();
    device.sync_all().unwrap();
    assert_eq!(get(&store, "victim", 30_000).unwrap(), content, "the page cache still has them");
    let report = store.scrub(|_| {}).unwrap();
    assert_eq!(report.source, Source::Device);
    assert_eq!(report.findings.len(), 1, "{report:?}");
    assert_eq!(report.findings[0].objects, ["victim"]);
    assert_eq!(report.lost[0].what, "bytes 8192 to 16383 of the default fork");
}

/// A disk with a sector that cannot be read, wherever its file is renamed to.
struct BadSector {
    disk: Arc<SimDisk>,
    file: Mutex<String>,
    offset: u64,
}

struct BadFile {
    file: Arc<dyn DiskFile>,
    offset: u64,
}

impl Disk for BadSector {
    fn open(&self, name: &str) -> std::io::Result<Arc<dyn DiskFile>> {
        let file = self.disk.open(name)?;
        match *self.file.lock().unwrap() == name {
            true => Ok(Arc::new(BadFile { file, offset: self.offset })),
            false => Ok(file),
        }
    }

    fn create(&self, name: &str, bytes: u64) -> std::io::Result<Arc<dyn DiskFile>> {
        self.disk.create(name, bytes)
    }

    fn rename(&self, from: &str, to: &str) -> std::io::Result<()> {
        let mut file = self.file.lock().unwrap();
        if *file == from {
            *file = to.to_owned();
        }
        self.disk.rename(from, to)
    }

    fn remove(&self, name: &str) -> std::io::Result<()> {
        self.disk.remove(name)
    }

    fn list(&self) -> std::io::Result<Vec<(String, u64)>> {
        self.disk.list()
    }

    fn sync_names(&self) -> std::io::Result<()> {
        self.disk.sync_names()
    }
}

impl DiskFile for BadFile {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> std::io::Result<()> {
        if offset < self.offset + 4096 && self.offset < offset + buffer.len() as u64 {
            return Err(std::io::Error::other("a sector cannot be read"));
        }
        self.file.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, parts: &[Bytes]) -> std::io::Result<()> {
        self.file.write_at(offset, parts)
    }

    fn sync(&self) -> std::io::Result<()> {
        self.file.sync()
    }

    fn size(&self) -> std::io::Result<u64> {
        self.file.size()
    }

    fn set_size(&self, bytes: u64) -> std::io::Result<()> {
        self.file.set_size(bytes)
    }
}

#[test]
fn a_sector_that_cannot_be_read_costs_what_it_held() {
    let original = many_objects();
    for (name, size) in original.list().unwrap().into_iter().filter(|(name, _)| is_read(name)) {
        let sim = copy(&original);
        let offset = if size > 16_384 { 8192 } else { 0 };
        let disk = Arc::new(BadSector { disk: Arc::clone(&sim), file: Mutex::new(name.clone()), offset });
        let report = LogStore::repair_on(disk.clone(), options(), |_| {}).unwrap();
        assert_eq!(*disk.file.lock().unwrap(), format!("damaged-{name}"), "what cannot be read is kept");
        let store = LogStore::open_on(disk, options()).unwrap();
        let intact = intact(&store);
        assert!(intact.len() >= 37, "{name}: {intact:?} {report:?}");
        for number in (0..40u8).filter(|number| !intact.contains(number)) {
            assert!(report.lost.iter().any(|loss| loss.object == number.to_string()), "{name}: {report:?}");
            assert_eq!(get(&store, &number.to_string(), 5100).unwrap_err().kind, ErrorKind::Corrupt);
        }
    }
}
