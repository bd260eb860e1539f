//! Arbitrary bytes, decoded as a snapshot of the index, and as the items of one of its frames.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    nacre_logstore::fuzz::snapshot_items(bytes);
});
