//! Arbitrary bytes, parsed as the text of a pattern; what comes out is brought into normal form and asked.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    nacre_lock::fuzz::text(bytes);
});
