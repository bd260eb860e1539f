//! Bytes as messages about leases: what is decoded is the same when it is encoded again.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| nacre_remote::lease::fuzz(bytes));
