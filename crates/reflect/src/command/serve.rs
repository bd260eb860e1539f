//! `nacre reflect serve`: a reflector.

use std::io::IsTerminal;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

use nacre_rpc::ClusterKey;
use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tracing_subscriber::EnvFilter;

use super::settings::{PlaneChoice, Settings};
use super::store::open_store;
use super::{CommandError, Common, print};
use crate::control::{ControlOptions, StateOptions};
use crate::forward::{ForwardError, ForwardOptions};
use crate::plane::PlaneOptions;
use crate::rate::Rate;
use crate::server::{Server, ServerError, ServerOptions};

const AFTER_HELP: &str = "\
Members join with \"nacre reflect join GROUP@ADDRESS\". SIGTERM and Ctrl-C tell the members, store what is to be stored, and \
end. The kernel planes need root, or the capabilities CAP_BPF, CAP_NET_ADMIN and CAP_NET_RAW; with --plane auto the \
reflector goes on in user space without them, and says so.";

/// Run a reflector, until Ctrl-C or SIGTERM
///
/// Says in one line where it listens and by which plane it copies, when members can join (with --json, as JSON). States of
/// groups and the map of locations are kept in memory, or in the store that --store names, which several reflectors may
/// share. Every flag may stand in nacre.toml under [reflect] by its name; what is said on the command line wins.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// Read the settings from this file [default: nacre.toml, if there is one]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    settings: Settings,
}

/// How often a member is asked for its group's state, unless said otherwise.
const STATE_EVERY: Duration = Duration::from_secs(30);
/// How often the end of the data thread is looked for.
const LOOK: Duration = Duration::from_millis(200);

/// Runs it.
pub fn run(args: Args, common: Common) -> Result<(), CommandError> {
    let mut settings = args.settings;
    (settings.store, settings.key) = (common.store.clone(), common.key.clone());
    let settings = settings.or(Settings::read(args.config.as_deref())?);
    settings.check()?;
    log_to_stderr(settings.log.as_deref().unwrap_or("info"))?;
    let options = options(&settings)?;
    // The signals are caught before anybody is told that it is up.
    let mut signals = Signals::new([SIGTERM, SIGINT]).map_err(CommandError::io("catch signals"))?;
    let server = Server::start(options).map_err(failure)?;
    announce(&server, common.json)?;
    tracing::info!(plane = %server.plane(), why = server.plane_reason(), "copying");
    let (sender, signalled) = mpsc::channel();
    // It ends with the program.
    std::thread::spawn(move || signals.forever().try_for_each(|_| sender.send(())));
    while server.is_running() && signalled.recv_timeout(LOOK) == Err(mpsc::RecvTimeoutError::Timeout) {}
    tracing::info!("stopping: members are told");
    server.stop().map_err(failure)?;
    tracing::info!("stopped");
    Ok(())
}

fn failure(error: ServerError) -> CommandError {
    match &error {
        ServerError::Forward(ForwardError::Listen { .. }) | ServerError::Http { .. } => {
            CommandError::Failed(format!("{error}; choose another address"))
        }
        _ => CommandError::Failed(error.to_string()),
    }
}

/// The settings as the server understands them.
fn options(settings: &Settings) -> Result<ServerOptions, CommandError> {
    let shared = settings.shared();
    let heartbeat_ms = settings.heartbeat.map_or(2000, |time| time.0.as_millis() as u32);
    let expiry_ms = settings.expiry.map_or(heartbeat_ms.saturating_mul(4), |time| time.0.as_millis() as u32);
    let key = settings.key.as_deref().map(ClusterKey::load).transpose();
    let key = key.map_err(|error| CommandError::Failed(error.message))?;
    let joins = u64::from(settings.joins_per_second.unwrap_or(50));
    let state_every = settings.state_every.map_or(STATE_EVERY, |time| time.0);
    let http = settings.http().map(http_address).transpose()?;
    Ok(ServerOptions {
        ports: settings.ports().into_iter().collect(),
        ids: settings.ids.unwrap_or(1024),
        group: settings.default_group(),
        groups: settings.named_groups(&shared),
        plane: match settings.plane {
            None | Some(PlaneChoice::Auto) => None,
            Some(PlaneChoice::Only(kind)) => Some(kind),
        },
        plane_options: PlaneOptions { devices: settings.device.clone(), ..PlaneOptions::default() },
        forward: ForwardOptions {
            backlog_bytes: settings
                .backlog_bytes
                .map_or(ForwardOptions::default().backlog_bytes, |size| size.0 as usize),
            ..ForwardOptions::default()
        },
        control: ControlOptions {
            heartbeat_ms,
            expiry_ms,
            joins_per_source: Rate::per_second(joins, joins.saturating_mul(4)),
            privileged: settings.allow_privileged,
            advertised: settings.advertise.clone(),
            ..ControlOptions::default()
        },
        key,
        loopback: settings.allow_loopback,
        http,
        state: (state_every > Duration::ZERO)
            .then(|| StateOptions { every_ms: state_every.as_millis() as u64, ..StateOptions::default() }),
        standbys: settings.standby.clone(),
        store: settings.store.as_deref().map(|uri| open_store(uri, settings.key.as_deref())).transpose()?,
        shared,
    })
}

fn http_address(text: &str) -> Result<SocketAddr, CommandError> {
    let wrong = |why: String| CommandError::Usage(format!("--http {text}: {why}"));
    let mut addresses = text.to_socket_addrs().map_err(|error| wrong(error.to_string()))?;
    addresses.next().ok_or_else(|| wrong("it has no address".to_owned()))
}

/// Says where it listens. A reflector goes on, even if nobody reads that.
fn announce(server: &Server, json: bool) -> Result<(), CommandError> {
    let http = server.http().map(|address| format!("http://{address}"));
    let said = match json {
        true => print::line(
            &json!({
                "ready": true,
                "pid": std::process::id(),
                "addresses": server.addresses(),
                "plane": server.plane().name(),
                "plane_reason": server.plane_reason(),
                "http": http,
            })
            .to_string(),
        ),
        false => {
            let shown: Vec<String> = server.addresses().iter().map(SocketAddr::to_string).collect();
            let more = if shown.len() > 8 { format!(" and {} more", shown.len() - 8) } else { String::new() };
            let http = http.map_or_else(String::new, |http| format!("; administration at {http}"));
            print::line(&format!(
                "reflecting on {}{more}, by the {} plane ({}){http}",
                shown[..shown.len().min(8)].join(", "),
                server.plane(),
                server.plane_reason(),
            ))
        }
    };
    match said {
        Err(CommandError::Unread) => Ok(()),
        said => said,
    }
}

fn log_to_stderr(filter: &str) -> Result<(), CommandError> {
    let filter: EnvFilter = filter.parse().map_err(|error| {
        CommandError::Usage(format!(
            "\"{filter}\" says nothing about what to log: {error}; write --log info, for example"
        ))
    })?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .init();
    Ok(())
}
