//! The studies of the atomic mode of MPI-IO (Ching et al., *Noncontiguous Locking Techniques for Parallel File Systems*, sections 6.1 to
//! 6.3): small pieces, S3D's checkpoint, and S3aSim's search of sequences.
//!
//! They run programs in C as MPI jobs that write one file, by each way to lock it and without locks. What a file has to hold follows from a
//! seed, and is compared byte by byte after each run: what Nacre's locks have lost ends the study, what others have lost is counted.

mod arguments;
mod chart;
mod check;
mod job;
pub(crate) mod pieces;
pub(crate) mod s3asim;
pub(crate) mod s3d;
mod system;
