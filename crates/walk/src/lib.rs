//! The walk of file trees: every entry below some roots is visited exactly once, by threads of one process or by ranks of many.
#![forbid(unsafe_code)]

pub mod algorithm;
