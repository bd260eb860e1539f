//! Tests of the namespace: single calls, permissions, content, and random histories with crashes.

mod calls;
mod content;
mod history;
mod model;
mod recovery;
mod scheduler;
