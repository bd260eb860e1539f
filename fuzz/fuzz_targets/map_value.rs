//! Bytes as every kind of value of a map and of the cluster log: what is decoded is the same when it is encoded again.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    nacre_map::codec::fuzz(bytes);
    nacre_map::log::fuzz(bytes);
});
