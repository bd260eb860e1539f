//! Entry points of the fuzz targets: nothing panics, whatever the bytes are.

use bytes::{Bytes, BytesMut};

use crate::entry::{Entry, INDEX_BYTES, Index};
use crate::state::{Named, Views};

/// Decodes bytes as everything that a log keeps; what is decoded stays the same as bytes.
pub fn decode(bytes: &[u8]) {
    let record = Bytes::copy_from_slice(bytes);
    if let Some(entry) = Entry::get(&record)
        && entry.check().is_ok()
    {
        let mut again = BytesMut::new();
        entry.put(&mut again);
        assert_eq!(again.freeze(), record);
    }
    if let Some((place, index)) = bytes.split_first_chunk::<8>() {
        let place = u64::from_le_bytes(*place) >> 22;
        if let Some(index) = index.get(..INDEX_BYTES as usize)
            && let Some(Index::Entry(locator)) = Index::decode(index, place)
        {
            assert!(
                locator.begins(place) <= place.saturating_add(1).saturating_mul(crate::limit::SLOT_BYTES)
            );
            assert_eq!(Index::decode(&Index::Entry(locator).encode(), place), Some(Index::Entry(locator)));
        }
    }
    if let Ok(views) = Views::decode(bytes) {
        let again = views.encode().expect("views that were decoded");
        assert_eq!(Views::decode(&again).as_ref(), Ok(&views));
        for position in [0, views.start(), views.last().start, u64::MAX] {
            if let Some((view, end)) = views.find(position) {
                assert!(view.start <= position && (position < end || end == u64::MAX));
                let (object, place) = view.locate(position);
                assert_eq!(view.position(object, place), Some(position));
                assert_eq!(view.places_before(object, position), place);
            }
        }
    }
    if let Ok(named) = Named::decode(bytes) {
        let again = named.encode().expect("a value that was decoded");
        assert_eq!(Named::decode(&again), Ok(named));
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_is_kept_is_decoded_and_anything_else_is_refused() {
        let views = br#"{"format":1,"views":[{"start":0,"epoch":1,"generation":"1","width":3,"unit":64},{"start":18446744073709551615,"epoch":1,"generation":"f","width":1,"unit":1}]}"#;
        assert!(super::Views::decode(views).is_ok());
        super::decode(views);
        super::decode(br#"{"format":1,"id":"00000000000000ff","created_ms":5}"#);
        for length in 0..200 {
            super::decode(&vec![1; length]);
            super::decode(&(0..length as u8).collect::<Vec<_>>());
        }
        for wrong in [
            r#"{"format":2,"views":[{"start":0,"epoch":1,"generation":"1","width":3,"unit":64}]}"#,
            r#"{"format":1,"views":[]}"#,
            r#"{"format":1,"views":[{"start":0,"epoch":1,"generation":"1","width":0,"unit":64}]}"#,
            r#"{"format":1,"views":[{"start":5,"epoch":1,"generation":"1","width":1,"unit":1},{"start":5,"epoch":1,"generation":"2","width":1,"unit":1}]}"#,
        ] {
            assert!(super::Views::decode(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }
}
