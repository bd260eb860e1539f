//! Arbitrary bytes, decoded as a record of the log, and scanned as a segment.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    nacre_logstore::fuzz::record(bytes);
});
