//! The administration of a reflector, as a service of the daemon's connection: its codec, its server and its client.
//! `docs/wire.md` has the bytes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use nacre_object::{ErrorKind, Reply, StoreError};
use nacre_reflect::control::Subject;
use nacre_reflect::table::GroupId;
use nacre_reflect::token::Identity;
use nacre_reflect::wire::REFLECTORS_MAX;
use nacre_rpc::client::{Call, Host, Link, LinkOptions, Request};
use nacre_rpc::{
    Address, ClusterKey, Cursor, Frame, Handled, Incoming, MessageKind, Outbox, Peer, Service, WireError,
    control,
};

use super::handle::Handle;

/// The number of the service.
pub const REFLECT: u8 = 3;
/// A change of the map of locations.
pub const RELOCATE: MessageKind = MessageKind::new(REFLECT, 1);
/// The map was changed. Body: its new epoch.
pub const RELOCATED: MessageKind = MessageKind::new(REFLECT, 2);

/// Members to throw out, or a ban to end.
pub const EXPEL: MessageKind = MessageKind::new(REFLECT, 3);
/// Success. Body: the number of members that were removed, or of bans that ended.
pub const EXPELLED: MessageKind = MessageKind::new(REFLECT, 4);

/// The number of changes that one connection may have under way.
const CHANGES_MAX: usize = 16;

/// A change of the map of locations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relocation {
    /// The location's name.
    pub location: String,
    /// The group's id at its reflectors.
    pub group: u32,
    /// The reflector in charge, followed by its standbys; without standbys, those that the reflector was given for all
    /// locations. Empty to remove the location.
    pub reflectors: Vec<SocketAddr>,
}

/// An order to throw members out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expulsion {
    /// The members.
    pub subject: Subject,
    /// The group; `None` for all.
    pub group: Option<GroupId>,
    /// The time for which they are kept out, in seconds; 0 lets them in again.
    pub seconds: u64,
    /// True to end the ban of these members in this group instead.
    pub lift: bool,
}

/// Writes an order to throw members out.
pub fn put_expulsion(outbox: &mut Outbox, id: u64, order: &Expulsion) {
    let open = outbox.begin(EXPEL, id);
    match order.subject {
        Subject::Identity(Identity(bytes)) => {
            outbox.u8(1);
            outbox.slice(&bytes);
        }
        Subject::Network(ip, bits) => {
            put_ip(outbox, ip);
            outbox.u8(bits);
        }
    }
    outbox.u8(u8::from(order.group.is_some()) | u8::from(order.lift) << 1);
    let group = order.group.unwrap_or(GroupId { port: 0, id: 0 });
    outbox.u16(group.port);
    outbox.u32(group.id);
    outbox.u64(order.seconds);
    // It is short.
    let _ = outbox.end(open);
}

/// Reads an order to throw members out.
///
/// # Errors
/// If the body is malformed.
pub fn get_expulsion(body: &bytes::Bytes) -> Result<Expulsion, WireError> {
    let mut cursor = Cursor::new(body);
    let subject = match cursor.u8()? {
        1 => Subject::Identity(Identity(octets::<16>(&mut cursor)?)),
        family => {
            let ip = get_ip(&mut cursor, family)?;
            let bits = cursor.u8()?;
            if bits > if ip.is_ipv4() { 32 } else { 128 } {
                return Err(WireError::Malformed("a network with more bits than an address has"));
            }
            Subject::Network(ip, bits)
        }
    };
    let flags = cursor.u8()?;
    if flags > 3 {
        return Err(WireError::Malformed("unknown flags of an order"));
    }
    let group = GroupId { port: cursor.u16()?, id: cursor.u32()? };
    let seconds = cursor.u64()?;
    cursor.end()?;
    Ok(Expulsion { subject, group: (flags & 1 != 0).then_some(group), seconds, lift: flags & 2 != 0 })
}

fn put_ip(outbox: &mut Outbox, ip: IpAddr) {
    match ip {
        IpAddr::V4(ip) => {
            outbox.u8(4);
            outbox.slice(&ip.octets());
        }
        IpAddr::V6(ip) => {
            outbox.u8(6);
            outbox.slice(&ip.octets());
        }
    }
}

fn get_ip(cursor: &mut Cursor<'_>, family: u8) -> Result<IpAddr, WireError> {
    match family {
        4 => Ok(IpAddr::V4(Ipv4Addr::from(octets::<4>(cursor)?))),
        6 => Ok(IpAddr::V6(Ipv6Addr::from(octets::<16>(cursor)?))),
        _ => Err(WireError::Malformed("unknown kind of address")),
    }
}

/// Writes a change.
///
/// # Errors
/// `Invalid` if the name is longer than 255 bytes, or there are more than [`REFLECTORS_MAX`] reflectors; nothing is
/// written then.
pub fn put_relocation(outbox: &mut Outbox, id: u64, change: &Relocation) -> Result<(), StoreError> {
    let invalid = |text: String| Err(StoreError::new(ErrorKind::Invalid, text));
    let Ok(name_bytes) = u8::try_from(change.location.len()) else {
        return invalid(format!("the name of a location has {} bytes", change.location.len()));
    };
    if change.reflectors.len() > REFLECTORS_MAX {
        return invalid(format!("{} reflectors are too many for a location", change.reflectors.len()));
    }
    let open = outbox.begin(RELOCATE, id);
    outbox.u8(name_bytes);
    outbox.slice(change.location.as_bytes());
    outbox.u32(change.group);
    outbox.u8(change.reflectors.len() as u8);
    for reflector in &change.reflectors {
        put_ip(outbox, reflector.ip());
        outbox.u16(reflector.port());
    }
    // Its length is bounded by what was checked.
    let _ = outbox.end(open);
    Ok(())
}

/// Reads a change.
///
/// # Errors
/// If the body is malformed.
pub fn get_relocation(body: &bytes::Bytes) -> Result<Relocation, WireError> {
    let mut cursor = Cursor::new(body);
    let name_bytes = cursor.u8()? as usize;
    let name = cursor.bytes(name_bytes)?;
    let Ok(location) = String::from_utf8(name.to_vec()) else {
        return Err(WireError::Malformed("the name of a location is not UTF-8"));
    };
    let group = cursor.u32()?;
    let count = cursor.u8()? as usize;
    if count > REFLECTORS_MAX {
        return Err(WireError::Malformed("too many reflectors for a location"));
    }
    let mut reflectors = Vec::with_capacity(count);
    for _ in 0..count {
        let family = cursor.u8()?;
        let ip = get_ip(&mut cursor, family)?;
        reflectors.push(SocketAddr::new(ip, cursor.u16()?));
    }
    cursor.end()?;
    Ok(Relocation { location, group, reflectors })
}

fn octets<const COUNT: usize>(cursor: &mut Cursor<'_>) -> Result<[u8; COUNT], WireError> {
    cursor.bytes(COUNT)?.first_chunk().copied().ok_or(WireError::Truncated)
}

/// Reads the epoch of the map from the reply to a change.
///
/// # Errors
/// If the body is malformed.
pub fn get_relocated(body: &bytes::Bytes) -> Result<u64, WireError> {
    let mut cursor = Cursor::new(body);
    let epoch = cursor.u64()?;
    cursor.end()?;
    Ok(epoch)
}

/// The administration of a running reflector as a service.
#[derive(derive_more::Debug)]
#[debug("ReflectService")]
pub struct ReflectService {
    handle: Handle,
}

impl ReflectService {
    /// Creates the service of a reflector.
    pub fn new(handle: Handle) -> ReflectService {
        ReflectService { handle }
    }
}

impl Service for ReflectService {
    type Connection = ();
    type Pending = Reply<(MessageKind, u64)>;

    fn number(&self) -> u8 {
        REFLECT
    }

    fn requests_max(&self) -> usize {
        CHANGES_MAX
    }

    /// A change waits for the store, and can be repeated without harm.
    fn is_awaited(&self) -> bool {
        false
    }

    fn open(&self, _peer: &Peer) {}

    fn handle(
        &self,
        connection: &mut (),
        request: Incoming<'_>,
        outbox: &mut Outbox,
    ) -> Handled<Self::Pending> {
        let started = match request.kind {
            RELOCATE => get_relocation(&request.body)
                .map(|change| numbered_reply(RELOCATED, self.handle.relocate(change))),
            EXPEL => {
                get_expulsion(&request.body).map(|order| numbered_reply(EXPELLED, self.handle.expel(order)))
            }
            _ => {
                control::put_error(outbox, request.id, &request.unsupported());
                return Handled::Uncounted;
            }
        };
        match started {
            Ok(pending) => Handled::Later(pending),
            Err(error) => {
                self.finish(connection, request.id, Err(error.into()), outbox);
                Handled::Answered
            }
        }
    }

    fn finish(&self, _: &mut (), id: u64, done: Result<(MessageKind, u64), StoreError>, outbox: &mut Outbox) {
        match done {
            Ok((kind, number)) => {
                let open = outbox.begin(kind, id);
                outbox.u64(number);
                // The body is eight bytes long.
                let _ = outbox.end(open);
            }
            Err(error) => control::put_error(outbox, id, &error),
        }
    }
}

fn numbered_reply(kind: MessageKind, reply: Reply<u64>) -> Reply<(MessageKind, u64)> {
    Reply::pending(async move { reply.await.map(|number| (kind, number)) })
}

impl Request for Expulsion {
    fn encode(&self, outbox: &mut Outbox, id: u64) -> Result<(), StoreError> {
        put_expulsion(outbox, id, self);
        Ok(())
    }

    /// An order that is repeated may find that a ban has been ended meanwhile.
    fn is_read_only(&self) -> bool {
        false
    }
}

impl Request for Relocation {
    fn encode(&self, outbox: &mut Outbox, id: u64) -> Result<(), StoreError> {
        put_relocation(outbox, id, self)
    }

    /// A change that is repeated may undo another one that was made meanwhile, and a removal would find nothing.
    fn is_read_only(&self) -> bool {
        false
    }
}

/// Has the daemon at an address change the map of locations. Returns the map's new epoch. Must be called in a tokio
/// runtime.
///
/// # Errors
/// `Unavailable` if the daemon cannot be reached, `Denied` if it asks for another key, `Unsupported` if it has no
/// reflector, `Unknown` if the connection broke before the answer came, so that the map may or may not have been
/// changed; otherwise the reason why the map cannot be changed.
pub async fn relocate_at(
    address: Address,
    key: Option<ClusterKey>,
    owner: Option<u32>,
    change: Relocation,
) -> Result<u64, StoreError> {
    order_at(address, key, owner, change, RELOCATED).await
}

/// Has the daemon at an address throw members out. Returns how many were removed, or how many bans ended. Must be called
/// in a tokio runtime.
///
/// # Errors
/// As for [`relocate_at`].
pub async fn expel_at(
    address: Address,
    key: Option<ClusterKey>,
    owner: Option<u32>,
    order: Expulsion,
) -> Result<u64, StoreError> {
    order_at(address, key, owner, order, EXPELLED).await
}

async fn order_at<R: Request + Unpin>(
    address: Address,
    key: Option<ClusterKey>,
    owner: Option<u32>,
    order: R,
    done: MessageKind,
) -> Result<u64, StoreError> {
    let options = Arc::new(LinkOptions { key, owner, ..LinkOptions::default() });
    let link = Link::new(address.clone(), (), options, Arc::new(Host::new(false)));
    let mut call = Call::start(link.clone(), order);
    let answer = std::future::poll_fn(|context| call.poll_frame(context.waker())).await;
    link.close();
    let Frame { kind, body, .. } = match answer? {
        frame if frame.kind == MessageKind::ERROR => {
            let error = control::get_failure(&frame).unwrap_or_else(|error| call.nonsense(error));
            return Err(match error.kind {
                ErrorKind::Unsupported => {
                    let text =
                        format!("the daemon at {address} does not have the role reflect, or not this order");
                    StoreError::new(ErrorKind::Unsupported, text)
                }
                _ => error,
            });
        }
        frame => frame,
    };
    let number = match kind {
        kind if kind == done => get_relocated(&body),
        _ => Err(WireError::Malformed("the reply is another message")),
    };
    number.map_err(|error| call.nonsense(error))
}

#[cfg(test)]
mod tests {
    use std::net::{Shutdown, TcpListener, TcpStream};
    use std::sync::atomic::{AtomicU64, Ordering};

    use bytes::{Bytes, BytesMut};
    use nacre_rpc::{ServeOptions, Server, Services};

    use super::*;

    /// A service that counts the changes it is asked for, and never answers.
    struct Silent(Arc<AtomicU64>);

    impl Service for Silent {
        type Connection = ();
        type Pending = std::future::Pending<()>;

        fn number(&self) -> u8 {
            REFLECT
        }

        fn is_awaited(&self) -> bool {
            false
        }

        fn open(&self, _peer: &Peer) {}

        fn handle(&self, (): &mut (), _: Incoming<'_>, _: &mut Outbox) -> Handled<Self::Pending> {
            self.0.fetch_add(1, Ordering::SeqCst);
            Handled::Later(std::future::pending())
        }

        fn finish(&self, (): &mut (), _: u64, (): (), _: &mut Outbox) {}
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_change_whose_answer_is_lost_is_not_made_again() {
        let requests = Arc::new(AtomicU64::new(0));
        let services = Services::new().with(Silent(requests.clone()));
        let listen = vec!["127.0.0.1:0".parse().unwrap()];
        let server =
            Server::start(ServeOptions { listen, open: true, services, ..Default::default() }).unwrap();
        let Address::Tcp(upstream) = server.addresses()[0].clone() else { panic!("a TCP address") };
        // A relay that breaks each connection as soon as a change has arrived.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address: Address = listener.local_addr().unwrap().to_string().parse().unwrap();
        let seen = requests.clone();
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let (client, upstream) = (client.unwrap(), TcpStream::connect(&upstream).unwrap());
                let before = seen.load(Ordering::SeqCst);
                for (from, to) in [(&client, &upstream), (&upstream, &client)] {
                    let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    std::thread::spawn(move || std::io::copy(&mut from, &mut to));
                }
                while seen.load(Ordering::SeqCst) == before {
                    std::thread::yield_now();
                }
                let _ = (client.shutdown(Shutdown::Both), upstream.shutdown(Shutdown::Both));
            }
        });
        let error = relocate_at(address, None, None, change()).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Unknown, "{error}");
        assert_eq!(requests.load(Ordering::SeqCst), 1);
    }

    fn change() -> Relocation {
        Relocation {
            location: "harbour".to_owned(),
            group: 5,
            reflectors: vec!["192.0.2.1:7400".parse().unwrap(), "[2001:db8::1]:7".parse().unwrap()],
        }
    }

    fn encoded(change: &Relocation) -> Bytes {
        let (mut outbox, mut bytes) = (Outbox::default(), BytesMut::new());
        put_relocation(&mut outbox, 9, change).unwrap();
        outbox.copy_to(&mut bytes);
        let frame = nacre_rpc::frame::take(&mut bytes).unwrap().unwrap();
        assert_eq!((frame.kind, frame.id), (RELOCATE, 9));
        frame.body
    }

    /// The bytes are pinned: a change to them breaks older peers, and requires a new message.
    #[test]
    fn the_bytes_are_those_of_the_page() {
        let hex: String = encoded(&change()).iter().map(|byte| format!("{byte:02x}")).collect();
        let wanted = "07686172626f7572\
                      05000000\
                      02\
                      04c0000201e81c\
                      0620010db80000000000000000000000010700";
        assert_eq!(hex, wanted);
    }

    #[test]
    fn an_order_to_throw_out_is_read_as_it_was_written_and_nothing_else_is() {
        let group = Some(GroupId { port: 7400, id: 5 });
        for (subject, group, seconds, lift) in [
            (Subject::Identity(Identity([7; 16])), group, 3600, false),
            (Subject::Network("192.0.2.0".parse().unwrap(), 24), None, 0, true),
            (Subject::Network("2001:db8::".parse().unwrap(), 128), group, u64::MAX, false),
        ] {
            let order = Expulsion { subject, group, seconds, lift };
            let (mut outbox, mut bytes) = (Outbox::default(), BytesMut::new());
            put_expulsion(&mut outbox, 9, &order);
            outbox.copy_to(&mut bytes);
            let body = nacre_rpc::frame::take(&mut bytes).unwrap().unwrap().body;
            assert_eq!(get_expulsion(&body), Ok(order));
            for end in 0..body.len() {
                assert!(get_expulsion(&body.slice(..end)).is_err(), "{end}");
            }
        }
        assert!(
            get_expulsion(&Bytes::from_static(b"\x04\0\0\0\0\x21\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0")).is_err()
        );
    }

    #[test]
    fn a_change_is_read_as_it_was_written_and_nothing_else_is() {
        let removal = Relocation { location: String::new(), group: 0, reflectors: Vec::new() };
        for change in [change(), removal] {
            let body = encoded(&change);
            assert_eq!(get_relocation(&body), Ok(change));
            for end in 0..body.len() {
                assert!(get_relocation(&body.slice(..end)).is_err(), "{end}");
            }
            let longer = Bytes::from([&body[..], &[0]].concat());
            assert!(get_relocation(&longer).is_err());
        }
        for wrong in [&b"\x01\xff\0\0\0\0\0"[..], b"\x01a\0\0\0\0\x01\x05", b"\x01a\0\0\0\0\xff"] {
            assert!(get_relocation(&Bytes::copy_from_slice(wrong)).is_err(), "{wrong:?}");
        }
        let many = Relocation { reflectors: vec!["192.0.2.1:1".parse().unwrap(); 5], ..change() };
        assert!(put_relocation(&mut Outbox::default(), 1, &many).is_err());
    }
}
