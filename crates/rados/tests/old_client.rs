//! Clients of older formats on the same pool: their requests, byte for byte, must fail and change nothing once a
//! client of today has written an object; and objects that they wrote before are read, and continue in today's format.
//!
//! `old/extent-1.lua` and `old/extent-2.lua` are the class as those clients send it.

#![allow(unsafe_code, reason = "the old client's operations are sent by librados itself")]

mod cluster;

use std::ffi::{CString, c_char, c_int, c_void};
use std::ptr;

use cluster::{Cluster, open};
use nacre_object::testkit::block_on;
use nacre_object::{
    Answer, ByteRange, Done, ErrorKind, Fork, Found, Guard, Key, KeyRange, ObjectId, ObjectStore, Outcome,
    ReadOp, Transaction, Versioned, VersionedKeyPage, WriteOp,
};
use nacre_rados::{Location, RadosStore};

const ECANCELED: c_int = 125;

/// A connection that sends what a client of an older format sent.
struct OldClient {
    format: u8,
    library: libloading::Library,
    io: *mut c_void,
}

macro_rules! call {
    ($client:expr, $name:literal, ($($kind:ty),*) -> $result:ty, $($argument:expr),*) => {{
        // SAFETY: the types are those of librados.h, and all arguments outlive the call.
        unsafe {
            type Function = unsafe extern "C" fn($($kind),*) -> $result;
            let function = $client.get::<Function>($name).unwrap();
            function($($argument),*)
        }
    }};
}

type Raw = *mut c_void;
type Text = *const c_char;

fn text(text: &str) -> CString {
    CString::new(text).unwrap()
}

impl OldClient {
    fn connect(uri: &str, format: u8) -> Self {
        let location = Location::parse(uri).unwrap();
        // SAFETY: librados is an ordinary shared library.
        let library = unsafe { libloading::Library::new("librados.so.2") }.unwrap();
        let (mut cluster, mut io) = (ptr::null_mut(), ptr::null_mut());
        let (id, conf) = (text(&location.id), text(location.conf.as_deref().unwrap()));
        let (pool, namespace) = (text(&location.pool), text(&location.namespace));
        assert_eq!(
            call!(library, b"rados_create\0", (*mut Raw, Text) -> c_int, &mut cluster, id.as_ptr()),
            0
        );
        assert_eq!(
            call!(library, b"rados_conf_read_file\0", (Raw, Text) -> c_int, cluster, conf.as_ptr()),
            0
        );
        assert_eq!(call!(library, b"rados_connect\0", (Raw) -> c_int, cluster), 0);
        let created = call!(library, b"rados_ioctx_create\0", (Raw, Text, *mut Raw) -> c_int, cluster, pool.as_ptr(), &mut io);
        assert_eq!(created, 0);
        call!(library, b"rados_ioctx_set_namespace\0", (Raw, Text) -> (), io, namespace.as_ptr());
        Self { format, library, io }
    }

    /// Writes bytes at an offset of the default fork by a call of the old class; returns the code and the output.
    fn call(&self, object: &str, offset: u64, data: &[u8]) -> (c_int, Vec<u8>) {
        let mut change = vec![1, 0, 0];
        change.extend(1_u32.to_le_bytes());
        change.extend(offset.to_le_bytes());
        change.extend((data.len() as u32).to_le_bytes());
        change.extend(data);
        self.change(object, &change)
    }

    /// Sets a key by a call of the old class; returns the code and the output.
    fn set_key(&self, object: &str, key: &str, value: &str) -> (c_int, Vec<u8>) {
        let sum = sealed(value.as_bytes().to_vec()).split_off(value.len());
        let mut change = vec![5];
        change.extend((key.len() as u16 + 1).to_le_bytes());
        change.push(b'k');
        change.extend(key.as_bytes());
        change.extend((value.len() as u32 + 5).to_le_bytes());
        change.push(1);
        change.extend(sum);
        change.extend(value.as_bytes());
        self.change(object, &change)
    }

    /// Makes one change by a call of the old class; returns the code and the output.
    fn change(&self, object: &str, change: &[u8]) -> (c_int, Vec<u8>) {
        const LOADER: &str = "function run(i,o)local s=i:str()local n=string.unpack('<I4',s)\
            local f=load(s:sub(5,4+n),'=nacre')if not f then o:append('\\6')return -125 end \
            return f(s,5+n,o)end objclass.register(run)";
        let class = match self.format {
            1 => include_str!("old/extent-1.lua"),
            _ => include_str!("old/extent-2.lua"),
        };
        let lines = class.lines().map(str::trim);
        let mut chunk: String = lines
            .filter(|line| !line.is_empty() && !line.starts_with("--"))
            .map(|line| format!("{line}\n"))
            .collect();
        chunk.push_str("return guarded(apply,...)");
        let mut request = Vec::new();
        if self.format == 2 {
            request.extend(rand::random::<[u8; 16]>());
        }
        request.extend(u64::MAX.to_le_bytes());
        for number in [0_u32, 0, 1] {
            request.extend(number.to_le_bytes());
        }
        request.extend(change);
        let input = [&(chunk.len() as u32).to_le_bytes()[..], chunk.as_bytes(), &request].concat();
        let mut body = Vec::new();
        for part in [LOADER.as_bytes(), b"run", &input] {
            body.extend((part.len() as u32).to_le_bytes());
            body.extend(part);
        }
        let input = [&[1, 1][..], &(body.len() as u32).to_le_bytes(), &body].concat();
        let (object, class, method) =
            (text(&format!("nacre.{object}")), text("lua"), text("eval_bufferlist"));
        let (mut output, mut length, mut result) = (vec![0_u8; 256], 0_usize, 0);
        let library = &self.library;
        let op = call!(library, b"rados_create_read_op\0", () -> Raw,);
        call!(library, b"rados_read_op_exec_user_buf\0",
            (Raw, Text, Text, Text, usize, *mut c_char, usize, *mut usize, *mut c_int) -> (),
            op, class.as_ptr(), method.as_ptr(), input.as_ptr().cast(), input.len(), output.as_mut_ptr().cast(),
            output.len(), &mut length, &mut result);
        let code = call!(library, b"rados_read_op_operate\0", (Raw, Raw, Text, c_int) -> c_int,
            op, self.io, object.as_ptr(), 0);
        call!(library, b"rados_release_read_op\0", (Raw) -> (), op);
        output.truncate(length);
        (code, output)
    }

    fn header(&self, object: &str) -> Vec<u8> {
        let (object, name) = (text(&format!("nacre.{object}")), text("nacre"));
        let mut value = vec![0_u8; 256];
        let length = call!(
            self.library, b"rados_getxattr\0", (Raw, Text, Text, *mut c_char, usize) -> c_int,
            self.io, object.as_ptr(), name.as_ptr(), value.as_mut_ptr().cast(), value.len()
        );
        value.truncate(usize::try_from(length).unwrap());
        value
    }

    /// Writes the whole of an extent at 0 in the old native way: compare the header, write, set the entry and the
    /// header. Returns the code.
    fn write_natively(&self, object: &str, before: &[u8], data: &[u8]) -> c_int {
        let version = u64::from_le_bytes(before[8..16].try_into().unwrap()) + 1;
        let mut after = before[..60].to_vec();
        after[8..16].copy_from_slice(&version.to_le_bytes());
        if self.format == 2 {
            after.extend(rand::random::<[u8; 16]>());
        }
        let after = sealed(after);
        let mut extent = version.to_le_bytes().to_vec();
        extent.extend([0; 12]);
        extent.extend([1, 1, 0, 0]);
        let extent = sealed(extent);
        let key = format!("x\u{1}\u{1}{:016x}", data.len());
        let (object, name) = (text(&format!("nacre.{object}")), text("nacre"));
        let library = &self.library;
        let op = call!(library, b"rados_create_write_op\0", () -> Raw,);
        call!(library, b"rados_write_op_cmpxattr\0", (Raw, Text, u8, Text, usize) -> (),
            op, name.as_ptr(), 1, before.as_ptr().cast(), before.len());
        call!(library, b"rados_write_op_write\0", (Raw, Text, usize, u64) -> (), op, data.as_ptr().cast(), data.len(), 0);
        let (keys, key_len): (Text, usize) = (key.as_ptr().cast(), key.len());
        let (values, value_len): (Text, usize) = (extent.as_ptr().cast(), extent.len());
        call!(library, b"rados_write_op_omap_set2\0",
            (Raw, *const Text, *const Text, *const usize, *const usize, usize) -> (),
            op, &keys, &values, &key_len, &value_len, 1);
        call!(library, b"rados_write_op_setxattr\0", (Raw, Text, Text, usize) -> (),
            op, name.as_ptr(), after.as_ptr().cast(), after.len());
        let code = call!(library, b"rados_write_op_operate\0", (Raw, Raw, Text, Raw, c_int) -> c_int,
            op, self.io, object.as_ptr(), ptr::null_mut(), 0);
        call!(library, b"rados_release_write_op\0", (Raw) -> (), op);
        code
    }
}

/// Returns a record with its checksum, as in docs/ceph.md.
fn sealed(mut body: Vec<u8>) -> Vec<u8> {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut sum = 0x6e_6163_7265 ^ body.len() as u64;
    for word in body.chunks(8) {
        let mut bytes = [0; 8];
        bytes[..word.len()].copy_from_slice(word);
        sum = (sum ^ u64::from_le_bytes(bytes)).wrapping_mul(FACTOR);
        sum ^= sum >> 32;
    }
    body.extend(((sum.wrapping_mul(FACTOR) >> 32) as u32).to_le_bytes());
    body
}

fn apply(store: &RadosStore, object: &str, transaction: Transaction) -> Done {
    match block_on(store.apply(&ObjectId::try_from(object).unwrap(), transaction)).unwrap() {
        Outcome::Done(done) => done,
        Outcome::Refused(refusal) => panic!("refused: {refusal:?}"),
    }
}

/// Returns the bytes of an object, and their version.
fn read(store: &RadosStore, object: &str) -> (Vec<u8>, u64) {
    let done = apply(store, object, Transaction::new().read_range(Fork::DEFAULT, ByteRange::new(0, 100)));
    let Some(Answer::Range(found)) = done.answers.first() else { panic!("a range was asked for") };
    (found.data.to_vec(), found.version)
}

fn write(store: &RadosStore, object: &str, data: &'static str) -> u64 {
    apply(store, object, Transaction::new().write(Fork::DEFAULT, 0, data)).version
}

/// Returns the header of an older format that is equivalent to one of today's.
fn in_old_format(header: &[u8], format: u8) -> Vec<u8> {
    let mut body = header[..if format == 1 { 60 } else { 76 }].to_vec();
    body[0] = format;
    sealed(body)
}

#[test]
fn clients_of_older_formats_fail_on_what_is_written_today() {
    let cluster = Cluster::shared();
    for format in [1, 2] {
        let uri = cluster.uri("old-fails");
        let (store, old) = (open(&uri), OldClient::connect(&uri, format));
        write(&store, "a", "text");
        let version = write(&store, "a", "next");
        let header = old.header("a");
        assert_eq!((header.len(), header[0]), (92, 3));
        // A call of the first format finds it corrupt, and one of the second format written by a newer version.
        let said = [&b"\x04xattr nacre"[..], &[7, 3]][usize::from(format) - 1].to_vec();
        assert_eq!(old.call("a", 0, b"over"), (-ECANCELED, said.clone()));
        assert_eq!(old.call("a", 2, b"over"), (-ECANCELED, said.clone()));
        assert_eq!(old.set_key("a", "k", "v"), (-ECANCELED, said));
        // A native write finds no header of its own, whether it foretold it or not.
        assert_eq!(old.write_natively("a", &in_old_format(&header, format), b"over"), -ECANCELED);
        assert_eq!(old.header("a"), header);
        assert_eq!(read(&store, "a"), (b"next".to_vec(), version));
    }
}

#[test]
fn what_older_formats_hold_is_read_and_goes_on_in_todays() {
    let cluster = Cluster::shared();
    for (format, how) in [(1, "on"), (1, "off"), (2, "on"), (2, "off")] {
        let uri = format!("{}&native={how}", cluster.uri("old-read"));
        let (store, old) = (open(&uri), OldClient::connect(&uri, format));
        for (number, name) in ["a", "b", "c"].into_iter().enumerate() {
            assert_eq!(old.call(name, 0, b"text").0, 0);
            let header = old.header(name);
            assert_eq!((header.len(), header[0]), (48 + 16 * usize::from(format), format));
            assert_eq!(old.write_natively(name, &header, b"next"), 0);
            let foretold = old.header(name);
            for _ in 0..3 {
                assert_eq!(read(&store, name), (b"next".to_vec(), 2));
            }
            let stat = apply(&store, name, Transaction::new().read(ReadOp::Stat));
            let Some(Answer::Stat(stat)) = stat.answers.first() else { panic!("a stat was asked for") };
            assert_eq!((stat.exists, stat.forks, stat.bytes), (true, 1, 4));
            // The first write, of whatever kind, brings the object up to date; from then on the old client is out.
            match number {
                0 => assert_eq!(write(&store, name, "more"), 3),
                1 => assert_eq!(
                    apply(&store, name, Transaction::new().write(Fork::DEFAULT, 1, "o")).version,
                    3
                ),
                _ => {
                    let set = WriteOp::SetKey { key: Key::try_from("k").unwrap(), value: "v".into() };
                    assert_eq!(apply(&store, name, Transaction::new().change(set)).version, 3);
                }
            }
            let header = old.header(name);
            assert_eq!((header.len(), header[0]), (92, 3));
            assert_eq!(old.write_natively(name, &foretold, b"over"), -ECANCELED);
            assert_eq!(old.call(name, 0, b"over").0, -ECANCELED);
            let expected: &[u8] = [b"more", b"noxt", b"next"][number];
            assert_eq!(read(&store, name).0, expected);
        }
        let listed = block_on(store.list(None, 10)).unwrap();
        assert_eq!(listed.len(), 3);
    }
}

/// Tests that a key that an older client set has a version all the same: one that changes at least as often as the key.
#[test]
fn keys_of_older_formats_have_the_version_of_their_object() {
    let cluster = Cluster::shared();
    let key = |name: &str| Key::try_from(name).unwrap();
    for (format, how) in [(1, "off"), (2, "on"), (2, "off")] {
        let uri = format!("{}&native={how}", cluster.uri("old-keys"));
        let (store, old) = (open(&uri), OldClient::connect(&uri, format));
        let versions = || {
            let read = |values| ReadOp::VersionedKeys { range: KeyRange::all(), limit: 9, values };
            let one = ReadOp::versioned_key(key("first"));
            let single = apply(&store, "a", Transaction::new().read(one.clone())).answers;
            let all = Transaction::new().read(one).read(read(true)).read(read(false));
            let answers = apply(&store, "a", all).answers;
            assert_eq!(answers[0], single[0]);
            let [_, Answer::VersionedKeys(whole), Answer::VersionedKeys(brief)] = &answers[..] else {
                panic!("a key and two pages were asked for")
            };
            assert!(whole.entries.iter().all(|(key, found)| found.value == key.as_bytes()));
            let of = |page: &VersionedKeyPage| -> Vec<u64> {
                page.entries.iter().map(|(_, found)| found.version).collect()
            };
            assert_eq!(of(whole), of(brief));
            let first = whole.entries.first().map(|(_, found)| found.clone());
            assert_eq!(answers[0], Answer::VersionedValue(first));
            of(whole)
        };
        let at = |version| Guard::KeyVersion { key: key("first"), version };
        let refused = |version| {
            let change = Transaction::new().guard(at(version)).change(WriteOp::Remove);
            match block_on(store.apply(&ObjectId::try_from("a").unwrap(), change)).unwrap() {
                Outcome::Refused(refusal) => refusal.found,
                Outcome::Done(done) => panic!("done at {}", done.version),
            }
        };
        assert_eq!(old.set_key("a", "first", "first").0, 0);
        assert_eq!(versions(), [1]);
        // Whatever the older client writes may be the key: nobody can tell.
        assert_eq!(old.set_key("a", "second", "second").0, 0);
        assert_eq!(versions(), [2, 2]);
        assert_eq!(refused(1), Found::KeyVersion(2));
        // From the first write of today on, they stay what they were, and each key has its own.
        assert_eq!(
            apply(&store, "a", Transaction::new().guard(at(2)).write(Fork::DEFAULT, 0, "x")).version,
            3
        );
        assert_eq!(versions(), [2, 2]);
        let set = |name: &'static str| WriteOp::SetKey { key: key(name), value: name.into() };
        let guarded = Transaction::new().guard(at(2)).change(set("second")).change(set("third"));
        assert_eq!(apply(&store, "a", guarded).version, 4);
        assert_eq!(versions(), [2, 4, 4]);
        assert_eq!(old.set_key("a", "first", "lies").0, -ECANCELED);
        apply(&store, "a", Transaction::new().guard(at(2)).change(set("first")));
        assert_eq!(versions(), [5, 4, 4]);
        assert_eq!(refused(2), Found::KeyVersion(5));
        let gone = Transaction::new().change(WriteOp::Remove).change(set("first"));
        assert_eq!(apply(&store, "a", gone).version, 6);
        assert_eq!(versions(), [6]);
        let read = Transaction::new().read(ReadOp::versioned_key(key("first")));
        let found = Versioned { value: "first".into(), version: 6 };
        assert_eq!(apply(&store, "a", read).answers, [Answer::VersionedValue(Some(found))]);
    }
}

/// Tests that a header of a format that is not known yet is told apart from damage, and does not hinder other objects.
#[test]
fn what_a_newer_version_wrote_is_said_to_be_that() {
    let cluster = Cluster::shared();
    let uri = cluster.uri("newer");
    let (store, by_calls, old) =
        (open(&uri), open(&format!("{uri}&native=off")), OldClient::connect(&uri, 2));
    for name in ["first", "newer", "third"] {
        write(&store, name, "text");
    }
    let later = sealed([&[4_u8][..], &old.header("newer")[1..88], &[0; 20]].concat());
    let (object, name) = (text("nacre.newer"), text("nacre"));
    let code = call!(
        old.library, b"rados_setxattr\0", (Raw, Text, Text, Text, usize) -> c_int,
        old.io, object.as_ptr(), name.as_ptr(), later.as_ptr().cast(), later.len()
    );
    assert_eq!(code, 0);
    let id = ObjectId::try_from("newer").unwrap();
    for store in [&store, &by_calls] {
        for transaction in [
            Transaction::new().read_range(Fork::DEFAULT, ByteRange::new(0, 4)),
            Transaction::new().write(Fork::DEFAULT, 0, "over"),
            Transaction::new().change(WriteOp::Remove),
        ] {
            let error = block_on(store.apply(&id, transaction)).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Unsupported, "{error}");
            assert!(error.message.contains("newer") && error.message.contains("format 4"), "{error}");
        }
    }
    assert_eq!(old.header("newer"), later);
    let listed: Vec<String> =
        block_on(store.list(None, 10)).unwrap().iter().map(ToString::to_string).collect();
    assert_eq!(listed, ["first", "newer", "third"]);
    let error = block_on(store.discard_damaged(&id)).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unsupported, "{error}");
}
