//! Any bytes, decoded as frames by both peers: no panic, no more memory than a small multiple of the bytes, and what
//! decodes is the same after it was encoded again.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    nacre_remote::check::decode_all(bytes);
});
