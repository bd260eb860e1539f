//! Bytes as all that the balancer reads: its entry in the map, what ranks publish, traces and policies.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| nacre_balance::fuzz(bytes));
