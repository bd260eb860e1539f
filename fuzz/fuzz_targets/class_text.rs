//! Arbitrary bytes, put as the text of a class: checked, compiled and run within small bounds; and read as packed values.

#![no_main]

use std::cell::OnceCell;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use nacre_class::{Bounds, Runtime, packed, transcript, validate};

thread_local! {
    static RUNTIME: OnceCell<Runtime> = const { OnceCell::new() };
}

fuzz_target!(|bytes: &[u8]| {
    let bounds = Bounds {
        instructions: 100_000,
        memory_bytes: 4 << 20,
        wall: Duration::from_millis(500),
        ..Bounds::default()
    };
    RUNTIME.with(|runtime| {
        let runtime = runtime.get_or_init(|| Runtime::new(1));
        let _ = validate(runtime, "fuzz", bytes.to_vec().into(), bounds);
    });
    let _ = transcript::parse(&String::from_utf8_lossy(bytes));
    if let Ok(values) = packed::unpack(bytes) {
        let _ = packed::pack(&values);
    }
});
