//! The log of a program, on standard error.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

use crate::failure::Failure;

/// The format of a log.
#[derive(clap::ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// Lines for people.
    #[default]
    Text,
    /// JSON objects, one to a line.
    Json,
}

/// The names of the crates that log: Nacre's, and the one that loads programs into the kernel.
const TARGETS: &[&str] = &[
    "nacre",
    "nacre_class",
    "nacre_daemon",
    "nacre_lock",
    "nacre_logstore",
    "nacre_map",
    "nacre_meta",
    "nacre_planes",
    "nacre_rados",
    "nacre_reflect",
    "nacre_rpc",
    "nacre_status",
    "nacre_zlog",
    "aya",
];
/// The levels of a log, as words and as numbers.
const LEVELS: &[&str] = &["off", "error", "warn", "info", "debug", "trace", "0", "1", "2", "3", "4", "5"];

/// Sends the log to standard error, filtered as the user asked for; by default, from `info` on.
///
/// # Errors
/// [`Failure::Usage`] if the filter is wrong.
pub fn to_stderr(filter: Option<&str>, format: LogFormat) -> Result<(), Failure> {
    let text = filter.unwrap_or("info");
    let wrong = |why: String| {
        Failure::Usage(format!(
            "--log {text}: {why}; write a level (error, warn, info, debug, trace), or TARGET=LEVEL as in nacre_rpc=debug"
        ))
    };
    check_filter(text).map_err(wrong)?;
    let filter: EnvFilter = text.parse().map_err(|_| wrong("it is not a filter".to_owned()))?;
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match format {
        LogFormat::Text => log.with_ansi(std::io::stderr().is_terminal()).init(),
        LogFormat::Json => log.json().flatten_event(true).init(),
    }
    Ok(())
}

/// Checks that each part of a filter has a level, and a target that can log something. A word that is neither would be
/// taken for the name of a target, and so silence everything else.
fn check_filter(text: &str) -> Result<(), String> {
    for part in text.split(',').map(str::trim) {
        let (target, level) =
            part.rsplit_once('=').map_or((None, part), |(target, level)| (Some(target), level));
        if !LEVELS.iter().any(|known| known.eq_ignore_ascii_case(level.trim())) {
            return Err(format!("\"{level}\" is not a level"));
        }
        // A span may follow the target, in brackets.
        let target = target.map(|target| target.split('[').next().unwrap_or(target).trim());
        if let Some(target) = target.filter(|target| !target.is_empty())
            && !is_known(target)
        {
            let known = TARGETS.join(", ");
            return Err(format!(
                "nothing that is called \"{target}\" logs anything; the targets are {known}"
            ));
        }
    }
    Ok(())
}

/// Returns whether a target can log something. It stands for all whose names begin with it; the modules that may follow the name
/// of a crate are not checked.
fn is_known(target: &str) -> bool {
    match target.split_once("::") {
        Some((name, _)) => TARGETS.contains(&name),
        None => TARGETS.iter().any(|known| known.starts_with(target)),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// Returns whether a file, or one in a folder, calls one of tracing's macros.
    fn logs(path: &Path) -> bool {
        match std::fs::read_dir(path) {
            Ok(entries) => entries.into_iter().any(|entry| logs(&entry.unwrap().path())),
            Err(_) => {
                let text = std::fs::read_to_string(path).unwrap_or_default();
                ["error!", "warn!", "info!", "debug!", "trace!"]
                    .iter()
                    .any(|level| text.contains(&format!("tracing::{level}(")))
            }
        }
    }

    #[test]
    fn the_targets_are_the_crates_that_log() {
        let mut found = vec!["aya".to_owned()];
        for entry in Path::new(env!("CARGO_MANIFEST_DIR")).join("..").read_dir().unwrap() {
            let folder = entry.unwrap().path();
            if logs(&folder.join("src")) {
                // The program itself has the name of the library.
                let name =
                    format!("nacre_{}", folder.file_name().unwrap().to_str().unwrap().replace('-', "_"));
                found.push(name.replace("nacre_cli", "nacre").replace("nacre_client", "nacre"));
            }
        }
        found.sort();
        found.dedup();
        let mut targets = TARGETS.to_vec();
        targets.sort();
        assert_eq!(targets, found);
    }

    #[test]
    fn a_filter_has_levels_and_targets_that_exist() {
        for right in [
            "info",
            "WARN",
            "off",
            "nacre_rpc=debug",
            "warn,nacre_planes::plane=trace",
            "nacre[scan]=2",
            "[x]=1",
        ] {
            assert_eq!(check_filter(right), Ok(()), "{right}");
            assert!(right.parse::<EnvFilter>().is_ok(), "{right}");
        }
        for (wrong, part) in [
            ("inof", "\"inof\" is not a level"),
            ("", "\"\" is not a level"),
            ("info,", "\"\" is not a level"),
            ("nacre_rpc", "not a level"),
            ("nacre_rpc=loud", "\"loud\" is not a level"),
            ("narce_rpc=debug", "\"narce_rpc\""),
            ("nacre_rcp=debug", "\"nacre_rcp\""),
            ("nacre_rpcs=debug", "nacre_rpc, "),
            ("nacre_rcp::server=debug", "\"nacre_rcp::server\""),
        ] {
            let why = check_filter(wrong).unwrap_err();
            assert!(why.contains(part), "{wrong}: {why}");
        }
    }
}
