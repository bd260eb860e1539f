//! Collective accesses in two phases, for many small pieces: each process has a *domain*, a contiguous part of the file, and makes the
//! system calls for all that is accessed there. The processes exchange the bytes before a write and after a read.
//!
//! The file between the first and the last byte is divided into as many domains as there are processes. A domain is moved window by window,
//! so the memory that this takes does not depend on the length of the access. A process's bytes are in the order of the file, so those of a
//! window are contiguous in its memory, and are sent from there; since each process knows the patterns of all, nothing else is sent.

use std::fs::File;
use std::ops::Range;

use nacre::lock::{Block, Datatype, Description, Member, Region};
use nacre_lock::Pattern;

use crate::failure::Failure;
use crate::file;
use crate::party::Party;

/// The bytes of a domain that are moved at once.
const WINDOW_BYTES: u64 = 4 << 20;

/// The least of them, where processes read the same bytes.
const WINDOW_BYTES_MIN: u64 = 64 << 10;

/// The unit of a domain's length: as long as a page, so that no two processes write to the same page of the file.
const UNIT_BYTES: u64 = 4096;

/// The maximum length of all descriptions together, which each process is sent.
const DESCRIBED_MAX: usize = 1 << 20;

/// The mean length of pieces above which an exchange costs more than the system calls that it saves.
const PIECE_BYTES_MAX: u64 = 4096;

/// The accesses of all processes, as the first one has gathered them.
pub struct Wanted {
    parts: Vec<Pattern>,
    members: Vec<Member>,
    /// From the first byte to the last, if there are any.
    bounds: Option<Range<u64>>,
    bytes: u64,
    /// True if the patterns are exactly the bytes that are accessed.
    is_exact: bool,
}

/// Returns what a process tells the first one: the number of its bytes, and the description of what it locks.
pub fn told(bytes: u64, description: &Description) -> Vec<u8> {
    let mut told = bytes.to_le_bytes().to_vec();
    told.extend(description.encode());
    told
}

impl Wanted {
    /// Takes what the processes have told. None if the arguments of one of them are wrong, which then told nothing, or if
    /// the bytes cannot be described together.
    pub fn new(told: &[Vec<u8>]) -> Option<Wanted> {
        let mut wanted = Wanted {
            parts: Vec::with_capacity(told.len()),
            members: Vec::with_capacity(told.len()),
            bounds: None,
            bytes: 0,
            is_exact: true,
        };
        for told in told {
            let (bytes, description) = told.split_first_chunk::<8>()?;
            let description = Description::decode(description).ok()?;
            let part = Pattern::new(&description).ok()?;
            wanted.bytes = wanted.bytes.checked_add(part.byte_count())?;
            wanted.is_exact &= part.byte_count() == u64::from_le_bytes(*bytes);
            if let Some(region) = part.bounds() {
                let bounds = wanted.bounds.unwrap_or(region.offset..region.end());
                wanted.bounds = Some(bounds.start.min(region.offset)..bounds.end.max(region.end()));
            }
            wanted.parts.push(part);
            wanted.members.push(member(description)?);
        }
        Some(wanted)
    }

    /// Returns the first byte and the end of the last one, if anything is accessed.
    pub fn bounds(&self) -> Option<Range<u64>> {
        self.bounds.clone()
    }

    /// Returns whether no byte is wanted by two processes.
    pub fn is_disjoint(&self) -> bool {
        self.union().is_some_and(|union| union.byte_count() == self.bytes)
    }

    fn union(&self) -> Option<Pattern> {
        Pattern::new(&Datatype::Struct { members: self.members.clone() }.at(0)).ok()
    }

    /// Returns the bytes of a domain that are moved at once, where the union of what is wanted is this. Bytes that all processes want are
    /// sent to each of them, so whoever has read them holds as many copies.
    fn window_bytes(&self, union: &Pattern) -> u64 {
        match union.byte_count() == self.bytes {
            true => WINDOW_BYTES,
            false => (WINDOW_BYTES / self.parts.len().max(1) as u64).max(WINDOW_BYTES_MIN),
        }
    }

    /// Returns whether an exchange is faster than each process's access on its own.
    pub fn gains_by_exchange(&self) -> bool {
        let pieces = self.parts.iter().fold(0u64, |pieces, part| pieces.saturating_add(part.region_count()));
        let small = self.bytes < pieces.saturating_mul(PIECE_BYTES_MAX);
        let Some(bounds) = self.bounds().filter(|_| self.is_exact && small) else { return false };
        // Pieces that stay as many cost as many calls, whoever makes them. Windows that nobody wants anything of take time too, and
        // between pieces at both ends of a large file there is no end of them.
        let windows = |union: &Pattern| (bounds.end - bounds.start) / self.window_bytes(union);
        self.union().is_some_and(|union| union.region_count() <= pieces / 2 && windows(&union) <= pieces)
    }
}

/// Returns all that was told in one message for each process; none if it is too long.
pub fn message(told: &[Vec<u8>]) -> Option<Vec<u8>> {
    let length: usize = told.iter().map(|told| told.len() + 8).sum();
    (length <= DESCRIBED_MAX).then(|| {
        let parts =
            told.iter().flat_map(|told| [&(told.len() as u64).to_le_bytes(), told.as_slice()].concat());
        parts.collect()
    })
}

/// Returns what each process has told, out of a message.
fn parse(mut message: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut all = Vec::new();
    while !message.is_empty() {
        let (length, rest) = message.split_first_chunk::<8>()?;
        let (told, rest) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
        all.push(told.to_vec());
        message = rest;
    }
    Some(all)
}

/// An exchange, which all processes know alike.
pub struct Exchange {
    parts: Vec<Pattern>,
    union: Pattern,
    /// The offset at which the first domain begins.
    start: u64,
    /// The end of the last byte.
    end: u64,
    /// The length of a domain.
    domain_bytes: u64,
    /// The bytes of a domain that are moved at once.
    window_bytes: u64,
}

impl Exchange {
    /// Divides what is wanted by all processes, as their [`message`] says, into domains.
    pub fn new(message: &[u8]) -> Option<Exchange> {
        let wanted = Wanted::new(&parse(message)?)?;
        let union = wanted.union()?;
        let window_bytes = wanted.window_bytes(&union);
        let Range { start, end } = wanted.bounds?;
        let start = start - start % UNIT_BYTES;
        let domain_bytes = (end - start).div_ceil(wanted.parts.len() as u64);
        let domain_bytes = domain_bytes.checked_next_multiple_of(UNIT_BYTES)?;
        Some(Exchange { parts: wanted.parts, union, start, end, domain_bytes, window_bytes })
    }

    fn rounds(&self) -> u64 {
        self.domain_bytes.div_ceil(self.window_bytes)
    }

    /// Returns the window of a process in a round, as far as it is before an end; it is empty where its domain has ended.
    fn window(&self, process: usize, round: u64, end: u64) -> Range<u64> {
        let place = |within: u64| {
            let within = within.min(self.domain_bytes);
            let offset = (process as u64).saturating_mul(self.domain_bytes).saturating_add(within);
            self.start.saturating_add(offset).min(end)
        };
        place(round * self.window_bytes)..place((round + 1) * self.window_bytes)
    }

    /// Returns where the bytes of a window are in the memory of a process.
    fn in_memory(&self, process: usize, window: &Range<u64>) -> Range<usize> {
        let place = |offset| self.parts[process].before(offset).byte_count() as usize;
        place(window.start)..place(window.end)
    }

    /// Returns the bytes of a window that a process wants.
    fn cut(&self, process: usize, window: &Range<u64>) -> Pattern {
        self.parts[process].from(window.start).before(window.end)
    }

    /// Writes bytes of all processes. Takes this process's own, and checks from time to time that it may go on. Collective.
    pub fn write(
        &self,
        party: &Party,
        file: &File,
        bytes: &[u8],
        check: impl Fn() -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let (mut staged, mut window_bytes) = (Vec::new(), Vec::new());
        let mut written = Ok(());
        for round in 0..self.rounds() {
            let window = self.window(party.rank, round, self.end);
            let cuts: Vec<Pattern> = (0..party.size).map(|process| self.cut(process, &window)).collect();
            let lengths: Vec<usize> = cuts.iter().map(|cut| cut.byte_count() as usize).collect();
            staged.resize(lengths.iter().sum(), 0);
            let mut incoming = split(&mut staged, &lengths);
            let outgoing: Vec<&[u8]> = (0..party.size)
                .map(|process| &bytes[self.in_memory(party.rank, &self.window(process, round, self.end))])
                .collect();
            party.exchange(&outgoing, &mut incoming)?;
            // Others count on this process's part in the rounds to come, whatever fails here.
            if written.is_err() {
                continue;
            }
            window_bytes.resize((window.end - window.start) as usize, 0);
            for (cut, bytes) in cuts.iter().zip(&incoming) {
                let mut rest = &bytes[..];
                for Region { offset, length } in cut.regions() {
                    let (piece, behind) = rest.split_at(length as usize);
                    let at = (offset - window.start) as usize;
                    window_bytes[at..at + piece.len()].copy_from_slice(piece);
                    rest = behind;
                }
            }
            let union = self.union.from(window.start).before(window.end);
            let pieces = union.regions().map(|region| {
                let at = (region.offset - window.start) as usize;
                (region.offset, &window_bytes[at..at + region.length as usize])
            });
            written = file::write(file, pieces, &check);
        }
        agreed(party, written)
    }

    /// Reads bytes of all processes into the memory of each, given the length of the file. Returns the number of bytes before its end.
    /// Collective.
    pub fn read(
        &self,
        party: &Party,
        file: &File,
        file_bytes: u64,
        bytes: &mut [u8],
    ) -> Result<usize, Failure> {
        let (mut staged, mut window_bytes) = (Vec::new(), Vec::new());
        // Nothing is sent of what is behind the end of the file: that memory stays as it is.
        let (mut read, end) = (Ok(()), self.end.min(file_bytes));
        for round in 0..self.rounds() {
            let window = self.window(party.rank, round, end);
            let cuts: Vec<Pattern> = (0..party.size).map(|process| self.cut(process, &window)).collect();
            let lengths: Vec<usize> = cuts.iter().map(|cut| cut.byte_count() as usize).collect();
            window_bytes.resize((window.end - window.start) as usize, 0);
            if read.is_ok() {
                read = self.read_window(file, &window, &mut window_bytes);
            }
            staged.clear();
            for cut in &cuts {
                for Region { offset, length } in cut.regions() {
                    let at = (offset - window.start) as usize;
                    staged.extend_from_slice(&window_bytes[at..at + length as usize]);
                }
            }
            let outgoing: Vec<&[u8]> =
                split(&mut staged, &lengths).into_iter().map(|bytes| &*bytes).collect();
            // The windows of a round are in the order of the processes, and so are their bytes in memory.
            let places =
                (0..party.size).map(|process| self.in_memory(party.rank, &self.window(process, round, end)));
            let (mut incoming, mut rest, mut at) = (Vec::with_capacity(party.size), &mut *bytes, 0);
            for place in places {
                let (slice, behind) = rest[place.start - at..].split_at_mut(place.len());
                (rest, at) = (behind, place.end);
                incoming.push(slice);
            }
            party.exchange(&outgoing, &mut incoming)?;
        }
        agreed(party, read)?;
        Ok(self.parts[party.rank].before(file_bytes).byte_count() as usize)
    }

    /// Reads what anybody wants of a window.
    fn read_window(&self, file: &File, window: &Range<u64>, bytes: &mut [u8]) -> Result<(), Failure> {
        let union = self.union.from(window.start).before(window.end);
        let Some(bounds) = union.bounds() else { return Ok(()) };
        let mut read = |region: Region| {
            let at = (region.offset - window.start) as usize;
            let piece = &mut bytes[at..at + region.length as usize];
            match file::read(file, std::iter::once(region), piece)? == piece.len() {
                true => Ok(()),
                false => Err(Failure::Own("the file became shorter while it was read".to_owned())),
            }
        };
        // Bytes that nobody wants cost less than the calls that leave them out.
        if union.region_count().saturating_mul(UNIT_BYTES) >= bounds.length {
            return read(bounds);
        }
        union.regions().try_for_each(read)
    }
}

/// Returns the result of this process, and an error if another one failed: its bytes were theirs too. Collective.
pub fn agreed(party: &Party, result: Result<(), Failure>) -> Result<(), Failure> {
    let all = party.agree(result.is_ok())?;
    result?;
    if all.into_iter().all(|succeeded| succeeded) { Ok(()) } else { Err(Failure::Elsewhere) }
}

/// Divides bytes into slices of given lengths.
fn split<'a>(mut bytes: &'a mut [u8], lengths: &[usize]) -> Vec<&'a mut [u8]> {
    let mut slices = Vec::with_capacity(lengths.len());
    for length in lengths {
        let (slice, rest) = bytes.split_at_mut(*length);
        slices.push(slice);
        bytes = rest;
    }
    slices
}

/// Returns a description as the member of a struct at displacement 0.
fn member(description: Description) -> Option<Member> {
    let block = |count: u64, displacement: u64| {
        Some(Block { count, displacement: i64::try_from(displacement).ok()? })
    };
    Some(match description {
        Description::Contiguous(region) => {
            let block = block(1, region.offset)?;
            Member { count: 1, displacement: block.displacement, of: Datatype::Bytes(region.length) }
        }
        Description::List(regions) => {
            let blocks =
                regions.iter().map(|region| block(region.length, region.offset)).collect::<Option<_>>()?;
            Member {
                count: 1,
                displacement: 0,
                of: Datatype::Hindexed { blocks, of: Box::new(Datatype::byte()) },
            }
        }
        Description::Datatype(view) => {
            let displacement = i64::try_from(view.displacement).ok()?;
            Member { count: view.count, displacement, of: view.datatype }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns what processes tell that want these regions.
    fn all(parts: &[Vec<Region>]) -> Vec<Vec<u8>> {
        let of = |regions: &Vec<Region>| {
            let bytes = regions.iter().map(|region| region.length).sum();
            told(bytes, &Description::List(regions.clone()))
        };
        parts.iter().map(of).collect()
    }

    /// Returns pieces of 64 bytes that lie among those of another process, the second half of them so far behind the first.
    fn pieces(process: u64, far: u64) -> Vec<Region> {
        let half = |piece: u64| if piece < 500 { 0 } else { far };
        (0..1000).map(|piece| Region::new(64 * (2 * piece + process) + half(piece), 64)).collect()
    }

    #[test]
    fn small_pieces_are_exchanged_unless_there_is_too_much_between_them() {
        for (far, gains) in [(0, true), (1 << 30, true), (1 << 40, false), (1 << 62, false)] {
            let wanted = Wanted::new(&all(&[pieces(0, far), pieces(1, far)])).unwrap();
            assert!(wanted.is_disjoint(), "{far}");
            assert_eq!(wanted.gains_by_exchange(), gains, "{far}");
        }
    }

    #[test]
    fn windows_are_smaller_where_many_read_the_same_bytes() {
        let exchange = |all: &[Vec<u8>]| Exchange::new(&message(all).unwrap()).unwrap();
        assert_eq!(exchange(&all(&[pieces(0, 0), pieces(1, 0)])).window_bytes, WINDOW_BYTES);
        assert_eq!(exchange(&all(&[pieces(0, 0), pieces(0, 0)])).window_bytes, WINDOW_BYTES / 2);
        let some = pieces(0, 1 << 30)[495..505].to_vec();
        let same = exchange(&all(&std::iter::repeat_n(some, 100).collect::<Vec<_>>()));
        assert_eq!(same.window_bytes, WINDOW_BYTES_MIN);
        // Domains are divided into windows without a gap.
        let mut end = same.start;
        for process in 0..100 {
            for round in 0..same.rounds() {
                let window = same.window(process, round, same.end);
                assert_eq!(window.start, end);
                end = window.end;
            }
        }
        assert_eq!(end, same.end);
    }
}
