//! The C library as a C programmer has it: its header, and programs that are compiled and run.

#[path = "main/header.rs"]
mod header;
#[path = "main/programs.rs"]
mod programs;
