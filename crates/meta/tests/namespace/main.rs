//! Tests of the namespace: single calls, permissions, content, and random histories with crashes.

mod calls;
mod content;
mod history;
mod large;
mod model;
mod quota;
mod recovery;
mod scheduler;
mod unmade;
