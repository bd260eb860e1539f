//! Sequences of datagrams to a reflector's control plane, together with an operator and a store: an address that has
//! proven nothing receives no more than it sent, there is no member without proof, and the tables and counters agree.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|script: &[u8]| {
    nacre_reflect::control::check::run(script);
});
