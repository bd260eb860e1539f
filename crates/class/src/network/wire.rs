//! The messages: a head in postcard's encoding, and the bytes of the input or the output behind it.

use bytes::Bytes;
use nacre_object::{ObjectId, StoreError};
use nacre_rpc::{MessageKind, Outbox, WireError};
use serde::{Deserialize, Serialize};

use crate::bounds::{Bound, Bounds};
use crate::error::{CallError, Failure};
use crate::runtime::{Called, Request};

/// The number of the service.
pub const CLASS: u8 = 5;
/// A call of a method. The rest of the body is its input.
pub const CALL: MessageKind = MessageKind::new(CLASS, 1);
/// The reply to a call that took effect. The rest of the body is its output.
pub const CALLED: MessageKind = MessageKind::new(CLASS, 2);
/// The reply to a call that took none. The rest of the body is the output of a method that failed.
pub const FAILED: MessageKind = MessageKind::new(CLASS, 3);

/// The head of a call.
#[derive(Serialize, Deserialize)]
struct CallHead<'a> {
    #[serde(borrow)]
    object: &'a [u8],
    class: &'a str,
    method: &'a str,
    fence: Option<u64>,
    bounds: Option<Bounds>,
}

/// The head of the reply to a call that took effect.
#[derive(Serialize, Deserialize)]
struct CalledHead {
    result: i32,
    version: Option<u64>,
    wrote: bool,
    log: Vec<String>,
    class_version: u64,
    attempts: u32,
    instructions: u64,
}

/// The head of the reply to a call that took no effect.
#[derive(Serialize, Deserialize)]
enum FailedHead {
    Failed {
        errno: i32,
        message: String,
        log: Vec<String>,
    },
    Exceeded {
        bound: u8,
        bounds: Bounds,
    },
    Fenced {
        fence: u64,
    },
    Contended {
        attempts: u32,
    },
    /// Its output is longer than what was reserved for it. The client calls again, and then more is.
    Again,
}

const BOUNDS: [Bound; 5] = [Bound::Instructions, Bound::Memory, Bound::Output, Bound::Wall, Bound::Reads];

/// A call as a server received it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    pub object: ObjectId,
    pub class: String,
    pub method: String,
    pub input: Bytes,
    pub fence: Option<u64>,
    pub bounds: Option<Bounds>,
}

impl Received {
    pub fn request(&self) -> Request<'_> {
        Request {
            object: &self.object,
            class: &self.class,
            method: &self.method,
            input: self.input.clone(),
            fence: self.fence,
            bounds: self.bounds,
        }
    }
}

/// A reply, without what the caller knows.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// The call took effect.
    Called(Called),
    /// No effect.
    Failed(CallError),
    /// No effect; the call is to be made again, and will have more space for its output.
    Again,
}

fn put(outbox: &mut Outbox, kind: MessageKind, id: u64, head: &[u8], rest: &Bytes) -> Result<(), StoreError> {
    let open = outbox.begin(kind, id);
    outbox.slice(head);
    outbox.payload(rest);
    match outbox.end(open) {
        Ok(_) => Ok(()),
        Err(body_bytes) => Err(WireError::TooLong { body_bytes }.into()),
    }
}

/// Encodes a head. The only failure is one of memory.
fn encode(head: &impl Serialize) -> Vec<u8> {
    postcard::to_extend(head, Vec::with_capacity(64)).unwrap_or_default()
}

/// Writes a call.
///
/// # Errors
///
/// `Invalid` if it is too long for a frame.
pub fn put_call(outbox: &mut Outbox, id: u64, request: &Request<'_>) -> Result<(), StoreError> {
    let Request { object, class, method, input, fence, bounds } = request;
    let head = CallHead { object: object.as_bytes(), class, method, fence: *fence, bounds: *bounds };
    put(outbox, CALL, id, &encode(&head), input)
}

/// Reads a call.
///
/// # Errors
///
/// `Invalid` if it makes no sense.
pub fn get_call(body: &Bytes) -> Result<Received, StoreError> {
    let (head, rest) = postcard::take_from_bytes::<CallHead<'_>>(body)
        .map_err(|_| WireError::Malformed("the head of a call of a method"))?;
    let CallHead { object, class, method, fence, bounds } = head;
    Ok(Received {
        object: ObjectId::new(Bytes::copy_from_slice(object))?,
        class: class.to_owned(),
        method: method.to_owned(),
        input: body.slice_ref(rest),
        fence,
        bounds: bounds.map(Bounds::clamped),
    })
}

/// Writes the reply to a call.
///
/// # Errors
///
/// The store's error with which the call ended, and `Invalid` if the reply is too long for a frame.
pub fn put_reply(outbox: &mut Outbox, id: u64, reply: Result<Called, CallError>) -> Result<(), StoreError> {
    let failed = match reply {
        Ok(called) => {
            let Called { result, output, version, wrote, log, class_version, attempts, instructions } =
                called;
            let head = CalledHead { result, version, wrote, log, class_version, attempts, instructions };
            return put(outbox, CALLED, id, &encode(&head), &output);
        }
        Err(failed) => failed,
    };
    let (head, output) = match failed {
        CallError::Store(error) => return Err(error),
        CallError::Failed { errno, failure, .. } => {
            let Failure { message, output, log } = *failure;
            (FailedHead::Failed { errno, message, log }, output)
        }
        CallError::Exceeded { bound, bounds, .. } => {
            let bound = BOUNDS.iter().position(|known| *known == bound).unwrap_or_default() as u8;
            (FailedHead::Exceeded { bound, bounds: *bounds }, Bytes::new())
        }
        CallError::Fenced { fence, .. } => (FailedHead::Fenced { fence }, Bytes::new()),
        CallError::Contended { attempts, .. } => (FailedHead::Contended { attempts }, Bytes::new()),
    };
    put(outbox, FAILED, id, &encode(&head), &output)
}

/// Writes the reply to a call that is to be made again.
pub fn put_again(outbox: &mut Outbox, id: u64) -> Result<(), StoreError> {
    put(outbox, FAILED, id, &encode(&FailedHead::Again), &Bytes::new())
}

/// Reads the reply to a call; of any other kind than [`CALLED`] and [`FAILED`] it is none.
///
/// # Errors
///
/// The reason why it makes no sense.
pub fn get_reply(kind: MessageKind, body: &Bytes, request: &Request<'_>) -> Result<Reply, WireError> {
    let wrong = |_: postcard::Error| WireError::Malformed("the head of the reply to a call of a method");
    match kind {
        CALLED => {
            let (head, rest) = postcard::take_from_bytes::<CalledHead>(body).map_err(wrong)?;
            let CalledHead { result, version, wrote, log, class_version, attempts, instructions } = head;
            let output = body.slice_ref(rest);
            Ok(Reply::Called(Called {
                result,
                output,
                version,
                wrote,
                log,
                class_version,
                attempts,
                instructions,
            }))
        }
        FAILED => {
            let (head, rest) = postcard::take_from_bytes::<FailedHead>(body).map_err(wrong)?;
            let (object, class, method) =
                (request.object.clone(), request.class.to_owned(), request.method.to_owned());
            Ok(Reply::Failed(match head {
                FailedHead::Failed { errno, message, log } => {
                    let failure = Box::new(Failure { message, output: body.slice_ref(rest), log });
                    CallError::Failed { object, class, method, errno, failure }
                }
                FailedHead::Exceeded { bound, bounds } => {
                    let Some(bound) = BOUNDS.get(usize::from(bound)).copied() else {
                        return Err(WireError::Malformed("a bound that is none"));
                    };
                    CallError::Exceeded { object, class, method, bound, bounds: Box::new(bounds) }
                }
                FailedHead::Fenced { fence } => CallError::Fenced { object, class, method, fence },
                FailedHead::Contended { attempts } => {
                    CallError::Contended { object, class, method, attempts }
                }
                FailedHead::Again => return Ok(Reply::Again),
            }))
        }
        _ => Err(WireError::Malformed("a message that is not a reply to a call of a method")),
    }
}

/// Decodes bytes as each kind of message, and compares with the message that it makes when it is encoded again.
pub fn fuzz(bytes: &[u8]) {
    let body = Bytes::copy_from_slice(bytes);
    let again = |write: &dyn Fn(&mut Outbox) -> Result<(), StoreError>| {
        let (mut outbox, mut written) = (Outbox::default(), bytes::BytesMut::new());
        // What was decoded is no longer than what it was decoded from.
        write(&mut outbox).expect("a message that fits");
        outbox.copy_to(&mut written);
        nacre_rpc::frame::take(&mut written).expect("a frame").expect("a whole frame")
    };
    if let Ok(received) = get_call(&body) {
        let frame = again(&|outbox| put_call(outbox, 1, &received.request()));
        assert_eq!(get_call(&frame.body).as_ref(), Ok(&received));
    }
    let object = ObjectId::try_from("object").expect("a name");
    let request = Request::new(&object, "class", "method");
    for kind in [CALLED, FAILED] {
        let Ok(reply) = get_reply(kind, &body, &request) else { continue };
        let frame = again(&|outbox| match reply.clone() {
            Reply::Called(called) => put_reply(outbox, 1, Ok(called)),
            Reply::Failed(failed) => put_reply(outbox, 1, Err(failed)),
            Reply::Again => put_again(outbox, 1),
        });
        assert_eq!(get_reply(kind, &frame.body, &request), Ok(reply));
    }
}
