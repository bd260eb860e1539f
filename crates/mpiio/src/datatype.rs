//! Datatypes of MPI as descriptions of locks.

use std::ffi::c_int;

use nacre::lock::{Block, Datatype, Distribution, Member, Order};

use crate::mpi::{self, Code, Combiner, Contents, Distributed, MPI_Datatype, Numbers};

/// The maximum number of datatypes in each other that are looked into.
const DEPTH_MAX: usize = 64;

/// A datatype of MPI, as far as it could be taken apart.
#[derive(Clone, Debug)]
pub struct Decoded {
    /// Its size and bounds.
    pub numbers: Numbers,
    /// Its bytes. None if it cannot be described: it was constructed in a way that is not known here, is too deep, or its bytes do not
    /// follow each other in the order of the file.
    pub exact: Option<Datatype>,
}

/// Takes a datatype apart; nothing if its bounds are past what MPI can count.
pub fn decode(datatype: MPI_Datatype) -> Result<Option<Decoded>, Code> {
    decode_within(datatype, DEPTH_MAX)
}

fn decode_within(datatype: MPI_Datatype, depth: usize) -> Result<Option<Decoded>, Code> {
    let Some(numbers) = mpi::numbers(datatype)? else { return Ok(None) };
    let exact = match depth.checked_sub(1) {
        None => None,
        Some(depth) => match mpi::contents(datatype)? {
            None => None,
            Some(contents) => {
                let mut parts = Vec::with_capacity(contents.types.len());
                for part in &contents.types {
                    match decode_within(part.handle(), depth)? {
                        Some(part) => parts.push(part),
                        None => return Ok(Some(Decoded { numbers, exact: None })),
                    }
                }
                build(numbers, &contents, &parts)
            }
        },
    };
    Ok(Some(Decoded { numbers, exact }))
}

/// Blocks of elements at their displacements in bytes, while their bytes follow each other.
struct Run {
    /// The end of the last byte so far.
    end: Option<i64>,
}

impl Run {
    fn new() -> Run {
        Run { end: None }
    }

    /// Adds a block of elements; none if one of its bytes stands before one that was added earlier, or is it.
    fn add(&mut self, displacement: i64, count: u64, element: &Numbers) -> Option<()> {
        if count == 0 || element.size == 0 {
            return Some(());
        }
        if count > 1 && element.extent < element.true_extent {
            return None;
        }
        let start = displacement.checked_add(element.true_lower)?;
        if self.end.is_some_and(|end| start < end) {
            return None;
        }
        let last = element.extent.checked_mul(i64::try_from(count - 1).ok()?)?;
        self.end = Some(start.checked_add(last)?.checked_add(element.true_extent)?);
        Some(())
    }
}

/// Returns the description of a datatype from those of its parts.
fn build(numbers: Numbers, contents: &Contents, parts: &[Decoded]) -> Option<Datatype> {
    let integers = &contents.integers;
    let unsigned = |index: usize| integers.get(index).and_then(|number| u64::try_from(*number).ok());
    let all = |integers: &[c_int]| -> Option<Vec<u64>> {
        integers.iter().map(|number| u64::try_from(*number).ok()).collect()
    };
    let part = || parts.first();
    let of = || part()?.exact.clone();
    let element = || part().map(|part| part.numbers);
    let built = match contents.combiner {
        // The bytes of a pair of two sizes are not contiguous: all of it is taken for one.
        Combiner::Named => {
            let whole = numbers.lower == 0 && i64::try_from(numbers.size).ok()? == numbers.extent;
            return whole.then_some(Datatype::Bytes(numbers.size));
        }
        Combiner::Dup => of()?,
        Combiner::Contiguous => {
            let count = unsigned(0)?;
            Run::new().add(0, count, &element()?)?;
            of()?.contiguous(count)
        }
        Combiner::Vector | Combiner::Hvector => {
            let (count, block) = (unsigned(0)?, unsigned(1)?);
            let element = element()?;
            let in_bytes = contents.combiner == Combiner::Hvector;
            let stride = match in_bytes {
                true => *contents.addresses.first()?,
                false => i64::from(*integers.get(2)?),
            };
            let distance = if in_bytes { stride } else { stride.checked_mul(element.extent)? };
            let mut run = Run::new();
            // All pairs of neighbours are as the first.
            for index in 0..count.min(2) {
                run.add(distance * index as i64, block, &element)?;
            }
            match in_bytes {
                true => of()?.hvector(count, block, stride),
                false => of()?.vector(count, block, stride),
            }
        }
        Combiner::Indexed | Combiner::Hindexed => {
            let count = usize::try_from(*integers.first()?).ok()?;
            let counts = all(integers.get(1..1 + count)?)?;
            let in_bytes = contents.combiner == Combiner::Hindexed;
            let displacements: Vec<i64> = match in_bytes {
                true => contents.addresses.get(..count)?.to_vec(),
                false => {
                    integers.get(1 + count..1 + 2 * count)?.iter().map(|place| i64::from(*place)).collect()
                }
            };
            in_order(&counts, &displacements, in_bytes, &element()?)?;
            let blocks = counts.into_iter().zip(displacements);
            let blocks = blocks.map(|(count, displacement)| Block { count, displacement }).collect();
            let of = Box::new(of()?);
            match in_bytes {
                true => Datatype::Hindexed { blocks, of },
                false => Datatype::Indexed { blocks, of },
            }
        }
        Combiner::IndexedBlock | Combiner::HindexedBlock => {
            let count = usize::try_from(*integers.first()?).ok()?;
            let block = unsigned(1)?;
            let in_bytes = contents.combiner == Combiner::HindexedBlock;
            let displacements: Vec<i64> = match in_bytes {
                true => contents.addresses.get(..count)?.to_vec(),
                false => integers.get(2..2 + count)?.iter().map(|place| i64::from(*place)).collect(),
            };
            in_order(&vec![block; count], &displacements, in_bytes, &element()?)?;
            let of = Box::new(of()?);
            match in_bytes {
                true => Datatype::HindexedBlock { block, displacements, of },
                false => Datatype::IndexedBlock { block, displacements, of },
            }
        }
        Combiner::Struct => {
            let count = usize::try_from(*integers.first()?).ok()?;
            let counts = all(integers.get(1..1 + count)?)?;
            let displacements = contents.addresses.get(..count)?;
            let mut run = Run::new();
            let mut members = Vec::with_capacity(count);
            for ((count, displacement), part) in counts.into_iter().zip(displacements).zip(parts) {
                run.add(*displacement, count, &part.numbers)?;
                members.push(Member { count, displacement: *displacement, of: part.exact.clone()? });
            }
            // MPI pads a struct as C does.
            Datatype::Struct { members }.resized(numbers.lower, numbers.extent)
        }
        Combiner::Subarray => {
            let dimensions = usize::try_from(*integers.first()?).ok()?;
            let list =
                |index: usize| all(integers.get(1 + index * dimensions..1 + (index + 1) * dimensions)?);
            Run::new().add(0, 2, &element()?)?;
            Datatype::Subarray {
                sizes: list(0)?,
                subsizes: list(1)?,
                starts: list(2)?,
                order: order(*integers.get(1 + 3 * dimensions)?),
                of: Box::new(of()?),
            }
        }
        Combiner::Darray => {
            let dimensions = usize::try_from(*integers.get(2)?).ok()?;
            let list = |index: usize| integers.get(3 + index * dimensions..3 + (index + 1) * dimensions);
            let distributed = list(1)?.iter().zip(list(2)?);
            let distributions = distributed
                .map(|(distribution, argument)| {
                    let argument = match mpi::is_default_argument(*argument) {
                        true => None,
                        false => Some(u64::try_from(*argument).ok()?),
                    };
                    Some(match mpi::distribution(*distribution)? {
                        Distributed::None => Distribution::None,
                        Distributed::Block => Distribution::Block(argument),
                        Distributed::Cyclic => Distribution::Cyclic(argument),
                    })
                })
                .collect::<Option<Vec<_>>>()?;
            Run::new().add(0, 2, &element()?)?;
            Datatype::Darray {
                rank: unsigned(1)?,
                sizes: all(list(0)?)?,
                distributions,
                processes: all(list(3)?)?,
                order: order(*integers.get(3 + 4 * dimensions)?),
                of: Box::new(of()?),
            }
        }
        Combiner::Resized => of()?.resized(numbers.lower, numbers.extent),
    };
    // Contiguous bytes are described as such, so that most types are not deep.
    let dense = numbers.lower == 0
        && numbers.true_lower == 0
        && u64::try_from(numbers.extent) == Ok(numbers.size)
        && numbers.true_extent == numbers.extent;
    Some(if dense { Datatype::Bytes(numbers.size) } else { built })
}

/// Checks that the bytes of blocks follow each other.
fn in_order(counts: &[u64], displacements: &[i64], in_bytes: bool, element: &Numbers) -> Option<()> {
    let mut run = Run::new();
    for (count, displacement) in counts.iter().zip(displacements) {
        let displacement = if in_bytes { *displacement } else { displacement.checked_mul(element.extent)? };
        run.add(displacement, *count, element)?;
    }
    Some(())
}

fn order(constant: c_int) -> Order {
    if mpi::is_order_fortran(constant) { Order::Fortran } else { Order::C }
}
