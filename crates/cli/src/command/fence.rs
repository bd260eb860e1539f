//! `nacre fence`: shuts sessions out of an object.

use nacre::ObjectId;
use serde_json::json;

use crate::failure::Failure;
use crate::session::{self, Context};
use crate::{complete, name, output};

/// Fence sessions off an object: their changes to it fail from now on, permanently
///
/// Sessions are numbered by the service that grants them, such as the lock service. A command names its session with
/// --fence, a program with Store::for_session. Changes without a session are not affected. A fence is never lowered.
/// Prints the object's new version; "nacre stat" shows the fence and the number of individually fenced sessions.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The object, which must exist
    #[arg(value_parser = name::object(), add = complete::objects())]
    object: ObjectId,
    /// The number of the session
    #[arg(value_name = "SESSION", required_unless_present = "below", conflicts_with = "below")]
    number: Option<u64>,
    /// Fence all sessions with numbers below this one instead
    #[arg(long, value_name = "NUMBER", value_parser = nacre_quantity::count_parser::<u64>(1..=u64::MAX))]
    below: Option<u64>,
}

/// Runs `nacre fence`.
pub async fn run(session: &Context, args: Args) -> Result<(), Failure> {
    let object = session.open()?.object(&args.object)?;
    // Fencing would create it, also where its name is misspelt.
    session::existing(&object).await?;
    let version = match (args.number, args.below) {
        (_, Some(least)) => object.raise_fence(least).await?,
        (Some(number), None) => object.fence_session(number).await?,
        (None, None) => return Err(Failure::Usage("give a session, or --below".to_owned())),
    };
    match session.json {
        true => Ok(output::line(&json!({ "version": version }).to_string())?),
        false => Ok(output::line(&version.to_string())?),
    }
}
