//! Descriptions of access patterns, as users give them: contiguous, list, and datatype (sections 3.1 to 3.3 of the
//! paper).
//!
//! Datatypes are those of MPI, with MPI's meaning: a datatype is a sequence of bytes at displacements, with a lower
//! and an upper bound whose distance is its *extent*; what is repeated follows itself at the distance of its extent.
//! For a lock only the set of bytes counts. Hence, otherwise than in MPI:
//!
//! - the order of the bytes in a type map means nothing, and a file view need not be monotonic;
//! - bytes that a description names twice are locked once, and a request never conflicts with itself;
//! - blocks, counts and members of size 0 are allowed and name no byte. A pattern may be empty.

use crate::PatternError;
use crate::limit::DEPTH_MAX;
use crate::pattern::Region;

/// A description of the bytes of a file that an operation accesses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Description {
    /// One range of bytes (POSIX locking, section 3.1).
    Contiguous(Region),
    /// Ranges of bytes, in any order (list locking, section 3.2).
    List(Vec<Region>),
    /// A datatype laid over the file (datatype locking, section 3.3).
    Datatype(FileView),
}

/// A datatype laid over a file: copies of it, one after the other at the distance of its extent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileView {
    /// The offset in the file, in bytes, to which the displacement 0 of the first copy corresponds.
    pub displacement: u64,
    /// The number of copies.
    pub count: u64,
    /// The datatype.
    pub datatype: Datatype,
}

/// A datatype: a tree of MPI's constructors over elements of some bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Datatype {
    /// A predefined type of this many bytes, without a hole. `Bytes(1)` is `MPI_BYTE`.
    Bytes(u64),
    /// `MPI_Type_contiguous`: copies at the distance of the extent.
    Contiguous {
        /// The number of copies.
        count: u64,
        /// The type that is copied.
        of: Box<Datatype>,
    },
    /// `MPI_Type_vector`: blocks at equal distances, which are given in extents of the element.
    Vector {
        /// The number of blocks.
        count: u64,
        /// The number of elements in a block.
        block: u64,
        /// The distance of the starts of two blocks, in extents of the element.
        stride: i64,
        /// The element.
        of: Box<Datatype>,
    },
    /// `MPI_Type_create_hvector`: blocks at equal distances, which are given in bytes.
    Hvector {
        /// The number of blocks.
        count: u64,
        /// The number of elements in a block.
        block: u64,
        /// The distance of the starts of two blocks in bytes.
        stride: i64,
        /// The element.
        of: Box<Datatype>,
    },
    /// `MPI_Type_indexed`: blocks of several lengths, at displacements in extents of the element.
    Indexed {
        /// The blocks.
        blocks: Vec<Block>,
        /// The element.
        of: Box<Datatype>,
    },
    /// `MPI_Type_create_hindexed`: blocks of several lengths, at displacements in bytes.
    Hindexed {
        /// The blocks.
        blocks: Vec<Block>,
        /// The element.
        of: Box<Datatype>,
    },
    /// `MPI_Type_create_indexed_block`: blocks of one length, at displacements in extents of the element.
    IndexedBlock {
        /// The number of elements in a block.
        block: u64,
        /// The displacements of the blocks.
        displacements: Vec<i64>,
        /// The element.
        of: Box<Datatype>,
    },
    /// `MPI_Type_create_hindexed_block`: blocks of one length, at displacements in bytes.
    HindexedBlock {
        /// The number of elements in a block.
        block: u64,
        /// The displacements of the blocks in bytes.
        displacements: Vec<i64>,
        /// The element.
        of: Box<Datatype>,
    },
    /// `MPI_Type_create_struct`: blocks of several types, at displacements in bytes.
    Struct {
        /// The blocks with their types.
        members: Vec<Member>,
    },
    /// `MPI_Type_create_subarray`: a box within an array. Its extent is that of the whole array.
    Subarray {
        /// The size of the array in each dimension, in elements.
        sizes: Vec<u64>,
        /// The size of the box in each dimension.
        subsizes: Vec<u64>,
        /// The first element of the box in each dimension, counted from 0.
        starts: Vec<u64>,
        /// The dimension in which neighbours in the file differ.
        order: Order,
        /// The element.
        of: Box<Datatype>,
    },
    /// `MPI_Type_create_darray`: the part of one process of an array that is distributed over a grid of processes.
    /// Its extent is that of the whole array.
    Darray {
        /// The number of the process in the grid; grids are numbered with the last dimension fastest.
        rank: u64,
        /// The size of the array in each dimension, in elements.
        sizes: Vec<u64>,
        /// The distribution of each dimension.
        distributions: Vec<Distribution>,
        /// The number of processes in each dimension.
        processes: Vec<u64>,
        /// The dimension in which neighbours in the file differ.
        order: Order,
        /// The element.
        of: Box<Datatype>,
    },
    /// `MPI_Type_create_resized`: the same bytes with other bounds.
    Resized {
        /// The lower bound in bytes.
        lower_bound: i64,
        /// The distance from the lower to the upper bound in bytes.
        extent: i64,
        /// The type whose bytes they are.
        of: Box<Datatype>,
    },
}

/// A block of an indexed datatype.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// The number of elements.
    pub count: u64,
    /// The displacement of the first element, in extents of the element or in bytes, as the constructor says.
    pub displacement: i64,
}

/// A block of a struct.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// The number of elements.
    pub count: u64,
    /// The displacement of the first element in bytes.
    pub displacement: i64,
    /// The element.
    pub of: Datatype,
}

/// The dimension of an array in which neighbours in the file differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The last (`MPI_ORDER_C`).
    C,
    /// The first (`MPI_ORDER_FORTRAN`).
    Fortran,
}

/// The distribution of one dimension of an array over processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distribution {
    /// Not at all (`MPI_DISTRIBUTE_NONE`): there is one process in this dimension.
    None,
    /// A block of this many elements for each process, in order (`MPI_DISTRIBUTE_BLOCK`); without a number, the
    /// least that suffices (`MPI_DISTRIBUTE_DFLT_DARG`).
    Block(Option<u64>),
    /// Blocks of this many elements, dealt in turn (`MPI_DISTRIBUTE_CYCLIC`); without a number, of one element.
    Cyclic(Option<u64>),
}

impl Datatype {
    /// Returns the type of one byte, `MPI_BYTE`.
    pub fn byte() -> Datatype {
        Datatype::Bytes(1)
    }

    /// Returns copies of this type one after the other.
    pub fn contiguous(self, count: u64) -> Datatype {
        Datatype::Contiguous { count, of: Box::new(self) }
    }

    /// Returns blocks of this type at a distance in extents.
    pub fn vector(self, count: u64, block: u64, stride: i64) -> Datatype {
        Datatype::Vector { count, block, stride, of: Box::new(self) }
    }

    /// Returns blocks of this type at a distance in bytes.
    pub fn hvector(self, count: u64, block: u64, stride: i64) -> Datatype {
        Datatype::Hvector { count, block, stride, of: Box::new(self) }
    }

    /// Returns this type with other bounds, in bytes.
    pub fn resized(self, lower_bound: i64, extent: i64) -> Datatype {
        Datatype::Resized { lower_bound, extent, of: Box::new(self) }
    }

    /// Returns a box of an array of this type, in C's order.
    pub fn subarray(self, sizes: &[u64], subsizes: &[u64], starts: &[u64]) -> Datatype {
        Datatype::Subarray {
            sizes: sizes.to_vec(),
            subsizes: subsizes.to_vec(),
            starts: starts.to_vec(),
            order: Order::C,
            of: Box::new(self),
        }
    }

    /// Checks that no more than [`DEPTH_MAX`] datatypes stand in each other.
    pub(crate) fn check_depth(&self) -> Result<(), PatternError> {
        fn check(datatype: &Datatype, left: usize) -> Result<(), PatternError> {
            let left = left.checked_sub(1).ok_or(PatternError::TooDeep)?;
            match datatype {
                Datatype::Bytes(_) => Ok(()),
                Datatype::Struct { members } => members.iter().try_for_each(|member| check(&member.of, left)),
                Datatype::Contiguous { of, .. }
                | Datatype::Vector { of, .. }
                | Datatype::Hvector { of, .. }
                | Datatype::Indexed { of, .. }
                | Datatype::Hindexed { of, .. }
                | Datatype::IndexedBlock { of, .. }
                | Datatype::HindexedBlock { of, .. }
                | Datatype::Subarray { of, .. }
                | Datatype::Darray { of, .. }
                | Datatype::Resized { of, .. } => check(of, left),
            }
        }
        check(self, DEPTH_MAX)
    }

    /// Returns the description of one copy of this type laid over a file from an offset on.
    pub fn at(self, displacement: u64) -> Description {
        Description::Datatype(FileView { displacement, count: 1, datatype: self })
    }
}

impl From<std::ops::Range<u64>> for Description {
    /// Describes the bytes of a range; none if it is empty.
    fn from(range: std::ops::Range<u64>) -> Description {
        Description::contiguous(range.start, range.end.saturating_sub(range.start))
    }
}

impl From<Region> for Description {
    fn from(region: Region) -> Description {
        Description::Contiguous(region)
    }
}

impl From<Vec<Region>> for Description {
    fn from(regions: Vec<Region>) -> Description {
        Description::List(regions)
    }
}

impl From<FileView> for Description {
    fn from(view: FileView) -> Description {
        Description::Datatype(view)
    }
}

impl Description {
    /// Describes one range of bytes.
    pub fn contiguous(offset: u64, length: u64) -> Description {
        Description::Contiguous(Region { offset, length })
    }
}
