//! Compiles the programs with clang, and turns the header's `#define`s into Rust constants. A machine without clang
//! builds too: the programs are then absent, and the constants of their object files hold an error instead.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

fn main() {
    println!("cargo::rerun-if-changed=bpf");
    println!("cargo::rerun-if-env-changed=NACRE_CLANG");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let headers: String = ["bpf/reflect.h", "bpf/xdp.h"]
        .iter()
        .map(|header| fs::read_to_string(header).expect("the crate contains its headers"))
        .collect();
    fs::write(out.join("constants.rs"), constants(&headers))
        .expect("cargo's output directory can be written");

    let mut programs = String::new();
    for (name, constant, what) in [
        ("tc", "TC", "The `kernel` plane's program, `reflect_tc`."),
        ("xdp", "XDP", "The `xdp` plane's programs."),
        ("count", "COUNT", "Receivers that count, for the study: `count`, `take`, `take_frame` and `drop`."),
    ] {
        let source = format!("bpf/{name}.c");
        let object = out.join(format!("{name}.o"));
        let value = match compile(&source, &object) {
            Ok(()) => format!("Ok(&Aligned(*include_bytes!({object:?})).0)"),
            Err(why) => format!("Err({why:?})"),
        };
        writeln!(programs, "/// {what}\npub const {constant}: Result<&[u8], &str> = {value};")
            .expect("a string grows");
    }
    fs::write(out.join("programs.rs"), programs).expect("cargo's output directory can be written");
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

fn compile(source: &str, object: &Path) -> Result<(), String> {
    if !Path::new(source).exists() {
        return Err(format!("this nacre was built from a source tree without {source}"));
    }
    let clang = env::var("NACRE_CLANG").unwrap_or_else(|_| "clang".to_owned());
    let arch = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo tells the architecture");
    let output = Command::new(&clang)
        .args(["-O2", "-g", "-target", "bpf", "-mcpu=v3", "-Wall", "-Wextra", "-Werror"])
        // Debian keeps the kernel's headers that differ between architectures here.
        .args(["-idirafter", &format!("/usr/include/{arch}-linux-gnu")])
        .args(["-c", source, "-o"])
        .arg(object)
        .output();
    let why = match output {
        Ok(output) if output.status.success() => return Ok(()),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            println!("cargo::warning=clang could not compile {source}: {}", said.replace('\n', " | "));
            let line =
                said.lines().find(|line| line.contains("error:")).unwrap_or("it failed").trim().to_owned();
            format!("clang could not compile {source} ({line})")
        }
        Err(error) => format!("there was no clang ({clang}: {error})"),
    };
    Err(format!(
        "this nacre was built without its programs for the kernel, as {why}: on Debian, apt-get install clang libbpf-dev, \
         and build it again"
    ))
}
