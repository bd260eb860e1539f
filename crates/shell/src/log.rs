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

/// The beginnings of the names of what logs: Nacre's crates, and the one that loads programs into the kernel.
const TARGETS: &[&str] = &["nacre", "aya"];
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
    let filter: EnvFilter = text.parse().map_err(|error| wrong(format!("{error}")))?;
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
            && !TARGETS.iter().any(|known| target.starts_with(known))
        {
            return Err(format!("nothing that is called \"{target}\" logs anything"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

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
        ] {
            let why = check_filter(wrong).unwrap_err();
            assert!(why.contains(part), "{wrong}: {why}");
        }
    }
}
