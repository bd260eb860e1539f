//! The sessions that an object has fenced one by one: an entry of the omap, which is there only where the header counts
//! some of them.

use bytes::Bytes;
use nacre_object::Fences;

use crate::record::{FORMAT, Header, checksum};

/// The key of the entry.
pub(crate) const KEY: &[u8] = b"s";

/// Encodes the entry of some sessions.
pub(crate) fn encode(sessions: &[u64]) -> Vec<u8> {
    let mut record = vec![FORMAT];
    record.extend(sessions.iter().flat_map(|session| session.to_le_bytes()));
    record.extend(checksum(&record).to_le_bytes());
    record
}

/// Decodes the sessions of an entry; `None` if it is unsound.
fn sessions(record: &[u8]) -> Option<Vec<u64>> {
    let (body, sum) = record.split_at_checked(record.len().checked_sub(4)?)?;
    let (format, numbers) = body.split_first()?;
    let (numbers, []) = numbers.as_chunks::<8>() else { return None };
    let sessions: Vec<u64> = numbers.iter().map(|number| u64::from_le_bytes(*number)).collect();
    let ascend = sessions.is_sorted_by(|one, next| one < next);
    (*format == FORMAT && sum == checksum(body).to_le_bytes() && ascend).then_some(sessions)
}

/// Decodes the fences of an object from its header and the entry, if there is one; `None` if they are unsound.
pub(crate) fn decode(header: &Header, record: Option<&Bytes>) -> Option<Fences> {
    let sessions = match record {
        None => Vec::new(),
        Some(record) => sessions(record)?,
    };
    let counted = sessions.len() == header.sessions as usize && record.is_some() == (header.sessions > 0);
    let above = sessions.first().is_none_or(|first| *first >= header.fence);
    (counted && above).then_some(Fences { fence: header.fence, sessions })
}

/// Returns the sessions that the remains of an object show to be fenced, of those from `fence` on.
pub(crate) fn salvage(fence: u64, record: Option<&Bytes>) -> Vec<u64> {
    let mut sessions = record.and_then(|record| sessions(record)).unwrap_or_default();
    sessions.retain(|session| *session >= fence);
    sessions.truncate(nacre_object::limit::FENCED_SESSIONS_MAX);
    sessions
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    #[test]
    fn the_entry_is_pinned() {
        let record = Bytes::from(encode(&[3, 0x0400]));
        let hex: String = record.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "0103000000000000000004000000000000747c9070");
        let header = Header { fence: 3, sessions: 2, ..Header::default() };
        let fences = Fences { fence: 3, sessions: vec![3, 0x0400] };
        assert_eq!(decode(&header, Some(&record)), Some(fences));
        assert_eq!(decode(&Header::default(), None), Some(Fences::default()));
    }

    #[test]
    fn what_does_not_fit_the_header_is_refused() {
        let record = Bytes::from(encode(&[3, 0x0400]));
        for (fence, sessions) in [(4, 2), (3, 1), (3, 3), (3, 0)] {
            let header = Header { fence, sessions, ..Header::default() };
            assert_eq!(decode(&header, Some(&record)), None, "{fence} {sessions}");
            assert_eq!(decode(&header, None).is_some(), sessions == 0, "{fence} {sessions}");
        }
        for unsound in [&[4, 3][..], &[3, 3], &[]] {
            let record = Bytes::from(encode(unsound));
            let header = Header { sessions: unsound.len() as u32, ..Header::default() };
            assert_eq!(decode(&header, Some(&record)), None, "{unsound:?}");
        }
        assert_eq!(salvage(4, Some(&record)), [0x0400]);
        assert!(salvage(0, Some(&record.slice(1..))).is_empty() && salvage(0, None).is_empty());
    }

    #[test]
    fn changes_are_noticed() {
        let seed = rand::random();
        let mut random = StdRng::seed_from_u64(seed);
        for _ in 0..5_000 {
            let mut numbers: Vec<u64> = (0..random.random_range(1..9)).map(|_| random.random()).collect();
            numbers.sort_unstable();
            numbers.dedup();
            let header = Header { sessions: numbers.len() as u32, ..Header::default() };
            let mut record = encode(&numbers);
            assert_eq!(
                decode(&header, Some(&record.clone().into())).unwrap().sessions,
                numbers,
                "seed {seed}"
            );
            let at = random.random_range(0..record.len());
            record[at] ^= 1 << random.random_range(0..8);
            record.truncate(random.random_range(at + 1..=record.len()));
            assert_eq!(decode(&header, Some(&record.into())), None, "seed {seed}");
        }
    }
}
