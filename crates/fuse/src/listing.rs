//! Lists of open directories: the kernel asks for entries by their positions, the rank gives pages by names.

use std::collections::VecDeque;

use bytes::Bytes;
use nacre_meta::inode::{Ino, InodeKind};
use nacre_meta::{Credentials, Error, Listed, Rank};

/// The number of entries of an open directory that are kept for programs that go back in it.
const LISTED_MAX: usize = 65_536;
/// The number of entries that are read at a time.
const PAGE_ENTRIES: usize = 1024;

/// The part of a directory that was listed last. The kernel asks for entries by their positions, and goes back at most to the beginning
/// of what it has been given last, unless a program goes back.
pub struct Listing {
    /// The position of the first entry.
    pub first: u64,
    pub entries: VecDeque<Listed>,
    /// The name behind which further entries are.
    after: Bytes,
    /// True if there may be further entries.
    more: bool,
}

impl Listing {
    /// Begins with the directory itself and the one above it.
    fn begin(ino: Ino) -> Listing {
        let itself = |name: &'static [u8]| Listed {
            name: Bytes::from_static(name),
            ino,
            kind: InodeKind::Directory,
            attributes: None,
        };
        Listing { first: 0, entries: [itself(b"."), itself(b"..")].into(), after: Bytes::new(), more: true }
    }

    /// Returns the position behind the last entry.
    fn end(&self) -> u64 {
        self.first + self.entries.len() as u64
    }

    /// Returns a listing with the entry at a position and some behind it, if there are any. It continues one that is known, unless the
    /// position is in front of that.
    pub async fn at(
        rank: &Rank,
        user: &Credentials,
        ino: Ino,
        known: Option<Listing>,
        offset: u64,
    ) -> Result<Listing, Error> {
        let known = known.filter(|known| offset > 0 && offset >= known.first);
        let mut listing = known.unwrap_or_else(|| Listing::begin(ino));
        // With the first entries comes the answer whether the user may list them.
        while listing.more && offset.max(2) >= listing.end() {
            let page = rank.readdir(user, ino, &listing.after, PAGE_ENTRIES, false).await?;
            listing.more = page.more && !page.entries.is_empty();
            if let Some(last) = page.entries.last() {
                listing.after = last.name.clone();
            }
            listing.entries.extend(page.entries);
            while listing.entries.len() > LISTED_MAX && listing.first < offset {
                listing.entries.pop_front();
                listing.first += 1;
            }
        }
        Ok(listing)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use nacre_meta::{Creation, RankOptions, SetAttributes};
    use nacre_object::testkit::{MemoryStore, block_on};

    use super::*;

    #[test]
    fn a_directory_is_listed_by_positions_also_by_programs_that_go_back() {
        block_on(async {
            let options = RankOptions { create: true, ..RankOptions::default() };
            let rank = Rank::open(Arc::new(MemoryStore::new()), options).await.unwrap();
            let root = Credentials::root();
            for number in 0..2500 {
                let creation = Creation::new(InodeKind::Fifo, 0o644);
                rank.create(&root, Ino::ROOT, format!("{number:04}").as_bytes(), creation).await.unwrap();
            }
            let name = |position: u64| format!("{:04}", position - 2);
            let mut listing = None;
            // Forwards, with a part of each page asked for again; then back to the beginning, and far ahead of what is known.
            for position in [0, 1, 2, 700, 1025, 1026, 1500, 2501, 3, 2050, 2501] {
                let listed = Listing::at(&rank, &root, Ino::ROOT, listing.take(), position).await.unwrap();
                let found = &listed.entries[(position - listed.first) as usize];
                let expected = match position {
                    0 => ".".to_owned(),
                    1 => "..".to_owned(),
                    _ => name(position),
                };
                assert_eq!(found.name, expected, "{position}");
                listing = (position != 3).then_some(listed);
            }
            let end = Listing::at(&rank, &root, Ino::ROOT, listing, 2502).await.unwrap();
            assert_eq!((end.end(), end.more), (2502, false));
            let stranger = Credentials::new(7, 7);
            let set = SetAttributes { mode: Some(0o700), ..SetAttributes::default() };
            rank.set_attributes(&root, Ino::ROOT, &set).await.unwrap();
            assert_eq!(Listing::at(&rank, &stranger, Ino::ROOT, None, 0).await.err(), Some(Error::Denied));
        });
    }
}
