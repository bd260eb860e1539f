//! Compiles the receivers' program.
fn main() {
    let out = std::env::var("OUT_DIR").unwrap();
    println!("cargo:rerun-if-changed=src/reflect/count.c");
    let status = std::process::Command::new("clang")
        .args([
            "-O2",
            "-g",
            "-target",
            "bpf",
            "-I/usr/include/x86_64-linux-gnu",
            "-c",
            "src/reflect/count.c",
            "-o",
        ])
        .arg(format!("{out}/count.o"))
        .status()
        .unwrap();
    assert!(status.success());
}
