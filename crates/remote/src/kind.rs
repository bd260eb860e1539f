//! The messages of the object service and of the administration.

use nacre_rpc::Kind;
use nacre_rpc::frame::CONTROL;

/// The number of the object service.
pub const OBJECT: u8 = 1;
/// The number of the administration.
pub const ADMIN: u8 = 2;

/// A join: the client's list of members; or, without a body, a request for the server's.
pub const JOIN: Kind = Kind::new(CONTROL, 5);
/// The answer that both have the same list. Body: the sender's place in it.
pub const JOINED: Kind = Kind::new(CONTROL, 6);
/// The answer that the lists differ. Body: the sender's list, and its place in it.
pub const MEMBERS: Kind = Kind::new(CONTROL, 7);
/// A transaction on one object.
pub const APPLY: Kind = Kind::new(OBJECT, 1);
/// The transaction was applied.
pub const DONE: Kind = Kind::new(OBJECT, 2);
/// A guard of the transaction did not hold.
pub const REFUSED: Kind = Kind::new(OBJECT, 3);
/// A request for a page of objects.
pub const LIST: Kind = Kind::new(OBJECT, 4);
/// A page of objects.
pub const LISTED: Kind = Kind::new(OBJECT, 5);
/// A writer that numbers its writes goes on over this connection. Body: its id, and the number of the connection.
pub const OPEN_WRITER: Kind = Kind::new(OBJECT, 6);
/// The answer to [`OPEN_WRITER`]. Body: the id and the position of the window of writes.
pub const WRITER_OPENED: Kind = Kind::new(OBJECT, 7);
/// A transaction on one object, to be applied at most once.
pub const APPLY_ONCE: Kind = Kind::new(OBJECT, 8);
/// The transaction was applied, now or before. Body: the position of the window, and that of [`DONE`].
pub const DONE_ONCE: Kind = Kind::new(OBJECT, 9);
/// A guard of the transaction did not hold. Body: the position of the window, and that of [`REFUSED`].
pub const REFUSED_ONCE: Kind = Kind::new(OBJECT, 10);
/// A call of the administration.
pub const CALL: Kind = Kind::new(ADMIN, 1);
/// The progress of a call. Any number of them may precede the result.
pub const PROGRESS: Kind = Kind::new(ADMIN, 2);
/// The result of a call.
pub const RESULT: Kind = Kind::new(ADMIN, 3);

/// Every message of both services.
pub const ALL: [Kind; 16] = [
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
