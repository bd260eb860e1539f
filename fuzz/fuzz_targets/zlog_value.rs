//! Bytes as everything that a shared log keeps: what is decoded is the same when it is encoded again.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    nacre_zlog::fuzz::decode(bytes);
});
