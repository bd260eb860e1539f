//! Fences by session where clients write natively, and what a client may do that must not call the class.

mod cluster;

use cluster::{Cluster, open};
use nacre_object::testkit::block_on;
use nacre_object::{
    Answer, ByteRange, Done, ErrorKind, Fences, Fork, Found, Guard, ObjectId, ObjectStore, Outcome, ReadOp,
    StoreError, Transaction, WriteOp,
};
use nacre_rados::RadosStore;

fn apply(store: &RadosStore, transaction: Transaction) -> Result<Outcome, StoreError> {
    block_on(store.apply(&ObjectId::try_from("a").unwrap(), transaction))
}

fn done(store: &RadosStore, transaction: Transaction) -> Done {
    match apply(store, transaction).unwrap() {
        Outcome::Done(done) => done,
        Outcome::Refused(refusal) => panic!("refused: {refusal:?}"),
    }
}

fn read(store: &RadosStore) -> Vec<u8> {
    let answers = done(store, Transaction::new().read_range(Fork::DEFAULT, ByteRange::new(0, 4))).answers;
    let Some(Answer::Range(found)) = answers.first() else { panic!("a range was asked for") };
    found.data.to_vec()
}

/// Returns a write of the whole of an extent, by a session.
fn by(session: u64, data: &'static str) -> Transaction {
    Transaction::new().guard(Guard::Fence { token: session }).write(Fork::DEFAULT, 0, data)
}

fn fence(session: u64) -> Transaction {
    Transaction::new().change(WriteOp::FenceSession { session })
}

#[test]
fn a_session_is_fenced_whatever_its_client_knows_of_the_object() {
    let cluster = Cluster::shared();
    for how in ["on", "off"] {
        let uri = format!("{}&native={how}", cluster.uri("fenced"));
        let (client, other) = (open(&uri), open(&uri));
        done(&client, by(5, "text"));
        for session in [6, 7, 8] {
            // The client writes natively, again and again, until it is fenced.
            for data in ["one.", "two."] {
                assert_eq!(read(&client).len(), 4);
                done(&client, by(session, data));
            }
            done(&other, fence(session));
            for _ in 0..3 {
                let Outcome::Refused(refusal) = apply(&client, by(session, "late")).unwrap() else {
                    panic!("session {session} is fenced")
                };
                assert_eq!((refusal.guard, refusal.found), (0, Found::Fence(0)));
                assert_eq!(read(&client), b"two.");
            }
        }
        done(&other, Transaction::new().change(WriteOp::RaiseFence { token: 8 }));
        for _ in 0..3 {
            let Outcome::Refused(refusal) = apply(&client, by(5, "late")).unwrap() else {
                panic!("session 5 is fenced")
            };
            assert_eq!(refusal.found, Found::Fence(8));
            done(&client, by(9, "nine"));
            assert_eq!(read(&other), b"nine");
        }
        let answers = done(&client, Transaction::new().read(ReadOp::Fences)).answers;
        assert_eq!(answers, [Answer::Fences(Fences { fence: 8, sessions: vec![8] })]);
    }
}

/// Tests that writes stay native on an object that has fenced sessions: a user that may not call the class makes them.
#[test]
fn a_fenced_session_does_not_make_others_call_the_class() {
    let cluster = Cluster::shared();
    let uri = cluster.uri("native");
    let admin = open(&uri);
    done(&admin, by(1, "text"));
    done(&admin, fence(3));
    let caps = ["auth", "get-or-create", "client.plain", "mon", "allow r", "osd", "allow rw pool=nacre"];
    std::fs::write(cluster.dir().join("client.plain.keyring"), cluster.ceph(&caps)).unwrap();
    let plain = open(&uri.replace("id=nacre", "id=plain"));
    let error = apply(&plain, by(4, "over")).unwrap_err();
    assert!(matches!(error.kind, ErrorKind::Denied | ErrorKind::Unsupported), "{error}");
    for _ in 0..2 {
        assert_eq!(read(&plain), b"text");
    }
    for data in ["one.", "two.", "tri."] {
        done(&plain, by(4, data));
        assert_eq!(read(&admin), data.as_bytes());
    }
    // The fenced one takes a call to be refused by, which this user may not make.
    let error = apply(&plain, by(3, "late")).unwrap_err();
    assert!(matches!(error.kind, ErrorKind::Denied | ErrorKind::Unsupported), "{error}");
    assert_eq!(read(&admin), b"tri.");
}
