//! Bytes as messages about calls of methods: what is decoded is the same when it is encoded and decoded again.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| nacre_class::network::fuzz(bytes));
