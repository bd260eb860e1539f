//! Bytes as the record of a stream, as a store's object may hold them under its head's name: what is decoded is the same when
//! it is encoded again, and its layouts deal out every range of its bytes without a gap, to objects that it has.

#![no_main]

use libfuzzer_sys::fuzz_target;
use nacre_object::limit::OFFSET_MAX;
use nacre_object::stripe::record::{CONTENTS_MAX, Content, Record};

/// The number of pieces, and of objects, that are looked at.
const LOOKS_MAX: usize = 64;

fuzz_target!(|bytes: &[u8]| {
    let Some(record) = Record::decode(bytes) else { return };
    assert!(record.layout.is_sound() && record.contents.len() <= CONTENTS_MAX);
    assert_eq!(Record::decode(&record.encode()).as_ref(), Some(&record));
    assert_eq!(record.size(), record.present().map_or(0, |content| content.size));
    // The last bytes choose a range.
    let word = bytes.last_chunk::<8>().map_or(0, |word| u64::from_le_bytes(*word));
    record.contents.iter().for_each(|content| check(content, word));
});

fn check(content: &Content, word: u64) {
    let Content { layout, objects, size, reached, .. } = *content;
    assert!(layout.is_sound() && size <= reached && reached <= OFFSET_MAX && content.dense <= objects);
    let from = word % (size + 1);
    let mut at = from;
    for piece in layout.pieces(from, size - from).take(LOOKS_MAX) {
        assert!(piece.at == at && piece.len > 0 && piece.len <= u64::from(layout.unit_bytes));
        assert!(piece.object < objects && piece.offset + piece.len <= layout.object_bytes);
        assert!(layout.objects_behind(objects, piece.at, piece.at + piece.len).contains(&piece.object));
        at += piece.len;
    }
    assert!(at <= size && (from == size) == (at == from));
    for object in layout.objects_behind(objects, from, reached).take(LOOKS_MAX) {
        if let Some(region) = layout.region_behind(object, from, reached) {
            assert!(region.len > 0 && region.end() <= layout.object_bytes);
        }
    }
    assert!(content.object(objects).as_bytes().starts_with(content.prefix().as_bytes()));
}
