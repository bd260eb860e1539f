//! Bytes as messages and records of a metadata rank: what is decoded is the same when it is encoded and decoded again.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| nacre_meta::fuzz::wire(bytes));
