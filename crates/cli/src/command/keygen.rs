//! `nacre keygen`: creates a key for a cluster.

use std::path::PathBuf;

use nacre_quantity::Escaped;
use nacre_rpc::ClusterKey;

use crate::failure::Failure;
use crate::output;

/// Create a cluster key, which servers that listen on TCP require
///
/// Give the file to both servers and clients, with --key or NACRE_KEY. Only its owner may read it.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The file to create; an existing one is not overwritten
    #[arg(default_value = "nacre.key")]
    file: PathBuf,
}

/// Runs `nacre keygen`.
pub fn run(args: Args) -> Result<(), Failure> {
    ClusterKey::generate()?.save(&args.file)?;
    Ok(output::line(&format!("a new key is in {}", Escaped::of(&args.file)))?)
}
