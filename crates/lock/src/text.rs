//! Descriptions as text, for the command line.
//!
//! ```text
//! range(offset=0, length=64KiB)
//! list(0:10, 64:10)                                              offset:length
//! vector(count=1024, block=1, stride=64)
//! view(displacement=4096, count=2, of=TYPE)
//! ```
//!
//! A datatype by itself is one copy from offset 0 on. The types are `byte`, `bytes(8)` and
//!
//! ```text
//! contiguous(count=3, of=TYPE)
//! vector(count=3, block=2, stride=4, of=TYPE)                    hvector: stride in bytes
//! indexed(blocks=[2@0, 1@5], of=TYPE)                            count@displacement; hindexed: in bytes
//! indexed_block(block=2, displacements=[0, 5], of=TYPE)          hindexed_block: in bytes
//! struct(2@0 TYPE, 1@64 TYPE)                                    count@displacement in bytes
//! subarray(sizes=[8, 8], subsizes=[2, 2], starts=[0, 4], order=c, of=TYPE)
//! darray(rank=1, sizes=[8, 8], distributions=[block, cyclic(2)], processes=[2, 2], order=fortran, of=TYPE)
//! resized(lower_bound=0, extent=16, of=TYPE)
//! ```
//!
//! Arguments may stand in any order. `of` is `byte`, `block` is 1 and `order` is `c` where they are left out;
//! distributions are `none`, `block`, `block(N)`, `cyclic` and `cyclic(N)`. Numbers may have the units KiB, MiB, GiB,
//! TiB, PiB and EiB.

mod parse;
mod syntax;

use std::fmt::{self, Display, Formatter};

use crate::datatype::{Block, Datatype, Description, Distribution, Order};

/// Writes items with commas between them.
fn separated<T>(
    f: &mut Formatter<'_>,
    items: &[T],
    mut write: impl FnMut(&mut Formatter<'_>, &T) -> fmt::Result,
) -> fmt::Result {
    for (number, item) in items.iter().enumerate() {
        if number > 0 {
            f.write_str(", ")?;
        }
        write(f, item)?;
    }
    Ok(())
}

fn list<T: Display>(f: &mut Formatter<'_>, name: &str, items: &[T]) -> fmt::Result {
    write!(f, "{name}=[")?;
    separated(f, items, |f, item| write!(f, "{item}"))?;
    f.write_str("]")
}

/// Writes the last arguments of a constructor.
fn rest(f: &mut Formatter<'_>, order: Order, of: &Datatype) -> fmt::Result {
    if order == Order::Fortran {
        f.write_str(", order=fortran")?;
    }
    if *of != Datatype::Bytes(1) {
        write!(f, ", of={of}")?;
    }
    f.write_str(")")
}

impl Display for Block {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.count, self.displacement)
    }
}

impl Display for Distribution {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Distribution::None => f.write_str("none"),
            Distribution::Block(None) => f.write_str("block"),
            Distribution::Block(Some(block)) => write!(f, "block({block})"),
            Distribution::Cyclic(None) => f.write_str("cyclic"),
            Distribution::Cyclic(Some(block)) => write!(f, "cyclic({block})"),
        }
    }
}

impl Display for Datatype {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Datatype::Bytes(1) => f.write_str("byte"),
            Datatype::Bytes(bytes) => write!(f, "bytes({bytes})"),
            Datatype::Contiguous { count, of } => {
                write!(f, "contiguous(count={count}")?;
                rest(f, Order::C, of)
            }
            Datatype::Vector { count, block, stride, of } => {
                write!(f, "vector(count={count}, block={block}, stride={stride}")?;
                rest(f, Order::C, of)
            }
            Datatype::Hvector { count, block, stride, of } => {
                write!(f, "hvector(count={count}, block={block}, stride={stride}")?;
                rest(f, Order::C, of)
            }
            Datatype::Indexed { blocks, of } => {
                f.write_str("indexed(")?;
                list(f, "blocks", blocks)?;
                rest(f, Order::C, of)
            }
            Datatype::Hindexed { blocks, of } => {
                f.write_str("hindexed(")?;
                list(f, "blocks", blocks)?;
                rest(f, Order::C, of)
            }
            Datatype::IndexedBlock { block, displacements, of } => {
                write!(f, "indexed_block(block={block}, ")?;
                list(f, "displacements", displacements)?;
                rest(f, Order::C, of)
            }
            Datatype::HindexedBlock { block, displacements, of } => {
                write!(f, "hindexed_block(block={block}, ")?;
                list(f, "displacements", displacements)?;
                rest(f, Order::C, of)
            }
            Datatype::Struct { members } => {
                f.write_str("struct(")?;
                separated(f, members, |f, member| {
                    write!(f, "{}@{} {}", member.count, member.displacement, member.of)
                })?;
                f.write_str(")")
            }
            Datatype::Subarray { sizes, subsizes, starts, order, of } => {
                f.write_str("subarray(")?;
                list(f, "sizes", sizes)?;
                list(f, ", subsizes", subsizes)?;
                list(f, ", starts", starts)?;
                rest(f, *order, of)
            }
            Datatype::Darray { rank, sizes, distributions, processes, order, of } => {
                write!(f, "darray(rank={rank}, ")?;
                list(f, "sizes", sizes)?;
                list(f, ", distributions", distributions)?;
                list(f, ", processes", processes)?;
                rest(f, *order, of)
            }
            Datatype::Resized { lower_bound, extent, of } => {
                write!(f, "resized(lower_bound={lower_bound}, extent={extent}")?;
                rest(f, Order::C, of)
            }
        }
    }
}

impl Display for Description {
    /// Writes the text that is parsed to the same description.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Description::Contiguous(region) => {
                write!(f, "range(offset={}, length={})", region.offset, region.length)
            }
            Description::List(regions) => {
                f.write_str("list(")?;
                separated(f, regions, |f, region| write!(f, "{}:{}", region.offset, region.length))?;
                f.write_str(")")
            }
            Description::Datatype(view) if view.displacement == 0 && view.count == 1 => {
                write!(f, "{}", view.datatype)
            }
            Description::Datatype(view) => {
                write!(f, "view(displacement={}, count={}", view.displacement, view.count)?;
                rest(f, Order::C, &view.datatype)
            }
        }
    }
}
