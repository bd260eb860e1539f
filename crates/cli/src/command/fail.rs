//! `nacre fail`: the authority of a metadata rank is handed over.

use crate::failure::Failure;
use crate::session::Context;

/// Hand a metadata rank over to a standby, for example before an upgrade
///
/// The daemon that has the authority stops acting for the rank, and a standby takes over at once. A standby is another
/// "nacre serve" with the role meta and the same --meta-rank on the same store. Clients wait during the handover, and see no
/// error.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The rank, as "nacre rank ls" lists it
    #[arg(value_parser = super::rank::number(), default_value = "0")]
    rank: u32,
}

/// Runs `nacre fail`.
pub async fn run(session: &Context, args: Args) -> Result<(), Failure> {
    let store = session.open()?;
    let rank = args.rank;
    let failed = store.fail_rank(rank).await;
    store.end_sequencers().await;
    Ok(failed.map_err(|error| error.context(format_args!("cannot hand metadata rank {rank} over")))?)
}
