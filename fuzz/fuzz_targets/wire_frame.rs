//! Arbitrary bytes, decoded as frames by both peers: nothing panics, the memory stays within a small multiple of the
//! bytes, and a decoded message is the same after it was encoded again.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    nacre_remote::check::decode_all(bytes);
});
