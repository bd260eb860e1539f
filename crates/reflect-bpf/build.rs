//! Provides the programs' object files, and turns the headers' `#define`s into Rust constants.
//!
//! The objects are in the tree (`objects/`), with a sum of the sources that they were made from, so that nobody needs
//! clang to build them in. With other sources than those, or with `NACRE_CLANG` in the environment, clang compiles them;
//! without it the build fails and says so: a program that promises copies in the kernel is not built without them.
//! `NACRE_KEEP_OBJECTS=1` writes what clang makes into the tree.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// Each program: its name, the constant, and what that is.
pub const PROGRAMS: [(&str, &str, &str); 3] = [
    ("tc", "TC", "The `kernel` plane's program, `reflect_tc`."),
    ("xdp", "XDP", "The `xdp` plane's programs."),
    ("count", "COUNT", "Receivers that count, for the study: `count`, `take`, `take_frame` and `drop`."),
];

fn main() {
    for watched in ["build.rs", "bpf", "objects"] {
        println!("cargo::rerun-if-changed={watched}");
    }
    for variable in ["NACRE_CLANG", "NACRE_KEEP_OBJECTS"] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let headers: String = ["bpf/reflect.h", "bpf/xdp.h"]
        .iter()
        .map(|header| fs::read_to_string(header).expect("the crate contains its headers"))
        .collect();
    fs::write(out.join("constants.rs"), constants(&headers))
        .expect("cargo's output directory can be written");

    let sum = sum_of_sources();
    let kept = fs::read_to_string("objects/SOURCES").unwrap_or_default();
    let keep = env::var_os("NACRE_KEEP_OBJECTS").is_some();
    let compiles = keep || env::var_os("NACRE_CLANG").is_some() || kept.trim() != sum;
    let mut programs = String::new();
    for (name, constant, what) in PROGRAMS {
        let from = if compiles {
            out.join(format!("{name}.o"))
        } else {
            Path::new("objects").join(format!("{name}.o"))
        };
        if compiles {
            compile(&format!("bpf/{name}.c"), &from);
        }
        if keep {
            fs::create_dir_all("objects").expect("the tree can be written");
            fs::copy(&from, format!("objects/{name}.o")).expect("the tree can be written");
        }
        let from = from.canonicalize().unwrap_or_else(|error| panic!("{}: {error}", from.display()));
        let bytes = format!("Ok(&Aligned(*include_bytes!({from:?})).0)");
        writeln!(programs, "/// {what}\npub const {constant}: Result<&[u8], &str> = {bytes};")
            .expect("a string grows");
    }
    let by = if compiles { "compiled from its sources" } else { "from the tree" };
    writeln!(
        programs,
        "/// Where the programs came from when this was built.\npub const ORIGIN: &str = {by:?};"
    )
    .expect("a string grows");
    fs::write(out.join("programs.rs"), programs).expect("cargo's output directory can be written");
    if keep {
        fs::write("objects/SOURCES", sum + "\n").expect("the tree can be written");
        fs::write("objects/CLANG", version() + "\n").expect("the tree can be written");
    }
}

/// Returns a sum of all sources (FNV-1a over names, lengths and bytes). It is no secret's, and guards against forgetting
/// alone.
pub fn sum_of_sources() -> String {
    let mut names: Vec<PathBuf> = fs::read_dir("bpf")
        .expect("the crate contains its sources")
        .flatten()
        .map(|entry| entry.path())
        .collect();
    names.sort();
    let mut sum: u64 = 0xcbf2_9ce4_8422_2325;
    for path in names {
        let bytes = fs::read(&path).expect("the crate contains its sources");
        let head = format!("{} {}\n", path.file_name().unwrap_or_default().to_string_lossy(), bytes.len());
        for byte in head.bytes().chain(bytes) {
            sum = (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    format!("{sum:016x}")
}

/// Turns each `#define REFLECT_NAME number /* comment */` into a constant.
fn constants(header: &str) -> String {
    let mut text = String::new();
    for line in header.lines() {
        let Some(rest) = line.strip_prefix("#define REFLECT_") else { continue };
        let Some((name, rest)) = rest.split_once(' ') else { continue };
        let number = rest.split_whitespace().next().unwrap_or_default().trim_end_matches("ull");
        writeln!(text, "/// `REFLECT_{name}` of the crate's headers.\npub const {name}: u64 = {number};")
            .expect("a string grows");
    }
    text
}

fn clang() -> String {
    env::var("NACRE_CLANG").unwrap_or_else(|_| "clang".to_owned())
}

/// Returns the first line of what clang says of itself; nothing if there is none.
pub fn version() -> String {
    let said =
        Command::new(clang()).arg("--version").output().map(|output| output.stdout).unwrap_or_default();
    String::from_utf8_lossy(&said).lines().next().unwrap_or_default().trim().to_owned()
}

/// Compiles a source, or ends the build.
pub fn compile(source: &str, object: &Path) {
    let clang = clang();
    let arch = env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_else(|_| env::consts::ARCH.to_owned());
    // A test that is not run by cargo has the same folder, but not the variable.
    let here = env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let here = here.or_else(|| env::current_dir().ok()).unwrap_or_default();
    let output = Command::new(&clang)
        .args(["-O2", "-g", "-target", "bpf", "-mcpu=v3", "-Wall", "-Wextra", "-Werror"])
        // Debug information is to be the same wherever the tree is.
        .arg(format!("-fdebug-prefix-map={}=.", here.display()))
        // Debian keeps the kernel's headers that differ between architectures here.
        .args(["-idirafter", &format!("/usr/include/{arch}-linux-gnu")])
        .args(["-c", source, "-o"])
        .arg(object)
        .output();
    let why = match output {
        Ok(output) if output.status.success() => return,
        Ok(output) => {
            format!("clang could not compile {source}: {}", String::from_utf8_lossy(&output.stderr))
        }
        Err(error) => format!("there is no clang ({clang}: {error})"),
    };
    panic!(
        "the objects in crates/reflect-bpf/objects are not made from the sources in bpf/, and {why}; on Debian, apt-get \
         install clang libbpf-dev, and then `make bpf` writes new ones"
    );
}
