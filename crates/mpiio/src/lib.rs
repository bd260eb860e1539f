//! An atomic mode of MPI-IO that holds: a library that is preloaded into MPI programs, which need not be changed.
//!
//! `MPI_File_set_atomicity(file, 1)` then means that around each read and write the bytes that it touches are locked, at the lock servers
//! of Nacre: the view's file type, its displacement, and the offset and count of the call become one datatype lock, as in "Noncontiguous
//! Locking Techniques for Parallel File Systems", section 3.3. (Of small pieces that are written, what is between them is locked too.)
//! Files that are not in atomic mode go to the MPI library as they are.
//!
//! `docs/mpiio.md` has what holds and what does not.

mod atomic;
mod background;
mod datatype;
mod exchange;
mod failure;
mod file;
mod hint;
mod identity;
mod interpose;
mod mode;
mod mpi;
mod next;
mod party;
mod pattern;
mod request;
mod session;
mod signals;
mod start;
mod table;
mod transfer;
mod view;
mod watchdog;
