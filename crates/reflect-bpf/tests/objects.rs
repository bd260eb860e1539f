//! The objects in the tree: that they are what clang makes of the sources.

use std::path::Path;

#[allow(dead_code)]
#[path = "../build.rs"]
mod build;

/// With the clang that made them, the same bytes come out again. With another one there is nothing to compare: the tests
/// of the planes, with `NACRE_CLANG` in the environment of their build, try what that one makes.
#[test]
fn the_objects_in_the_tree_are_what_clang_makes_of_the_sources() {
    let built_by = std::fs::read_to_string("objects/CLANG").unwrap();
    for (name, ..) in build::PROGRAMS {
        let kept = std::fs::read(format!("objects/{name}.o")).unwrap();
        // ELF, 64 bits, little-endian; the machine is BPF.
        assert_eq!(kept[..6], [0x7f, b'E', b'L', b'F', 2, 1]);
        assert_eq!(kept[18..20], [247, 0]);
        if build::version() != built_by.trim() {
            println!("not compared: they were made by {}, and here is {}", built_by.trim(), build::version());
            continue;
        }
        let built = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.o"));
        build::compile(&format!("bpf/{name}.c"), &built);
        assert!(std::fs::read(&built).unwrap() == kept, "objects/{name}.o is not what clang makes: make bpf");
    }
    assert_eq!(
        std::fs::read_to_string("objects/SOURCES").unwrap().trim(),
        build::sum_of_sources(),
        "make bpf"
    );
}
