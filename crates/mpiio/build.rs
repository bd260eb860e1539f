//! Compiles the constants of the MPI library, most of which are macros.

fn main() {
    println!("cargo:rerun-if-env-changed=MPICC");
    println!("cargo:rerun-if-changed=src/constant.c");
    let compiler = std::env::var("MPICC").unwrap_or_else(|_| "mpicc".to_owned());
    cc::Build::new().compiler(compiler).file("src/constant.c").compile("nacre_mpiio_constant");
}
