//! Arbitrary bytes, decoded as a message to a reflector and as one from it, and as a token and a public key in text: nothing
//! panics, and a decoded message is the same after it was encoded again.

#![no_main]

use libfuzzer_sys::fuzz_target;
use nacre_reflect::token::{PublicKey, Token};
use nacre_reflect::wire::relay::{Accept, Key, Open, Step};
use nacre_reflect::wire::{Answer, Request};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(request) = Request::decode(bytes) {
        assert_eq!(Request::decode(&request.encode()), Ok(request));
    }
    if let Ok(answer) = Answer::decode(bytes) {
        assert_eq!(Answer::decode(&answer.encode()), Ok(answer));
    }
    // Nobody guesses a signature; what comes before that is checked must not panic.
    let key = Key::of_secret(&[7; 32]);
    let _ = (Open::decode(bytes, &key), Accept::decode(bytes, &key), Step::decode(bytes, &key));
    if let Ok(text) = std::str::from_utf8(bytes) {
        if let Ok(token) = text.parse::<Token>() {
            assert_eq!(token.to_string().parse(), Ok(token));
        }
        if let Ok(key) = text.parse::<PublicKey>() {
            assert_eq!(key.to_string().parse(), Ok(key));
        }
    }
});
