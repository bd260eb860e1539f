//! Arbitrary bytes, parsed as the layout of a file on Lustre, as they are and as the component of a composite one.

#![no_main]

use libfuzzer_sys::fuzz_target;
use nacre_walk::lustre::parse;

fuzz_target!(|bytes: &[u8]| {
    let _ = parse(bytes);
    for magic in [0x0bd1_0bd0_u32, 0x0bd3_0bd0, 0x0bd6_0bd0] {
        let _ = parse(&[&magic.to_ne_bytes()[..], bytes].concat());
    }
});
