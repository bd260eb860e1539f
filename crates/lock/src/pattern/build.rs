//! From datatypes to trees: what MPI's constructors mean (MPI 4.1, section 5.1).
//!
//! A datatype is its bytes and two bounds. The bounds of `count` copies at given displacements are the least lower
//! and the greatest upper bound of the copies, as the standard defines them for each constructor; a type without any
//! copy has both at 0. (MPI libraries differ in the bounds of types without a byte.) There is no padding for
//! alignment, since the elements have none; [`Datatype::Resized`] adds what a compiler would.

use super::node::Node;
use super::part::{Part, compress, join, position};
use super::union::{Budget, repeat, unite};
use super::{Pattern, Region};
use crate::limit::{DEPTH_MAX, ITEMS_MAX, OFFSET_MAX};
use crate::{Datatype, Description, Distribution, FileView, Order, PatternError};

/// The bytes of a datatype, and its bounds.
#[derive(Clone)]
struct Type {
    bytes: Option<Part>,
    lower: i64,
    upper: i64,
}

/// A block of copies that follow each other.
struct Placed<'a> {
    of: &'a Type,
    count: u64,
    /// The displacement of the first copy in bytes.
    displacement: i128,
}

impl Type {
    fn extent(&self) -> i128 {
        i128::from(self.upper) - i128::from(self.lower)
    }

    /// Returns copies of this type at equal distances.
    fn repeated(&self, count: u64, stride: i128, budget: &mut Budget) -> Result<Type, PatternError> {
        if count == 0 {
            return Ok(Type { bytes: None, lower: 0, upper: 0 });
        }
        let last = stride
            .checked_mul(i128::from(count - 1))
            .ok_or(PatternError::Overflow { quantity: "a count" })?;
        let lower = position(last.min(0).saturating_add(i128::from(self.lower)))?;
        let upper = position(last.max(0).saturating_add(i128::from(self.upper)))?;
        let parts = repeat(self.bytes.iter().cloned().collect(), count, stride, budget)?;
        Ok(Type { bytes: join(compress(parts))?, lower, upper })
    }
}

/// Returns the union of blocks, as `MPI_Type_create_struct` and its special cases define it.
fn place(blocks: &[Placed<'_>], budget: &mut Budget) -> Result<Type, PatternError> {
    let mut parts = Vec::with_capacity(blocks.len());
    let mut bounds: Option<(i64, i64)> = None;
    // Blocks of one length are made once.
    let mut created: Option<(*const Type, u64, Type)> = None;
    for block in blocks.iter().filter(|block| block.count > 0) {
        let fresh = match created.take() {
            Some((of, count, created)) if std::ptr::eq(of, block.of) && count == block.count => created,
            _ => block.of.repeated(block.count, block.of.extent(), budget)?,
        };
        let lower = position(block.displacement.saturating_add(i128::from(fresh.lower)))?;
        let upper = position(block.displacement.saturating_add(i128::from(fresh.upper)))?;
        bounds = Some(bounds.map_or((lower, upper), |(least, most)| (least.min(lower), most.max(upper))));
        if let Some(part) = &fresh.bytes {
            parts.push(part.shifted(block.displacement)?);
        }
        created = Some((block.of, block.count, fresh));
    }
    let (lower, upper) = bounds.unwrap_or((0, 0));
    Ok(Type { bytes: join(unite(parts, budget)?)?, lower, upper })
}

/// The work on one description.
struct Builder {
    budget: Budget,
    items: usize,
}

impl Builder {
    fn count(&mut self, items: usize) -> Result<(), PatternError> {
        self.items = self.items.saturating_add(items);
        if self.items > ITEMS_MAX { Err(PatternError::TooManyItems) } else { Ok(()) }
    }

    fn build(&mut self, datatype: &Datatype, depth: usize) -> Result<Type, PatternError> {
        if depth == DEPTH_MAX {
            return Err(PatternError::TooDeep);
        }
        self.count(1)?;
        match datatype {
            Datatype::Bytes(bytes) => {
                let upper = position(i128::from(*bytes))?;
                let bytes = (upper > 0).then(|| Part::new(0, Node::Block(*bytes)));
                Ok(Type { bytes, lower: 0, upper })
            }
            Datatype::Contiguous { count, of } => {
                let of = self.build(of, depth + 1)?;
                of.repeated(*count, of.extent(), &mut self.budget)
            }
            Datatype::Vector { count, block, stride, of } => {
                let of = self.build(of, depth + 1)?;
                let stride = i128::from(*stride)
                    .checked_mul(of.extent())
                    .ok_or(PatternError::Overflow { quantity: "a stride" })?;
                self.blocks(&of, *count, *block, stride)
            }
            Datatype::Hvector { count, block, stride, of } => {
                let of = self.build(of, depth + 1)?;
                self.blocks(&of, *count, *block, i128::from(*stride))
            }
            Datatype::Indexed { blocks, of } => {
                self.count(blocks.len())?;
                let of = self.build(of, depth + 1)?;
                self.indexed(&of, blocks.iter().map(|block| (block.count, block.displacement)), of.extent())
            }
            Datatype::Hindexed { blocks, of } => {
                self.count(blocks.len())?;
                let of = self.build(of, depth + 1)?;
                self.indexed(&of, blocks.iter().map(|block| (block.count, block.displacement)), 1)
            }
            Datatype::IndexedBlock { block, displacements, of } => {
                self.count(displacements.len())?;
                let of = self.build(of, depth + 1)?;
                self.indexed(&of, displacements.iter().map(|&at| (*block, at)), of.extent())
            }
            Datatype::HindexedBlock { block, displacements, of } => {
                self.count(displacements.len())?;
                let of = self.build(of, depth + 1)?;
                self.indexed(&of, displacements.iter().map(|&at| (*block, at)), 1)
            }
            Datatype::Struct { members } => {
                self.count(members.len())?;
                let mut types = Vec::with_capacity(members.len());
                for member in members {
                    types.push(self.build(&member.of, depth + 1)?);
                }
                let placed: Vec<Placed<'_>> = members
                    .iter()
                    .zip(&types)
                    .map(|(member, of)| Placed {
                        of,
                        count: member.count,
                        displacement: i128::from(member.displacement),
                    })
                    .collect();
                place(&placed, &mut self.budget)
            }
            Datatype::Subarray { sizes, subsizes, starts, order, of } => {
                self.count(sizes.len())?;
                check_subarray(sizes, subsizes, starts)?;
                let mut array = self.build(of, depth + 1)?;
                for dimension in innermost_first(sizes.len(), *order) {
                    let extent = array.extent();
                    let part = array.repeated(subsizes[dimension], extent, &mut self.budget)?;
                    let first = elements(starts[dimension], extent)?;
                    array = within(&part, first, sizes[dimension], extent)?;
                }
                Ok(array)
            }
            Datatype::Darray { rank, sizes, distributions, processes, order, of } => {
                self.count(sizes.len())?;
                let coordinates = grid(*rank, sizes, distributions, processes)?;
                let mut array = self.build(of, depth + 1)?;
                for dimension in innermost_first(sizes.len(), *order) {
                    let share = share(
                        distributions[dimension],
                        sizes[dimension],
                        processes[dimension],
                        coordinates[dimension],
                    )?;
                    array = self.dealt(&array, sizes[dimension], share)?;
                }
                Ok(array)
            }
            Datatype::Resized { lower_bound, extent, of } => {
                let of = self.build(of, depth + 1)?;
                let upper = position(i128::from(*lower_bound) + i128::from(*extent))?;
                Ok(Type { bytes: of.bytes, lower: *lower_bound, upper })
            }
        }
    }

    /// Returns `count` blocks at equal distances in bytes.
    fn blocks(&mut self, of: &Type, count: u64, block: u64, stride: i128) -> Result<Type, PatternError> {
        if block == 0 {
            return Ok(Type { bytes: None, lower: 0, upper: 0 });
        }
        let block = of.repeated(block, of.extent(), &mut self.budget)?;
        block.repeated(count, stride, &mut self.budget)
    }

    /// Returns blocks of given counts at given displacements, in units of a number of bytes.
    fn indexed(
        &mut self,
        of: &Type,
        blocks: impl Iterator<Item = (u64, i64)>,
        unit: i128,
    ) -> Result<Type, PatternError> {
        let mut placed = Vec::new();
        for (count, displacement) in blocks {
            let displacement = i128::from(displacement)
                .checked_mul(unit)
                .ok_or(PatternError::Overflow { quantity: "a displacement" })?;
            placed.push(Placed { of, count, displacement });
        }
        place(&placed, &mut self.budget)
    }

    /// Returns the part of a dimension that a process has.
    fn dealt(&mut self, of: &Type, size: u64, share: Share) -> Result<Type, PatternError> {
        let extent = of.extent();
        let block = of.repeated(share.block, extent, &mut self.budget)?;
        let blocks = block.repeated(share.count, elements(share.stride, extent)?, &mut self.budget)?;
        let rest = of.repeated(share.rest, extent, &mut self.budget)?;
        let mut parts = Vec::new();
        if let Some(part) = &blocks.bytes {
            parts.push(part.shifted(elements(share.first, extent)?)?);
        }
        if let Some(part) = &rest.bytes {
            parts.push(part.shifted(elements(share.rest_at, extent)?)?);
        }
        let bytes = join(unite(parts, &mut self.budget)?)?;
        within(&Type { bytes, lower: 0, upper: 0 }, 0, size, extent)
    }
}

/// The elements of one dimension that a process has: blocks at equal distances, and a shorter one at the end.
struct Share {
    first: u64,
    block: u64,
    count: u64,
    stride: u64,
    rest_at: u64,
    rest: u64,
}

/// Returns what a process has of a dimension (MPI 4.1, section 5.1.4).
fn share(
    distribution: Distribution,
    size: u64,
    processes: u64,
    coordinate: u64,
) -> Result<Share, PatternError> {
    let wrong = |reason: String| PatternError::Argument { constructor: "darray", reason };
    let block = match distribution {
        Distribution::None if processes > 1 => {
            return Err(wrong("a dimension that is not distributed has one process".into()));
        }
        Distribution::None => size,
        Distribution::Block(None) => size.div_ceil(processes),
        Distribution::Block(Some(block)) => {
            if u128::from(block) * u128::from(processes) < u128::from(size) {
                return Err(wrong(format!(
                    "{processes} blocks of {block} elements are fewer than {size} elements"
                )));
            }
            block
        }
        Distribution::Cyclic(block) => block.unwrap_or(1),
    };
    if block == 0 {
        return Err(wrong("a block has at least one element".into()));
    }
    let overflow = PatternError::Overflow { quantity: "a distributed array" };
    let first = coordinate.checked_mul(block).ok_or(overflow.clone())?;
    let stride = block.checked_mul(processes).ok_or(overflow)?;
    let available = size.saturating_sub(first);
    // In a distribution by blocks the stride is at least the size, so that there is one block.
    let (rounds, behind) = (available / stride, available % stride);
    let full = rounds + u64::from(behind >= block);
    let rest = if behind < block { behind } else { 0 };
    Ok(Share { first, block, count: full, stride, rest_at: first + rounds * stride, rest })
}

/// Returns a type's bytes at a displacement, within the bounds of a dimension.
fn within(of: &Type, displacement: i128, size: u64, extent: i128) -> Result<Type, PatternError> {
    let bytes = of.bytes.as_ref().map(|part| part.shifted(displacement)).transpose()?;
    Ok(Type { bytes, lower: 0, upper: position(elements(size, extent)?)? })
}

/// Returns the length of a number of elements of an array in bytes.
fn elements(count: u64, extent: i128) -> Result<i128, PatternError> {
    i128::from(count).checked_mul(extent).ok_or(PatternError::Overflow { quantity: "an array" })
}

/// Returns the dimensions of an array, that in which neighbours in the file differ first.
fn innermost_first(dimensions: usize, order: Order) -> Vec<usize> {
    match order {
        Order::C => (0..dimensions).rev().collect(),
        Order::Fortran => (0..dimensions).collect(),
    }
}

fn check_subarray(sizes: &[u64], subsizes: &[u64], starts: &[u64]) -> Result<(), PatternError> {
    let wrong = |reason: String| Err(PatternError::Argument { constructor: "subarray", reason });
    if sizes.is_empty() || sizes.len() != subsizes.len() || sizes.len() != starts.len() {
        return wrong(format!(
            "{} sizes, {} subsizes and {} starts; there is one of each for each dimension",
            sizes.len(),
            subsizes.len(),
            starts.len()
        ));
    }
    for dimension in 0..sizes.len() {
        let (size, subsize, start) = (sizes[dimension], subsizes[dimension], starts[dimension]);
        if size == 0 || subsize > size || start > size - subsize {
            return wrong(format!("{subsize} elements from {start} on are not within {size} elements"));
        }
    }
    Ok(())
}

/// Returns the coordinates of a process in its grid.
fn grid(
    rank: u64,
    sizes: &[u64],
    distributions: &[Distribution],
    processes: &[u64],
) -> Result<Vec<u64>, PatternError> {
    let wrong = |reason: String| Err(PatternError::Argument { constructor: "darray", reason });
    if sizes.is_empty() || sizes.len() != distributions.len() || sizes.len() != processes.len() {
        return wrong(format!(
            "{} sizes, {} distributions and {} numbers of processes; there is one of each for each dimension",
            sizes.len(),
            distributions.len(),
            processes.len()
        ));
    }
    if sizes.contains(&0) || processes.contains(&0) {
        return wrong("a dimension has at least one element and one process".into());
    }
    let mut left = rank;
    let mut coordinates = vec![0; sizes.len()];
    for dimension in (0..sizes.len()).rev() {
        coordinates[dimension] = left % processes[dimension];
        left /= processes[dimension];
    }
    if left > 0 {
        return wrong(format!("there is no process {rank} in the grid"));
    }
    Ok(coordinates)
}

/// Returns the pattern of regions in any order.
pub(super) fn list(regions: &[Region]) -> Result<Pattern, PatternError> {
    if regions.len() > ITEMS_MAX {
        return Err(PatternError::TooManyItems);
    }
    let mut parts = Vec::with_capacity(regions.len());
    for region in regions.iter().filter(|region| region.length > 0) {
        if region.offset.checked_add(region.length).is_none_or(|end| end > OFFSET_MAX) {
            return Err(PatternError::Overflow { quantity: "a region" });
        }
        parts.push(Part::new(region.offset as i64, Node::Block(region.length)));
    }
    Ok(Pattern::of(join(unite(parts, &mut Budget::new())?)?))
}

/// Returns the pattern of regions that are in order with gaps between them, as those of a pattern are. What is regular in it is
/// not looked for.
pub(super) fn pieces(regions: &[Region]) -> Result<Pattern, PatternError> {
    let part = |region: &Region| Part::new(region.offset as i64, Node::Block(region.length));
    Ok(Pattern::of(join(regions.iter().map(part).collect())?))
}

/// Returns the pattern of a datatype laid over a file.
pub(super) fn file_view(view: &FileView) -> Result<Pattern, PatternError> {
    let mut builder = Builder { budget: Budget::new(), items: 0 };
    let of = builder.build(&view.datatype, 0)?;
    let copies = of.repeated(view.count, of.extent(), &mut builder.budget)?;
    let Some(part) = copies.bytes else { return Ok(Pattern::empty()) };
    let start = i128::from(part.at) + i128::from(view.displacement);
    if start < 0 {
        return Err(PatternError::BeforeStart { bytes: start.unsigned_abs() as u64 });
    }
    Ok(Pattern::of(Some(part.shifted(i128::from(view.displacement))?)))
}

/// Returns the pattern of a description.
pub(super) fn pattern(description: &Description) -> Result<Pattern, PatternError> {
    match description {
        Description::Contiguous(region) => list(&[*region]),
        Description::List(regions) => list(regions),
        Description::Datatype(view) => file_view(view),
    }
}
