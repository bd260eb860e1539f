//! Arbitrary bytes, rewritten as a text for OSDs: no line moves, what Lua compiles it compiles afterwards, and it ends by its counters
//! where the original ends by the bounds of the machine.

#![no_main]

use std::cell::OnceCell;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use nacre_class::rewrite::{COUNT, JOIN, rewrite};
use nacre_class::{Bounds, Runtime, validate};

thread_local! {
    static RUNTIME: OnceCell<Runtime> = const { OnceCell::new() };
}

fn lines(text: &[u8]) -> usize {
    text.iter().filter(|byte| **byte == b'\n').count()
}

fuzz_target!(|bytes: &[u8]| {
    let Ok(counted) = rewrite(bytes) else { return };
    assert_eq!(lines(&counted), lines(bytes));
    let bounds = Bounds {
        instructions: 100_000_000,
        memory_bytes: 64 << 20,
        wall: Duration::from_secs(20),
        ..Bounds::default()
    };
    let mut text = format!(
        "local left = 1000 local function {COUNT}(n) left = left - n if left < 0 then error('no units are left', 0) end end \
         local function {JOIN}(a, b) return #a + #b < 1000 and a .. b end "
    )
    .into_bytes();
    text.extend(counted);
    RUNTIME.with(|runtime| {
        let runtime = runtime.get_or_init(|| Runtime::new(1));
        if let Err(error) = validate(runtime, "fuzz", text.into(), bounds) {
            // Library functions are not bounded by the text, but by their own charges.
            let error = error.to_string();
            assert!(!error.contains("more than 20s") || bytes.len() > 4096, "{error}");
        }
    });
});
