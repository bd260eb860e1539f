//! Layouts of files on Lustre in lists and filters, of a made file system that answers as Lustre does.

use std::collections::BTreeMap;
use std::ffi::{CStr, OsStr};
use std::fs;
use std::io::Write;
use std::num::NonZeroUsize;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use nacre_walk::collect::{Collector, Request};
use nacre_walk::filter::{Filter, Selection};
use nacre_walk::list::{Field, Format, Lister, Output};
use nacre_walk::lustre::{FileSystems, LayoutReader};
use nacre_walk::report::{Report, Shape, Shared, Sums};
use nacre_walk::{Operation, Options, Walk};
use rustix::io::Errno;
use serde_json::{Value, json};

/// File systems of one type, in which files have these layouts by their names.
struct Made {
    kind: u64,
    layouts: BTreeMap<&'static str, Result<Vec<u8>, Errno>>,
    /// The numbers of questions for types and for attributes.
    asked: Arc<[AtomicUsize; 2]>,
}

impl FileSystems for Made {
    fn kind(&self, path: &[u8]) -> Result<u64, Errno> {
        self.asked[0].fetch_add(1, Ordering::Relaxed);
        assert!(Path::new(OsStr::from_bytes(path)).symlink_metadata().unwrap().is_file());
        Ok(self.kind)
    }

    fn attribute(&self, path: &[u8], name: &CStr, value: &mut [u8]) -> Result<usize, Errno> {
        self.asked[1].fetch_add(1, Ordering::Relaxed);
        assert_eq!(name, c"lustre.lov");
        let path = Path::new(OsStr::from_bytes(path));
        assert!(path.symlink_metadata().unwrap().is_file());
        let layout = self.layouts[path.file_name().unwrap().to_str().unwrap()].clone()?;
        value[..layout.len()].copy_from_slice(&layout);
        Ok(layout.len())
    }
}

/// Returns the layout of a file in the pool "flash" with stripes of 1 MiB.
fn striped(osts: &[u32]) -> Vec<u8> {
    let mut bytes = [0x0bd3_0bd0_u32.to_ne_bytes(), 1_u32.to_ne_bytes()].concat();
    bytes.extend([0; 16]);
    bytes.extend((1_u32 << 20).to_ne_bytes());
    bytes.extend((osts.len() as u16).to_ne_bytes());
    bytes.extend([0; 2]);
    bytes.extend(b"flash\0\0\0\0\0\0\0\0\0\0\0");
    for ost in osts {
        bytes.extend([0; 20]);
        bytes.extend(ost.to_ne_bytes());
    }
    bytes
}

#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl Write for Written {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A tree whose files have layouts, one that is damaged, and some that cannot be asked for.
fn tree() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().to_owned();
    fs::create_dir_all(root.join("directory/below")).unwrap();
    for file in ["one", "directory/two", "directory/below/empty", "damaged", "refused", "gone"] {
        fs::write(root.join(file), "x").unwrap();
    }
    std::os::unix::fs::symlink("one", root.join("link")).unwrap();
    (folder, root)
}

/// Lists the regular files of a tree. Returns the listed fields by their names, the report, and how often was asked for
/// types and for attributes.
fn list(root: &Path, kind: u64, osts: &[u32]) -> (BTreeMap<String, Value>, Report, [usize; 2]) {
    let asked = Arc::<[AtomicUsize; 2]>::default();
    let layouts = BTreeMap::from([
        ("one", Ok(striped(&[3]))),
        ("two", Ok(striped(&[7, 3]))),
        ("empty", Err(Errno::NODATA)),
        ("damaged", Ok(b"no layout at all".to_vec())),
        ("refused", Err(Errno::ACCESS)),
        ("gone", Err(Errno::NOENT)),
    ]);
    let made = Made { kind, layouts, asked: Arc::clone(&asked) };
    let filter = Filter { kinds: Some("f".parse().unwrap()), osts: osts.to_vec(), ..Filter::default() };
    assert_eq!(filter.needs_layout(), !osts.is_empty());
    let selection = Selection { filter: filter.ready(), ..Selection::default() };
    let request = Request { selection, shape: Shape::default(), json: true };
    let fields = vec![Field::Path, Field::StripeCount, Field::StripeSize, Field::Pool, Field::Osts];
    let format = Format { fields, json: true, null: false, escape: false };
    let written = Written::default();
    let output = Output::new(Box::new(written.clone()));
    let threads = NonZeroUsize::MIN;
    let mut walk = Walk::<Sums>::new(Options { threads, ..Options::default() });
    let number = walk.add_root(root).unwrap();
    let shared = Arc::<Shared>::default();
    let lister = Lister::new(&format, &output);
    let mut collector = Collector::new(&request, (Some(lister), None), walk.queue(), &shared, 1);
    collector.set_layouts(LayoutReader::new(Box::new(made)));
    let mut collectors = [collector];
    walk.start(number, &mut collectors[0]).unwrap();
    walk.run(&mut collectors);
    let [mut collector] = collectors;
    collector.flush();
    let report = std::mem::replace(&mut collector.report, Report::new(&Shape::default()));
    let listed = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
    let mut lines = BTreeMap::new();
    for line in listed.lines() {
        let mut line: Value = serde_json::from_str(line).unwrap();
        if line.get("error").is_none() {
            let path = line.as_object_mut().unwrap().remove("path").unwrap();
            let name = Path::new(path.as_str().unwrap()).file_name().unwrap().to_str().unwrap().to_owned();
            assert!(lines.insert(name, line).is_none());
        }
    }
    (lines, report, [0, 1].map(|number| asked[number].load(Ordering::Relaxed)))
}

const LUSTRE: u64 = 0x0bd0_0bd0;

#[test]
fn lists_have_the_layouts_that_are_known_and_count_those_that_cannot_be_read() {
    let (_folder, root) = tree();
    let (lines, report, asked) = list(&root, LUSTRE, &[]);
    let fields = |count: u32, osts: &[u32]| json!({ "stripe_count": count, "stripe_size": 1 << 20, "pool": "flash", "osts": osts });
    let unknown = json!({ "stripe_count": null, "stripe_size": null, "pool": null, "osts": null });
    let expected = BTreeMap::from([
        ("one".to_owned(), fields(1, &[3])),
        ("two".to_owned(), fields(2, &[3, 7])),
        ("empty".to_owned(), unknown.clone()),
        ("damaged".to_owned(), unknown.clone()),
        ("refused".to_owned(), unknown),
    ]);
    assert_eq!(lines, expected);
    let errors: Vec<_> = report.problems.first.iter().map(|error| (error.operation, error.errno)).collect();
    assert_eq!(report.problems.errors, 2);
    for errno in [Errno::BADMSG, Errno::ACCESS] {
        assert!(errors.contains(&(Operation::Layout, errno.raw_os_error())), "{errors:?}");
    }
    // The type is asked for once, and layouts of regular files only.
    assert_eq!(asked, [1, 6]);
}

#[test]
fn a_filter_takes_the_files_with_an_object_on_one_of_the_osts() {
    let (_folder, root) = tree();
    let names = |osts: &[u32]| {
        let (lines, report, _) = list(&root, LUSTRE, osts);
        // What cannot be asked about is not left out in silence.
        assert_eq!(report.problems.errors, 2);
        lines.into_keys().collect::<Vec<_>>()
    };
    assert_eq!(names(&[3]), ["one", "two"]);
    assert_eq!(names(&[7, 100]), ["two"]);
    assert_eq!(names(&[100]), [""; 0]);
}

#[test]
fn other_file_systems_are_not_asked_for_layouts() {
    let (_folder, root) = tree();
    let (lines, report, asked) = list(&root, 0xef53, &[]);
    assert_eq!((lines.len(), report.problems.errors, asked), (6, 0, [1, 0]));
    assert_eq!(list(&root, 0xef53, &[3]).0.len(), 0);
}
