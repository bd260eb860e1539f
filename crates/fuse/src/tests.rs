use nacre_meta::RankOptions;
use nacre_object::testkit::{MemoryStore, block_on};

use super::*;

#[test]
fn a_file_that_somebody_else_was_faster_to_make_is_truncated_if_the_opening_asks_for_it() {
    block_on(async {
        let options = RankOptions { create: true, ..RankOptions::default() };
        let rank = Arc::new(Rank::open(Arc::new(MemoryStore::new()), options).await.unwrap());
        let calls = Calls::new(rank.clone(), Duration::ZERO);
        let (root, other) = (Credentials::root(), Credentials::new(7, 7));
        let open = async |user: &Credentials, flags| {
            calls.create(user, Ino::ROOT, b"f", Creation::new(InodeKind::File, 0o644), flags).await
        };
        let made = open(&root, O_WRONLY | O_TRUNC).await.unwrap().ino;
        rank.write_file(made, 0, Bytes::from_static(b"content")).await.unwrap();
        let opened = open(&root, O_WRONLY).await.unwrap();
        assert_eq!((opened.ino, opened.size), (made, 7));
        assert_eq!(open(&root, O_WRONLY | O_TRUNC | O_EXCL).await.err(), Some(Error::Exists));
        assert_eq!(open(&other, O_TRUNC).await.err(), Some(Error::Denied));
        assert_eq!(rank.stat(made).await.unwrap().size, 7);
        let opened = open(&root, O_WRONLY | O_TRUNC).await.unwrap();
        assert_eq!((opened.ino, opened.size), (made, 0));
    });
}

#[test]
fn what_somebody_else_was_faster_to_make_is_not_opened_unless_it_is_a_file() {
    block_on(async {
        let options = RankOptions { create: true, ..RankOptions::default() };
        let rank = Arc::new(Rank::open(Arc::new(MemoryStore::new()), options).await.unwrap());
        let calls = Calls::new(rank.clone(), Duration::ZERO);
        let root = Credentials::root();
        let link = rank.create(&root, Ino::ROOT, b"l", Creation::symlink("f")).await.unwrap().ino;
        for flags in [O_WRONLY, O_WRONLY | O_TRUNC] {
            let creation = Creation::new(InodeKind::File, 0o644);
            let opened = calls.create(&root, Ino::ROOT, b"l", creation, flags).await;
            assert_eq!(opened.err(), Some(Error::Stale));
        }
        // Nobody has it open, so it goes with its entry.
        rank.unlink(&root, Ino::ROOT, b"l").await.unwrap();
        assert_eq!(rank.stat(link).await.err(), Some(Error::NotFound));
    });
}
