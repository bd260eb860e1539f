//! Object classes: methods in Lua that run on one object.
//!
//! A *class* is a Lua text that registers *methods*. A call of a method sees one object as it stood before, and its
//! changes are one transaction: they take effect wholly or not at all (Sevilla et al., *Malacology*, section 4.2). The
//! script interface is that of Ceph's cls_lua, with the module `nacre` beside it; `docs/class.md` describes both.
//!
//! ```
//! use std::sync::Arc;
//!
//! use nacre_class::{Bounds, Classes, Request};
//! use nacre_object::ObjectId;
//! # use nacre_object::testkit::MemoryStore;
//!
//! # futures::executor::block_on(async {
//! # let store = Arc::new(MemoryStore::new());
//! let classes = Classes::new(store);
//! let text = "function greet(input, output) output:append('hello ' .. input:str()) end objclass.register(greet)";
//! classes.put("greeter", text.into(), Bounds::default()).await?;
//!
//! let object = ObjectId::try_from("anything")?;
//! let called = classes.call(&Request::new(&object, "greeter", "greet").input("reader")).await?;
//! assert_eq!(called.output, "hello reader");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # }).unwrap();
//! ```
//!
//! A script is bounded in instructions, memory, output and time, and has neither input nor output, clock nor chance: the
//! same call on the same object does the same.

#![deny(unsafe_code)]

mod bounds;
mod buffer;
mod call;
mod catalogue;
mod classes;
pub mod errno;
mod error;
mod machines;
#[cfg(feature = "network")]
pub mod network;
#[doc(hidden)]
pub mod osd;
pub mod packed;
mod pattern;
mod registry;
#[doc(hidden)]
pub mod rewrite;
mod runtime;
pub mod transcript;
mod validate;
#[allow(unsafe_code)]
mod vm;

pub use bounds::{Bound, Bounds};
pub use call::HEADER_ATTRIBUTE;
pub use catalogue::{Catalogue, Class, METHODS_MAX, Method, NAME_BYTES_MAX, TEXT_BYTES_MAX, check_name};
pub use classes::{Caller, Classes};
pub use error::{CallError, ClassError, Failure};
pub use registry::{CLASSES_OBJECT, HISTORY_MAX, Record, Registry, StoreRegistry};
pub use runtime::{Called, Request, Runtime};
pub use validate::validate;
