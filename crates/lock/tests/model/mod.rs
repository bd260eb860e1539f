//! References for the tests of patterns: type maps by the letter of the MPI standard, byte by byte, and sets of bytes
//! as bitmaps.

#![allow(dead_code)]

use nacre_lock::{Block, Datatype, Description, Distribution, FileView, Member, Order, Region, Stripe};
use rand::Rng;
use rand::rngs::StdRng;

/// A type map: displacements of bytes, and the two bounds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypeMap {
    pub bytes: Vec<i64>,
    pub lower: i64,
    pub upper: i64,
}

impl TypeMap {
    pub fn extent(&self) -> i64 {
        self.upper - self.lower
    }
}

/// Puts copies of types at displacements: the definition of `MPI_Type_create_struct`.
fn structure(blocks: &[(u64, i64, &TypeMap)]) -> TypeMap {
    let mut map = TypeMap { bytes: Vec::new(), lower: i64::MAX, upper: i64::MIN };
    for &(count, displacement, of) in blocks {
        for copy in 0..count as i64 {
            let at = displacement + copy * of.extent();
            map.bytes.extend(of.bytes.iter().map(|byte| byte + at));
            map.lower = map.lower.min(of.lower + at);
            map.upper = map.upper.max(of.upper + at);
        }
    }
    if map.lower == i64::MAX {
        (map.lower, map.upper) = (0, 0);
    }
    map
}

/// Returns the type map of a datatype.
pub fn type_map(datatype: &Datatype) -> TypeMap {
    match datatype {
        Datatype::Bytes(bytes) => {
            TypeMap { bytes: (0..*bytes as i64).collect(), lower: 0, upper: *bytes as i64 }
        }
        Datatype::Contiguous { count, of } => structure(&[(*count, 0, &type_map(of))]),
        Datatype::Vector { count, block, stride, of } => {
            let of = type_map(of);
            let blocks: Vec<_> =
                (0..*count as i64).map(|i| (*block, i * stride * of.extent(), &of)).collect();
            structure(&blocks)
        }
        Datatype::Hvector { count, block, stride, of } => {
            let of = type_map(of);
            let blocks: Vec<_> = (0..*count as i64).map(|i| (*block, i * stride, &of)).collect();
            structure(&blocks)
        }
        Datatype::Indexed { blocks, of } => {
            let of = type_map(of);
            let blocks: Vec<_> =
                blocks.iter().map(|block| (block.count, block.displacement * of.extent(), &of)).collect();
            structure(&blocks)
        }
        Datatype::Hindexed { blocks, of } => {
            let of = type_map(of);
            let blocks: Vec<_> = blocks.iter().map(|block| (block.count, block.displacement, &of)).collect();
            structure(&blocks)
        }
        Datatype::IndexedBlock { block, displacements, of } => {
            let of = type_map(of);
            let blocks: Vec<_> = displacements.iter().map(|&at| (*block, at * of.extent(), &of)).collect();
            structure(&blocks)
        }
        Datatype::HindexedBlock { block, displacements, of } => {
            let of = type_map(of);
            let blocks: Vec<_> = displacements.iter().map(|&at| (*block, at, &of)).collect();
            structure(&blocks)
        }
        Datatype::Struct { members } => {
            let maps: Vec<TypeMap> = members.iter().map(|member| type_map(&member.of)).collect();
            let blocks: Vec<_> = members
                .iter()
                .zip(&maps)
                .map(|(member, of)| (member.count, member.displacement, of))
                .collect();
            structure(&blocks)
        }
        Datatype::Subarray { sizes, subsizes, starts, order, of } => {
            elements(sizes, *order, &type_map(of), |index| {
                (0..sizes.len()).all(|d| (starts[d]..starts[d] + subsizes[d]).contains(&index[d]))
            })
        }
        Datatype::Darray { rank, sizes, distributions, processes, order, of } => {
            elements(sizes, *order, &type_map(of), |index| {
                let mut owner = 0;
                for d in 0..sizes.len() {
                    let coordinate = match distributions[d] {
                        Distribution::None => 0,
                        Distribution::Block(block) => {
                            index[d] / block.unwrap_or(sizes[d].div_ceil(processes[d]))
                        }
                        Distribution::Cyclic(block) => (index[d] / block.unwrap_or(1)) % processes[d],
                    };
                    owner = owner * processes[d] + coordinate;
                }
                owner == *rank
            })
        }
        Datatype::Resized { lower_bound, extent, of } => {
            TypeMap { bytes: type_map(of).bytes, lower: *lower_bound, upper: lower_bound + extent }
        }
    }
}

/// Returns the type map of some elements of an array, whose bounds are those of the array.
fn elements(sizes: &[u64], order: Order, of: &TypeMap, mine: impl Fn(&[u64]) -> bool) -> TypeMap {
    let total: u64 = sizes.iter().product();
    let mut bytes = Vec::new();
    for element in 0..total {
        let mut index = vec![0; sizes.len()];
        let mut left = element;
        for place in 0..sizes.len() {
            let d = if order == Order::C { sizes.len() - 1 - place } else { place };
            index[d] = left % sizes[d];
            left /= sizes[d];
        }
        if mine(&index) {
            bytes.extend(of.bytes.iter().map(|byte| byte + element as i64 * of.extent()));
        }
    }
    TypeMap { bytes, lower: 0, upper: total as i64 * of.extent() }
}

/// A set of bytes of a small file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bitmap(pub Vec<bool>);

impl Bitmap {
    /// Returns the bytes of a description; none where one of them lies before the file or past so many bytes.
    pub fn new(description: &Description, bytes_max: usize) -> Option<Bitmap> {
        let mut bits = vec![false; bytes_max];
        let mut set = |byte: i64| {
            *bits.get_mut(usize::try_from(byte).ok()?)? = true;
            Some(())
        };
        match description {
            Description::Contiguous(region) => {
                (region.offset..region.end()).try_for_each(|byte| set(byte as i64))?;
            }
            Description::List(regions) => {
                for region in regions {
                    (region.offset..region.end()).try_for_each(|byte| set(byte as i64))?;
                }
            }
            Description::Datatype(FileView { displacement, count, datatype }) => {
                let map = type_map(datatype);
                for copy in 0..*count as i64 {
                    let at = *displacement as i64 + copy * map.extent();
                    map.bytes.iter().try_for_each(|byte| set(byte + at))?;
                }
            }
        }
        Some(Bitmap(bits))
    }

    pub fn regions(&self) -> Vec<Region> {
        let mut regions: Vec<Region> = Vec::new();
        for (offset, _) in self.0.iter().enumerate().filter(|(_, held)| **held) {
            match regions.last_mut() {
                Some(last) if last.end() == offset as u64 => last.length += 1,
                _ => regions.push(Region::new(offset as u64, 1)),
            }
        }
        regions
    }

    pub fn kept(&self, keep: impl Fn(u64) -> bool) -> Bitmap {
        Bitmap(self.0.iter().enumerate().map(|(offset, held)| *held && keep(offset as u64)).collect())
    }

    pub fn restricted(&self, stripe: Stripe) -> Bitmap {
        self.kept(|offset| offset / stripe.bytes % u64::from(stripe.servers) == u64::from(stripe.server))
    }

    pub fn first_common(&self, other: &Bitmap, from: u64) -> Option<u64> {
        let both = self.0.iter().zip(&other.0).enumerate();
        both.skip(from as usize).find(|(_, (a, b))| **a && **b).map(|(offset, _)| offset as u64)
    }
}

/// Returns a random datatype; the greater the depth, the more of them stand in each other.
pub fn datatype(random: &mut StdRng, depth: usize) -> Datatype {
    if depth == 0 || random.random_bool(0.1) {
        return Datatype::Bytes(random.random_range(0..10_u64).min(5));
    }
    let of = |random: &mut StdRng| Box::new(datatype(random, depth - 1));
    let count = |random: &mut StdRng| random.random_range(0..12_u64).min(7);
    match random.random_range(0..12) {
        0 => Datatype::Contiguous { count: count(random), of: of(random) },
        1 => Datatype::Vector {
            count: count(random),
            block: random.random_range(0..4),
            stride: random.random_range(-3..9),
            of: of(random),
        },
        2 => Datatype::Hvector {
            count: random.random_range(0..25),
            block: random.random_range(0..4),
            stride: random.random_range(-20..50),
            of: of(random),
        },
        3 => Datatype::Indexed { blocks: blocks(random, 6), of: of(random) },
        4 => Datatype::Hindexed { blocks: blocks(random, 40), of: of(random) },
        5 => Datatype::IndexedBlock {
            block: random.random_range(0..4),
            displacements: displacements(random, 6),
            of: of(random),
        },
        6 => Datatype::HindexedBlock {
            block: random.random_range(0..4),
            displacements: displacements(random, 40),
            of: of(random),
        },
        7 => {
            let members = (0..random.random_range(0..4))
                .map(|_| Member {
                    count: random.random_range(0..4),
                    displacement: random.random_range(-20..40),
                    of: datatype(random, depth - 1),
                })
                .collect();
            Datatype::Struct { members }
        }
        8 => {
            let sizes: Vec<u64> = (0..random.random_range(1..4)).map(|_| random.random_range(1..6)).collect();
            let starts: Vec<u64> = sizes.iter().map(|&size| random.random_range(0..=size)).collect();
            let subsizes = sizes
                .iter()
                .zip(&starts)
                .map(|(size, start)| random.random_range(0..=size - start))
                .collect();
            Datatype::Subarray { sizes, subsizes, starts, order: order(random), of: of(random) }
        }
        9 => {
            let of = of(random);
            darray(random, of)
        }
        10 => of(random).vector(random.random_range(1..20), 1, random.random_range(1..12)),
        _ => Datatype::Resized {
            lower_bound: random.random_range(-10..10),
            extent: random.random_range(-5..40),
            of: of(random),
        },
    }
}

fn darray(random: &mut StdRng, of: Box<Datatype>) -> Datatype {
    let dimensions = random.random_range(1..4);
    let (mut sizes, mut distributions, mut processes) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..dimensions {
        let size: u64 = random.random_range(1..10);
        let parts: u64 = random.random_range(1..4);
        let (distribution, parts) = match random.random_range(0..5) {
            0 => (Distribution::None, 1),
            1 => (Distribution::Block(None), parts),
            2 => (Distribution::Block(Some(size.div_ceil(parts) + random.random_range(0..2))), parts),
            3 => (Distribution::Cyclic(None), parts),
            _ => (Distribution::Cyclic(Some(random.random_range(1..4))), parts),
        };
        sizes.push(size);
        distributions.push(distribution);
        processes.push(parts);
    }
    let rank = random.random_range(0..processes.iter().product());
    Datatype::Darray { rank, sizes, distributions, processes, order: order(random), of }
}

fn order(random: &mut StdRng) -> Order {
    if random.random_bool(0.5) { Order::C } else { Order::Fortran }
}

fn blocks(random: &mut StdRng, reach: i64) -> Vec<Block> {
    (0..random.random_range(0..6))
        .map(|_| Block {
            count: random.random_range(0..4),
            displacement: random.random_range(-reach / 4..reach),
        })
        .collect()
}

fn displacements(random: &mut StdRng, reach: i64) -> Vec<i64> {
    (0..random.random_range(0..6)).map(|_| random.random_range(-reach / 4..reach)).collect()
}

/// Returns a random description whose bytes lie within so many, with these bytes.
pub fn description(random: &mut StdRng, bytes_max: usize) -> (Description, Bitmap) {
    loop {
        let description = match random.random_range(0..10) {
            0 => Description::contiguous(random.random_range(0..100), random.random_range(0..100)),
            1 => {
                let reach = random.random_range(20..1000);
                let regions = (0..random.random_range(0..30))
                    .map(|_| Region::new(random.random_range(0..reach), random.random_range(0..9)))
                    .collect();
                Description::List(regions)
            }
            _ => {
                let depth = random.random_range(1..5);
                let datatype = datatype(random, depth);
                let least = type_map(&datatype).bytes.iter().copied().min().unwrap_or(0);
                let count = random.random_range(1..9_u64).saturating_sub(4).max(1);
                let displacement = (-least).max(0) as u64 + random.random_range(0..60);
                Description::Datatype(FileView { displacement, count, datatype })
            }
        };
        if let Some(bitmap) = Bitmap::new(&description, bytes_max) {
            return (description, bitmap);
        }
    }
}

/// Returns a random stripe of a few bytes.
pub fn stripe(random: &mut StdRng) -> Stripe {
    let servers = random.random_range(1..6);
    Stripe { bytes: random.random_range(1..40), servers, server: random.random_range(0..servers) }
}
