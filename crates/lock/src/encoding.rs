//! Descriptions as bytes.
//!
//! A description is a tag and its fields. Numbers are little-endian groups of 7 bits, the highest bit of a byte
//! saying that another follows, at most 10 bytes long; a signed number is mapped onto an unsigned one by its sign
//! (0, -1, 1, -2, …). Lists are a number of items and the items. The regions of a list are encoded as the signed
//! distance from the end of the region before, and the length, so that neighbours take few bytes.
//!
//! A decoder takes memory in proportion to the bytes that it is given, and no more than [`ITEMS_MAX`] items; datatypes
//! stand at most [`DEPTH_MAX`] deep in each other.

use crate::PatternError;
use crate::datatype::{Block, Datatype, Description, Distribution, FileView, Member, Order};
use crate::limit::{DEPTH_MAX, DESCRIPTION_BYTES_MAX, ITEMS_MAX};
use crate::pattern::Region;

/// The maximum number of items for which room is taken before they are decoded.
const RESERVED_ITEMS: usize = 1024;

mod tag {
    pub const RANGE: u8 = 1;
    pub const LIST: u8 = 2;
    pub const VIEW: u8 = 3;

    pub const BYTES: u8 = 1;
    pub const CONTIGUOUS: u8 = 2;
    pub const VECTOR: u8 = 3;
    pub const HVECTOR: u8 = 4;
    pub const INDEXED: u8 = 5;
    pub const HINDEXED: u8 = 6;
    pub const INDEXED_BLOCK: u8 = 7;
    pub const HINDEXED_BLOCK: u8 = 8;
    pub const STRUCT: u8 = 9;
    pub const SUBARRAY: u8 = 10;
    pub const DARRAY: u8 = 11;
    pub const RESIZED: u8 = 12;

    pub const ORDER_C: u8 = 0;
    pub const ORDER_FORTRAN: u8 = 1;

    pub const DISTRIBUTION_NONE: u8 = 0;
    pub const DISTRIBUTION_BLOCK: u8 = 1;
    pub const DISTRIBUTION_BLOCK_OF: u8 = 2;
    pub const DISTRIBUTION_CYCLIC: u8 = 3;
    pub const DISTRIBUTION_CYCLIC_OF: u8 = 4;
}

impl Description {
    /// Returns the description as bytes.
    pub fn encode(&self) -> Vec<u8> {
        // A region of a list takes two bytes at least, and seldom more than four.
        let likely = if let Description::List(regions) = self { 4 * regions.len() } else { 0 };
        let mut out = Encoder { out: Vec::with_capacity(16 + likely) };
        match self {
            Description::Contiguous(region) => {
                out.out.push(tag::RANGE);
                out.unsigned(region.offset);
                out.unsigned(region.length);
            }
            Description::List(regions) => {
                out.out.push(tag::LIST);
                out.unsigned(regions.len() as u64);
                let mut end = 0_u64;
                for region in regions {
                    // The distance wraps, as it does when it is decoded.
                    out.signed(region.offset.wrapping_sub(end) as i64);
                    out.unsigned(region.length);
                    end = region.offset.wrapping_add(region.length);
                }
            }
            Description::Datatype(view) => {
                out.out.push(tag::VIEW);
                out.unsigned(view.displacement);
                out.unsigned(view.count);
                out.datatype(&view.datatype);
            }
        }
        out.out
    }

    /// Returns the description that bytes are.
    ///
    /// # Errors
    ///
    /// [`PatternError::TooLong`], [`PatternError::TooDeep`] or [`PatternError::TooManyItems`] where a limit is exceeded,
    /// [`PatternError::Malformed`] where the bytes are no description, or something follows it. Whether the description
    /// has a normal form, only [`Pattern::new`](crate::Pattern::new) says.
    pub fn decode(bytes: &[u8]) -> Result<Description, PatternError> {
        if bytes.len() > DESCRIPTION_BYTES_MAX {
            return Err(PatternError::TooLong { bytes: bytes.len() });
        }
        let mut input = Decoder { bytes, items: 0 };
        let description = match input.byte()? {
            tag::RANGE => {
                Description::Contiguous(Region { offset: input.unsigned()?, length: input.unsigned()? })
            }
            tag::LIST => {
                let mut end = 0_u64;
                Description::List(input.list(|input| {
                    let offset = end.wrapping_add(input.signed()? as u64);
                    let length = input.unsigned()?;
                    end = offset.wrapping_add(length);
                    Ok(Region { offset, length })
                })?)
            }
            tag::VIEW => Description::Datatype(FileView {
                displacement: input.unsigned()?,
                count: input.unsigned()?,
                datatype: input.datatype(0)?,
            }),
            _ => return Err(PatternError::Malformed("an unknown kind of description")),
        };
        if !input.bytes.is_empty() {
            return Err(PatternError::Malformed("bytes follow the description"));
        }
        Ok(description)
    }
}

struct Encoder {
    out: Vec<u8>,
}

impl Encoder {
    fn unsigned(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.out.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.out.push(value as u8);
    }

    fn signed(&mut self, value: i64) {
        self.unsigned((value << 1 ^ value >> 63) as u64);
    }

    fn list<T>(&mut self, items: &[T], mut encode: impl FnMut(&mut Encoder, &T)) {
        self.unsigned(items.len() as u64);
        for item in items {
            encode(self, item);
        }
    }

    fn numbers(&mut self, numbers: &[u64]) {
        self.list(numbers, |out, &number| out.unsigned(number));
    }

    fn blocks(&mut self, blocks: &[Block]) {
        self.list(blocks, |out, block| {
            out.unsigned(block.count);
            out.signed(block.displacement);
        });
    }

    fn order(&mut self, order: Order) {
        self.out.push(match order {
            Order::C => tag::ORDER_C,
            Order::Fortran => tag::ORDER_FORTRAN,
        });
    }

    fn distribution(&mut self, distribution: Distribution) {
        let (tag, block) = match distribution {
            Distribution::None => (tag::DISTRIBUTION_NONE, None),
            Distribution::Block(None) => (tag::DISTRIBUTION_BLOCK, None),
            Distribution::Block(block) => (tag::DISTRIBUTION_BLOCK_OF, block),
            Distribution::Cyclic(None) => (tag::DISTRIBUTION_CYCLIC, None),
            Distribution::Cyclic(block) => (tag::DISTRIBUTION_CYCLIC_OF, block),
        };
        self.out.push(tag);
        if let Some(block) = block {
            self.unsigned(block);
        }
    }

    fn datatype(&mut self, datatype: &Datatype) {
        match datatype {
            Datatype::Bytes(bytes) => {
                self.out.push(tag::BYTES);
                self.unsigned(*bytes);
            }
            Datatype::Contiguous { count, of } => {
                self.out.push(tag::CONTIGUOUS);
                self.unsigned(*count);
                self.datatype(of);
            }
            Datatype::Vector { count, block, stride, of }
            | Datatype::Hvector { count, block, stride, of } => {
                let in_bytes = matches!(datatype, Datatype::Hvector { .. });
                self.out.push(if in_bytes { tag::HVECTOR } else { tag::VECTOR });
                self.unsigned(*count);
                self.unsigned(*block);
                self.signed(*stride);
                self.datatype(of);
            }
            Datatype::Indexed { blocks, of } | Datatype::Hindexed { blocks, of } => {
                let in_bytes = matches!(datatype, Datatype::Hindexed { .. });
                self.out.push(if in_bytes { tag::HINDEXED } else { tag::INDEXED });
                self.blocks(blocks);
                self.datatype(of);
            }
            Datatype::IndexedBlock { block, displacements, of }
            | Datatype::HindexedBlock { block, displacements, of } => {
                let in_bytes = matches!(datatype, Datatype::HindexedBlock { .. });
                self.out.push(if in_bytes { tag::HINDEXED_BLOCK } else { tag::INDEXED_BLOCK });
                self.unsigned(*block);
                self.list(displacements, |out, &displacement| out.signed(displacement));
                self.datatype(of);
            }
            Datatype::Struct { members } => {
                self.out.push(tag::STRUCT);
                self.list(members, |out, member| {
                    out.unsigned(member.count);
                    out.signed(member.displacement);
                    out.datatype(&member.of);
                });
            }
            Datatype::Subarray { sizes, subsizes, starts, order, of } => {
                self.out.push(tag::SUBARRAY);
                self.numbers(sizes);
                self.numbers(subsizes);
                self.numbers(starts);
                self.order(*order);
                self.datatype(of);
            }
            Datatype::Darray { rank, sizes, distributions, processes, order, of } => {
                self.out.push(tag::DARRAY);
                self.unsigned(*rank);
                self.numbers(sizes);
                self.list(distributions, |out, &distribution| out.distribution(distribution));
                self.numbers(processes);
                self.order(*order);
                self.datatype(of);
            }
            Datatype::Resized { lower_bound, extent, of } => {
                self.out.push(tag::RESIZED);
                self.signed(*lower_bound);
                self.signed(*extent);
                self.datatype(of);
            }
        }
    }
}

struct Decoder<'a> {
    bytes: &'a [u8],
    items: usize,
}

impl Decoder<'_> {
    fn byte(&mut self) -> Result<u8, PatternError> {
        let (&first, rest) =
            self.bytes.split_first().ok_or(PatternError::Malformed("the bytes end too early"))?;
        self.bytes = rest;
        Ok(first)
    }

    fn unsigned(&mut self) -> Result<u64, PatternError> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                break;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(PatternError::Malformed("a number has more than 64 bits"))
    }

    fn signed(&mut self) -> Result<i64, PatternError> {
        let value = self.unsigned()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    fn count(&mut self, items: usize) -> Result<(), PatternError> {
        self.items += items;
        if self.items > ITEMS_MAX { Err(PatternError::TooManyItems) } else { Ok(()) }
    }

    fn list<T>(
        &mut self,
        mut decode: impl FnMut(&mut Self) -> Result<T, PatternError>,
    ) -> Result<Vec<T>, PatternError> {
        let count = self.unsigned()?;
        let count = usize::try_from(count).ok().filter(|&count| count <= ITEMS_MAX);
        let count = count.ok_or(PatternError::TooManyItems)?;
        // Every item takes a byte at least.
        if count > self.bytes.len() {
            return Err(PatternError::Malformed("the bytes end too early"));
        }
        self.count(count)?;
        let mut items = Vec::with_capacity(count.min(RESERVED_ITEMS));
        for _ in 0..count {
            items.push(decode(self)?);
        }
        Ok(items)
    }

    fn numbers(&mut self) -> Result<Vec<u64>, PatternError> {
        self.list(Self::unsigned)
    }

    fn blocks(&mut self) -> Result<Vec<Block>, PatternError> {
        self.list(|input| Ok(Block { count: input.unsigned()?, displacement: input.signed()? }))
    }

    fn order(&mut self) -> Result<Order, PatternError> {
        match self.byte()? {
            tag::ORDER_C => Ok(Order::C),
            tag::ORDER_FORTRAN => Ok(Order::Fortran),
            _ => Err(PatternError::Malformed("an unknown order of dimensions")),
        }
    }

    fn distribution(&mut self) -> Result<Distribution, PatternError> {
        match self.byte()? {
            tag::DISTRIBUTION_NONE => Ok(Distribution::None),
            tag::DISTRIBUTION_BLOCK => Ok(Distribution::Block(None)),
            tag::DISTRIBUTION_BLOCK_OF => Ok(Distribution::Block(Some(self.unsigned()?))),
            tag::DISTRIBUTION_CYCLIC => Ok(Distribution::Cyclic(None)),
            tag::DISTRIBUTION_CYCLIC_OF => Ok(Distribution::Cyclic(Some(self.unsigned()?))),
            _ => Err(PatternError::Malformed("an unknown distribution")),
        }
    }

    fn boxed(&mut self, depth: usize) -> Result<Box<Datatype>, PatternError> {
        self.datatype(depth + 1).map(Box::new)
    }

    fn datatype(&mut self, depth: usize) -> Result<Datatype, PatternError> {
        if depth == DEPTH_MAX {
            return Err(PatternError::TooDeep);
        }
        self.count(1)?;
        // The fields of a constructor are decoded in the order in which they stand here.
        Ok(match self.byte()? {
            tag::BYTES => Datatype::Bytes(self.unsigned()?),
            tag::CONTIGUOUS => Datatype::Contiguous { count: self.unsigned()?, of: self.boxed(depth)? },
            tag::VECTOR => Datatype::Vector {
                count: self.unsigned()?,
                block: self.unsigned()?,
                stride: self.signed()?,
                of: self.boxed(depth)?,
            },
            tag::HVECTOR => Datatype::Hvector {
                count: self.unsigned()?,
                block: self.unsigned()?,
                stride: self.signed()?,
                of: self.boxed(depth)?,
            },
            tag::INDEXED => Datatype::Indexed { blocks: self.blocks()?, of: self.boxed(depth)? },
            tag::HINDEXED => Datatype::Hindexed { blocks: self.blocks()?, of: self.boxed(depth)? },
            tag::INDEXED_BLOCK => Datatype::IndexedBlock {
                block: self.unsigned()?,
                displacements: self.list(Self::signed)?,
                of: self.boxed(depth)?,
            },
            tag::HINDEXED_BLOCK => Datatype::HindexedBlock {
                block: self.unsigned()?,
                displacements: self.list(Self::signed)?,
                of: self.boxed(depth)?,
            },
            tag::STRUCT => Datatype::Struct {
                members: self.list(|input| {
                    Ok(Member {
                        count: input.unsigned()?,
                        displacement: input.signed()?,
                        of: input.datatype(depth + 1)?,
                    })
                })?,
            },
            tag::SUBARRAY => Datatype::Subarray {
                sizes: self.numbers()?,
                subsizes: self.numbers()?,
                starts: self.numbers()?,
                order: self.order()?,
                of: self.boxed(depth)?,
            },
            tag::DARRAY => Datatype::Darray {
                rank: self.unsigned()?,
                sizes: self.numbers()?,
                distributions: self.list(Self::distribution)?,
                processes: self.numbers()?,
                order: self.order()?,
                of: self.boxed(depth)?,
            },
            tag::RESIZED => Datatype::Resized {
                lower_bound: self.signed()?,
                extent: self.signed()?,
                of: self.boxed(depth)?,
            },
            _ => return Err(PatternError::Malformed("an unknown constructor")),
        })
    }
}
