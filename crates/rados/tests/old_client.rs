//! Clients of the first format on the same pool: their requests, byte for byte, must fail and change nothing once a
//! client of today has written an object; and objects that they wrote before are read, and continue in today's format.
//!
//! `old/extent-1.lua` is the class as those clients send it.

#![allow(unsafe_code, reason = "the old client's operations are sent by librados itself")]

mod cluster;

use std::ffi::{CString, c_char, c_int, c_void};
use std::ptr;

use cluster::{Cluster, open};
use nacre_object::testkit::block_on;
use nacre_object::{
    Answer, ByteRange, Done, ErrorKind, Fork, Key, ObjectId, ObjectStore, Outcome, Read, Transaction, Write,
};
use nacre_rados::{Location, RadosStore};

const ECANCELED: c_int = 125;

/// A connection that sends what the old client sent.
struct OldClient {
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
    fn connect(uri: &str) -> Self {
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
        Self { library, io }
    }

    /// Writes bytes at an offset of the default fork by a call of the old class; returns the code.
    fn call(&self, object: &str, offset: u64, data: &[u8]) -> c_int {
        const LOADER: &str = "function run(i,o)local s=i:str()local n=string.unpack('<I4',s)\
            local f=load(s:sub(5,4+n),'=nacre')if not f then o:append('\\6')return -125 end \
            return f(s,5+n,o)end objclass.register(run)";
        let lines = include_str!("old/extent-1.lua").lines().map(str::trim);
        let mut chunk: String = lines
            .filter(|line| !line.is_empty() && !line.starts_with("--"))
            .map(|line| format!("{line}\n"))
            .collect();
        chunk.push_str("return guarded(apply,...)");
        let mut request = u64::MAX.to_le_bytes().to_vec();
        for number in [0_u32, 0, 1] {
            request.extend(number.to_le_bytes());
        }
        request.extend([1, 0, 0]);
        request.extend(1_u32.to_le_bytes());
        request.extend(offset.to_le_bytes());
        request.extend((data.len() as u32).to_le_bytes());
        request.extend(data);
        let input = [&(chunk.len() as u32).to_le_bytes()[..], chunk.as_bytes(), &request].concat();
        let mut body = Vec::new();
        for part in [LOADER.as_bytes(), b"run", &input] {
            body.extend((part.len() as u32).to_le_bytes());
            body.extend(part);
        }
        let input = [&[1, 1][..], &(body.len() as u32).to_le_bytes(), &body].concat();
        let (object, class, method) =
            (text(&format!("nacre.{object}")), text("lua"), text("eval_bufferlist"));
        let mut output = [0_u8; 256];
        call!(
            self.library, b"rados_exec\0",
            (Raw, Text, Text, Text, Text, usize, *mut c_char, usize) -> c_int,
            self.io, object.as_ptr(), class.as_ptr(), method.as_ptr(), input.as_ptr().cast(), input.len(),
            output.as_mut_ptr().cast(), output.len()
        )
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

/// Returns the header of the first format that is equivalent to one of today's.
fn in_old_format(header: &[u8]) -> Vec<u8> {
    let mut body = header[..60].to_vec();
    body[0] = 1;
    sealed(body)
}

#[test]
fn clients_of_the_first_format_fail_on_what_is_written_today() {
    let cluster = Cluster::shared();
    let uri = cluster.uri("old-fails");
    let (store, old) = (open(&uri), OldClient::connect(&uri));
    write(&store, "a", "text");
    let version = write(&store, "a", "next");
    let header = old.header("a");
    assert_eq!((header.len(), header[0]), (80, 2));
    // A call finds it corrupt; a native write finds no header of its own, whether it foretold it or not.
    assert_eq!(old.call("a", 0, b"over"), -ECANCELED);
    assert_eq!(old.call("a", 2, b"over"), -ECANCELED);
    assert_eq!(old.write_natively("a", &in_old_format(&header), b"over"), -ECANCELED);
    assert_eq!(old.header("a"), header);
    assert_eq!(read(&store, "a"), (b"next".to_vec(), version));
}

#[test]
fn what_the_first_format_holds_is_read_and_goes_on_in_todays() {
    let cluster = Cluster::shared();
    for how in ["native=on", "native=off"] {
        let uri = format!("{}&{how}", cluster.uri("old-read"));
        let (store, old) = (open(&uri), OldClient::connect(&uri));
        for (number, name) in ["a", "b", "c"].into_iter().enumerate() {
            assert_eq!(old.call(name, 0, b"text"), 0);
            let header = old.header(name);
            assert_eq!((header.len(), header[0]), (64, 1));
            assert_eq!(old.write_natively(name, &header, b"next"), 0);
            let foretold = old.header(name);
            for _ in 0..3 {
                assert_eq!(read(&store, name), (b"next".to_vec(), 2));
            }
            let stat = apply(&store, name, Transaction::new().read(Read::Stat));
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
                    let set = Write::SetKey { key: Key::try_from("k").unwrap(), value: "v".into() };
                    assert_eq!(apply(&store, name, Transaction::new().change(set)).version, 3);
                }
            }
            let header = old.header(name);
            assert_eq!((header.len(), header[0]), (80, 2));
            assert_eq!(old.write_natively(name, &foretold, b"over"), -ECANCELED);
            assert_eq!(old.call(name, 0, b"over"), -ECANCELED);
            let expected: &[u8] = [b"more", b"noxt", b"next"][number];
            assert_eq!(read(&store, name).0, expected);
        }
        let listed = block_on(store.list(None, 10)).unwrap();
        assert_eq!(listed.len(), 3);
    }
}

/// Tests that a header of a format that is not known yet is told apart from damage, and does not hinder other objects.
#[test]
fn what_a_newer_version_wrote_is_said_to_be_that() {
    let cluster = Cluster::shared();
    let uri = cluster.uri("newer");
    let (store, by_calls, old) = (open(&uri), open(&format!("{uri}&native=off")), OldClient::connect(&uri));
    for name in ["first", "newer", "third"] {
        write(&store, name, "text");
    }
    let later = sealed([&[3_u8][..], &old.header("newer")[1..76], &[0; 20]].concat());
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
            Transaction::new().change(Write::Remove),
        ] {
            let error = block_on(store.apply(&id, transaction)).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Unsupported, "{error}");
            assert!(error.message.contains("newer") && error.message.contains("format 3"), "{error}");
        }
    }
    assert_eq!(old.header("newer"), later);
    let listed: Vec<String> =
        block_on(store.list(None, 10)).unwrap().iter().map(ToString::to_string).collect();
    assert_eq!(listed, ["first", "newer", "third"]);
    let error = block_on(store.discard_damaged(&id)).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unsupported, "{error}");
}
