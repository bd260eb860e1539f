//! `nacre reflect send`: one datagram, or standard input, to a group.

use std::io::BufRead;
use std::time::{Duration, Instant};

use nacre_reflect::client::{Client, ClientEvent};
use nacre_reflect::member::MemberEvent;

use super::member::{Member, failed, is_final, place};
use crate::failure::Failure;
use crate::quantity::Time;

/// The time given to the reflector to confirm that a member leaves.
const LEAVING: Duration = Duration::from_secs(2);

/// Join a group, send one datagram or the lines of standard input to it, and leave
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    #[command(flatten)]
    member: Member,
    /// Text to send as one datagram; without it, each line of standard input is one
    #[arg(value_name = "TEXT")]
    text: Option<String>,
    /// Maximum time to wait for the reflector to answer
    #[arg(long, value_name = "TIME", default_value = "10s")]
    timeout: Time,
}

/// Runs the command.
pub fn run(args: Args) -> Result<(), Failure> {
    let mut client = Client::new(args.member.wanted()?, args.member.options()).map_err(failed)?;
    enter(&mut client, &args)?;
    match &args.text {
        Some(text) => send(&mut client, text.as_bytes(), &args)?,
        None => {
            for line in std::io::stdin().lock().split(b'\n') {
                let line = line.map_err(Failure::io("read standard input"))?;
                send(&mut client, &line, &args)?;
                // Heartbeats and the reflector's answers have their turn between lines.
                while client.poll(Duration::ZERO).map_err(failed)?.is_some() {}
            }
        }
    }
    client.leave(LEAVING).map_err(failed)?;
    Ok(())
}

/// Waits until the client has joined.
fn enter(client: &mut Client, args: &Args) -> Result<(), Failure> {
    let until = Instant::now() + args.timeout.0;
    while client.target().is_none() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Failure::Failed(format!(
                "cannot join {}: no reflector answered within {:?}",
                args.member.shown(),
                args.timeout.0
            )));
        }
        if let Some(ClientEvent::Member(MemberEvent::Refused { reason, .. })) =
            client.poll(left).map_err(failed)?
            && is_final(reason)
        {
            return Err(Failure::Failed(format!("cannot join {}: {reason}", args.member.shown())));
        }
    }
    Ok(())
}

fn send(client: &mut Client, payload: &[u8], args: &Args) -> Result<(), Failure> {
    // It may have been lost between two lines: then it comes in again first.
    enter(client, args)?;
    client.send(payload).map_err(|error| {
        let to = client.target().map_or_else(|| args.member.shown(), place);
        Failure::Failed(format!("cannot send {} bytes to {to}: {error}", payload.len()))
    })
}
