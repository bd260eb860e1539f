//! Arbitrary bytes, read as a checkpoint of a walk, whole and as the payload of a frame with a correct checksum:
//! nothing panics, and the memory stays within a small multiple of the bytes.

#![no_main]

use libfuzzer_sys::fuzz_target;
use nacre_walk::checkpoint;
use nacre_walk::report::link::HardLinks;
use nacre_walk::report::partial::Partial;

fuzz_target!(|bytes: &[u8]| {
    let (mut links, mut partial) = (HardLinks::new(&Default::default(), 1), Partial::default());
    let _ = checkpoint::read(&mut &bytes[..], &mut links, &mut partial);
    if let Some((kind, payload)) = bytes.split_first() {
        let file = checkpoint::check::file_with(*kind, payload);
        let _ = checkpoint::read(&mut &file[..], &mut links, &mut partial);
    }
});
