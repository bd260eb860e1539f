//! `nacre reflect join`: a member at the terminal, or in a pipe.

use std::io::{self, BufRead, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use nacre_quantity::Escaped;
use nacre_reflect::client::{Client, ClientError, ClientEvent, Waker};
use nacre_reflect::member::{MemberEvent, SendError};
use nacre_reflect::wire::STATE_BYTES_MAX;
use nacre_shell::flag;
use serde_json::{Value, json};

use super::member::{Member, failed, is_final, place};
use super::print;
use crate::arguments::Common;
use crate::failure::Failure;
use crate::output;
use crate::quantity;
use crate::quantity::Time;

const AFTER_HELP: &str = "\
Ends with the end of standard input, which --listen does not read (an empty one does not count where --count or --timeout \
is given), after --count datagrams, after --timeout, or with Ctrl-C.

Exit codes: 0 done; 1 refused, nobody answered in time, or --count datagrams did not come in time; 2 wrong usage.";

/// The time given to the reflector to confirm that a member leaves.
const LEAVING: Duration = Duration::from_secs(2);
/// The longest wait between two looks at the clock.
const TURN: Duration = Duration::from_secs(1);
/// The greatest number of lines that wait to be sent.
const LINES: usize = 1024;
/// The longest payload of a UDP datagram, in bytes.
const PAYLOAD_BYTES_MAX: u32 = 65_507;

/// Join a group: print what its members send, and send the lines of standard input
///
/// Stays a member by sending heartbeats. If the reflector falls silent or is restarted, joins it or a standby again,
/// and says so on standard error. With --json, prints one line for each datagram and each event.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    #[command(flatten)]
    member: Member,
    /// Print and read raw datagrams, each after its length in 4 bytes, little-endian
    #[arg(long)]
    raw: bool,
    /// Receive copies of what is sent here too
    #[arg(long)]
    echo: bool,
    /// Keep the group's state in this file: fetched when joining, and given to the reflector when it asks. Where the file held
    /// something else, that is kept as FILE.~1~, or the next free number
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
    /// Keep nothing of what the file of --state held before
    #[arg(long, requires = "state")]
    force: bool,
    /// Leave after so many datagrams
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    /// Leave after this time
    #[arg(long, value_name = "TIME")]
    timeout: Option<Time>,
    /// Do not read standard input; stay until Ctrl-C, --count or --timeout
    #[arg(long)]
    listen: bool,
}

/// The input read from standard input.
enum Input {
    Datagram(Vec<u8>),
    Failed(io::Error),
}

/// The time without an answer after which the user is told so.
const SILENCE: Duration = Duration::from_secs(3);

/// Runs the command.
pub fn run(args: Args, common: &Common, complain: &mut dyn FnMut(&str)) -> Result<(), Failure> {
    let mut options = args.member.options();
    options.echo = args.echo;
    options.keeps_state = args.state.is_some();
    options.wants_state = args.state.is_some();
    let client = Client::new(args.member.wanted()?, options).map_err(failed)?;
    let waker = client.waker();
    let stop = flag::caught(move || waker.wake())?;
    let input = (!args.listen).then(|| read_input(args.raw, client.waker()));
    let until = args.timeout.and_then(|time| Instant::now().checked_add(time.0));
    let mut join =
        Join { args, json: common.json, heard: 0, was_in: false, unsent: None, state_written: None };
    let mut client = client;
    let ended = join.stay(&mut client, input.as_ref(), until, &stop, complain);
    let last = client.leave(LEAVING).map_err(failed)?;
    ended?;
    for event in last {
        if let ClientEvent::Datagram { payload, sequence } = event
            && join.args.count.is_none_or(|count| join.heard < count)
        {
            join.show(&payload, sequence)?;
        }
    }
    match (join.args.count, join.args.timeout) {
        (_, Some(time)) if !join.was_in && !stop.is_set() => {
            let shown = join.args.member.shown();
            Err(Failure::Failed(format!(
                "cannot join {shown}: nobody answered within {:?}; see whether a reflector runs there (\"nacre reflect serve\"), and \
                 whether UDP reaches it",
                time.0
            )))
        }
        (Some(count), Some(time)) if join.heard < count && !stop.is_set() => {
            Err(Failure::Failed(format!("{} of {count} datagrams came within {:?}", join.heard, time.0)))
        }
        _ => Ok(()),
    }
}

struct Join {
    args: Args,
    json: bool,
    heard: u64,
    was_in: bool,
    /// The input that was read while the member was in no group.
    unsent: Option<Vec<u8>>,
    /// The state that this process has written to its file.
    state_written: Option<Bytes>,
}

impl Join {
    fn stay(
        &mut self,
        client: &mut Client,
        input: Option<&Receiver<Input>>,
        until: Option<Instant>,
        stop: &flag::Flag,
        complain: &mut dyn FnMut(&str),
    ) -> Result<(), Failure> {
        let mut input_open = true;
        // The end of an input that never held anything, such as /dev/null, is no wish to leave.
        let mut input_used = false;
        let mut silent_until = Some(Instant::now() + SILENCE);
        loop {
            let left = until.map_or(TURN, |until| until.saturating_duration_since(Instant::now()).min(TURN));
            if left.is_zero() || stop.is_set() {
                return Ok(());
            }
            if !self.was_in && silent_until.is_some_and(|until| until <= Instant::now()) {
                silent_until = None;
                let text = format!("no answer from {} yet; still trying", self.args.member.shown());
                match self.json {
                    true => print::line(&json!({ "event": "waiting" }).to_string())?,
                    false => complain(&text),
                }
            }
            match client.poll(left).map_err(failed)? {
                None => {}
                Some(ClientEvent::Datagram { payload, sequence }) => {
                    self.show(&payload, sequence)?;
                    if self.args.count == Some(self.heard) {
                        return Ok(());
                    }
                }
                Some(ClientEvent::Member(event)) => self.report_event(client, event, complain)?,
            }
            while let (Some(input), true, true) = (input, input_open, self.can_send(client, complain)?) {
                match input.try_recv() {
                    Ok(Input::Datagram(payload)) => {
                        input_used = true;
                        self.unsent = Some(payload);
                    }
                    Ok(Input::Failed(error)) => return Err(Failure::io("read standard input")(error)),
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => {
                        input_open = false;
                        let stays = self.args.count.is_some() || until.is_some();
                        if input_used || !stays {
                            return Ok(());
                        }
                    }
                }
            }
        }
    }

    /// Sends the input that waits. Returns true if none is left.
    fn can_send(&mut self, client: &mut Client, complain: &mut dyn FnMut(&str)) -> Result<bool, Failure> {
        if client.target().is_none() {
            return Ok(false);
        }
        let Some(payload) = self.unsent.take() else { return Ok(true) };
        match client.send(&payload) {
            Ok(()) => Ok(true),
            Err(ClientError::Send(SendError::NotJoined)) => {
                self.unsent = Some(payload);
                Ok(false)
            }
            Err(error) => {
                complain(&format!("a datagram of {} bytes was not sent: {error}", payload.len()));
                Ok(true)
            }
        }
    }

    fn show(&mut self, payload: &[u8], sequence: Option<u64>) -> Result<(), Failure> {
        self.heard += 1;
        if self.json {
            let mut event = json!({ "event": "datagram", "bytes": payload.len() });
            match std::str::from_utf8(payload) {
                Ok(text) => event["text"] = text.into(),
                Err(_) => event["base64"] = STANDARD.encode(payload).into(),
            }
            if let Some(sequence) = sequence {
                event["sequence"] = sequence.into();
            }
            return print::line(&event.to_string());
        }
        if self.args.raw {
            let length = (payload.len() as u32).to_le_bytes();
            return print::bytes(&[&length, payload].concat());
        }
        print::line(&print::shown(payload))
    }

    fn report_event(
        &mut self,
        client: &mut Client,
        event: MemberEvent,
        complain: &mut dyn FnMut(&str),
    ) -> Result<(), Failure> {
        let mut say = |json: Value, text: String| match self.json {
            true => print::line(&json.to_string()),
            false => {
                complain(&text);
                Ok(())
            }
        };
        match event {
            MemberEvent::Joined { target, seen, members, again } => {
                self.was_in = true;
                let reflector = target.reflector.to_string();
                say(
                    json!({ "event": "joined", "reflector": reflector, "group": target.group, "seen": seen.to_string(),
                        "members": members, "again": again }),
                    format!(
                        "joined {} as {seen}: {}",
                        place(target),
                        quantity::count(members.into(), "member")
                    ),
                )
            }
            MemberEvent::Lost { target } => say(
                json!({ "event": "lost", "reflector": target.reflector.to_string(), "group": target.group }),
                format!("lost {}; trying to join again", place(target)),
            ),
            MemberEvent::Refused { reason, last } => {
                if last || (!self.was_in && is_final(reason)) {
                    let shown = self.args.member.shown();
                    return Err(Failure::Failed(format!("cannot join {shown}: {reason}")));
                }
                say(
                    json!({ "event": "refused", "why": reason.text() }),
                    format!("refused: {reason}; trying again"),
                )
            }
            MemberEvent::MoveFailed { target } => say(
                json!({ "event": "stayed", "reflector": target.reflector.to_string(), "group": target.group }),
                format!("was asked to move to {}, which does not accept it; staying", place(target)),
            ),
            MemberEvent::Gap { first, count } => say(
                json!({ "event": "gap", "first": first, "count": count }),
                format!("{count} datagrams were lost, from number {first} on"),
            ),
            MemberEvent::State { version, bytes } => {
                let mut event = json!({ "event": "state", "version": version, "bytes": bytes.len() });
                let mut text = format!("got the state of version {version}, {} bytes", bytes.len());
                if let Some(path) = &self.args.state {
                    // What this process has written itself is no loss.
                    let known = [Some(&bytes), self.state_written.as_ref()];
                    if !self.args.force
                        && let Some(kept) = back_up(path, &known)?
                    {
                        text.push_str(&format!("; {} is now {}", Escaped::of(path), Escaped::of(&kept)));
                        if let Some(event) = event.as_object_mut() {
                            output::put_bytes(event, "backup", kept.as_os_str().as_bytes());
                        }
                    }
                    replace(path, &bytes)?;
                    self.state_written = Some(bytes);
                }
                say(event, text)
            }
            MemberEvent::NoState => {
                say(json!({ "event": "no state" }), "the group has no state yet".to_owned())
            }
            MemberEvent::StateAsked { ask } => {
                let state = self.args.state.as_deref().map(read_state).transpose();
                let state = state.unwrap_or_else(|error| {
                    complain(&error);
                    None
                });
                client.give_state(ask, state.flatten()).map_err(failed)?;
                Ok(())
            }
            MemberEvent::Left => Ok(()),
        }
    }
}

/// Reads the state from its file, if there is one yet.
fn read_state(path: &Path) -> Result<Option<Bytes>, String> {
    let shown = Escaped::of(path);
    match std::fs::read(path) {
        Ok(bytes) if bytes.len() > STATE_BYTES_MAX => Err(format!(
            "the state in {shown} has {} bytes; at most {STATE_BYTES_MAX} can be kept",
            bytes.len()
        )),
        Ok(bytes) => Ok(Some(bytes.into())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(format!("cannot read the state in {shown}: {error}")),
    }
}

/// Copies a file that holds something else than what is `known` to a new one beside it, whose name is returned.
fn back_up(path: &Path, known: &[Option<&Bytes>]) -> Result<Option<PathBuf>, Failure> {
    let failed = || Failure::io(format!("keep what {} held before (--force does not)", Escaped::of(path)));
    let held = match std::fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        held => held.map_err(failed())?,
    };
    if held.is_empty() || known.iter().flatten().any(|known| **known == held) {
        return Ok(None);
    }
    for number in 1u64.. {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".~{number}~"));
        match std::fs::File::create_new(&name) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            file => {
                file.and_then(|mut file| io::Write::write_all(&mut file, &held)).map_err(failed())?;
                return Ok(Some(name.into()));
            }
        }
    }
    Ok(None)
}

/// Replaces a file, so that a reader sees the old content or the new, whole.
fn replace(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    let mut name = path.as_os_str().to_owned();
    name.push(".part");
    let part = PathBuf::from(name);
    let done = std::fs::write(&part, bytes).and_then(|()| std::fs::rename(&part, path));
    done.map_err(Failure::io(format!("write the state to {}", Escaped::of(path))))
}

/// Reads standard input on a thread of its own, which wakes the client.
fn read_input(raw: bool, waker: Waker) -> Receiver<Input> {
    let (sender, receiver) = mpsc::sync_channel(LINES);
    std::thread::spawn(move || {
        let mut input = io::stdin().lock();
        loop {
            let next = if raw { next_record(&mut input) } else { next_line(&mut input) };
            let (next, over) = match next {
                Ok(Some(payload)) => (Input::Datagram(payload), false),
                Ok(None) => break,
                Err(error) => (Input::Failed(error), true),
            };
            let gone = sender.send(next).is_err();
            waker.wake();
            if over || gone {
                break;
            }
        }
        drop(sender);
        waker.wake();
    });
    receiver
}

fn next_line(input: &mut impl BufRead) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    input.take(1 << 20).read_until(b'\n', &mut line)?;
    if line.is_empty() {
        return Ok(None);
    }
    if line.ends_with(b"\n") {
        line.pop();
    }
    Ok(Some(line))
}

fn next_record(input: &mut impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut length = [0; 4];
    match input.read_exact(&mut length) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        done => done?,
    }
    let length = u32::from_le_bytes(length);
    if length > PAYLOAD_BYTES_MAX {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("a record of {length} bytes is longer than a datagram can be"),
        ));
    }
    let mut payload = vec![0; length as usize];
    input.read_exact(&mut payload)?;
    Ok(Some(payload))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn input_is_cut_into_datagrams() {
        let mut lines: &[u8] = b"one\n\nthree";
        assert_eq!(next_line(&mut lines).unwrap().as_deref(), Some(&b"one"[..]));
        assert_eq!(next_line(&mut lines).unwrap().as_deref(), Some(&b""[..]));
        assert_eq!(next_line(&mut lines).unwrap().as_deref(), Some(&b"three"[..]));
        assert_eq!(next_line(&mut lines).unwrap(), None);
        let mut records: &[u8] = b"\x02\0\0\0hi\0\0\0\0\xff\xff\xff\xff";
        assert_eq!(next_record(&mut records).unwrap().as_deref(), Some(&b"hi"[..]));
        assert_eq!(next_record(&mut records).unwrap().as_deref(), Some(&b""[..]));
        assert!(next_record(&mut records).is_err());
        assert!(next_record(&mut &b"\x02\0\0\0h"[..]).is_err());
    }

    #[test]
    fn a_state_is_read_and_replaced_whole() {
        let folder = std::env::temp_dir().join(format!("nacre-reflect-join-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("state");
        assert_eq!(read_state(&path).unwrap(), None);
        replace(&path, b"world").unwrap();
        assert_eq!(read_state(&path).unwrap().as_deref(), Some(&b"world"[..]));
        let kept = |known: &'static [u8]| back_up(&path, &[None, Some(&Bytes::from_static(known))]).unwrap();
        assert_eq!(kept(b"world"), None);
        for number in 1..3 {
            let name = kept(b"other").unwrap();
            assert_eq!(name, folder.join(format!("state.~{number}~")));
            assert_eq!(std::fs::read(name).unwrap(), b"world");
        }
        assert_eq!(back_up(&folder.join("missing"), &[]).unwrap(), None);
        std::fs::write(&path, vec![0; STATE_BYTES_MAX + 1]).unwrap();
        assert!(read_state(&path).is_err());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
