//! Sequences of datagrams into a reflector's control plane, with an operator and a store beside it: an address that has
//! proven nothing gets no more than it sent, nobody is a member without proof, and the tables and counters agree.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|script: &[u8]| {
    nacre_reflect::control::check::run(script);
});
