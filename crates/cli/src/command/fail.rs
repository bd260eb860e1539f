//! `nacre fail`: the authority of a metadata rank is handed over.

use crate::failure::Failure;
use crate::session::Context;

/// Hand a metadata rank over to a standby, for example before an upgrade
///
/// The daemon that has the authority stops acting for the rank, and a standby takes over at once. A standby is another
/// "nacre serve" with the role meta on the same store. Clients wait during the handover, and see no error.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The rank; there is only one, 0
    #[arg(value_parser = rank, default_value = "0")]
    rank: u32,
}

/// Parses the number of a metadata rank.
fn rank(text: &str) -> Result<u32, String> {
    match text.parse::<u32>() {
        Ok(0) => Ok(0),
        _ => Err("there is only rank 0".to_owned()),
    }
}

/// Runs `nacre fail`.
pub async fn run(session: &Context, args: Args) -> Result<(), Failure> {
    let store = session.open()?;
    let failed = store.fail_rank().await;
    store.end_sequencers().await;
    let rank = args.rank;
    Ok(failed.map_err(|error| error.context(format_args!("cannot hand metadata rank {rank} over")))?)
}
