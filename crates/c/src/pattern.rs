//! Patterns: the bytes that a lock covers. Datatypes are trees, which every constructor copies; their sizes are bounded where they are built.

use std::ffi::{c_char, c_int, c_void};

use nacre::lock::{
    Block, DEPTH_MAX, Datatype, Description, Distribution, FileView, ITEMS_MAX, Member, Order, Region,
};

use crate::argument::{array, buffer, handle_slot, optional, required, text};
use crate::code::{Failure, call};
use crate::handle::{self, Handle, get};

/// The last dimension is the one in which neighbours in the file differ.
pub const NACRE_ORDER_C: c_int = 0;
/// The first dimension is.
pub const NACRE_ORDER_FORTRAN: c_int = 1;

/// A dimension is not distributed.
pub const NACRE_DISTRIBUTE_NONE: c_int = 0;
/// A dimension is distributed in one block for each process.
pub const NACRE_DISTRIBUTE_BLOCK: c_int = 1;
/// A dimension is distributed in blocks that are dealt in turn.
pub const NACRE_DISTRIBUTE_CYCLIC: c_int = 2;

/// The maximum length of a pattern as text.
const TEXT_BYTES_MAX: usize = 16 << 20;
/// The maximum number of dimensions of an array.
const DIMENSIONS_MAX: usize = 1024;

/// A range of bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nacre_region {
    /// The offset of its first byte.
    pub offset: u64,
    /// Its length in bytes.
    pub length: u64,
}

/// A block of elements of an indexed datatype.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nacre_block {
    /// The number of elements.
    pub count: u64,
    /// The displacement of the first one: in extents of the element, or in bytes, as the constructor says.
    pub displacement: i64,
}

/// A member of a struct.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nacre_member {
    /// The number of elements.
    pub count: u64,
    /// The displacement of the first one in bytes.
    pub displacement: i64,
    /// The element.
    pub of: *mut nacre_datatype,
}

/// One dimension of a distributed array.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nacre_dimension {
    /// The size of the array in elements.
    pub size: u64,
    /// NACRE_DISTRIBUTE_NONE, NACRE_DISTRIBUTE_BLOCK or NACRE_DISTRIBUTE_CYCLIC.
    pub distribution: c_int,
    /// The number of elements in a block; 0 for the default.
    pub block: u64,
    /// The number of processes.
    pub processes: u64,
}

/// The bytes of a file that a lock covers.
pub struct nacre_pattern {
    description: Description,
}

impl Handle for nacre_pattern {
    const WHAT: &'static str = "a pattern";
}

impl nacre_pattern {
    /// Returns the description.
    pub fn description(&self) -> &Description {
        &self.description
    }
}

/// A datatype as MPI has them: bytes at displacements, with an extent. It never changes.
pub struct nacre_datatype {
    datatype: Datatype,
    /// The number of datatypes in each other.
    depth: usize,
    /// The number of its parts.
    items: usize,
}

impl Handle for nacre_datatype {
    const WHAT: &'static str = "a datatype";
}

impl nacre_datatype {
    fn new(datatype: Datatype, depth: usize, items: usize) -> Result<nacre_datatype, Failure> {
        if depth > DEPTH_MAX {
            return Err(Failure::invalid(format!(
                "datatypes stand more than {DEPTH_MAX} deep in each other"
            )));
        }
        if items > ITEMS_MAX {
            return Err(Failure::invalid(format!("the datatype has more than {ITEMS_MAX} parts")));
        }
        Ok(nacre_datatype { datatype, depth, items })
    }
}

/// Builds a datatype of another one.
unsafe fn build(
    of: *mut nacre_datatype,
    datatype: *mut *mut nacre_datatype,
    further_items: usize,
    construct: impl FnOnce(Box<Datatype>) -> Result<Datatype, Failure>,
) -> c_int {
    // SAFETY: as the caller promises.
    call(|| unsafe {
        let slot = handle_slot(datatype)?;
        let of = get(of)?;
        let (depth, items) = (of.depth + 1, of.items.saturating_add(1).saturating_add(further_items));
        // Before anything is copied.
        nacre_datatype::new(Datatype::Bytes(0), depth, items)?;
        let datatype = construct(Box::new(of.datatype.clone()))?;
        slot.put(nacre_datatype { datatype, depth, items });
        Ok(())
    })
}

/// Describes one range of bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_pattern_range(
    offset: u64,
    length: u64,
    pattern: *mut *mut nacre_pattern,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    call(|| unsafe {
        handle_slot(pattern)?.put(nacre_pattern { description: Description::contiguous(offset, length) });
        Ok(())
    })
}

/// Describes ranges of bytes, in any order: at most 2^18.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_pattern_list(
    regions: *const nacre_region,
    count: usize,
    pattern: *mut *mut nacre_pattern,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    call(|| unsafe {
        let slot = handle_slot(pattern)?;
        let regions = array(regions, count, ITEMS_MAX, "regions")?.iter();
        let regions = regions.map(|region| Region { offset: region.offset, length: region.length });
        slot.put(nacre_pattern { description: Description::List(regions.collect()) });
        Ok(())
    })
}

/// Describes what a text says, such as "vector(count=1024, block=1, stride=4, of=bytes(8))": see docs/lock.md.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_pattern_parse(text: *const c_char, pattern: *mut *mut nacre_pattern) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    call(|| unsafe {
        let slot = handle_slot(pattern)?;
        let text = self::text(text, TEXT_BYTES_MAX, "the pattern")?;
        let parsed = text.parse::<Description>();
        let description =
            parsed.map_err(|error| Failure::invalid(format!("the pattern is wrong: {error}")))?;
        slot.put(nacre_pattern { description });
        Ok(())
    })
}

/// Describes copies of a datatype over a file, one after the other at the distance of its extent; the displacement 0 of the first one is at the
/// offset `displacement`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_pattern_datatype(
    datatype: *mut nacre_datatype,
    displacement: u64,
    count: u64,
    pattern: *mut *mut nacre_pattern,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    call(|| unsafe {
        let slot = handle_slot(pattern)?;
        let datatype = get(datatype)?.datatype.clone();
        let description = Description::Datatype(FileView { displacement, count, datatype });
        slot.put(nacre_pattern { description });
        Ok(())
    })
}

/// Checks that a pattern can be locked: that it lies within a file, and is not too irregular. nacre_lock_acquire does so too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_pattern_check(pattern: *mut nacre_pattern) -> c_int {
    call(|| {
        let checked = nacre::lock::check(get(pattern)?.description());
        checked.map_err(|error| Failure::invalid(error.to_string()))
    })
}

/// Copies a pattern as text into a buffer, with a zero behind it, and stores the length without that. NACRE_TOO_SHORT if it does not fit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_pattern_text(
    pattern: *mut nacre_pattern,
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    call(|| unsafe {
        let length = required(length, "the length")?;
        let buffer = self::buffer(buffer.cast::<c_void>(), capacity)?;
        let text = get(pattern)?.description().to_string();
        length.set(text.len());
        buffer.fill_whole(&[text.as_bytes(), b"\0"].concat(), optional(std::ptr::null_mut()))
    })
}

/// Ends a pattern.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_pattern_close(pattern: *mut nacre_pattern) -> c_int {
    call(|| handle::take(pattern).map(|_| ()))
}

/// Makes a datatype of so many bytes in a row.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_datatype_bytes(count: u64, datatype: *mut *mut nacre_datatype) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    call(|| unsafe {
        handle_slot(datatype)?.put(nacre_datatype::new(Datatype::Bytes(count), 1, 1)?);
        Ok(())
    })
}

/// Makes a datatype of elements in a row (MPI_Type_contiguous).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_datatype_contiguous(
    of: *mut nacre_datatype,
    count: u64,
    datatype: *mut *mut nacre_datatype,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    unsafe { build(of, datatype, 0, |of| Ok(Datatype::Contiguous { count, of })) }
}

/// Makes a datatype of `count` blocks of elements, whose stride is counted in extents of the element (MPI_Type_vector).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_datatype_vector(
    of: *mut nacre_datatype,
    count: u64,
    block: u64,
    stride: i64,
    datatype: *mut *mut nacre_datatype,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    unsafe { build(of, datatype, 0, |of| Ok(Datatype::Vector { count, block, stride, of })) }
}

/// Makes a datatype of `count` blocks of elements, whose stride is in bytes (MPI_Type_create_hvector).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_datatype_hvector(
    of: *mut nacre_datatype,
    count: u64,
    block: u64,
    stride: i64,
    datatype: *mut *mut nacre_datatype,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    unsafe { build(of, datatype, 0, |of| Ok(Datatype::Hvector { count, block, stride, of })) }
}

unsafe fn blocks_of(blocks: *const nacre_block, count: usize) -> Result<Vec<Block>, Failure> {
    // SAFETY: as the caller promises.
    let blocks = unsafe { array(blocks, count, ITEMS_MAX, "blocks")? }.iter();
    Ok(blocks.map(|block| Block { count: block.count, displacement: block.displacement }).collect())
}

/// Makes a datatype of blocks of elements, whose displacements are in extents of the element (MPI_Type_indexed).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_datatype_indexed(
    of: *mut nacre_datatype,
    blocks: *const nacre_block,
    count: usize,
    datatype: *mut *mut nacre_datatype,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    unsafe {
        build(of, datatype, count, |of| Ok(Datatype::Indexed { blocks: blocks_of(blocks, count)?, of }))
    }
}

/// Makes a datatype of blocks of elements, whose displacements are in bytes (MPI_Type_create_hindexed).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_datatype_hindexed(
    of: *mut nacre_datatype,
    blocks: *const nacre_block,
    count: usize,
    datatype: *mut *mut nacre_datatype,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    unsafe {
        build(of, datatype, count, |of| Ok(Datatype::Hindexed { blocks: blocks_of(blocks, count)?, of }))
    }
}

/// Makes a datatype of blocks of one length, whose displacements are in extents of the element (MPI_Type_create_indexed_block).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_datatype_indexed_block(
    of: *mut nacre_datatype,
    block: u64,
    displacements: *const i64,
    count: usize,
    datatype: *mut *mut nacre_datatype,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    unsafe {
        build(of, datatype, count, |of| {
            let displacements = array(displacements, count, ITEMS_MAX, "displacements")?.to_vec();
            Ok(Datatype::IndexedBlock { block, displacements, of })
        })
    }
}

/// Makes a datatype of blocks of one length, whose displacements are in bytes (MPI_Type_create_hindexed_block).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_datatype_hindexed_block(
    of: *mut nacre_datatype,
    block: u64,
    displacements: *const i64,
    count: usize,
    datatype: *mut *mut nacre_datatype,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    unsafe {
        build(of, datatype, count, |of| {
            let displacements = array(displacements, count, ITEMS_MAX, "displacements")?.to_vec();
            Ok(Datatype::HindexedBlock { block, displacements, of })
        })
    }
}

/// Makes a datatype of elements of several types, whose displacements are in bytes (MPI_Type_create_struct).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_datatype_struct(
    members: *const nacre_member,
    count: usize,
    datatype: *mut *mut nacre_datatype,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    call(|| unsafe {
        let slot = handle_slot(datatype)?;
        let members = array(members, count, ITEMS_MAX, "members")?;
        let parts = members.iter().map(|member| get(member.of)).collect::<Result<Vec<_>, _>>()?;
        let depth = 1 + parts.iter().map(|part| part.depth).max().unwrap_or(0);
        let items = parts.iter().fold(1 + count, |items, part| items.saturating_add(part.items));
        // Before anything is copied.
        nacre_datatype::new(Datatype::Bytes(0), depth, items)?;
        let member = |(member, part): (&nacre_member, &std::sync::Arc<nacre_datatype>)| Member {
            count: member.count,
            displacement: member.displacement,
            of: part.datatype.clone(),
        };
        let members = members.iter().zip(&parts).map(member).collect();
        slot.put(nacre_datatype::new(Datatype::Struct { members }, depth, items)?);
        Ok(())
    })
}

fn order_of(order: c_int) -> Result<Order, Failure> {
    match order {
        NACRE_ORDER_C => Ok(Order::C),
        NACRE_ORDER_FORTRAN => Ok(Order::Fortran),
        _ => Err(Failure::invalid(format!("{order} is not an order of an array"))),
    }
}

/// Makes a datatype of a part of an array; its extent is that of the whole array (MPI_Type_create_subarray). Each array has an element for each
/// dimension.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_datatype_subarray(
    of: *mut nacre_datatype,
    dimensions: usize,
    sizes: *const u64,
    subsizes: *const u64,
    starts: *const u64,
    order: c_int,
    datatype: *mut *mut nacre_datatype,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    unsafe {
        build(of, datatype, dimensions, |of| {
            Ok(Datatype::Subarray {
                sizes: array(sizes, dimensions, DIMENSIONS_MAX, "sizes")?.to_vec(),
                subsizes: array(subsizes, dimensions, DIMENSIONS_MAX, "sizes of the part")?.to_vec(),
                starts: array(starts, dimensions, DIMENSIONS_MAX, "starts")?.to_vec(),
                order: order_of(order)?,
                of,
            })
        })
    }
}

/// Makes a datatype of the part of a distributed array that is the process `rank`'s (MPI_Type_create_darray).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_datatype_darray(
    of: *mut nacre_datatype,
    rank: u64,
    dimensions: *const nacre_dimension,
    count: usize,
    order: c_int,
    datatype: *mut *mut nacre_datatype,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    unsafe {
        build(of, datatype, count, |of| {
            let dimensions = array(dimensions, count, DIMENSIONS_MAX, "dimensions")?;
            let distribution = |dimension: &nacre_dimension| {
                let block = (dimension.block > 0).then_some(dimension.block);
                match dimension.distribution {
                    NACRE_DISTRIBUTE_NONE => Ok(Distribution::None),
                    NACRE_DISTRIBUTE_BLOCK => Ok(Distribution::Block(block)),
                    NACRE_DISTRIBUTE_CYCLIC => Ok(Distribution::Cyclic(block)),
                    other => Err(Failure::invalid(format!("{other} is not a distribution"))),
                }
            };
            Ok(Datatype::Darray {
                rank,
                sizes: dimensions.iter().map(|dimension| dimension.size).collect(),
                distributions: dimensions.iter().map(distribution).collect::<Result<_, _>>()?,
                processes: dimensions.iter().map(|dimension| dimension.processes).collect(),
                order: order_of(order)?,
                of,
            })
        })
    }
}

/// Makes a datatype with other bounds, in bytes (MPI_Type_create_resized).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_datatype_resized(
    of: *mut nacre_datatype,
    lower_bound: i64,
    extent: i64,
    datatype: *mut *mut nacre_datatype,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    unsafe { build(of, datatype, 0, |of| Ok(Datatype::Resized { lower_bound, extent, of })) }
}

/// Ends a datatype. What was built of it stays.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_datatype_close(datatype: *mut nacre_datatype) -> c_int {
    call(|| handle::take(datatype).map(|_| ()))
}
