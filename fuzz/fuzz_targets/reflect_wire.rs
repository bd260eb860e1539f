//! Arbitrary bytes, decoded as a message to a reflector and as one from it: nothing panics, and a decoded message is
//! the same after it was encoded again.

#![no_main]

use libfuzzer_sys::fuzz_target;
use nacre_reflect::wire::{Answer, Request};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(request) = Request::decode(bytes) {
        assert_eq!(Request::decode(&request.encode()), Ok(request));
    }
    if let Ok(answer) = Answer::decode(bytes) {
        assert_eq!(Answer::decode(&answer.encode()), Ok(answer));
    }
});
