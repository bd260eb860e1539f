//! Descriptions as text and as bytes, the datatypes of MPI by hand, and descriptions that are refused.

mod model;

use nacre_lock::{
    Block, DEPTH_MAX, Datatype, Description, ITEMS_MAX, Member, OFFSET_MAX, Pattern, PatternError, Region,
    Search, Stripe,
};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

fn parsed(text: &str) -> Description {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// Returns the regions of a text as (offset, length).
fn regions(text: &str) -> Vec<(u64, u64)> {
    let pattern = Pattern::new(&parsed(text)).unwrap_or_else(|error| panic!("{text}: {error}"));
    pattern.regions().map(|region| (region.offset, region.length)).collect()
}

#[test]
fn constructors_name_the_bytes_that_the_standard_gives_them() {
    // The type map {(double, 0), (char, 8)} with extent 16 of the standard's examples.
    let old = "resized(lower_bound=0, extent=16, of=struct(1@0 bytes(8), 1@8 byte))";
    for (text, expected) in [
        ("range(offset=5, length=7)".to_string(), vec![(5, 7)]),
        ("list(64:10, 0:10, 5:10, 30:0)".into(), vec![(0, 15), (64, 10)]),
        ("vector(count=3, block=1, stride=64)".into(), vec![(0, 1), (64, 1), (128, 1)]),
        (format!("contiguous(count=3, of={old})"), vec![(0, 9), (16, 9), (32, 9)]),
        // MPI 4.1, example 5.2: two blocks of three copies, the blocks 4 × 16 bytes apart.
        (
            format!("vector(count=2, block=3, stride=4, of={old})"),
            vec![(0, 9), (16, 9), (32, 9), (64, 9), (80, 9), (96, 9)],
        ),
        // Example 5.3: a stride of -2 puts the second block before the first.
        (
            format!("view(displacement=32, of=vector(count=3, block=1, stride=-1, of={old}))"),
            vec![(0, 9), (16, 9), (32, 9)],
        ),
        ("hvector(count=2, block=2, stride=6, of=bytes(3))".into(), vec![(0, 12)]),
        ("hvector(count=2, block=2, stride=8, of=bytes(3))".into(), vec![(0, 6), (8, 6)]),
        // Example 5.5: blocks of 3 and 1 copies at displacements 4 and 0.
        (format!("indexed(blocks=[3@4, 1@0], of={old})"), vec![(0, 9), (64, 9), (80, 9), (96, 9)]),
        ("hindexed(blocks=[3@4, 1@0], of=bytes(2))".into(), vec![(0, 2), (4, 6)]),
        ("indexed_block(block=2, displacements=[5, 0], of=bytes(4))".into(), vec![(0, 8), (20, 8)]),
        ("hindexed_block(block=2, displacements=[9, 0], of=bytes(4))".into(), vec![(0, 8), (9, 8)]),
        // Example 5.6: struct of 2 floats at 0, one old type at 16, 3 chars at 26.
        (format!("struct(2@0 bytes(4), 1@16 {old}, 3@26 byte)"), vec![(0, 8), (16, 9), (26, 3)]),
        ("subarray(sizes=[4, 6], subsizes=[2, 3], starts=[1, 2])".into(), vec![(8, 3), (14, 3)]),
        (
            "subarray(sizes=[4, 6], subsizes=[2, 3], starts=[1, 2], order=fortran)".into(),
            vec![(9, 2), (13, 2), (17, 2)],
        ),
        // Process 1 of a grid of 2 × 2: coordinates (0, 1).
        (
            "darray(rank=1, sizes=[4, 6], distributions=[block, cyclic(2)], processes=[2, 2], of=bytes(2))"
                .into(),
            vec![(4, 4), (16, 4)],
        ),
        ("darray(rank=2, sizes=[7], distributions=[cyclic], processes=[3])".into(), vec![(2, 1), (5, 1)]),
        ("darray(rank=2, sizes=[7], distributions=[block], processes=[3])".into(), vec![(6, 1)]),
        ("darray(rank=1, sizes=[7], distributions=[block(6)], processes=[2])".into(), vec![(6, 1)]),
        // Copies overlap where the extent is less than the type: its bytes are named once.
        ("contiguous(count=3, of=resized(lower_bound=0, extent=2, of=bytes(5)))".into(), vec![(0, 9)]),
        // The lower bound takes part in the extent, so copies follow at 4 and not at 7.
        (
            "contiguous(count=2, of=resized(lower_bound=3, extent=4, of=struct(1@3 bytes(2))))".into(),
            vec![(3, 2), (7, 2)],
        ),
        (
            "view(displacement=10, count=2, of=resized(lower_bound=0, extent=8))".into(),
            vec![(10, 1), (18, 1)],
        ),
        ("view(displacement=1KiB, of=bytes(2MiB))".into(), vec![(1024, 2 << 20)]),
        ("vector(count=0, stride=5)".into(), vec![]),
        ("vector(count=4, block=0, stride=5)".into(), vec![]),
        ("bytes(0)".into(), vec![]),
        ("struct()".into(), vec![]),
        ("list()".into(), vec![]),
    ] {
        assert_eq!(regions(&text), expected, "{text}");
    }
}

#[test]
fn a_description_is_the_same_after_text_and_after_bytes() {
    let mut random = StdRng::seed_from_u64(22);
    for _ in 0..5000 {
        let (description, _) = model::description(&mut random, 4000);
        assert_eq!(parsed(&description.to_string()), description);
        let bytes = description.encode();
        assert_eq!(Description::decode(&bytes), Ok(description.clone()));
        for end in 0..bytes.len() {
            assert!(Description::decode(&bytes[..end]).is_err(), "{description} cut at {end}");
        }
    }
}

#[test]
fn damaged_bytes_are_refused_or_are_another_description() {
    let mut random = StdRng::seed_from_u64(23);
    for _ in 0..20_000 {
        let (description, _) = model::description(&mut random, 4000);
        let mut bytes = description.encode();
        for _ in 0..random.random_range(1..4) {
            let at = random.random_range(0..bytes.len());
            bytes[at] = random.random();
        }
        nacre_lock::fuzz::description(&bytes);
    }
}

/// The bytes on the wire never change: old servers meet new clients.
#[test]
fn encoded_descriptions_are_the_bytes_that_they_always_were() {
    for (text, bytes) in [
        ("range(offset=5, length=300)", "0105ac02"),
        ("list(0:10, 64:10, 60:1)", "0203000a6c0a1b01"),
        ("vector(count=1024, block=1, stride=64)", "0300010380080180010101"),
        (
            "view(displacement=7, count=2, of=hvector(count=3, block=4, stride=-5, of=bytes(8)))",
            "03070204030409 0108",
        ),
        ("contiguous(count=3, of=resized(lower_bound=-1, extent=16, of=byte))", "030001 0203 0c0120 0101"),
        ("indexed(blocks=[2@0, 1@5])", "030001 05 02 0200 010a 0101"),
        ("hindexed(blocks=[2@-1])", "030001 06 01 0201 0101"),
        ("indexed_block(block=2, displacements=[0, 5])", "030001 07 02 02 000a 0101"),
        ("hindexed_block(block=2, displacements=[1])", "030001 08 02 01 02 0101"),
        ("struct(2@0 byte, 1@64 bytes(4))", "030001 09 02 0200 0101 018001 0104"),
        (
            "subarray(sizes=[8, 9], subsizes=[2, 3], starts=[0, 4], order=fortran)",
            "030001 0a 020809 020203 020004 01 0101",
        ),
        (
            "darray(rank=1, sizes=[8, 8, 8, 8, 8], distributions=[none, block, block(4), cyclic, cyclic(2)], \
             processes=[1, 2, 2, 2, 2])",
            "030001 0b 01 050808080808 05 00 01 0204 03 0402 050102020202 00 0101",
        ),
    ] {
        let expected: String = bytes.split(' ').collect();
        let encoded: String = parsed(text).encode().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(encoded, expected, "{text}");
    }
}

#[test]
fn greatest_numbers_survive_text_and_bytes() {
    let description = Description::List(vec![
        Region::new(u64::MAX, u64::MAX),
        Region::new(0, 0),
        Region::new(OFFSET_MAX, 1),
        Region::new(1, u64::MAX),
    ]);
    assert_eq!(Description::decode(&description.encode()), Ok(description.clone()));
    assert_eq!(parsed(&description.to_string()), description);
    let datatype =
        Datatype::byte().hvector(u64::MAX, u64::MAX, i64::MIN).resized(i64::MIN, i64::MAX).at(u64::MAX);
    assert_eq!(Description::decode(&datatype.encode()), Ok(datatype.clone()));
    assert_eq!(parsed(&datatype.to_string()), datatype);
}

#[test]
fn the_last_byte_of_a_file_can_be_locked_and_the_one_behind_it_cannot() {
    let last = OFFSET_MAX - 1;
    assert_eq!(regions(&format!("range(offset={last}, length=1)")), [(last, 1)]);
    assert_eq!(regions(&format!("range(offset=0, length={OFFSET_MAX})")), [(0, OFFSET_MAX)]);
    let whole = Pattern::contiguous(0, OFFSET_MAX).unwrap();
    assert_eq!(whole.first_common(&Pattern::contiguous(last, 1).unwrap(), 5), Some(last));
    assert_eq!(whole.end_before(u64::MAX), Some(OFFSET_MAX));
    assert_eq!(whole.next_region(last), Some(Region::new(last, 1)));
    assert_eq!(whole.next_region(u64::MAX), None);
    let stripe = Stripe { bytes: 1 << 40, servers: 3, server: 1 };
    let mine = whole.restrict(stripe).unwrap();
    let bounds = mine.bounds().unwrap();
    assert_eq!(bounds.offset, 1 << 40);
    assert_eq!(mine.byte_count(), mine.regions().map(|region| region.length).sum::<u64>());
    for text in [
        format!("range(offset={OFFSET_MAX}, length=1)"),
        "range(offset=1, length=18446744073709551615)".into(),
        format!("view(displacement={OFFSET_MAX}, of=byte)"),
        "contiguous(count=2, of=bytes(4611686018427387904))".into(),
        "vector(count=4611686018427387904, block=1, stride=64)".into(),
        "vector(count=2, block=1, stride=9223372036854775807, of=bytes(9223372036854775807))".into(),
        "hvector(count=4611686018427387904, stride=-9223372036854775808)".into(),
        "subarray(sizes=[4611686018427387904, 4], subsizes=[1, 1], starts=[0, 0])".into(),
        "darray(rank=0, sizes=[4], distributions=[cyclic(9223372036854775808)], processes=[4])".into(),
        "indexed(blocks=[1@9223372036854775807], of=bytes(9))".into(),
        "struct(1@-4611686018427387904 bytes(4611686018427387905), 1@0 bytes(9223372036854775807))".into(),
        "struct(1@-9223372036854775808 byte, 1@9223372036854775806 byte)".into(),
    ] {
        let refused = Pattern::new(&parsed(&text)).expect_err(&text);
        assert!(matches!(refused, PatternError::Overflow { .. }), "{text}: {refused}");
    }
}

#[test]
fn enormous_regular_patterns_take_little_memory_and_are_compared() {
    assert_eq!(regions("contiguous(count=4611686018427387904)"), [(0, 1 << 62)]);
    let pattern = Pattern::new(&parsed("vector(count=2305843009213693952, stride=3)")).unwrap();
    assert_eq!(pattern.region_count(), 1 << 61);
    assert!(pattern.memory_bytes() < 512);
    assert_eq!(pattern.next_region(1 << 62), Some(Region::new((1 << 62) + 2, 1)));
    let others =
        Pattern::new(&parsed("view(displacement=1, of=vector(count=1152921504606846976, stride=6))"))
            .unwrap();
    assert_eq!(pattern.first_common(&others, 0), None);
    let others =
        Pattern::new(&parsed("view(displacement=1, of=vector(count=1152921504606846976, stride=7))"))
            .unwrap();
    assert_eq!(pattern.first_common(&others, 1 << 62), Some((1 << 62) + 11));
}

#[test]
fn the_last_copies_of_the_longest_strides_meet_what_lies_on_them() {
    let far = Pattern::new(&parsed("vector(count=2, block=100, stride=4611686018427387904)")).unwrap();
    assert_eq!(far.bounds(), Some(Region::new(0, (1 << 62) + 100)));
    // They reach past its end, and begin on its second block.
    let others =
        Pattern::new(&parsed("view(displacement=4611686018427387906, of=vector(count=100, stride=4))"))
            .unwrap();
    for from in [0, 1 << 62, (1 << 62) + 2] {
        assert_eq!(far.first_common(&others, from), Some((1 << 62) + 2));
        assert_eq!(others.first_common(&far, from), Some((1 << 62) + 2));
    }
    assert_eq!(far.first_common(&others, (1 << 62) + 99), None);
}

#[test]
fn regular_lists_become_runs_that_take_no_more_memory_than_the_datatype() {
    for text in [
        "vector(count=5000, block=1, stride=64)",
        "subarray(sizes=[50, 60, 70], subsizes=[20, 30, 7], starts=[5, 6, 7], of=bytes(8))",
        "hvector(count=900, stride=100, of=struct(1@0 bytes(3), 1@10 bytes(4), 2@20 bytes(5), 1@77 byte))",
        "darray(rank=1, sizes=[200, 300], distributions=[cyclic(2), cyclic], processes=[2, 2])",
    ] {
        let pattern = Pattern::new(&parsed(text)).unwrap();
        let mut regions: Vec<Region> = pattern.regions().collect();
        regions.reverse();
        let list = Pattern::list(&regions).unwrap();
        assert!(list.regions().eq(pattern.regions()), "{text}");
        assert!(list.memory_bytes() <= pattern.memory_bytes(), "{text}: {list:?} and {pattern:?}");
        assert!(list.memory_bytes() < 1000, "{text}: {}", list.memory_bytes());
    }
}

/// Ranks that share a file by rows, columns, blocks or turns never meet, and together have all of it.
#[test]
fn the_parts_of_a_distributed_array_are_disjoint_and_cover_it() {
    for distributions in ["block, block", "cyclic(3), block", "cyclic, cyclic(5)", "none, cyclic(2)"] {
        let rows = if distributions.starts_with("none") { 1 } else { 4 };
        let part = |rank| {
            let text = format!(
                "darray(rank={rank}, sizes=[1001, 2003], distributions=[{distributions}], \
                 processes=[{rows}, 4], of=bytes(8))"
            );
            Pattern::new(&parsed(&text)).unwrap()
        };
        let parts: Vec<Pattern> = (0..4 * rows).map(part).collect();
        assert_eq!(parts.iter().map(Pattern::byte_count).sum::<u64>(), 1001 * 2003 * 8, "{distributions}");
        for (number, part) in parts.iter().enumerate() {
            for other in &parts[..number] {
                // Every pair is decided by arithmetic.
                assert_eq!(part.search_common(other, 0, 1000), Search::Absent, "{distributions}");
                let stripe = Stripe { bytes: 1 << 16, servers: 3, server: 1 };
                let (mine, others) = (part.restrict(stripe).unwrap(), other.restrict(stripe).unwrap());
                assert_eq!(mine.search_common(&others, 0, 1000), Search::Absent, "{distributions}");
            }
        }
    }
}

#[test]
fn mistakes_in_text_are_named_with_their_position() {
    for (text, reason) in [
        ("", "expected a number, a list or a name, found the end, at character 1"),
        ("vector(count=3", "expected \",\" or \")\", found the end, at character 15"),
        ("vector(count=3)", "\"vector\" needs \"stride=…\", at character 1"),
        ("vector(count=3, stride=4, strid=5)", "\"vector\" has no argument \"strid\", at character 33"),
        ("vector(count=3, stride=4, count=5)", "\"count\" is given twice, at character 33"),
        ("vector(3, 4)", "\"vector\" needs \"count=…\", at character 1"),
        ("vector(count=-3, stride=4)", "this number must not be negative, at character 14"),
        ("vektor(count=3)", "\"vektor\" is no pattern and no datatype, at character 1"),
        ("list(0:10, 5)", "a region is written offset:length, at character 12"),
        ("list(99999999999999999999:1)", "a number of more than 64 bits, at character 6"),
        ("range(offset=16EiB, length=1)", "a number of more than 64 bits, at character 14"),
        ("byte byte", "expected the end, found \"b\", at character 6"),
        ("17", "expected the name of a pattern or a datatype, at character 1"),
        ("struct(1@0)", "a member is written count@displacement TYPE, at character 8"),
        ("indexed(blocks=3)", "\"blocks\" is a list in square brackets, at character 16"),
    ] {
        let error = text.parse::<Description>().expect_err(text);
        assert_eq!(error.to_string(), format!("{reason} of the pattern"), "{text}");
    }
}

#[test]
fn wrong_arguments_are_refused_with_the_rule() {
    for (text, rule) in [
        ("subarray(sizes=[4], subsizes=[3], starts=[2])", "3 elements from 2 on are not within 4 elements"),
        ("subarray(sizes=[4, 4], subsizes=[3], starts=[2])", "there is one of each for each dimension"),
        ("subarray(sizes=[], subsizes=[], starts=[])", "there is one of each for each dimension"),
        (
            "darray(rank=4, sizes=[4, 4], distributions=[block, block], processes=[2, 2])",
            "there is no process 4",
        ),
        ("darray(rank=0, sizes=[4], distributions=[none], processes=[2])", "has one process"),
        ("darray(rank=0, sizes=[9], distributions=[block(4)], processes=[2])", "fewer than 9 elements"),
        ("darray(rank=0, sizes=[9], distributions=[cyclic(0)], processes=[2])", "at least one element"),
        ("hvector(count=3, stride=-4)", "begins 8 bytes before the start of the file"),
    ] {
        let error = Pattern::new(&parsed(text)).expect_err(text).to_string();
        assert!(error.contains(rule), "{text}: {error}");
    }
    let pattern = Pattern::contiguous(0, 100).unwrap();
    for (bytes, servers, server) in [(0, 1, 0), (10, 2, 2), (10, 0, 0), (1 << 62, 2, 0)] {
        assert!(pattern.restrict(Stripe { bytes, servers, server }).is_err());
    }
}

/// Descriptions that are made to burden whoever brings them into normal form.
#[test]
fn hostile_descriptions_are_refused_or_served_in_bounded_time_and_memory() {
    // Datatypes that stand too deep in each other, as text, as bytes, and built.
    let deep = "contiguous(count=1, of=".repeat(100_000) + "byte" + &")".repeat(100_000);
    assert_eq!(deep.parse::<Description>(), Err(PatternError::TooDeep));
    let mut bytes = vec![3, 0, 1];
    bytes.extend([2, 1].repeat(1_000_000));
    assert_eq!(Description::decode(&bytes), Err(PatternError::TooDeep));
    let nested = |depth| (1..depth).fold(Datatype::byte(), |of, _| of.contiguous(2));
    assert!(Pattern::new(&nested(DEPTH_MAX).at(0)).is_ok());
    assert_eq!(Pattern::new(&nested(DEPTH_MAX + 1).at(0)).unwrap_err(), PatternError::TooDeep);
    let structs = |depth| {
        let member = |of| nacre_lock::Member { count: 1, displacement: 0, of };
        (1..depth).fold(Datatype::byte(), |of, _| Datatype::Struct { members: vec![member(of)] }).at(1)
    };
    assert_eq!(parsed(&structs(DEPTH_MAX).to_string()), structs(DEPTH_MAX));
    assert_eq!(Description::decode(&structs(DEPTH_MAX).encode()), Ok(structs(DEPTH_MAX)));
    assert_eq!(structs(DEPTH_MAX + 1).to_string().parse::<Description>(), Err(PatternError::TooDeep));
    // More items than are allowed, announced and given.
    assert_eq!(Description::decode(&[2, 255, 255, 255, 255, 15]), Err(PatternError::TooManyItems));
    let many = Description::List(vec![Region::new(0, 1); ITEMS_MAX + 1]);
    assert_eq!(Description::decode(&many.encode()), Err(PatternError::TooManyItems));
    assert_eq!(Pattern::new(&many).unwrap_err(), PatternError::TooManyItems);
    // Runs of strides without a common period, whose union has no short description: each level interleaves.
    let strides = [10_007, 10_009, 10_037, 10_039, 10_061, 10_067, 10_069, 10_079];
    let mut lattice = Datatype::byte();
    for stride in strides {
        lattice = lattice.hvector(1 << 20, 1, stride);
    }
    bounded(&lattice.at(0));
    let members = strides
        .iter()
        .map(|&stride| nacre_lock::Member {
            count: 1,
            displacement: stride,
            of: Datatype::byte().hvector(1 << 30, 1, stride),
        })
        .collect();
    bounded(&Datatype::Struct { members }.at(0));
    // Runs whose copies lie far apart and alternate, so that nothing is taken apart.
    bounded(&parsed(
        "view(displacement=92481057, count=1757, of=vector(count=93747945, block=32, stride=28, \
         of=vector(count=1, block=4572, stride=-3, of=vector(count=10, block=1, stride=-6, of=bytes(48)))))",
    ));
    // Indexed blocks of indexed blocks: 2^16 squared pieces, which overlap.
    let displacements: Vec<i64> = (0..1 << 16).map(|i| i * i % 1_000_003 * 3).collect();
    let indexed =
        |of| Datatype::HindexedBlock { block: 1, displacements: displacements.clone(), of: Box::new(of) };
    bounded(&indexed(indexed(Datatype::byte())).at(0));
    // Deep nests that overlap at each level.
    let nest = (0..30).fold(Datatype::byte(), |of, level| of.hvector(3, 1, (1 << level) + 1));
    bounded(&nest.at(0));
}

/// A nest of irregular blocks: a few nodes, and three times the leaves at each level.
fn nested(levels: usize) -> Datatype {
    let blocks = [0, 2, 5].map(|displacement| Block { count: 1, displacement });
    (0..levels)
        .fold(Datatype::byte(), |of, _| Datatype::Indexed { blocks: blocks.to_vec(), of: Box::new(of) })
}

#[test]
fn patterns_of_few_nodes_and_many_leaves_take_the_memory_of_their_nodes() {
    const LEVELS: usize = 22;
    let pattern = Pattern::new(&nested(LEVELS).at(0)).unwrap();
    assert_eq!(pattern.count(u64::MAX).unwrap().bytes, 3_u64.pow(LEVELS as u32));
    assert!(pattern.memory_bytes() < 64 << 10, "{} bytes", pattern.memory_bytes());
    let stripe = Stripe { bytes: 4096, servers: 7, server: 3 };
    match pattern.restrict(stripe) {
        Ok(own) => assert!(own.memory_bytes() < 64 << 10),
        Err(error) => assert_eq!(error, PatternError::EvadesStripes),
    }
    // Three parts that are equal, each of which the decoder makes for itself.
    let extent = 6_i64.pow(LEVELS as u32);
    let members = |of: Datatype| {
        let member = |at: i64| Member { count: 1, displacement: 2 * at * extent, of: of.clone() };
        Datatype::Struct { members: (0..3).map(member).collect() }
    };
    let bytes = members(nested(LEVELS)).at(0).encode();
    let decoded = Pattern::new(&Description::decode(&bytes).unwrap()).unwrap();
    assert_eq!(decoded.count(u64::MAX).unwrap().bytes, 3_u64.pow(LEVELS as u32 + 1));
}

/// A nest of runs each of whose copies lies between the stripes of a server, at another place on every level.
#[test]
fn patterns_that_evade_the_stripes_of_a_server_are_answered_or_refused_in_bounded_time() {
    let stripe = Stripe { bytes: 1 << 16, servers: 7, server: 3 };
    let round = 7 << 16;
    let evading = |levels: u32| {
        let mut datatype = Datatype::byte();
        for level in 0..levels {
            // Copies drift by less than the distance of two stripes in all.
            datatype = datatype.hvector(1000, 1, (round << (10 * level)) + 1);
        }
        Pattern::new(&datatype.at(1 << 18)).unwrap()
    };
    for levels in 1..3 {
        let restricted = evading(levels).restrict(stripe).unwrap();
        assert!(restricted.is_empty(), "{levels}");
        assert_eq!(restricted.count(u64::MAX), Some(nacre_lock::Count::default()));
        // One level is decided by arithmetic; for two, each copy of the outer level is looked at.
        let searched = if levels == 1 { Search::Absent } else { Search::Paused(1 << 18) };
        assert_eq!(restricted.search_next(0, 1), searched);
    }
    assert_eq!(evading(4).restrict(stripe).unwrap_err(), PatternError::EvadesStripes);
}

/// Brings a description into normal form, or has it refused; either takes no more memory than its limits allow.
fn bounded(description: &Description) {
    match Pattern::new(description) {
        Ok(pattern) => {
            assert!(pattern.memory_bytes() < 256 << 20, "{} bytes", pattern.memory_bytes());
            pattern.search_common(&pattern.from(1), 0, 1000);
        }
        Err(error) => assert!(matches!(error, PatternError::TooIrregular { .. }), "{error}"),
    }
}
