//! The messages of the object service and of the administration.

use nacre_rpc::Kind;
use nacre_rpc::frame::CONTROL;

/// The number of the object service.
pub const OBJECT: u8 = 1;
/// The number of the administration.
pub const ADMIN: u8 = 2;

/// This is the list of members that I have; or, without a body, which one do you have?
pub const JOIN: Kind = Kind::new(CONTROL, 5);
/// It is the same. Body: the sender's place in it.
pub const JOINED: Kind = Kind::new(CONTROL, 6);
/// It is not. Body: the list that the sender has, and its place in it.
pub const MEMBERS: Kind = Kind::new(CONTROL, 7);
/// A transaction on one object.
pub const APPLY: Kind = Kind::new(OBJECT, 1);
/// The transaction was applied.
pub const DONE: Kind = Kind::new(OBJECT, 2);
/// A guard of the transaction did not hold.
pub const REFUSED: Kind = Kind::new(OBJECT, 3);
/// Which objects are there?
pub const LIST: Kind = Kind::new(OBJECT, 4);
/// A page of objects.
pub const LISTED: Kind = Kind::new(OBJECT, 5);
/// A question or an order for the server as a whole.
pub const CALL: Kind = Kind::new(ADMIN, 1);
/// How far the call is. Any number of them may precede the result.
pub const PROGRESS: Kind = Kind::new(ADMIN, 2);
/// What the call gave.
pub const RESULT: Kind = Kind::new(ADMIN, 3);

/// Every message of both services.
pub const ALL: [Kind; 11] =
    [JOIN, JOINED, MEMBERS, APPLY, DONE, REFUSED, LIST, LISTED, CALL, PROGRESS, RESULT];
