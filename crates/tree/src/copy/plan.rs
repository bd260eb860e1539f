//! A summary of what a copy would do, made of the differences that its preview reports.

use std::sync::atomic::{AtomicU64, Ordering};

use nacre_walk::FileKind;

use crate::copy::{Copy, Difference, Differing};

/// The counts of what a copy would do; all threads add to them.
#[derive(Debug, Default)]
pub struct Plan {
    /// The number of entries to copy.
    pub copied: AtomicU64,
    /// The bytes of files that the destination has not.
    pub bytes: AtomicU64,
    /// The number of entries that become further names of files that are copied or there already.
    pub linked: AtomicU64,
    /// The number of entries that only get another owner, mode, time or attributes.
    pub adjusted: AtomicU64,
    /// The number of entries to remove.
    pub removed: AtomicU64,
}

impl Plan {
    /// Adds what the copy would do about a difference, and returns it in a word; `None` if it would do nothing.
    pub fn add(&self, copy: &Copy, differing: &Differing) -> Option<&'static str> {
        let add = |counter: &AtomicU64, number| {
            counter.fetch_add(number, Ordering::Relaxed);
        };
        match differing.difference {
            Difference::Extra if !copy.is_mirror() => None,
            // It is not copied, and what has its name stays.
            Difference::Kind if differing.kind == FileKind::Socket => None,
            Difference::Extra => {
                // A directory goes with everything in it.
                add(&self.removed, copy.count_at_destination(&differing.path).entries.max(1));
                Some("remove")
            }
            Difference::Linked => {
                add(&self.linked, 1);
                Some("link")
            }
            // A link, a pipe or a device is made anew.
            Difference::Permissions | Difference::Extended | Difference::Accessed
                if matches!(differing.kind, FileKind::File | FileKind::Directory) =>
            {
                add(&self.adjusted, 1);
                Some("adjust")
            }
            Difference::Modified if differing.kind == FileKind::Directory => {
                add(&self.adjusted, 1);
                Some("adjust")
            }
            difference => {
                if difference == Difference::Kind && copy.is_mirror() {
                    // So does one in whose place something else is copied.
                    let there = copy.count_at_destination(&differing.path);
                    add(&self.removed, if there.directories > 0 { there.entries } else { 0 });
                }
                add(&self.copied, 1);
                add(&self.bytes, differing.size);
                Some("copy")
            }
        }
    }
}
