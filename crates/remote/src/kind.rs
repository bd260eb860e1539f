//! The messages of the object service and of the administration.

use nacre_rpc::MessageKind;
use nacre_rpc::frame::CONTROL;

/// The number of the object service.
pub const OBJECT: u8 = 1;
/// The number of the administration.
pub const ADMIN: u8 = 2;

/// A join: the client's list of members; or, without a body, a request for the server's.
pub const JOIN: MessageKind = MessageKind::new(CONTROL, 5);
/// The answer that both have the same list. Body: the sender's place in it.
pub const JOINED: MessageKind = MessageKind::new(CONTROL, 6);
/// The answer that the lists differ. Body: the sender's list, and its place in it.
pub const MEMBERS: MessageKind = MessageKind::new(CONTROL, 7);
/// A transaction on one object.
pub const APPLY: MessageKind = MessageKind::new(OBJECT, 1);
/// The transaction was applied.
pub const DONE: MessageKind = MessageKind::new(OBJECT, 2);
/// A guard of the transaction did not hold.
pub const REFUSED: MessageKind = MessageKind::new(OBJECT, 3);
/// A request for a page of objects.
pub const LIST: MessageKind = MessageKind::new(OBJECT, 4);
/// A page of objects.
pub const LISTED: MessageKind = MessageKind::new(OBJECT, 5);
/// A writer that numbers its writes continues over this connection. Body: its id, and the number of the connection.
pub const OPEN_WRITER: MessageKind = MessageKind::new(OBJECT, 6);
/// The answer to [`OPEN_WRITER`]. Body: the id and the position of the window of writes.
pub const WRITER_OPENED: MessageKind = MessageKind::new(OBJECT, 7);
/// A transaction on one object, to be applied at most once.
pub const APPLY_ONCE: MessageKind = MessageKind::new(OBJECT, 8);
/// The transaction was applied, now or before. Body: the position of the window, and that of [`DONE`].
pub const DONE_ONCE: MessageKind = MessageKind::new(OBJECT, 9);
/// A guard of the transaction did not hold. Body: the position of the window, and that of [`REFUSED`].
pub const REFUSED_ONCE: MessageKind = MessageKind::new(OBJECT, 10);
/// A call of the administration.
pub const CALL: MessageKind = MessageKind::new(ADMIN, 1);
/// The progress of a call. Any number of them may precede the result.
pub const PROGRESS: MessageKind = MessageKind::new(ADMIN, 2);
/// The result of a call.
pub const RESULT: MessageKind = MessageKind::new(ADMIN, 3);

/// Every message of both services.
pub const ALL: [MessageKind; 16] = [
    JOIN,
    JOINED,
    MEMBERS,
    APPLY,
    DONE,
    REFUSED,
    LIST,
    LISTED,
    OPEN_WRITER,
    WRITER_OPENED,
    APPLY_ONCE,
    DONE_ONCE,
    REFUSED_ONCE,
    CALL,
    PROGRESS,
    RESULT,
];
