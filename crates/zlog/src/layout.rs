//! The place of a position: which object, and where in it.
//!
//! A log's positions are divided into *views*, each with objects of its own. Within a view, runs of `unit` consecutive positions are
//! dealt out to the view's objects in turn (CORFU's stripes). The positions of a view that are in one object are numbered from 0 on
//! in their order: these numbers are *places*. So consecutive positions have consecutive places in each object, whatever the unit.

use nacre_object::{ObjectId, StoreError};
use serde::{Deserialize, Serialize};

use crate::limit::POSITIONS_PER_OBJECT_MAX;

/// The identity of a log, which no other log has, also not a later one of the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LogId(#[serde(with = "hexadecimal")] pub u64);

impl std::fmt::Display for LogId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// A range of positions whose entries are spread over the same objects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    /// The first position.
    pub start: u64,
    /// The epoch with which requests to the view's objects are tagged.
    pub epoch: u64,
    /// The number in the names of the view's objects, chosen at random.
    #[serde(with = "hexadecimal")]
    pub generation: u64,
    /// The number of objects.
    pub width: u32,
    /// The number of consecutive positions that are in one object.
    pub unit: u32,
    /// True if another view follows, and nothing is appended to this one any more.
    #[serde(skip)]
    pub closed: bool,
}

/// Numbers of 64 bits as text in JSON, whose readers may know only numbers of 53 bits.
mod hexadecimal {
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(number: &u64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format!("{number:016x}"))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
        let text = String::deserialize(deserializer)?;
        u64::from_str_radix(&text, 16).map_err(serde::de::Error::custom)
    }
}

/// The part of a range of positions that is in one object of a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The index of the object in its view.
    pub object: u32,
    /// The first place.
    pub place: u64,
    /// The number of places.
    pub count: u64,
}

impl View {
    /// Returns the object and the place of a position, which is not before the view's first one.
    pub fn locate(&self, position: u64) -> (u32, u64) {
        let (width, unit) = (u64::from(self.width), u64::from(self.unit));
        let relative = position - self.start;
        let (row, column) = (relative / unit, relative % unit);
        ((row % width) as u32, row / width * unit + column)
    }

    /// Returns the position at a place of an object; `None` if it is beyond all positions.
    pub fn position(&self, object: u32, place: u64) -> Option<u64> {
        let (width, unit) = (u64::from(self.width), u64::from(self.unit));
        let row = (place / unit).checked_mul(width)?.checked_add(u64::from(object))?;
        row.checked_mul(unit)?.checked_add(place % unit)?.checked_add(self.start)
    }

    /// Returns the number of the places of an object that are before a position.
    pub fn places_before(&self, object: u32, position: u64) -> u64 {
        let Some(relative) = position.checked_sub(self.start) else { return 0 };
        let (width, unit) = (u64::from(self.width), u64::from(self.unit));
        let (row, column) = (relative / unit, relative % unit);
        let full = row / width * unit;
        match (row % width).cmp(&u64::from(object)) {
            std::cmp::Ordering::Less => full,
            std::cmp::Ordering::Equal => full + column,
            std::cmp::Ordering::Greater => full + unit,
        }
    }

    /// Returns the number of consecutive positions from one on that are in its object, and at consecutive places there.
    pub fn together(&self, position: u64) -> u64 {
        let unit = u64::from(self.unit);
        if self.width == 1 { u64::MAX } else { unit - (position - self.start) % unit }
    }

    /// Returns the position after that of the last of the first `places` places of an object; the view's first one if there are none.
    /// The greatest value of all objects is the end of a log whose objects have these numbers of places.
    pub fn position_after(&self, object: u32, places: u64) -> u64 {
        match places.checked_sub(1) {
            Some(place) => {
                self.position(object, place).map_or(u64::MAX, |position| position.saturating_add(1))
            }
            None => self.start,
        }
    }

    /// Returns the parts of a range of positions, at most one for each object.
    pub fn parts(&self, from: u64, to: u64) -> impl Iterator<Item = Part> + '_ {
        let units = (to.saturating_sub(from)).div_ceil(u64::from(self.unit)) + 1;
        let first = self.locate(from.max(self.start)).0;
        // No more objects than units can have a part, and they follow the first one in turn.
        (0..u64::from(self.width).min(units)).filter_map(move |step| {
            let object = ((u64::from(first) + step) % u64::from(self.width)) as u32;
            let (place, end) = (self.places_before(object, from), self.places_before(object, to));
            (place < end).then_some(Part { object, place, count: end - place })
        })
    }

    /// Returns the first position that the objects of this view have no room for.
    pub fn positions_end(&self) -> u64 {
        self.position(0, POSITIONS_PER_OBJECT_MAX / u64::from(self.unit) * u64::from(self.unit))
            .unwrap_or(u64::MAX)
    }
}

/// The beginning of the ids of objects that hold logs.
pub const PREFIX: &str = "nacre/zlog/";

/// Returns the object of a view of a log.
pub fn object(id: LogId, view: &View, index: u32) -> Result<ObjectId, StoreError> {
    // Every request has such a name, so it is not put together by `format`, and takes one allocation.
    let digits = index.checked_ilog10().unwrap_or(0) as usize + 1;
    let mut name = vec![b'0'; PREFIX.len() + 16 + 1 + 16 + 1 + digits];
    let (prefix, rest) = name.split_at_mut(PREFIX.len());
    prefix.copy_from_slice(PREFIX.as_bytes());
    put_hexadecimal(&mut rest[..16], id.0);
    rest[16] = b'/';
    put_hexadecimal(&mut rest[17..33], view.generation);
    rest[33] = b'.';
    let mut left = index;
    for digit in rest[34..].iter_mut().rev() {
        *digit = b'0' + (left % 10) as u8;
        left /= 10;
    }
    ObjectId::new(name)
}

/// Puts as many of the last hexadecimal digits of a number as there is room for.
fn put_hexadecimal(out: &mut [u8], number: u64) {
    let mut left = number;
    for digit in out.iter_mut().rev() {
        *digit = b"0123456789abcdef"[(left & 15) as usize];
        left >>= 4;
    }
}

/// Returns the object with the sequencer of a log.
pub fn head(id: LogId) -> Result<ObjectId, StoreError> {
    ObjectId::new(format!("{PREFIX}{id}/head"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(start: u64, width: u32, unit: u32) -> View {
        View { start, epoch: 1, generation: 1, width, unit, closed: false }
    }

    #[test]
    fn every_position_has_one_place_and_every_place_one_position() {
        for (start, width, unit) in [(0, 1, 1), (7, 3, 1), (100, 4, 5), (3, 2, 64)] {
            let view = view(start, width, unit);
            let mut next = vec![0; width as usize];
            for position in start..start + 1000 {
                let (object, place) = view.locate(position);
                assert_eq!(place, next[object as usize], "places follow each other without gaps");
                assert_eq!(view.places_before(object, position), place);
                next[object as usize] += 1;
                assert_eq!(view.position(object, place), Some(position));
                assert_eq!(view.position_after(object, place + 1), position + 1);
                let together = view.together(position).min(100);
                let behind = |distance: u64| view.locate(position + distance);
                assert!((0..together).all(|distance| behind(distance) == (object, place + distance)));
                assert!(width == 1 || behind(together).0 != object);
            }
            assert!((0..width).all(|object| view.position_after(object, 0) == start));
        }
    }

    #[test]
    fn the_names_of_objects_are_those_of_the_format() {
        for (id, generation) in [(0, 0), (7, u64::MAX), (0x0123_4567_89ab_cdef, 1 << 60)] {
            let view = View { generation, ..view(0, 1, 1) };
            for index in [0, 1, 9, 10, 99, 100, 4095, u32::MAX] {
                let name = format!("nacre/zlog/{}/{generation:016x}.{index}", LogId(id));
                assert_eq!(object(LogId(id), &view, index).unwrap().as_bytes(), name.as_bytes());
            }
        }
        assert_eq!(object(LogId(10), &view(0, 1, 1), 3).unwrap().as_bytes(), NAME.as_bytes());
    }
    const NAME: &str = "nacre/zlog/000000000000000a/0000000000000001.3";

    #[test]
    fn the_parts_of_a_range_are_its_positions() {
        for (start, width, unit) in [(0, 1, 1), (7, 3, 1), (100, 4, 5), (3, 2, 64)] {
            let view = view(start, width, unit);
            for from in start..start + 60 {
                for to in from..from + 60 {
                    let mut positions: Vec<u64> = view
                        .parts(from, to)
                        .flat_map(|part| {
                            (part.place..part.place + part.count).map(move |place| (part.object, place))
                        })
                        .map(|(object, place)| view.position(object, place).unwrap())
                        .collect();
                    positions.sort_unstable();
                    assert_eq!(positions, (from..to).collect::<Vec<_>>(), "{view:?}");
                }
            }
        }
    }

    #[test]
    fn the_positions_of_a_view_end_before_the_offset_space_does() {
        for (width, unit) in [(1, 1), (3, 64), (256, 4096)] {
            let view = view(0, width, unit);
            let last = view.positions_end() - 1;
            let (_, place) = view.locate(last);
            assert!(place < POSITIONS_PER_OBJECT_MAX);
            assert!(
                view.locate(last + u64::from(width) * u64::from(unit)).1
                    >= POSITIONS_PER_OBJECT_MAX - u64::from(unit)
            );
        }
    }
}
