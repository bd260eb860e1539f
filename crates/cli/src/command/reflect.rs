//! `nacre reflect`: groups of datagrams. The commands of members and operators have a file each; the reflector itself is a
//! daemon with the single role `reflect`, whose settings are [`Settings`].

mod admin_client;
mod expel;
mod groups;
mod http_client;
mod join;
mod locate;
mod member;
mod print;
mod send;
mod settings;
mod store;
mod target;
mod token;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use nacre_daemon::{Daemon, ServerOptions};
use nacre_quantity::Escaped;
use nacre_rpc::Address;
use serde_json::{Value, json};
pub use settings::{ACCUMULATED, HTTP_DEFAULT, Settings};

use super::daemon;
use crate::arguments;
use crate::failure::Failure;
use crate::output;

/// Reflect datagrams: copy what one member of a group sends to all others
#[derive(clap::Subcommand, Debug)]
pub enum Command {
    Serve(Box<Args>),
    Join(join::Args),
    Send(send::Args),
    Groups(groups::Args),
    Token(token::Args),
    TokenKey(token::KeyArgs),
    Kick(expel::KickArgs),
    Ban(expel::BanArgs),
    Move(locate::Args),
}

const AFTER_HELP: &str = "\
Members join with \"nacre reflect join GROUP@ADDRESS\". On SIGTERM, SIGHUP or Ctrl-C, the \
reflector tells its members, stores what must be stored, and ends; a second signal, half a second later or more, ends it at \
once. The kernel planes need root, or the capabilities CAP_BPF, CAP_NET_ADMIN and CAP_NET_RAW; without them, --plane auto \
falls back to user space, and says so.";

/// Run a reflector, until Ctrl-C or SIGTERM
///
/// Equivalent to "nacre serve --roles reflect", with a reflector's flags. When members can join, prints a line with its
/// addresses and plane (with --json, as JSON). Group states and the map of locations are kept in memory, or in the
/// store that --store names, which several reflectors may share. Every flag can also be set in nacre.toml by its name,
/// in the table [reflect]; the command line takes precedence.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// Read the settings from this file, which only its owner and group may be able to change [default: nacre.toml, if
    /// it exists; it must be yours or root's, and nobody else may be able to change it]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    settings: Settings,
    /// Listen for administrative commands, such as "nacre reflect move", on this address: unix:PATH, HOST:PORT
    /// (requires --key), or "none" [default: reflect.sock in the folder of the user's sockets if --listen is not given,
    /// else none]
    #[arg(long, value_name = "ADDRESS")]
    admin: Option<OsString>,
    #[command(flatten)]
    daemon: daemon::Settings,
}

/// Runs `nacre reflect`. The environment does not choose its store: a reflector keeps states only if it is told where.
pub fn run(common: &arguments::Common, command: Command) -> Result<(), Failure> {
    let mut complain = |line: &str| output::complain(&format!("nacre: {line}"));
    match command {
        Command::Serve(args) => serve(common, *args),
        Command::Join(args) => join::run(args, common, &mut complain),
        Command::Send(args) => send::run(args),
        Command::Groups(args) => groups::run(args, common),
        Command::Token(args) => token::run(args, common),
        Command::TokenKey(args) => token::run_key(args, common),
        Command::Kick(args) => expel::kick(args, common),
        Command::Ban(args) => expel::ban(args, common),
        Command::Move(args) => locate::run(args, common),
    }
}

fn serve(common: &arguments::Common, args: Args) -> Result<(), Failure> {
    daemon::log_to_stderr(&args.daemon)?;
    let format = args.daemon.log_format;
    daemon::logged(format, serve_logged(common, args))
}

fn serve_logged(common: &arguments::Common, args: Args) -> Result<(), Failure> {
    let Args { mut settings, admin, daemon, .. } = args;
    (settings.store, settings.key) = (common.store.clone(), common.key.clone());
    let is_default = settings.listen.is_empty();
    let reflect = settings.options()?;
    let mut options =
        ServerOptions { store: None, reflect: Some(reflect), key: common.key.clone(), ..Default::default() };
    let unix = |path: PathBuf| Address::Unix(path).to_os_string();
    options.listen_if_possible = admin.is_none();
    options.listen = vec![match admin {
        Some(address)
            if common.key.is_none() && address != "none" && !address.as_bytes().starts_with(b"unix:") =>
        {
            let text = format!(
                "--admin {}: anybody who reaches it could move locations; give the operator's key \
                 with --key FILE, or name a Unix socket",
                Escaped::of(&address)
            );
            return Err(Failure::Usage(text));
        }
        Some(address) => address,
        // A reflector on an address of its own must not collide with the one on the default address.
        None if !is_default => "none".into(),
        None => admin_client::own_socket_for_server().map(unix).unwrap_or_else(|error| {
            tracing::warn!("{error}; this reflector accepts no administrative commands; give an address for them with --admin");
            "none".into()
        }),
    }];
    daemon.apply(is_default.then_some(HTTP_DEFAULT), &mut options);
    let json = common.json;
    // A reflector goes on, even if nothing reads its output.
    daemon::run(options, |daemon| drop(announce(json, daemon)))
}

/// Prints the addresses and the plane.
fn announce(json: bool, daemon: &Daemon) -> std::io::Result<()> {
    let Some(reflector) = daemon.reflector() else { return Ok(()) };
    let http = daemon.http_address().map(|address| format!("http://{address}"));
    tracing::info!(plane = %reflector.plane(), why = reflector.plane_reason(), "copying");
    let line = match json {
        true => {
            let mut said = reflecting(daemon);
            said["ready"] = true.into();
            said["pid"] = std::process::id().into();
            said["http"] = http.into();
            said["admin"] = daemon.addresses().first().map(daemon::uri_json).into();
            said.to_string()
        }
        false => {
            let shown: Vec<String> = reflector.addresses().iter().map(SocketAddr::to_string).collect();
            let more = if shown.len() > 8 { format!(" and {} more", shown.len() - 8) } else { String::new() };
            let http = http.map_or_else(String::new, |http| format!("; pages at {http}"));
            format!(
                "reflecting on {}{more}, by the {} plane ({}){http}",
                shown[..shown.len().min(8)].join(", "),
                reflector.plane(),
                reflector.plane_reason(),
            )
        }
    };
    output::line(&line)?;
    output::flush()
}

/// Returns the addresses and the plane of a daemon's reflector, as JSON; null if it has none.
pub fn reflecting(daemon: &Daemon) -> Value {
    let about = |reflector: &nacre_daemon::reflect::Server| {
        json!({
            "addresses": reflector.addresses(),
            "plane": reflector.plane().name(),
            "plane_reason": reflector.plane_reason(),
        })
    };
    daemon.reflector().map_or(Value::Null, about)
}
