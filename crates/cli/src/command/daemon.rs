//! The common parts of the commands that run a daemon: its HTTP listener, its log, and its shutdown.

use std::ffi::OsString;

use nacre::ErrorKind;
use nacre_daemon::{Daemon, ServerOptions};
use nacre_quantity::Escaped;
use nacre_rpc::Address;
use nacre_shell::Signals;
use nacre_shell::log::LogFormat;
use sd_notify::NotifyState;
use serde_json::Value;

use crate::failure::Failure;

/// The settings that every daemon has.
#[derive(clap::Args, Clone, Debug, Default)]
// The group's name would be that of the commands' own settings.
#[group(skip)]
pub struct Settings {
    /// Serve /metrics, /healthz, a status page and the pages of roles over HTTP on this address, or "none" [default:
    /// 127.0.0.1:6471 (127.0.0.1:7480 for "nacre reflect serve") if it is free and --listen is not given, else none]
    #[arg(long, alias = "metrics", value_name = "ADDRESS")]
    pub http: Option<String>,
    /// Allow --http on an address that other machines can reach: anyone who can connect may read what is shown there
    #[arg(long)]
    pub http_open: bool,
    /// Answer HTTP requests for this host too, besides localhost and the address of --http; may be repeated
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub http_host: Vec<String>,
    /// Messages to log on standard error: error, warn, info, debug, trace, or a filter such as nacre_rpc=debug [default:
    /// info]
    #[arg(long, value_name = "LEVEL")]
    pub log: Option<String>,
    /// Format of log lines: for people, or one JSON object each
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t)]
    pub log_format: LogFormat,
}

impl Settings {
    /// Completes a daemon's options. `default` is the address for HTTP if none was given.
    pub fn apply(self, default: Option<&str>, options: &mut ServerOptions) {
        options.http_if_free = self.http.is_none();
        options.http = match self.http.as_deref() {
            None => default.map(str::to_owned),
            Some("none") => None,
            Some(address) => Some(address.to_owned()),
        };
        (options.http_open, options.http_hosts) = (self.http_open, self.http_host);
    }
}

/// Runs a daemon until a signal asks it to stop; another one, half a second later or more, ends it at once. `announce` is
/// called when it is up.
pub fn run(options: ServerOptions, announce: impl FnOnce(&Daemon)) -> Result<(), Failure> {
    super::block_on(async {
        // The signals are caught before the daemon is announced, so that it can be stopped in good order from that
        // moment on.
        let (mut stop, mut at_once) = (Signals::catch()?, Signals::catch()?);
        let end = async {
            at_once.next().await;
            at_once.next().await;
        };
        let announce = |daemon: &Daemon| {
            announce(daemon);
            notify(NotifyState::Ready);
        };
        let stop = async {
            stop.next().await;
            notify(NotifyState::Stopping);
        };
        tokio::select! {
            served = nacre_daemon::run(options, announce, stop) => served.map_err(|error| match error.kind {
                ErrorKind::Invalid => Failure::Usage(error.message),
                _ => error.into(),
            }),
            () = end => {
                tracing::warn!("ended at once, without finishing accepted requests");
                nacre_shell::signals::end()
            }
        }
    })
}

/// Notifies the service manager of the daemon's state, if there is one that expects it (sd_notify(3)).
fn notify(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(false, &[state]) {
        tracing::warn!("cannot notify the service manager: {error}");
    }
}

/// Sends the log to standard error.
pub fn log_to_stderr(settings: &Settings) -> Result<(), Failure> {
    nacre_shell::log::to_stderr(settings.log.as_deref(), settings.log_format)
}

/// Logs the failure of a daemon where its log is for programs, which could not read it otherwise.
pub fn logged(format: LogFormat, done: Result<(), Failure>) -> Result<(), Failure> {
    let (code, sentence) = match done {
        Err(Failure::Failed(sentence)) => (1, sentence),
        Err(Failure::Usage(sentence)) => (2, sentence),
        other => return other,
    };
    if format == LogFormat::Json && tracing::enabled!(tracing::Level::ERROR) {
        tracing::error!("{sentence}");
        return Err(Failure::Command { code, sentence: None });
    }
    // A log that leaves out errors does not hide why the daemon is not there.
    Err(if code == 2 { Failure::Usage(sentence) } else { Failure::Failed(sentence) })
}

/// Returns an address in the form in which clients name it.
pub fn uri(address: &Address) -> OsString {
    match address {
        Address::Tcp(address) => format!("nacre://{address}").into(),
        Address::Unix(_) => address.to_os_string(),
    }
}

/// Returns the form in which clients name an address as JSON: as it is, or, where it is not UTF-8, as it is printed.
pub fn uri_json(address: &Address) -> Value {
    uri(address).into_string().unwrap_or_else(|uri| Escaped::of(&uri).to_string()).into()
}
