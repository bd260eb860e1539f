//! The transfers of the MPI library below: what reads and writes a file once its bytes are locked.

use std::ffi::{c_int, c_void};

use crate::mpi::{MPI_Count, MPI_Datatype, MPI_File, MPI_Offset, MPI_Status};
use crate::next::{self, Next};

/// The place at which an access begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartPosition {
    /// An offset in elementary types.
    At(MPI_Offset),
    /// The individual pointer, which moves.
    Individual,
    /// The pointer that all processes share, which moves.
    Shared,
}

/// An access to a file.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    /// True if it writes.
    pub writes: bool,
    /// The place at which it begins.
    pub position: StartPosition,
    /// True if all processes that opened the file take part.
    pub collective: bool,
}

/// Elements in the program's memory.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// The address of the first of them.
    pub buffer: *mut c_void,
    /// Their number.
    pub count: MPI_Count,
    /// Their type.
    pub datatype: MPI_Datatype,
}

/// A blocking function, and the one for large counts, which older libraries do not have.
struct Pair {
    plain: Next,
    large: Next,
}

macro_rules! pair {
    ($name:literal) => {{
        static PAIR: Pair = Pair {
            plain: Next::new(next::name(concat!($name, "\0"))),
            large: Next::new(next::name(concat!($name, "_c\0"))),
        };
        &PAIR
    }};
}

impl Operation {
    fn pair(&self) -> &'static Pair {
        match (self.writes, self.position, self.collective) {
            (false, StartPosition::At(_), false) => pair!("PMPI_File_read_at"),
            (false, StartPosition::At(_), true) => pair!("PMPI_File_read_at_all"),
            (false, StartPosition::Individual, false) => pair!("PMPI_File_read"),
            (false, StartPosition::Individual, true) => pair!("PMPI_File_read_all"),
            (false, StartPosition::Shared, false) => pair!("PMPI_File_read_shared"),
            (false, StartPosition::Shared, true) => pair!("PMPI_File_read_ordered"),
            (true, StartPosition::At(_), false) => pair!("PMPI_File_write_at"),
            (true, StartPosition::At(_), true) => pair!("PMPI_File_write_at_all"),
            (true, StartPosition::Individual, false) => pair!("PMPI_File_write"),
            (true, StartPosition::Individual, true) => pair!("PMPI_File_write_all"),
            (true, StartPosition::Shared, false) => pair!("PMPI_File_write_shared"),
            (true, StartPosition::Shared, true) => pair!("PMPI_File_write_ordered"),
        }
    }

    /// Has the MPI library read or write. Returns its code; none if it lacks the function.
    ///
    /// # Safety
    ///
    /// The memory holds the elements that it is said to, and the status is one or stands for none.
    pub unsafe fn run(&self, file: MPI_File, memory: Memory, status: *mut MPI_Status) -> Option<c_int> {
        type At<C> = unsafe extern "C" fn(
            MPI_File,
            MPI_Offset,
            *mut c_void,
            C,
            MPI_Datatype,
            *mut MPI_Status,
        ) -> c_int;
        type Here<C> = unsafe extern "C" fn(MPI_File, *mut c_void, C, MPI_Datatype, *mut MPI_Status) -> c_int;
        let Memory { buffer, count, datatype } = memory;
        let Pair { plain, large } = self.pair();
        // SAFETY: MPI declares the functions of these names with these types, and the arguments are what the caller says. A
        // buffer is constant where it is written from, which makes no difference to a call.
        unsafe {
            Some(match (self.position, c_int::try_from(count)) {
                (StartPosition::At(offset), Ok(count)) => {
                    plain.find::<At<c_int>>()?(file, offset, buffer, count, datatype, status)
                }
                (StartPosition::At(offset), Err(_)) => {
                    large.find::<At<MPI_Count>>()?(file, offset, buffer, count, datatype, status)
                }
                (_, Ok(count)) => plain.find::<Here<c_int>>()?(file, buffer, count, datatype, status),
                (_, Err(_)) => large.find::<Here<MPI_Count>>()?(file, buffer, count, datatype, status),
            })
        }
    }
}
