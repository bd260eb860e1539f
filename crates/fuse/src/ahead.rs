//! Look-ups that follow each other in a directory, for which the rank reads ahead.
//!
//! A directory in which some look-ups had to wait for the store is read from the name of the last of them on, and more of it when little is
//! left of what was read. So a program that goes through a directory waits at its beginning only. Names that were read and not
//! looked up are bounded: whoever looks at few names of a large directory soon costs no more than those.

use std::collections::HashMap;

use bytes::Bytes;
use nacre_meta::inode::Ino;
use parking_lot::Mutex;

/// The maximum number of directories that are followed.
const WALKS_MAX: usize = 256;
/// The number of look-ups in a directory that wait for the store before it is read ahead.
const WAITS_MIN: u32 = 3;
/// The number of names that are read at first, and at most.
const NAMES_MIN: usize = 32;
const NAMES_MAX: usize = 256;
/// The maximum number of names of a directory that were read and not looked up.
const UNUSED_MAX: usize = 8192;
/// The maximum number of reads that are under way.
const READS_MAX: usize = 4;

/// The directories in which names are looked up.
#[derive(Default)]
pub struct Walks(Mutex<State>);

#[derive(Default)]
struct State {
    walks: HashMap<Ino, Walk>,
    /// The number of reads that are under way.
    reading: usize,
}

#[derive(Default)]
struct Walk {
    /// The look-ups that waited for the store, since the directory was changed by this mount.
    waits: u32,
    /// The number of names that were read last.
    names: usize,
    /// The names that were read and not looked up, about. Look-ups that wait count too, so that a new attempt is made in the end where
    /// what was read is not remembered any more.
    unused: usize,
    /// The last name that was read, if there are more.
    end: Option<Bytes>,
    is_reading: bool,
}

/// Names that are to be read ahead.
#[derive(Debug, PartialEq, Eq)]
pub struct Ahead {
    /// The name behind which they are.
    pub after: Bytes,
    pub limit: usize,
}

impl Walks {
    /// Notes a look-up. Returns the names that are to be read now, if any are; [`Walks::read`] ends that.
    pub fn looked_up(&self, directory: Ino, name: &Bytes, waited: bool) -> Option<Ahead> {
        let mut state = self.0.lock();
        let State { walks, reading } = &mut *state;
        let walk = match walks.get_mut(&directory) {
            Some(walk) => walk,
            None if !waited => return None,
            None => {
                if walks.len() >= WALKS_MAX {
                    walks.retain(|_, walk| walk.is_reading);
                }
                walks.entry(directory).or_default()
            }
        };
        walk.unused = walk.unused.saturating_sub(1);
        let after = match waited {
            true => {
                walk.waits = walk.waits.saturating_add(1);
                (walk.waits >= WAITS_MIN).then_some(name)
            }
            false => walk.end.as_ref().filter(|_| 2 * walk.unused <= walk.names),
        };
        let limit = (2 * walk.names).clamp(NAMES_MIN, NAMES_MAX).min(UNUSED_MAX - walk.unused);
        if walk.is_reading || *reading >= READS_MAX || limit < NAMES_MIN {
            return None;
        }
        let after = after?.clone();
        *reading += 1;
        (walk.names, walk.is_reading) = (limit, true);
        walk.unused += limit;
        Some(Ahead { after, limit })
    }

    /// Notes the end of a read, the number of names that it found, and the last of them if there are more.
    pub fn read(&self, directory: Ino, names: usize, end: Option<Bytes>) {
        let mut state = self.0.lock();
        state.reading = state.reading.saturating_sub(1);
        if let Some(walk) = state.walks.get_mut(&directory) {
            walk.unused = walk.unused.saturating_sub(walk.names.saturating_sub(names));
            (walk.end, walk.is_reading) = (end, false);
            if names == 0 {
                walk.names = 0;
            }
        }
    }

    /// Notes a change of a directory's entries by this mount, which has to read them again.
    pub fn changed(&self, directory: Ino) {
        if let Some(walk) = self.0.lock().walks.get_mut(&directory) {
            (walk.waits, walk.end) = (0, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const D: Ino = Ino(7);

    fn name(number: usize) -> Bytes {
        format!("{number:06}").into()
    }

    /// Waits for look-ups until the directory is read.
    fn begin(walks: &Walks, from: usize) -> Ahead {
        for number in from..from + WAITS_MIN as usize - 1 {
            assert_eq!(walks.looked_up(D, &name(number), true), None);
        }
        let last = name(from + WAITS_MIN as usize - 1);
        let ahead = walks.looked_up(D, &last, true).unwrap();
        assert_eq!(ahead.after, last);
        ahead
    }

    #[test]
    fn a_directory_that_is_gone_through_is_read_on_before_it_has_to_be_waited_for() {
        let walks = Walks::default();
        let mut ahead = begin(&walks, 0);
        assert_eq!(ahead.limit, NAMES_MIN);
        // What is under way is not asked for twice.
        assert_eq!(walks.looked_up(D, &name(3), true), None);
        let mut read = WAITS_MIN as usize - 1 + ahead.limit;
        walks.read(D, ahead.limit, Some(name(read)));
        for number in 4..5000 {
            assert!(number <= read, "look-up {number} would wait");
            let Some(next) = walks.looked_up(D, &name(number), false) else { continue };
            assert_eq!(next, Ahead { after: name(read), limit: (2 * ahead.limit).min(NAMES_MAX) });
            read += next.limit;
            walks.read(D, next.limit, Some(name(read)));
            ahead = next;
        }
        // At the end of the directory there is nothing more to read.
        walks.read(D, ahead.limit, None);
        assert!((5000..6000).all(|number| walks.looked_up(D, &name(number), false).is_none()));
    }

    #[test]
    fn names_that_are_read_in_vain_are_few() {
        let walks = Walks::default();
        let mut ahead = Some(begin(&walks, 0));
        let (mut read, look_ups) = (0, 20_000);
        for number in 0..look_ups {
            if let Some(ahead) = ahead.take() {
                read += ahead.limit;
                walks.read(D, ahead.limit, None);
            }
            ahead = walks.looked_up(D, &name(number * 1000), true);
        }
        assert!((UNUSED_MAX..=UNUSED_MAX + look_ups).contains(&read), "{read}");
    }

    #[test]
    fn a_directory_that_is_not_remembered_costs_nothing_until_it_is() {
        let walks = Walks::default();
        begin(&walks, 0);
        for number in 3..20_000 {
            walks.read(D, 0, None);
            let ahead = walks.looked_up(D, &name(number), true).unwrap();
            assert_eq!(ahead, Ahead { after: name(number), limit: NAMES_MIN });
        }
    }

    #[test]
    fn a_directory_that_this_mount_changes_is_not_read_ahead() {
        let walks = Walks::default();
        for number in 0..1000 {
            assert_eq!(walks.looked_up(D, &name(number), true), None);
            walks.changed(D);
        }
        begin(&walks, 1000);
        walks.read(D, NAMES_MIN, Some(name(2000)));
        walks.changed(D);
        assert!((0..1000).all(|number| walks.looked_up(D, &name(number), false).is_none()));
    }

    #[test]
    fn few_reads_are_under_way_and_few_directories_are_followed() {
        let walks = Walks::default();
        let mut under_way = 0;
        for directory in 0..3 * WALKS_MAX as u64 {
            for number in 0..WAITS_MIN as usize {
                under_way += usize::from(walks.looked_up(Ino(directory), &name(number), true).is_some());
            }
            assert!(walks.0.lock().walks.len() <= WALKS_MAX);
        }
        assert_eq!(under_way, READS_MAX);
        walks.read(Ino(0), NAMES_MIN, None);
        begin(&walks, 0);
    }
}
