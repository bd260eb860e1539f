//! The encoding of what writers, notifiers and watchers of an object tell each other by RADOS' notifications.
//!
//! All numbers are little-endian. Decoders take any bytes: others may notify our objects too. `docs/ceph.md` draws the messages.

use std::time::Duration;

use bytes::{Buf, Bytes};
use nacre_object::limit::{ACKNOWLEDGEMENTS_BYTES_MAX, NOTIFICATION_BYTES_MAX, NOTIFY_TIMEOUT_MAX};
use nacre_object::watch::{Acknowledged, Notified};

/// The format of all messages.
const FORMAT: u8 = 1;
const CHANGES: u8 = 1;
const NOTIFICATION: u8 = 2;
/// The version in a message that stands for one that is not known.
const UNKNOWN: u64 = u64::MAX;
/// The maximum number of links in one message.
pub(super) const LINKS_MAX: usize = 64;
const LINK_BYTES: usize = 24;
/// The maximum length of a message, in bytes.
pub(super) const MESSAGE_BYTES_MAX: usize = NOTIFICATION_BYTES_MAX + LINKS_MAX * LINK_BYTES + 64;

/// Changes of an object that follow each other, as their writer knows them: one, or several that became one because
/// there were too many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    /// The version before them, if it is known.
    pub(super) previous: Option<u64>,
    /// The version after them.
    pub(super) version: u64,
    /// The number of changes; 0 if it is not known.
    pub(super) changes: u64,
}

impl Link {
    /// Creates the link of one change.
    pub(crate) fn one(previous: Option<u64>, version: u64) -> Link {
        Link { previous, version, changes: 1 }
    }

    /// Takes another link in, which need not follow this one.
    pub(super) fn join(&mut self, other: Link) {
        let follows = other.previous == Some(self.version) && self.changes > 0 && other.changes > 0;
        if follows {
            (self.version, self.changes) = (other.version, self.changes.saturating_add(other.changes));
        } else {
            let version = self.version.max(other.version);
            *self = Link { previous: None, version, changes: 0 };
        }
    }
}

/// A message to the watchers of an object.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// Changes.
    Changes(Vec<Link>),
    /// A notification, and changes that its sender made before.
    Notification { links: Vec<Link>, id: u64, timeout: Duration, payload: Bytes },
}

fn head(kind: u8, links: &[Link]) -> Vec<u8> {
    let links = &links[..links.len().min(LINKS_MAX)];
    let mut out = vec![FORMAT, kind];
    out.extend((links.len() as u16).to_le_bytes());
    for link in links {
        for number in [link.previous.unwrap_or(UNKNOWN), link.version, link.changes] {
            out.extend(number.to_le_bytes());
        }
    }
    out
}

/// Encodes changes, at most [`LINKS_MAX`] links.
pub(super) fn changes(links: &[Link]) -> Vec<u8> {
    head(CHANGES, links)
}

/// Encodes a notification, with at most [`LINKS_MAX`] links.
pub(super) fn notification(links: &[Link], id: u64, timeout: Duration, payload: &[u8]) -> Vec<u8> {
    let mut out = head(NOTIFICATION, links);
    out.extend(id.to_le_bytes());
    // At most a minute.
    out.extend((timeout.as_millis() as u32).to_le_bytes());
    out.extend(payload);
    out
}

/// Decodes a message to watchers; `None` if it is none of Nacre's, or of a later format.
pub(super) fn decode(mut bytes: Bytes) -> Option<Message> {
    if bytes.try_get_u8().ok()? != FORMAT {
        return None;
    }
    let (kind, count) = (bytes.try_get_u8().ok()?, usize::from(bytes.try_get_u16_le().ok()?));
    if count > LINKS_MAX || bytes.len() < count * LINK_BYTES {
        return None;
    }
    let mut links = Vec::with_capacity(count);
    for _ in 0..count {
        let (previous, version, changes) = (bytes.get_u64_le(), bytes.get_u64_le(), bytes.get_u64_le());
        let previous = (previous != UNKNOWN).then_some(previous);
        if version >= 1 << 63 || previous.is_some_and(|previous| previous >= version) {
            return None;
        }
        links.push(Link { previous, version, changes });
    }
    match kind {
        CHANGES => Some(Message::Changes(links)),
        NOTIFICATION => {
            let (id, timeout_ms) = (bytes.try_get_u64_le().ok()?, bytes.try_get_u32_le().ok()?);
            let timeout = Duration::from_millis(timeout_ms.into()).min(NOTIFY_TIMEOUT_MAX);
            (bytes.len() <= NOTIFICATION_BYTES_MAX).then_some(Message::Notification {
                links,
                id,
                timeout,
                payload: bytes,
            })
        }
        _ => None,
    }
}

/// Encodes the part of a notification's outcome that one connection tells.
pub(super) fn outcome(notified: &Notified) -> Vec<u8> {
    let mut out = vec![FORMAT];
    out.extend(notified.replies_omitted.to_le_bytes());
    out.extend((notified.missed.len() as u32).to_le_bytes());
    notified.missed.iter().for_each(|watcher| out.extend(watcher.to_le_bytes()));
    out.extend((notified.acknowledged.len() as u32).to_le_bytes());
    for Acknowledged { watcher, reply } in &notified.acknowledged {
        out.extend(watcher.to_le_bytes());
        // Replies have at most 1 KiB.
        out.extend((reply.len() as u16).to_le_bytes());
        out.extend(&reply[..]);
    }
    out
}

/// Adds the part of a notification's outcome that one connection has told. Returns `None` if it told none.
fn add_outcome(mut bytes: Bytes, notified: &mut Notified, reply_bytes: &mut usize) -> Option<()> {
    if bytes.try_get_u8().ok()? != FORMAT {
        return None;
    }
    let mut part = Notified { replies_omitted: bytes.try_get_u64_le().ok()?, ..Notified::default() };
    for _ in 0..bytes.try_get_u32_le().ok()? {
        part.missed.push(bytes.try_get_u64_le().ok()?);
    }
    for _ in 0..bytes.try_get_u32_le().ok()? {
        let (watcher, len) = (bytes.try_get_u64_le().ok()?, usize::from(bytes.try_get_u16_le().ok()?));
        if bytes.len() < len {
            return None;
        }
        part.acknowledged.push(Acknowledged { watcher, reply: bytes.split_to(len) });
    }
    for mut acknowledged in part.acknowledged {
        if *reply_bytes + acknowledged.reply.len() <= ACKNOWLEDGEMENTS_BYTES_MAX {
            *reply_bytes += acknowledged.reply.len();
        } else {
            acknowledged.reply = Bytes::new();
            notified.replies_omitted = notified.replies_omitted.saturating_add(1);
        }
        notified.acknowledged.push(acknowledged);
    }
    notified.missed.extend(part.missed);
    notified.replies_omitted = notified.replies_omitted.saturating_add(part.replies_omitted);
    Some(())
}

/// The answers of all watching connections to a message, as librados hands them over.
pub(super) struct Answers {
    /// The outcome for those who watch. A connection that told nothing is one watcher that missed it, by its number in Ceph.
    pub(super) notified: Notified,
    /// The number of connections that watch the object.
    pub(super) connections: usize,
}

/// Decodes the answers to a message: for each connection that answered its number, the id of its watch and the answer, then for each
/// one that did not the first two. Returns `None` if that is not what it is.
pub(super) fn answers(id: u64, mut bytes: Bytes) -> Option<Answers> {
    let mut notified = Notified { id, ..Notified::default() };
    let (mut connections, mut reply_bytes) = (0, 0);
    // Nothing at all where the OSD knew of no watcher.
    if bytes.is_empty() {
        return Some(Answers { notified, connections });
    }
    for _ in 0..bytes.try_get_u32_le().ok()? {
        let (connection, _watch) = (bytes.try_get_u64_le().ok()?, bytes.try_get_u64_le().ok()?);
        let len = bytes.try_get_u32_le().ok()? as usize;
        if bytes.len() < len {
            return None;
        }
        connections += 1;
        if add_outcome(bytes.split_to(len), &mut notified, &mut reply_bytes).is_none() {
            notified.missed.push(connection);
        }
    }
    for _ in 0..bytes.try_get_u32_le().ok()? {
        let (connection, _watch) = (bytes.try_get_u64_le().ok()?, bytes.try_get_u64_le().ok()?);
        connections += 1;
        notified.missed.push(connection);
    }
    Some(Answers { notified, connections })
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    fn links() -> Vec<Link> {
        vec![Link::one(Some(0), 1), Link { previous: Some(1), version: 9, changes: 8 }, Link::one(None, 20)]
    }

    #[test]
    fn messages_are_pinned_and_read_back() {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let message = changes(&links()[..1]);
        assert_eq!(hex(&message), "01010100000000000000000001000000000000000100000000000000");
        let message = notification(&[], 5, Duration::from_millis(1500), b"payload");
        assert_eq!(hex(&message), "010200000500000000000000dc0500007061796c6f6164");
        assert_eq!(decode(changes(&links()).into()), Some(Message::Changes(links())));
        let message = notification(&links(), 5, Duration::from_secs(2), b"payload");
        let (timeout, payload) = (Duration::from_secs(2), Bytes::from_static(b"payload"));
        let expected = Message::Notification { links: links(), id: 5, timeout, payload };
        assert_eq!(decode(message.into()), Some(expected));
    }

    #[test]
    fn outcomes_of_several_connections_are_one() {
        let acknowledged = |watcher, reply: Vec<u8>| Acknowledged { watcher, reply: reply.into() };
        let first = Notified {
            id: 7,
            acknowledged: vec![acknowledged(1, vec![b'a'; ACKNOWLEDGEMENTS_BYTES_MAX - 1])],
            missed: vec![2],
            replies_omitted: 3,
        };
        let second =
            Notified { id: 7, acknowledged: vec![acknowledged(4, b"bc".to_vec())], ..Default::default() };
        let mut all = 3_u32.to_le_bytes().to_vec();
        for (connection, answer) in [(100_u64, outcome(&first)), (200, outcome(&second)), (300, Vec::new())] {
            all.extend([connection, 1].iter().flat_map(|number| number.to_le_bytes()));
            all.extend((answer.len() as u32).to_le_bytes());
            all.extend(answer);
        }
        all.extend(1_u32.to_le_bytes());
        all.extend([400_u64, 1].iter().flat_map(|number| number.to_le_bytes()));
        let Answers { notified, connections } = answers(7, all.clone().into()).unwrap();
        assert_eq!((notified.id, connections), (7, 4));
        assert_eq!(notified.missed, [2, 300, 400]);
        let replies: Vec<_> =
            notified.acknowledged.iter().map(|one| (one.watcher, one.reply.len())).collect();
        assert_eq!(replies, [(1, ACKNOWLEDGEMENTS_BYTES_MAX - 1), (4, 0)]);
        assert_eq!(notified.replies_omitted, 4);
        assert!(answers(7, Bytes::new()).is_some_and(|answers| answers.connections == 0));
        for end in 1..all.len() {
            assert!(answers(7, all[..end].to_vec().into()).is_none(), "cut at {end}");
        }
    }

    #[test]
    fn bytes_of_others_never_panic() {
        let seed = rand::random();
        let mut random = StdRng::seed_from_u64(seed);
        println!("seed {seed}");
        let whole = notification(&links(), 5, Duration::from_secs(2), b"payload");
        for _ in 0..20_000 {
            let mut bytes = whole.clone();
            for _ in 0..random.random_range(1..4) {
                let at = random.random_range(0..bytes.len());
                bytes[at] = random.random();
            }
            bytes.truncate(random.random_range(0..=bytes.len()));
            drop(decode(bytes.clone().into()));
            drop(answers(1, bytes.into()));
        }
    }

    #[test]
    fn links_that_follow_each_other_keep_their_count_and_others_lose_it() {
        let mut link = Link::one(Some(3), 4);
        link.join(Link::one(Some(4), 10));
        assert_eq!(link, Link { previous: Some(3), version: 10, changes: 2 });
        link.join(Link::one(Some(8), 9));
        assert_eq!(link, Link { previous: None, version: 10, changes: 0 });
    }
}
